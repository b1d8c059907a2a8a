//! Answers: a request, a file and the faults of the matching rules to bytes on the socket.
//!
//! [`Answer::new`] first makes the right answer, then lets each fault bend it; only then are the
//! headers written from its fields, so that faults combine.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::time::Duration;

use super::request::{Bad, Parsed, Request};
use super::{Connection, Content, Entry};

/// Bytes read and sent at once.
const PIECE: u64 = 64 * 1024;

/// What goes wrong with an answer.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Before the answer: latency. Several add up.
    Delay(Duration),
    /// This status, with these headers and a short text as the body.
    Status(u16, Vec<(String, String)>),
    /// A redirect to the location with this status.
    Redirect(String, u16),
    /// 200 with the whole body.
    IgnoreRange,
    /// HTTP/1.0: 200 with the whole body, no Accept-Ranges, closes.
    NoRanges,
    /// 206 that starts so many bytes later (or earlier), and says so.
    WrongRange(i64),
    /// 206 that starts so many bytes earlier and ends so many later, and says so.
    WiderRange(u64),
    /// 206 with at most the first so many bytes of the range, and says so.
    NarrowRange(u64),
    /// The right Content-Range, but other bytes.
    LyingRange,
    /// One bit of this byte of the body is wrong.
    FlipByte(u64),
    /// The right Content-Length, but the connection closes after so many body bytes.
    ShortBody(u64),
    /// These bytes follow the body, and the connection stays open.
    LongBody(Vec<u8>),
    /// Headers and so many body bytes, then silence until the client closes or the server ends.
    Stall {
        after: u64,
    },
    StallBeforeHeaders,
    /// The body in pieces of so many bytes, with a pause after each.
    Drip {
        bytes: u64,
        every: Duration,
    },
    /// A reset instead of an answer.
    ResetBeforeHeaders,
    ResetAfterHeaders,
    /// A reset after so many body bytes.
    ResetInBody(u64),
    /// Says `Connection: close`, and does.
    CloseEachTime,
    /// Promises to keep the connection, but closes it after the answer.
    CloseAfterResponseSilently,
    /// Another ETag than at the start.
    ChangedEtag,
    /// The total of Content-Range differs by so many bytes.
    ChangedSize(i64),
    /// Neither ETag nor Last-Modified.
    NoValidators,
    NoContentRange,
    /// `*` where Content-Range tells the size.
    UnknownSize,
    /// No Content-Length: the end of the connection is the end of the body.
    NoContentLength,
    /// `Transfer-Encoding: chunked` in place of Content-Length.
    Chunked,
    /// The same, cut off in the middle of the body.
    ChunkedCut,
    /// Whatever was sent before the answer is not read: as servers that know one request at a time.
    Forget,
    /// Says that the body is gzip. (It is not: a client that believes it fails.)
    Gzip,
}

enum Framing {
    Length,
    Chunked,
    /// By the end of the connection.
    Close,
}

/// What happens after the last body byte.
#[derive(Clone, Copy, PartialEq)]
enum Ending {
    Regular,
    Close,
    Stall,
    Reset,
}

pub(super) struct Answer {
    version: &'static str,
    status: u16,
    content: Content,
    /// The part of the content that is the body.
    body: Range<u64>,
    head_only: bool,
    accept_ranges: bool,
    /// The total to state in Content-Range; none: no such header.
    total: Option<u64>,
    hide_total: bool,
    etag: Option<String>,
    last_modified: Option<String>,
    headers: Vec<(String, String)>,
    framing: Framing,
    say_close: bool,
    close: bool,
    delay: Duration,
    silent: bool,
    reset: bool,
    lie: bool,
    flip: Option<u64>,
    /// Only so many bytes of the body are sent.
    cut: u64,
    ending: Ending,
    stray: Vec<u8>,
    drip: Option<(u64, Duration)>,
    forget: bool,
}

