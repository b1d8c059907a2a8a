//! Progress for people: what stands on a line, and what of it fits. Pure.
//!
//! A bar takes the parts that fit into the terminal's columns, the most important first, and never
//! the last column, at which some terminals break the line. There is no colour, and no character
//! that a serial console or a font of an early boot may lack. A line in a log has all parts.
//!
//! ```text
//!  42 % install [========>          ] 3.1 MiB/s 12.0 MiB fetched 30.2 MiB reused 0:32 left
//!  42 % install 0:32
//! ```

use std::collections::VecDeque;
use std::time::Duration;

/// Span of time over which a rate is taken: long enough to be steady, short enough to show that a
/// link died.
const RATE_WINDOW: Duration = Duration::from_secs(5);

/// Pause between two samples of it.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Narrowest and widest bar, in columns, its brackets included.
const MIN_BAR: usize = 10;
const MAX_BAR: usize = 42;

/// A time that is left is only told when there is something to tell it by.
const MIN_ELAPSED: Duration = Duration::from_secs(2);
const MIN_DONE: f64 = 0.01;

/// Where a run is, as people see it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    /// Of the whole run.
    pub percent: f64,
    /// The name of the phase.
    pub phase: &'static str,
    /// What is told of blocks, once there are any to tell of.
    pub blocks: Option<Blocks>,
    /// Tries that were made again.
    pub retries: u64,
}

/// What is told of blocks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Blocks {
    /// Blocks made, and all.
    pub done: u64,
    /// All that are known of so far.
    pub total: u64,
    /// Bytes received.
    pub fetched: u64,
    /// Bytes to receive.
    pub to_fetch: u64,
    /// Plain bytes that were there already.
    pub reused: u64,
    /// Bytes received a second, of late.
    pub rate: u64,
    /// Time left, if it can be told.
    pub left: Option<Duration>,
}

/// The text of a bar in a terminal of so many columns.
pub(crate) fn bar(seen: &Seen, columns: usize) -> String {
    let columns = columns.saturating_sub(1);
    let percent = format!("{:3.0} %", seen.percent);
    let mut room = columns.saturating_sub(percent.len());
    // Takes a part if there is room for it and a blank.
    let mut take = |part: String| {
        let fits = part.len() < room;
        if fits {
            room -= part.len() + 1;
        }
        fits.then_some(part)
    };
    let phase = take(seen.phase.to_owned());
    let (mut left, mut rate, mut fetched, mut reused) = (None, None, None, None);
    let mut has_bar = false;
    if let Some(blocks) = &seen.blocks {
        if let Some(time) = blocks.left {
            left = take(format!("{} left", clock(time))).or_else(|| take(clock(time)));
        }
        rate = take(format!("{}/s", size(blocks.rate)));
        has_bar = take("=".repeat(MIN_BAR)).is_some();
        fetched = take(format!("{} fetched", size(blocks.fetched)));
        reused = (blocks.reused > 0)
            .then(|| take(format!("{} reused", size(blocks.reused))))
            .flatten();
    }
    let retries = (seen.retries > 0)
        .then(|| take(format!("{} retries", seen.retries)))
        .flatten();
    let drawn = has_bar.then(|| draw(seen.percent, (MIN_BAR + room).min(MAX_BAR)));
    let parts = [phase, drawn, rate, fetched, reused, retries, left];
    let mut text = percent;
    for part in parts.into_iter().flatten() {
        text.push(' ');
        text += &part;
    }
    // Where not even the percentage fits.
    text.truncate(columns);
    text
}

/// Where a tool is, as people see it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Task {
    /// Of the whole work.
    pub percent: f64,
    /// What it is at.
    pub phase: &'static str,
    /// Bytes of that which are done, and all of them.
    pub done: u64,
    /// All of them.
    pub total: u64,
    /// Bytes done a second, of late.
    pub rate: u64,
    /// Time left, if it can be told.
    pub left: Option<Duration>,
}

