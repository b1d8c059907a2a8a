//! The table as a picture: one panel a round trip, in it three bars for each scenario, seconds on a
//! logarithmic scale. SVG by hand; there is little of it.

use std::fmt::Write;

use crate::Row;

/// Lengths in pixels.
const LEFT: f64 = 62.0;
const TOP: f64 = 64.0;
const PANEL: f64 = 168.0;
/// Between two panels, with the title of the lower one.
const SPACE: f64 = 34.0;
const GROUP: f64 = 120.0;
const BAR: f64 = 28.0;
const BOTTOM: f64 = 52.0;

const FLOOR: &str = "#b7bec8";
const INSTALL: &str = "#1f6fb2";
const BASELINE: &str = "#dd8a3e";
const TEXT: &str = "#333";

/// Draws all rows that are about a network.
pub(crate) fn svg(rows: &[Row]) -> String {
    let mut scenarios: Vec<&str> = rows.iter().map(|row| row.scenario).collect();
    scenarios.dedup();
    let mut round_trips: Vec<u64> = rows.iter().filter_map(|row| row.round_trip).collect();
    round_trips.sort_unstable();
    round_trips.dedup();
    let scale = Scale::of(rows);

    let width = LEFT + GROUP * scenarios.len() as f64 + 16.0;
    let height = TOP + (PANEL + SPACE) * round_trips.len() as f64 + BOTTOM;
    let mut out = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' \
         height='{height}' font-family='sans-serif' font-size='11' fill='{TEXT}'>\n\
         <rect width='100%' height='100%' fill='white'/>\n"
    );
    text(
        &mut out,
        (LEFT, 20.0),
        "start",
        "font-size='14' font-weight='bold'",
        "Time of an install at 20 MiB/s",
    );
    let mut x = LEFT;
    for (color, dashed, name) in [
        (FLOOR, false, "plain download of the same bytes"),
        (INSTALL, false, "reflash (in times of the plain download)"),
        (BASELINE, false, "one block a request"),
        (BASELINE, true, "the same, estimated"),
    ] {
        bar(&mut out, [x, 32.0, 12.0, 12.0], color, dashed);
        text(&mut out, (x + 17.0, 42.0), "start", "", name);
        x += 40.0 + 5.6 * name.len() as f64;
    }

    for (panel, round_trip) in round_trips.iter().enumerate() {
        let top = TOP + SPACE + (PANEL + SPACE) * panel as f64;
        let bottom = top + PANEL;
        let title = format!("round trip {round_trip} ms");
        text(
            &mut out,
            (LEFT, top - 10.0),
            "start",
            "font-weight='bold'",
            &title,
        );
        for tick in scale.ticks() {
            let y = bottom - PANEL * scale.share(tick);
            writeln!(
                out,
                "<line x1='{LEFT}' x2='{:.1}' y1='{y:.1}' y2='{y:.1}' stroke='#e4e4e4'/>",
                width - 16.0
            )
            .ok();
            text(
                &mut out,
                (LEFT - 6.0, y + 4.0),
                "end",
                "",
                &tick.to_string(),
            );
        }
        let middle = top + PANEL / 2.0;
        let turned = format!("transform='rotate(-90 16 {middle})'");
        text(&mut out, (16.0, middle), "middle", &turned, "seconds (log)");
        for row in rows
            .iter()
            .filter(|row| row.round_trip == Some(*round_trip))
        {
            let Some(group) = scenarios.iter().position(|name| *name == row.scenario) else {
                continue;
            };
            let x = LEFT + GROUP * group as f64 + (GROUP - 3.0 * BAR) / 2.0;
            let estimate = row.baseline.is_some_and(|baseline| !baseline.measured);
            let ratio = row
                .ratio()
                .map_or(String::new(), |ratio| format!("{ratio:.2}×"));
            let bars = [
                (
                    row.floor.as_ref().map(|f| f.seconds),
                    FLOOR,
                    false,
                    String::new(),
                ),
                (Some(row.install.seconds), INSTALL, false, ratio),
                (
                    row.baseline.map(|b| b.seconds),
                    BASELINE,
                    estimate,
                    String::new(),
                ),
            ];
            for (number, (value, color, dashed, label)) in bars.into_iter().enumerate() {
                let Some(value) = value else { continue };
                let x = x + BAR * number as f64;
                let size = PANEL * scale.share(value);
                bar(
                    &mut out,
                    [x + 1.0, bottom - size, BAR - 2.0, size],
                    color,
                    dashed,
                );
                let label = if label.is_empty() {
                    short(value)
                } else {
                    label
                };
                let at = (x + BAR / 2.0, bottom - size - 3.0);
                text(&mut out, at, "middle", "font-size='9'", &label);
            }
        }
        writeln!(
            out,
            "<line x1='{LEFT}' x2='{:.1}' y1='{bottom}' y2='{bottom}' stroke='{TEXT}'/>",
            width - 16.0
        )
        .ok();
    }

    let foot = height - BOTTOM;
    for (group, name) in scenarios.iter().enumerate() {
        let x = LEFT + GROUP * (group as f64 + 0.5);
        text(&mut out, (x, foot + 16.0), "middle", "", name);
    }
    let middle = LEFT + GROUP * scenarios.len() as f64 / 2.0;
    text(
        &mut out,
        (middle, foot + 38.0),
        "middle",
        "",
        "scenario: which blocks are missing",
    );
    out.push_str("</svg>\n");
    out
}

/// Whole decades around all values.
struct Scale {
    least: f64,
    most: f64,
}

impl Scale {
    fn of(rows: &[Row]) -> Self {
        let network = rows.iter().filter(|row| row.round_trip.is_some());
        let values: Vec<f64> = network
            .flat_map(|row| {
                let baseline = row.baseline.map(|baseline| baseline.seconds);
                [
                    row.floor.as_ref().map(|f| f.seconds),
                    Some(row.install.seconds),
                    baseline,
                ]
            })
            .flatten()
            .collect();
        let least = values.iter().copied().fold(1.0, f64::min);
        let most = values.iter().copied().fold(1.0, f64::max);
        Self {
            least: least.log10().floor(),
            // Room for a number above the longest bar.
            most: (1.3 * most).log10().ceil(),
        }
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let (mut exponent, most) = (self.least, self.most);
        std::iter::from_fn(move || {
            let tick = (exponent <= most).then(|| 10f64.powf(exponent));
            exponent += 1.0;
            tick
        })
    }

    /// How far up, 0 to 1.
    fn share(&self, value: f64) -> f64 {
        ((value.log10() - self.least) / (self.most - self.least)).max(0.0)
    }
}

fn short(value: f64) -> String {
    match value {
        ..0.1 => format!("{value:.3}"),
        0.1..10.0 => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    }
}

fn bar(out: &mut String, [x, y, width, height]: [f64; 4], color: &str, dashed: bool) {
    let look = if dashed {
        format!("fill='white' stroke='{color}' stroke-dasharray='3 2'")
    } else {
        format!("fill='{color}'")
    };
    let place = format!("x='{x:.1}' y='{y:.1}' width='{width:.1}' height='{height:.1}'");
    writeln!(out, "<rect {place} {look}/>").ok();
}

fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, look: &str, text: &str) {
    let place = format!("x='{x:.1}' y='{y:.1}' text-anchor='{anchor}'");
    writeln!(out, "<text {place} {look}>{text}</text>").ok();
}