impl Answer {
    pub(super) fn new(
        parsed: &Result<Parsed, Bad>,
        request: &Request,
        entry: Option<&Entry>,
        faults: &[&Fault],
    ) -> Self {
        let mut answer = match (parsed, entry) {
            (Err(bad), _) => {
                // Where a bad request ends is not known: the connection cannot go on.
                let mut answer = Self::text(bad.status);
                answer.say_close = true;
                answer
            }
            (Ok(_), _) if !matches!(request.method.as_str(), "GET" | "HEAD") => {
                let mut answer = Self::text(405);
                answer.header("Allow", "GET, HEAD");
                answer
            }
            (Ok(_), None) => Self::text(404),
            (Ok(_), Some(entry)) => Self::of_file(request, entry),
        };
        if let Ok(parsed) = parsed {
            answer.say_close |= parsed.close;
            answer.head_only = request.method == "HEAD";
        }
        for fault in faults {
            answer.bend(fault, request);
        }
        answer.close |= answer.say_close;
        answer
    }

    fn text(status: u16) -> Self {
        let text = format!("{status} {}\n", reason(status)).into_bytes();
        Self {
            version: "HTTP/1.1",
            status,
            body: 0..text.len() as u64,
            content: text.into(),
            head_only: false,
            accept_ranges: false,
            total: None,
            hide_total: false,
            etag: None,
            last_modified: None,
            headers: Vec::new(),
            framing: Framing::Length,
            say_close: false,
            close: false,
            delay: Duration::ZERO,
            silent: false,
            reset: false,
            lie: false,
            flip: None,
            cut: u64::MAX,
            ending: Ending::Regular,
            stray: Vec::new(),
            drip: None,
            forget: false,
        }
    }

    /// The right answer for a file: RFC 9110, sections 13.1 and 14.
    fn of_file(request: &Request, entry: &Entry) -> Self {
        let size = entry.content.size();
        let version = entry.version;
        let etag = format!("\"{size:x}-{version}\"");
        let (minute, second) = (version / 60 % 60, version % 60);
        let last_modified = format!("Mon, 06 Jul 2026 10:{minute:02}:{second:02} GMT");
        if let Some(wanted) = request.header("if-match") {
            if wanted != "*" && wanted != etag {
                return Self::text(412);
            }
        }
        let current = match request.header("if-range") {
            Some(validator) => validator == etag || validator == last_modified,
            None => true,
        };
        let mut answer = Self::text(200);
        // Range has a meaning for GET only.
        if let Some(range) = request
            .bytes()
            .filter(|_| current && request.method == "GET")
        {
            if range.start >= size {
                let mut answer = Self::text(416);
                answer.header("Content-Range", &format!("bytes */{size}"));
                return answer;
            }
            answer.status = 206;
            answer.body = range.start..range.end.min(size);
        } else {
            answer.body = 0..size;
        }
        answer.content = entry.content.clone();
        answer.accept_ranges = true;
        answer.total = Some(size);
        answer.etag = Some(etag);
        answer.last_modified = Some(last_modified);
        answer
    }

    fn header(&mut self, name: &str, value: &str) {
        self.headers.push((name.to_owned(), value.to_owned()));
    }

    /// Another answer altogether; what concerns the connection stays.
    fn replace(&mut self, status: u16) {
        *self = Self {
            head_only: self.head_only,
            say_close: self.say_close,
            close: self.close,
            delay: self.delay,
            ..Self::text(status)
        };
    }

    fn whole(&mut self) {
        if self.status == 206 {
            self.status = 200;
            self.body = 0..self.content.size();
        }
    }

