//! Request heads: bytes of a socket to a [`Request`], or to the reason why it is refused.
//!
//! Stricter than RFC 9112 asks for: lines end in CRLF, single spaces, no folding, exactly one
//! Host, at most one Range, no body. Reading stops one byte *before* the end of the head: closing a
//! socket with unread bytes is the only way in std to make the kernel send a reset.

use std::io::{self, Read};
use std::net::TcpStream;
use std::ops::Range;
use std::time::Instant;

/// 16 KiB: what common servers take for a head; more is answered with 431.
const HEAD_LIMIT: usize = 16 * 1024;

/// What a client asked for and what it got.
#[derive(Clone, Debug)]
pub struct Request {
    /// In the order of arrival, from 0.
    pub number: usize,
    /// The connection it came over, from 0. Connections are numbered over the server's life.
    pub connection: usize,
    pub method: String,
    /// Without the query.
    pub path: String,
    pub query: Option<String>,
    /// First and last byte as on the wire (inclusive). A suffix (`-n`) is put down as the range it
    /// means for the file; none if the path is unknown.
    pub range: Option<(u64, Option<u64>)>,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// 0: no answer was begun.
    pub status: u16,
    pub body_bytes: u64,
    /// The next request was there before the answer to this one was begun.
    pub followed: bool,
    /// Why the request itself was bad.
    pub refused: Option<String>,
    pub at: Instant,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(n, _)| n == name)?;
        Some(value)
    }

    /// The range half-open; an open end is the largest number.
    pub fn bytes(&self) -> Option<Range<u64>> {
        let (first, last) = self.range?;
        Some(first..last.map_or(u64::MAX, |last| last + 1))
    }
}

/// A request that is refused as such.
#[derive(Debug)]
pub(super) struct Bad {
    pub(super) status: u16,
    reason: String,
    head: String,
}

impl Bad {
    fn new(status: u16, reason: &str, head: &[u8]) -> Self {
        Self {
            status,
            reason: reason.to_owned(),
            head: String::from_utf8_lossy(head).into_owned(),
        }
    }

    /// For the record; the head, as far as it was read, stands in place of method and path.
    pub(super) fn to_request(&self) -> Request {
        let mut line = self.head.lines().next().unwrap_or("").split(' ');
        Request {
            number: 0,
            connection: 0,
            method: line.next().unwrap_or("").to_owned(),
            path: line.next().unwrap_or("").to_owned(),
            query: None,
            range: None,
            headers: Vec::new(),
            status: 0,
            followed: false,
            body_bytes: 0,
            refused: Some(self.reason.clone()),
            at: Instant::now(),
        }
    }
}

/// The one range of a Range header.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wanted {
    From(u64),
    Between(u64, u64),
    Last(u64),
}

#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) request: Request,
    wanted: Option<Wanted>,
    /// The client wants (or, by HTTP/1.0, gets) the connection closed.
    pub(super) close: bool,
}

impl Parsed {
    pub(super) fn range(&self, size: u64) -> Option<(u64, Option<u64>)> {
        Some(match self.wanted? {
            Wanted::From(first) => (first, None),
            Wanted::Between(first, last) => (first, Some(last)),
            // `-0` can never be satisfied: it begins at the end.
            Wanted::Last(0) => (size, None),
            Wanted::Last(n) => (size.saturating_sub(n), Some(size.saturating_sub(1))),
        })
    }
}

/// Reads a head but for its last byte. None: the client closed the connection.
pub(super) fn read_head(mut stream: &TcpStream) -> io::Result<Option<Result<Vec<u8>, Bad>>> {
    let mut head = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let n = stream.peek(&mut buffer)?;
        if n == 0 {
            return Ok(None);
        }
        let known = head.len();
        head.extend_from_slice(&buffer[..n]);
        if let Some(at) = head.windows(4).position(|four| four == b"\r\n\r\n") {
            head.truncate(at + 3);
            stream.read_exact(&mut buffer[..head.len() - known])?;
            return Ok(Some(Ok(head)));
        }
        // Everything but one byte, so that every exchange finds one byte unread at its end.
        stream.read_exact(&mut buffer[..n - 1])?;
        let bad = if bare_line_end(&head) {
            Bad::new(400, "line ends without carriage return", &head)
        } else if head.len() > HEAD_LIMIT {
            Bad::new(431, "head too large", &head)
        } else {
            stream.read_exact(&mut buffer[..1])?;
            continue;
        };
        return Ok(Some(Err(bad)));
    }
}

