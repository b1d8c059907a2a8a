//! An estimate as a picture: for each update, one bar a chunking, as long as its download, and above
//! them that of the full one, all of one scale.
//!
//! SVG by hand; there is little of it.

use super::{Cost, Estimate};
use crate::terminal::size;

/// Lengths in pixels.
const LEFT: f64 = 108.0;
const WIDTH: f64 = 420.0;
const RIGHT: f64 = 210.0;
const BAR: f64 = 18.0;
const SPACE: f64 = 7.0;
const HEAD: f64 = 44.0;
const FOOT: f64 = 26.0;

const FULL: &str = "#b7bec8";
const DELTA: &str = "#1f6fb2";
const TEXT: &str = "#333";

/// Draws an estimate.
pub(super) fn svg(estimate: &Estimate) -> String {
    let rows: usize = estimate.updates.iter().map(|u| u.chunkings.len() + 1).sum();
    let heads = estimate.updates.len() as f64;
    let height = HEAD * heads + (BAR + SPACE) * rows as f64 + FOOT;
    let width = LEFT + WIDTH + RIGHT;
    let mut out = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' \
         height='{height}' font-family='sans-serif' font-size='12' fill='{TEXT}'>\n\
         <rect width='100%' height='100%' fill='white'/>\n"
    );
    let longest = estimate
        .updates
        .iter()
        .flat_map(|u| {
            u.chunkings
                .iter()
                .map(|c| c.cost.bytes)
                .chain([u.full.bytes])
        })
        .max()
        .unwrap_or(0)
        .max(1);
    let mut y = 0.0;
    for update in &estimate.updates {
        let title = update.title(estimate);
        text(&mut out, (8.0, y + 26.0), "font-weight='bold'", &title);
        y += HEAD;
        let mut row = |name: &str, color: &str, cost: &Cost| {
            text(&mut out, (8.0, y + BAR - 5.0), "", name);
            let length = (WIDTH * cost.bytes as f64 / longest as f64).max(1.0);
            out += &format!(
                "<rect x='{LEFT}' y='{y}' width='{length:.1}' height='{BAR}' fill='{color}'/>\n"
            );
            let s = if cost.requests == 1 { "" } else { "s" };
            let mut label = format!("{}, {} request{s}", size(cost.bytes), cost.requests);
            if let Some(seconds) = cost.seconds {
                label += &format!(", {seconds:.1} s");
            }
            text(&mut out, (LEFT + length + 6.0, y + BAR - 5.0), "", &label);
            y += BAR + SPACE;
        };
        row("full download", FULL, &update.full);
        for chunking in &update.chunkings {
            row(chunking.name(), DELTA, &chunking.cost);
        }
    }
    let rate = estimate.bytes_per_second.map_or("-".to_owned(), size);
    let link = format!(
        "bytes to download; seconds at {rate}/s and {:.0} ms round trip, {} connections",
        estimate.round_trip * 1000.0,
        estimate.workers
    );
    text(&mut out, (8.0, y + 14.0), "font-size='10'", &link);
    out += "</svg>\n";
    out
}

fn text(out: &mut String, (x, y): (f64, f64), style: &str, text: &str) {
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    *out += &format!("<text x='{x:.1}' y='{y:.1}' {style}>{text}</text>\n");
}