    fn bend(&mut self, fault: &Fault, request: &Request) {
        let size = self.content.size();
        let partial = self.status == 206;
        match fault {
            Fault::Delay(delay) => self.delay += *delay,
            Fault::Status(status, headers) => {
                self.replace(*status);
                self.headers.extend(headers.iter().cloned());
            }
            Fault::Redirect(location, status) => {
                self.replace(*status);
                self.header("Location", location);
            }
            Fault::IgnoreRange => self.whole(),
            Fault::NoRanges => {
                self.whole();
                self.version = "HTTP/1.0";
                self.accept_ranges = false;
                self.close = true;
            }
            Fault::WrongRange(shift) if partial => {
                let start = self.body.start.saturating_add_signed(*shift).min(size - 1);
                let end = self.body.end.saturating_add_signed(*shift);
                self.body = start..end.clamp(start + 1, size);
            }
            Fault::WiderRange(more) if partial => {
                let end = self.body.end.saturating_add(*more).min(size);
                self.body = self.body.start.saturating_sub(*more)..end;
            }
            Fault::NarrowRange(bytes) if partial => {
                self.body.end = self.body.end.min(self.body.start + (*bytes).max(1));
            }
            Fault::WrongRange(_) | Fault::WiderRange(_) | Fault::NarrowRange(_) => {}
            Fault::LyingRange => self.lie = true,
            Fault::FlipByte(offset) => self.flip = Some(*offset),
            Fault::ShortBody(bytes) => self.cut(*bytes, Ending::Close),
            Fault::LongBody(stray) => self.stray.clone_from(stray),
            Fault::Stall { after } => self.cut(*after, Ending::Stall),
            Fault::StallBeforeHeaders => self.silent = true,
            Fault::Drip { bytes, every } => self.drip = Some((*bytes, *every)),
            Fault::ResetBeforeHeaders => self.reset = true,
            Fault::ResetAfterHeaders => self.cut(0, Ending::Reset),
            Fault::ResetInBody(bytes) => self.cut(*bytes, Ending::Reset),
            Fault::CloseEachTime => self.say_close = true,
            Fault::CloseAfterResponseSilently => self.close = true,
            Fault::ChangedEtag => {
                if let Some(etag) = &mut self.etag {
                    etag.insert_str(1, "changed-");
                }
                // The validator the client may have sent is no longer right.
                if request.header("if-range").is_some() {
                    self.whole();
                }
            }
            Fault::ChangedSize(delta) => {
                self.total = self.total.map(|total| total.saturating_add_signed(*delta));
            }
            Fault::NoValidators => {
                self.etag = None;
                self.last_modified = None;
            }
            Fault::NoContentRange => self.total = None,
            Fault::UnknownSize => self.hide_total = true,
            Fault::NoContentLength => {
                self.framing = Framing::Close;
                self.say_close = true;
            }
            Fault::Chunked => self.framing = Framing::Chunked,
            Fault::ChunkedCut => {
                self.framing = Framing::Chunked;
                self.cut((self.body.end - self.body.start) / 2, Ending::Close);
            }
            Fault::Forget => self.forget = true,
            Fault::Gzip => self.header("Content-Encoding", "gzip"),
        }
    }

    fn cut(&mut self, bytes: u64, ending: Ending) {
        self.cut = bytes;
        self.ending = ending;
    }

    fn head(&self) -> String {
        let mut head = format!(
            "{} {} {}\r\n",
            self.version,
            self.status,
            reason(self.status)
        );
        let mut put = |name: &str, value: &str| {
            write!(head, "{name}: {value}\r\n").expect("text grows");
        };
        let size = self.body.end - self.body.start;
        match self.framing {
            _ if bodiless(self.status) => {}
            Framing::Length => put("Content-Length", &size.to_string()),
            Framing::Chunked => put("Transfer-Encoding", "chunked"),
            Framing::Close => {}
        }
        if self.accept_ranges {
            put("Accept-Ranges", "bytes");
        }
        if let Some(total) = self.total.filter(|_| self.status == 206) {
            let (first, last) = (self.body.start, self.body.end - 1);
            let total = match self.hide_total {
                true => "*".to_owned(),
                false => total.to_string(),
            };
            put("Content-Range", &format!("bytes {first}-{last}/{total}"));
        }
        if let Some(etag) = &self.etag {
            put("ETag", etag);
        }
        if let Some(date) = &self.last_modified {
            put("Last-Modified", date);
        }
        for (name, value) in &self.headers {
            put(name, value);
        }
        if self.say_close {
            put("Connection", "close");
        }
        head + "\r\n"
    }