/// The text of a tool's bar in a terminal of so many columns.
pub(crate) fn task_bar(task: &Task, columns: usize) -> String {
    let percent = format!("{:3.0} %", task.percent);
    let columns = columns.saturating_sub(1);
    let left = task.left.map(|time| format!("{} left", clock(time)));
    let rate = (task.rate > 0).then(|| format!("{}/s", size(task.rate)));
    let of = format!("{} of {}", size(task.done), size(task.total));
    let mut text = format!("{percent} {}", task.phase);
    let behind = [left, rate, Some(of)].into_iter().flatten();
    let behind: Vec<String> = behind
        .scan(text.len() + MIN_BAR + 1, |taken, part| {
            *taken += part.len() + 1;
            Some((*taken <= columns).then_some(part))
        })
        .flatten()
        .collect();
    let taken: usize = text.len() + behind.iter().map(|part| part.len() + 1).sum::<usize>();
    let room = columns.saturating_sub(taken + 1);
    if room >= MIN_BAR {
        text = format!("{text} {}", draw(task.percent, room.min(MAX_BAR)));
    }
    for part in behind.iter().rev() {
        text.push(' ');
        text += part;
    }
    text.truncate(columns);
    text
}

/// A whole line of a tool, for a log or a serial console.
pub(crate) fn task_line(task: &Task) -> String {
    let (done, total) = (size(task.done), size(task.total));
    let mut line = format!("{:3.0} % {}: {done} of {total}", task.percent, task.phase);
    if task.rate > 0 {
        line += &format!(", {}/s", size(task.rate));
    }
    if let Some(left) = task.left {
        line += &format!(", {} left", clock(left));
    }
    line
}

/// The bar itself, so many columns wide.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn draw(percent: f64, columns: usize) -> String {
    let inner = columns.saturating_sub(2);
    let done = ((percent / 100.0 * inner as f64) as usize).min(inner);
    let head = if done < inner { ">" } else { "" };
    let rest = " ".repeat(inner - done - head.len());
    format!("[{}{head}{rest}]", "=".repeat(done))
}

/// A whole line, for a log or a serial console.
pub(crate) fn line(seen: &Seen) -> String {
    let mut line = format!("{:3.0} % {}", seen.percent, seen.phase);
    if let Some(blocks) = &seen.blocks {
        line += &format!(
            ": {} of {} blocks, {} of {} fetched, {}/s",
            blocks.done,
            blocks.total,
            size(blocks.fetched),
            size(blocks.to_fetch.max(blocks.fetched)),
            size(blocks.rate)
        );
        if blocks.reused > 0 {
            line += &format!(", {} reused", size(blocks.reused));
        }
        if let Some(left) = blocks.left {
            line += &format!(", {} left", clock(left));
        }
    }
    if seen.retries > 0 {
        line += &format!(", {} retries", seen.retries);
    }
    line
}

/// The time left of something of which a fraction took so long; `None` while that says nothing yet.
pub(crate) fn left(elapsed: Duration, done: f64) -> Option<Duration> {
    let tellable = elapsed >= MIN_ELAPSED && (MIN_DONE..=1.0).contains(&done);
    let factor = tellable.then(|| (1.0 - done) / done)?;
    Duration::try_from_secs_f64(elapsed.as_secs_f64() * factor).ok()
}

/// A duration as on a clock: `0:07`, `12:34`, `3:00:00`.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

/// How fast a count grows, of late.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rate {
    /// Times and counts, the oldest first.
    samples: VecDeque<(Duration, u64)>,
}

impl Rate {
    /// The rate a second, at a time and with a count that are later and higher each time.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(crate) fn at(&mut self, now: Duration, count: u64) -> u64 {
        let due = |(at, _): &(Duration, u64)| now.saturating_sub(*at) >= SAMPLE_INTERVAL;
        if self.samples.back().is_none_or(due) {
            self.samples.push_back((now, count));
        }
        // One that is as old as the window is kept, to reckon from.
        while self.samples.len() > 2
            && self
                .samples
                .get(1)
                .is_some_and(|(at, _)| now.saturating_sub(*at) >= RATE_WINDOW)
        {
            self.samples.pop_front();
        }
        let Some((at, before)) = self.samples.front() else {
            return 0;
        };
        let elapsed = now.saturating_sub(*at).as_secs_f64();
        if elapsed < SAMPLE_INTERVAL.as_secs_f64() {
            return 0;
        }
        (count.saturating_sub(*before) as f64 / elapsed) as u64
    }
}