fn bare_line_end(head: &[u8]) -> bool {
    (0..head.len()).any(|i| head[i] == b'\n' && (i == 0 || head[i - 1] != b'\r'))
}

/// Parses a head as [`read_head`] returns it.
pub(super) fn parse(head: &[u8]) -> Result<Parsed, Bad> {
    let bad = |status, reason: &str| Err(Bad::new(status, reason, head));
    let Ok(text) = std::str::from_utf8(head) else {
        return bad(400, "head is not text");
    };
    if bare_line_end(head) {
        return bad(400, "line ends without carriage return");
    }
    let mut lines = text.trim_end_matches(['\r', '\n']).split("\r\n");
    let line: Vec<_> = lines.next().unwrap_or("").split(' ').collect();
    let &[method, target, version] = line.as_slice() else {
        return bad(400, "request line is not three words");
    };
    if method.is_empty() || !method.bytes().all(is_token) {
        return bad(400, "method is not a token");
    }
    if !matches!(version, "HTTP/1.1" | "HTTP/1.0") {
        let known = version.starts_with("HTTP/");
        return bad(if known { 505 } else { 400 }, "unknown version");
    }
    if !target.bytes().all(|b| b.is_ascii_graphic()) || target.contains('#') {
        return bad(400, "target with forbidden characters");
    }
    let Some(target) = origin_form(target) else {
        return bad(400, "target is neither a path nor an http URL");
    };
    let mut headers = Vec::new();
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            return bad(400, "header without colon");
        };
        if name.is_empty() || !name.bytes().all(is_token) {
            return bad(400, "header name is not a token");
        }
        let value = value.trim_matches([' ', '\t']);
        if !value.bytes().all(|b| b == b' ' || b.is_ascii_graphic()) {
            return bad(400, "header value with control characters");
        }
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let all = |name: &str| -> Vec<&str> {
        let named = headers.iter().filter(|(n, _)| n == name);
        named.map(|(_, value)| value.as_str()).collect()
    };
    if all("host").len() != 1 {
        return bad(400, "not exactly one Host");
    }
    if !all("transfer-encoding").is_empty() || all("content-length").iter().any(|&n| n != "0") {
        return bad(400, "request with a body");
    }
    let wanted = match all("range").as_slice() {
        [] => None,
        [value] if value.contains(',') => return bad(400, "several ranges"),
        [value] => match parse_range(value) {
            Some(wanted) => Some(wanted),
            None => return bad(400, "Range that is none"),
        },
        _ => return bad(400, "Range twice"),
    };
    let connection = all("connection").join(",").to_ascii_lowercase();
    let close = version == "HTTP/1.0" || connection.split(',').any(|c| c.trim() == "close");
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query.to_owned())),
        None => (target, None),
    };
    let request = Request {
        number: 0,
        connection: 0,
        method: method.to_owned(),
        path: path.to_owned(),
        query,
        range: None,
        headers,
        status: 0,
        followed: false,
        body_bytes: 0,
        refused: None,
        at: Instant::now(),
    };
    Ok(Parsed {
        request,
        wanted,
        close,
    })
}

/// The path of a target. The absolute form is what a client sends to a proxy.
fn origin_form(target: &str) -> Option<&str> {
    if target.starts_with('/') {
        return Some(target);
    }
    let rest = target.strip_prefix("http://")?;
    Some(rest.find('/').map_or("/", |slash| &rest[slash..]))
}

fn parse_range(value: &str) -> Option<Wanted> {
    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    let number = |text: &str| -> Option<u64> {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        // The largest number is kept free for "no end".
        let number = text.parse().ok().filter(|&n| n < u64::MAX);
        number.filter(|_| digits)
    };
    match (first, last) {
        ("", last) => number(last).map(Wanted::Last),
        (first, "") => number(first).map(Wanted::From),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(Wanted::Between(first, last))
        }
    }
}

/// RFC 9110, section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