    /// Sends it. False: the connection ends with it.
    pub(super) fn send(&self, connection: &Connection, number: usize) -> io::Result<bool> {
        let mut stream: &TcpStream = &connection.stream;
        connection.shared.pause(self.delay);
        if self.reset {
            return Ok(false);
        }
        let resets = self.ending == Ending::Reset;
        if !resets {
            // The byte that the reader of heads left; unread, it would make every close a reset.
            stream.read_exact(&mut [0])?;
        }
        let next = waiting(stream)?;
        connection.note(number, |request| request.followed = next > 0);
        if self.forget {
            stream.read_exact(&mut vec![0; next])?;
        }
        if self.silent {
            return wait_for_close(stream);
        }
        connection.note(number, |request| request.status = self.status);
        stream.write_all(self.head().as_bytes())?;
        if !self.head_only && !bodiless(self.status) {
            self.send_body(connection, number)?;
        }
        match self.ending {
            Ending::Regular => Ok(!self.close),
            Ending::Close | Ending::Reset => Ok(false),
            Ending::Stall => wait_for_close(stream),
        }
    }

    fn send_body(&self, connection: &Connection, number: usize) -> io::Result<()> {
        let mut stream: &TcpStream = &connection.stream;
        let (piece, every) = self.drip.unwrap_or((PIECE, Duration::ZERO));
        let end = self.cut.min(self.body.end - self.body.start);
        let mut buffer = vec![0; piece.clamp(1, PIECE) as usize];
        let mut sent = 0;
        while sent < end {
            let n = (end - sent).min(buffer.len() as u64);
            let bytes = &mut buffer[..n as usize];
            self.content.read(self.body.start + sent, bytes);
            if self.lie {
                bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
            }
            if let Some(flip) = self.flip.filter(|flip| (sent..sent + n).contains(flip)) {
                bytes[(flip - sent) as usize] ^= 1;
            }
            connection.note(number, |request| request.body_bytes += n);
            if matches!(self.framing, Framing::Chunked) {
                stream.write_all(format!("{n:x}\r\n").as_bytes())?;
                stream.write_all(bytes)?;
                stream.write_all(b"\r\n")?;
            } else {
                stream.write_all(bytes)?;
            }
            sent += n;
            connection.shared.pause(every);
        }
        if matches!(self.framing, Framing::Chunked) && self.ending == Ending::Regular {
            stream.write_all(b"0\r\n\r\n")?;
        }
        stream.write_all(&self.stray)
    }
}

/// How many bytes could be read at once, of the first 64 KiB.
fn waiting(stream: &TcpStream) -> io::Result<usize> {
    stream.set_nonblocking(true)?;
    let found = stream.peek(&mut vec![0; PIECE as usize]);
    stream.set_nonblocking(false)?;
    match found {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        found => found,
    }
}

/// Says nothing until the client gives up (or the server is dropped, which closes the socket).
fn wait_for_close(mut stream: &TcpStream) -> io::Result<bool> {
    let mut buffer = [0; 1024];
    while stream.read(&mut buffer)? > 0 {}
    Ok(false)
}

/// Statuses whose answers never have a body: RFC 9110, section 6.4.1.
fn bodiless(status: u16) -> bool {
    matches!(status, 100..=199 | 204 | 304)
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        206 => "Partial Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        410 => "Gone",
        412 => "Precondition Failed",
        416 => "Range Not Satisfiable",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Status",
    }
}