/// A number of bytes for people.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS.get(unit).unwrap_or(&"?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> Seen {
        Seen {
            percent: 42.0,
            phase: "install",
            blocks: Some(Blocks {
                done: 420,
                total: 1000,
                fetched: 12_582_912,
                to_fetch: 30_000_000,
                reused: 31_000_000,
                rate: 3_250_585,
                left: Some(Duration::from_secs(32)),
            }),
            retries: 2,
        }
    }

    #[test]
    fn a_bar_has_what_fits() {
        for (columns, expected) in [
            (0, ""),
            (4, " 42"),
            (10, " 42 %"),
            (20, " 42 % install 0:32"),
            (24, " 42 % install 0:32 left"),
            (40, " 42 % install 3.1 MiB/s 0:32 left"),
            (
                60,
                " 42 % install [=====>       ] 3.1 MiB/s 2 retries 0:32 left",
            ),
            (
                100,
                " 42 % install [========>           ] 3.1 MiB/s 12.0 MiB fetched 29.6 MiB reused 2 retries 0:32 left",
            ),
        ] {
            assert_eq!(bar(&seen(), columns), expected, "{columns}");
        }
        let early = Seen {
            percent: 0.0,
            phase: "open",
            blocks: None,
            retries: 0,
        };
        assert_eq!(bar(&early, 80), "  0 % open");
    }

    /// Whatever the numbers are, it fits, begins with the percentage, and is plain ASCII.
    #[test]
    fn a_bar_always_fits() {
        for columns in 0..200 {
            for percent in [0.0, 9.4, 99.0, 100.0] {
                for bytes in [0, 1023, 5 << 20, u64::MAX] {
                    let mut seen = seen();
                    seen.percent = percent;
                    let blocks = seen.blocks.as_mut().expect("some");
                    (blocks.fetched, blocks.reused, blocks.rate) = (bytes, bytes, bytes);
                    blocks.left = Some(Duration::from_secs(bytes >> 20));
                    let text = bar(&seen, columns);
                    assert!(text.len() < columns.max(1), "{columns}: {text}");
                    assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
                    let start = format!("{percent:3.0} %");
                    assert!(start.starts_with(&text) || text.starts_with(&start));
                }
            }
        }
    }

    #[test]
    fn a_tools_bar_has_what_fits() {
        let task = Task {
            percent: 42.4,
            phase: "compress",
            done: 12_582_912,
            total: 67_108_864,
            rate: 3_250_585,
            left: Some(Duration::from_secs(32)),
        };
        for (columns, expected) in [
            (0, ""),
            (4, " 42"),
            (20, " 42 % compress"),
            (30, " 42 % compress [=====>      ]"),
            (40, " 42 % compress [=====>      ] 0:32 left"),
            (
                80,
                " 42 % compress [========>            ] 12.0 MiB of 64.0 MiB 3.1 MiB/s 0:32 left",
            ),
        ] {
            assert_eq!(task_bar(&task, columns), expected, "{columns}");
        }
        assert_eq!(
            task_line(&task),
            " 42 % compress: 12.0 MiB of 64.0 MiB, 3.1 MiB/s, 0:32 left"
        );
        for columns in 0..120 {
            for left in [None, task.left] {
                let text = task_bar(
                    &Task {
                        left,
                        ..task.clone()
                    },
                    columns,
                );
                assert!(text.len() < columns.max(1), "{columns}: {text}");
            }
        }
    }

    #[test]
    fn a_line_has_everything() {
        assert_eq!(
            line(&seen()),
            " 42 % install: 420 of 1000 blocks, 12.0 MiB of 28.6 MiB fetched, 3.1 MiB/s, \
             29.6 MiB reused, 0:32 left, 2 retries"
        );
    }

    #[test]
    fn time_left_is_told_when_it_can_be() {
        let seconds = Duration::from_secs;
        assert_eq!(left(seconds(1), 0.5), None);
        assert_eq!(left(seconds(60), 0.001), None);
        assert_eq!(left(seconds(30), 0.25), Some(seconds(90)));
        assert_eq!(left(seconds(30), 1.0), Some(seconds(0)));
        assert_eq!(clock(seconds(7)), "0:07");
        assert_eq!(clock(seconds(754)), "12:34");
        assert_eq!(clock(seconds(10_800)), "3:00:00");
    }

    #[test]
    fn a_rate_is_that_of_late() {
        let mut rate = Rate::default();
        let mut at = |tenths: u64, count| rate.at(Duration::from_millis(100 * tenths), count);
        assert_eq!(at(0, 0), 0);
        for tenths in 1..100 {
            let found = at(tenths, 1000 * tenths);
            let expected = if tenths < 5 { 0 } else { 10_000 };
            assert!(found.abs_diff(expected) < 100, "{tenths}: {found}");
        }
        // Then the link dies: after the window, nothing is left of the rate.
        for tenths in 100..170 {
            at(tenths, 99_000);
        }
        assert_eq!(at(170, 99_000), 0);
    }

    #[test]
    fn sizes_are_readable() {
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(8_080_564), "7.7 MiB");
        assert_eq!(size(u64::MAX), "16777216.0 TiB");
    }
}
