//! What time it is, for certificates: never earlier than is known for certain.
//!
//! A board without a battery wakes up in 1970. Certificates are therefore judged at the latest of
//! three times: the system clock, the build date of this binary, and what the user says is past
//! (`--time-floor`). A wrong clock then neither lets a certificate pass that had expired by the
//! floor, nor blocks one that is valid. The floor only ever moves time forward, so whoever can set
//! it gains nothing but refusals. No time that a signer claims is believed.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// When this binary was built: `SOURCE_DATE_EPOCH`, which the Makefile sets to the date of the last
/// commit, so that the same source gives the same bytes; but not before the release. A build
/// without it, such as one from a package of the source, knows the release alone.
pub const BUILD_DATE: Time = match option_env!("SOURCE_DATE_EPOCH") {
    Some(text) if number(text) > RELEASED.0 => Time(number(text)),
    _ => RELEASED,
};

/// 2026-12-01; to be moved with each version.
const RELEASED: Time = Time(1_796_083_200);

const DAY: u64 = 86_400;

/// Latest time that is understood: the last second of the year 9999, as in certificates.
const MAX_TIME: u64 = 253_402_300_799;

const fn number(text: &str) -> u64 {
    let digits = text.as_bytes();
    let mut value = 0;
    let mut rest = digits;
    while let [digit, more @ ..] = rest {
        assert!(digit.is_ascii_digit(), "SOURCE_DATE_EPOCH is no number");
        value = value * 10 + (*digit - b'0') as u64;
        rest = more;
    }
    value
}

/// A point in time: seconds since 1970, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u64);

impl Time {
    /// `2026-11-30`, `2026-11-30T12:34:56Z`, or `@` and seconds since 1970.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(seconds) = text.strip_prefix('@') {
            let seconds = seconds.parse().ok().filter(|seconds| *seconds <= MAX_TIME);
            return seconds.map(Self);
        }
        let (date, time) = match text.split_once('T') {
            Some((date, time)) => (date, time.strip_suffix('Z')?),
            None => (text, "00:00:00"),
        };
        let [year, month, day] = fields(date, '-', [4, 2, 2])?;
        let [hour, minute, second] = fields(time, ':', [2, 2, 2])?;
        if year < 1970 || hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let days = days(year, month, day);
        let time = Self(days * DAY + hour * 3600 + minute * 60 + second);
        // A day that there is not comes out as another one.
        let (y, m, d) = civil(days);
        ((y, m, d) == (year, month, day)).then_some(time)
    }
}

/// RFC 3339, in UTC.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = civil(self.0 / DAY);
        let second = self.0 % DAY;
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
            second / 3600,
            second / 60 % 60,
            second % 60
        )
    }
}

fn fields(text: &str, separator: char, lengths: [usize; 3]) -> Option<[u64; 3]> {
    let mut values = [0; 3];
    let mut parts = text.split(separator);
    for (value, length) in values.iter_mut().zip(lengths) {
        let part = parts.next()?;
        if part.len() != length || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *value = part.parse().ok()?;
    }
    parts.next().is_none().then_some(values)
}

/// Year, month and day, by eras of 400 years that begin on 1 March.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = match month {
        0..=9 => (month + 3, 0),
        _ => (month - 9, 1),
    };
    (era * 400 + year + next, month, day)
}

/// The inverse of [`civil`], for years from 1970 on; months and days that there are not overflow
/// into the next.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let (era, year) = (year / 400, year % 400);
    let day = (153 * month + 2) / 5 + day;
    (era * 146_097 + year * 365 + year / 4 - year / 100 + day).saturating_sub(719_469)
}

/// The clock by which certificates are judged.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// What the system clock says; `None` asks it each time.
    system: Option<Time>,
    floor: Time,
}

/// A look at the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// What certificates are judged by.
    pub time: Time,
    /// What the system clock says.
    pub system: Time,
}

impl Clock {
    /// The system clock, but never earlier than the build date and `floor`.
    pub fn new(floor: Option<Time>) -> Self {
        Self {
            system: None,
            floor: floor.map_or(BUILD_DATE, |floor| floor.max(BUILD_DATE)),
        }
    }

    /// A system clock that stands at `system`, with no other floor than `floor`.
    pub fn standing(system: Time, floor: Time) -> Self {
        Self {
            system: Some(system),
            floor,
        }
    }

    /// Looks at it.
    pub fn now(&self) -> Now {
        let system = self.system.unwrap_or_else(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            Time(since.map_or(0, |since| since.as_secs()))
        });
        Now {
            time: system.max(self.floor),
            system,
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new(None)
    }
}

/// For a message about a certificate, behind "and".
impl fmt::Display for Now {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the clock here says {}", self.system)?;
        if self.time > self.system {
            // The build date, or what the user gave.
            write!(f, " (it is {} at least)", self.time)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (86_399, "1970-01-01T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_603_200, "2024-12-31T00:00:00Z"),
            (4_102_444_799, "2099-12-31T23:59:59Z"),
            (MAX_TIME, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(Time(seconds).to_string(), expected);
            assert_eq!(Time::parse(expected), Some(Time(seconds)), "{expected}");
            assert_eq!(Time::parse(&format!("@{seconds}")), Some(Time(seconds)));
        }
        for day in (0..200_000).step_by(7) {
            let (y, m, d) = civil(day);
            assert_eq!(days(y, m, d), day);
        }
        assert_eq!(Time::parse("2026-12-01"), Some(RELEASED));
        for bad in [
            "",
            "@",
            "@-1",
            "@253402300800",
            "2026",
            "2026-11-31",
            "2026-02-29",
            "2026-13-01",
            "2026-00-10",
            "2026-1-01",
            "1969-12-31",
            "2026-11-30T",
            "2026-11-30T24:00:00Z",
            "2026-11-30T00:00:00",
            "2026-11-30T00:00Z",
            "+026-11-30",
            "2026-11-30-01",
        ] {
            assert_eq!(Time::parse(bad), None, "{bad}");
        }
        assert_eq!(number("1796000000"), 1_796_000_000);
    }

    #[test]
    fn the_floor_only_moves_time_forward() {
        let now = |system, floor| Clock::standing(Time(system), Time(floor)).now();
        assert_eq!(now(0, 50).time, Time(50));
        assert_eq!(now(70, 50).time, Time(70));
        assert!(Clock::new(Some(Time(0))).now().time >= BUILD_DATE);
        let far = Time(4_000_000_000);
        assert_eq!(Clock::new(Some(far)).now().time, far);
        let text = now(0, 86_400).to_string();
        for date in ["1970-01-01T00:00:00Z", "1970-01-02T00:00:00Z"] {
            assert!(text.contains(date), "{text}");
        }
    }
}
