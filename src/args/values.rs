//! The values of options: sizes, durations, counts, and choices from a list.
//!
//! Each is checked here, when it is parsed, so that what is wrong with it is said in terms of what
//! was typed: a message goes on behind the option and its value.

use std::time::Duration;

use argh::FromArgValue;

use super::Telling;
use crate::chunker::Chunker;
use crate::clock::Time;
use crate::console::Mode;
use crate::hash::HashAlgorithm;

/// Longest duration of an option: added to the clock, any would have to fit.
const MAX_DURATION: Duration = Duration::from_secs(1000 * 24 * 3600);

/// What to do when the server has no ranges.
#[derive(FromArgValue, Debug, Clone, Copy)]
pub(super) enum FullDownload {
    Allow,
    Refuse,
}

/// A number of things.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) struct Count(pub(super) usize);

impl FromArgValue for Count {
    fn from_arg_value(text: &str) -> Result<Self, String> {
        let count = text.parse().map(Self);
        count.map_err(|_| "is not a number".to_owned())
    }
}

/// How progress is shown, as typed.
#[derive(FromArgValue, Debug, Clone, Copy)]
pub(super) enum Shown {
    Auto,
    Bar,
    Lines,
    Json,
    None,
}

impl Shown {
    /// What is meant, given whether the user wants to hear anything.
    pub(super) fn mode(self, quiet: bool) -> Mode {
        match self {
            Self::Auto if quiet => Mode::None,
            Self::Auto => Mode::Auto,
            Self::Bar => Mode::Bar,
            Self::Lines => Mode::Lines,
            Self::Json => Mode::Json,
            Self::None => Mode::None,
        }
    }

    /// The same of a tool, with what else it tells.
    pub(super) fn telling(self, quiet: bool) -> Telling {
        Telling {
            progress: self.mode(quiet),
            level: match quiet {
                true => log::LevelFilter::Off,
                false => log::LevelFilter::Warn,
            },
        }
    }
}

/// Bytes, written with K, M or G for powers of 1024, as curl does.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) struct Size(pub(super) u64);

impl FromArgValue for Size {
    fn from_arg_value(text: &str) -> Result<Self, String> {
        let (number, unit) = match text.char_indices().last() {
            Some((at, 'k' | 'K')) => (text.get(..at), 10),
            Some((at, 'm' | 'M')) => (text.get(..at), 20),
            Some((at, 'g' | 'G')) => (text.get(..at), 30),
            _ => (Some(text), 0),
        };
        number
            .and_then(|number| number.parse::<u64>().ok())
            .and_then(|number| number.checked_mul(1 << unit))
            .map(Size)
            .ok_or_else(|| "is not a size such as 8M".to_owned())
    }
}

/// A duration in seconds or with a unit: `2`, `0.5`, `500ms`, `2s`, `3m`, `1h`.
#[derive(Debug, PartialEq, Clone, Copy)]
pub(super) struct Seconds(pub(super) Duration);

impl FromArgValue for Seconds {
    fn from_arg_value(text: &str) -> Result<Self, String> {
        let digits = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = match unit {
            "" | "s" => Some(Duration::from_secs(1)),
            "ms" => Some(Duration::from_millis(1)),
            "m" => Some(Duration::from_secs(60)),
            "h" => Some(Duration::from_secs(3600)),
            _ => None,
        };
        unit.and_then(|unit| times(number, unit))
            .filter(|duration| *duration <= MAX_DURATION)
            .map(Seconds)
            .ok_or_else(|| "is not a duration such as 30s or 500ms".to_owned())
    }
}

/// So many times `unit`: digits, with a point among them or not.
///
/// Not with floating point numbers: to read those takes tables of 13 KB.
fn times(number: &str, unit: Duration) -> Option<Duration> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.chars().all(|c| c.is_ascii_digit());
    if whole.len() + fraction.len() == 0 || !digits(whole) || !digits(fraction) {
        return None;
    }
    let whole = if whole.is_empty() { "0" } else { whole };
    let mut sum = unit.checked_mul(whole.parse().ok()?)?;
    let mut place = unit;
    for digit in fraction.chars() {
        place /= 10;
        sum = sum.checked_add(place * digit.to_digit(10)?)?;
    }
    Some(sum)
}

/// A time that has passed.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) struct Floor(pub(super) Time);

impl FromArgValue for Floor {
    fn from_arg_value(text: &str) -> Result<Self, String> {
        let time = Time::parse(text).map(Self);
        time.ok_or_else(|| "is not a time such as 2026-11-30 or 2026-11-30T12:00:00Z".to_owned())
    }
}

/// A number of retries, or no limit.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) struct Retries(pub(super) Option<u32>);

impl FromArgValue for Retries {
    fn from_arg_value(text: &str) -> Result<Self, String> {
        match text {
            "infinite" => Ok(Self(None)),
            number => number
                .parse()
                .map(|number| Self(Some(number)))
                .map_err(|_| "is neither a number nor infinite".to_owned()),
        }
    }
}

/// How images are cut.
#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
pub(super) struct Cutting(pub(super) Chunker);

impl FromArgValue for Cutting {
    fn from_arg_value(text: &str) -> Result<Self, String> {
        let chunker = Chunker::parse(text).map(Self);
        chunker.ok_or_else(|| "is not casync-K or fixed-K, K in KiB".to_owned())
    }
}

/// The algorithm of digests.
#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
pub(super) struct Algorithm(pub(super) HashAlgorithm);

impl FromArgValue for Algorithm {
    fn from_arg_value(text: &str) -> Result<Self, String> {
        let algorithm = HashAlgorithm::parse(text).map(Self);
        algorithm.ok_or_else(|| "is not sha512-256, sha512 or sha256".to_owned())
    }
}

/// How blocks are stored: `none`, or `xz:LEVEL` with a level from 0 to 9.
#[cfg(feature = "pack")]
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) struct Compressed(pub(super) Option<u32>);

#[cfg(feature = "pack")]
impl FromArgValue for Compressed {
    fn from_arg_value(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        let level = text
            .strip_prefix("xz:")
            .and_then(|level| level.parse().ok());
        let known = level.filter(|level| *level <= 9);
        known
            .map(|level| Self(Some(level)))
            .ok_or_else(|| "is not none or xz:LEVEL with a level from 0 to 9".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_units() {
        assert_eq!(Size::from_arg_value("3k"), Ok(Size(3072)));
        assert_eq!(Size::from_arg_value("7"), Ok(Size(7)));
        assert!(Size::from_arg_value("99999999999999G").is_err());
        assert!(Size::from_arg_value("-1").is_err());
        let seconds = |text| Seconds::from_arg_value(text).map(|seconds| seconds.0.as_millis());
        assert_eq!(seconds("0"), Ok(0));
        assert_eq!(seconds("1.5"), Ok(1500));
        assert_eq!(seconds("250ms"), Ok(250));
        assert_eq!(seconds("2m"), Ok(120_000));
        assert_eq!(seconds("1.25h"), Ok(4_500_000));
        assert_eq!(seconds(".0059"), Ok(5));
        assert_eq!(seconds("3."), Ok(3000));
        assert_eq!(seconds("0.33333333333333333333333"), Ok(333));
        for bad in [
            "",
            "s",
            "1x",
            "-1",
            "1e400",
            ".",
            ".ms",
            "1.2.3",
            "99999999h",
            "9999999999h",
        ] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
