//! What the head of an answer says: which object it is about, which part of it, when to come again.
//!
//! Everything in it is a claim. What does not fit together, or does not fit what an earlier answer
//! said, is a failure of the request.

use std::ops::Range;
use std::time::Duration;

use ureq::http::{header, HeaderMap, HeaderName};

use super::{Failure, Kind};
use crate::clock::Time;

/// What identifies the object behind the URL, learnt from the first answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) size: Option<u64>,
    etag: Option<String>,
    last_modified: Option<String>,
}

impl Object {
    /// Takes over what `now` says, or fails where it says something else than before.
    pub(super) fn agree(&mut self, now: Object) -> Result<(), Failure> {
        fn merge<T: Clone + PartialEq + ToString>(
            was: &mut Option<T>,
            now: Option<T>,
            what: &'static str,
        ) -> Result<(), Failure> {
            match (was.as_ref(), now) {
                (Some(was), Some(now)) if *was != now => Err(Failure::new(
                    Kind::Changed {
                        what,
                        was: was.to_string(),
                        now: now.to_string(),
                    },
                    "bundle changed on the server",
                )),
                (None, Some(now)) => {
                    *was = Some(now);
                    Ok(())
                }
                _ => Ok(()),
            }
        }
        merge(&mut self.size, now.size, "size")?;
        // An ETag is the better validator; a date is looked at only where there is none.
        if self.etag.is_some() || now.etag.is_some() {
            return merge(&mut self.etag, now.etag, "ETag");
        }
        merge(&mut self.last_modified, now.last_modified, "Last-Modified")
    }
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.trim().to_owned())
}

/// What a head says of the object; `size` comes from the line that is right for its status.
pub(super) fn object(headers: &HeaderMap, size: Option<u64>) -> Object {
    Object {
        size,
        etag: text(headers, header::ETAG),
        last_modified: text(headers, header::LAST_MODIFIED),
    }
}

pub(super) fn content_length(headers: &HeaderMap) -> Option<u64> {
    text(headers, header::CONTENT_LENGTH)?.parse().ok()
}

pub(super) fn location(headers: &HeaderMap) -> Option<String> {
    text(headers, header::LOCATION)
}

/// The part of a 206 answer, half open, and the total size if it is given.
///
/// The one place where the inclusive ranges of HTTP are turned into ours (the other direction is
/// the `bytes=` line of `Client::get`).
pub(super) fn content_range(headers: &HeaderMap) -> Result<(Range<u64>, Option<u64>), Failure> {
    let value = text(headers, header::CONTENT_RANGE)
        .ok_or_else(|| Failure::transient("a 206 answer without Content-Range"))?;
    let parse = || {
        let (unit, rest) = value.split_once(' ')?;
        let (part, total) = rest.trim().split_once('/')?;
        let (first, last) = part.split_once('-')?;
        let start: u64 = first.trim().parse().ok()?;
        let end = last.trim().parse::<u64>().ok()?.checked_add(1)?;
        let total = match total.trim() {
            "*" => None,
            total => Some(total.parse::<u64>().ok()?),
        };
        let fits = start < end && total.is_none_or(|total| end <= total);
        (unit.eq_ignore_ascii_case("bytes") && fits).then_some((start..end, total))
    };
    let (part, total) =
        parse().ok_or_else(|| Failure::transient(format!("a bad Content-Range: {value}")))?;
    match content_length(headers) {
        Some(length) if length != part.end - part.start => Err(Failure::transient(format!(
            "Content-Length {length} does not fit Content-Range {value}"
        ))),
        _ => Ok((part, total)),
    }
}

/// How long the server asks to wait: in seconds, or until a date. The date is taken from the head's own
/// one: the clock here may say 1970.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = text(headers, header::RETRY_AFTER)?;
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let now = http_date(&text(headers, header::DATE)?)?;
    let then = http_date(&value)?;
    Some(Duration::from_secs(then.0.saturating_sub(now.0)))
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`, the one form that servers may send today (RFC 9110, 5.6.7).
fn http_date(text: &str) -> Option<Time> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let mut parts = text.split(' ').skip(1);
    let (day, name, year, time) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let month = 1 + MONTHS.iter().position(|month| *month == name)?;
    let rest = (parts.next()?, parts.next());
    let date = format!("{year}-{month:02}-{day}T{time}Z");
    Time::parse(&date).filter(|_| rest == ("GMT", None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges_are_checked() {
        let parse = |range: &str, length: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_RANGE, range.parse().expect("a value"));
            if let Some(length) = length {
                headers.insert(header::CONTENT_LENGTH, length.parse().expect("a value"));
            }
            content_range(&headers).ok()
        };
        assert_eq!(parse("bytes 0-0/1", Some("1")), Some((0..1, Some(1))));
        assert_eq!(parse("bytes 5-9/*", None), Some((5..10, None)));
        assert_eq!(parse("Bytes 5-9/10", None), Some((5..10, Some(10))));
        for bad in [
            "",
            "bytes",
            "bytes */10",
            "bytes 9-5/10",
            "bytes 5-9/9",
            "items 5-9/10",
            "bytes 5-18446744073709551615/*",
            "bytes 5-9",
            "bytes -9/10",
        ] {
            assert_eq!(parse(bad, None), None, "{bad}");
        }
        assert_eq!(parse("bytes 5-9/10", Some("6")), None);
        assert!(content_range(&HeaderMap::new()).is_err());
    }

    #[test]
    fn a_changed_object_is_noticed() {
        let first = Object {
            size: Some(5),
            etag: Some("\"a\"".into()),
            last_modified: Some("Mon".into()),
        };
        let mut object = first.clone();
        assert!(object.agree(first.clone()).is_ok());
        assert!(object.agree(Object::default()).is_ok());
        // The date counts only without an ETag.
        let mut date = first.clone();
        date.last_modified = Some("Tue".into());
        assert!(object.agree(date).is_ok());
        let mut etag = first.clone();
        etag.etag = Some("\"b\"".into());
        let changed = object.agree(etag).expect_err("changed");
        assert!(matches!(changed.kind, Kind::Changed { what: "ETag", .. }));
        let mut size = first;
        size.size = Some(6);
        assert!(object.agree(size).is_err());
    }

    #[test]
    fn times_to_come_again_are_understood() {
        let of = |value: &str, date: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::RETRY_AFTER, value.parse().expect("a value"));
            if let Some(date) = date {
                headers.insert(header::DATE, date.parse().expect("a value"));
            }
            retry_after(&headers).map(|wait| wait.as_secs())
        };
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(of("7", None), Some(7));
        assert_eq!(of(" 0 ", Some("nonsense")), Some(0));
        assert_eq!(of("Sun, 06 Nov 1994 08:50:07 GMT", Some(date)), Some(30));
        assert_eq!(
            of("Mon, 07 Nov 1994 00:00:00 GMT", Some(date)),
            Some(54_623)
        );
        assert_eq!(of("Sun, 06 Nov 1994 08:49:00 GMT", Some(date)), Some(0));
        for bad in [
            "-1",
            "soon",
            "Sun, 06 Nov 1994 08:50:07",
            "Sun, 06 Nov 1994 08:50:07 CET",
            "Sun, 31 Feb 1994 08:50:07 GMT",
            "Sun, 06 Nox 1994 08:50:07 GMT",
            "Sun, 06 Nov 1994 08:50:07 GMT x",
            "Sunday, 06-Nov-94 08:50:07 GMT",
        ] {
            assert_eq!(of(bad, Some(date)), None, "{bad}");
        }
        assert_eq!(of(date, None), None);
    }
}
