//! One agent, one URL: ask for a range of one object, or say why it cannot be had.
//!
//! The only user of ureq. A [`Client`] belongs to one worker and holds one keep-alive connection.
//! No answer is trusted:
//!
//! | the server | here |
//! |---|---|
//! | 206, Content-Range covers the start of what was asked | body from the first byte asked for |
//! | 206 elsewhere, without Content-Range, of odd length | transient failure |
//! | 200 to a range | the body if it is the range, else [`Kind::RangeIgnored`] |
//! | encodes the body | permanent failure: a range of an encoded body is no range of the bundle |
//! | another size, ETag, Last-Modified than in the first answer | [`Kind::Changed`] |
//! | 408, 425, 429, 500, 502, 503, 504 | transient, with its Retry-After |
//! | other statuses, more than 10 redirects | permanent; on a redirected URL one fresh trip |
//!
//! A body must be read until a read returns zero, or ureq will not use the connection again:
//! [`Body::read_into`] does. There is no limit on the time of a whole body, only on silence
//! (`stall_timeout`): a healthy slow link may need minutes. Failures are classified here;
//! retrying and waiting is `fetch.rs`'s business.

use std::fmt;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use ureq::http::{header, HeaderMap, HeaderName, StatusCode, Uri};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{ConnectionDetails, Connector, DefaultConnector, Transport};
use ureq::{Agent, BodyReader};

/// Redirects followed for one request, as curl and browsers do it.
const MAX_REDIRECTS: u32 = 10;

/// Bytes of an unwanted body (of a redirect or an error) that are read to keep the connection.
const MAX_DRAIN: u64 = 64 << 10;

/// ureq's buffer for what comes in. Larger ones were measured to gain nothing for 1 MiB bodies.
const INPUT_BUFFER: usize = 64 << 10;

/// ureq's buffer for what goes out: a request head.
const OUTPUT_BUFFER: usize = 8 << 10;

/// How to reach the server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Limit for name look-up and for making a connection, each.
    pub connect_timeout: Duration,
    /// No byte for so long is a failure of the request.
    pub stall_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
        }
    }
}

/// What all clients of a run did together.
#[derive(Debug, Default)]
pub struct Counters {
    requests: AtomicU64,
    connections: AtomicU64,
    bytes: AtomicU64,
    retries: AtomicU64,
}

impl Counters {
    /// Requests sent.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Connections made.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Body bytes received.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Requests that were repeated after a failure.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// Counts bytes of the bundle that were read.
    pub fn count_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a repeated request.
    pub fn count_retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }
}

/// Why a request gave no, or not all, bytes.
#[derive(Debug)]
pub struct Failure {
    /// What kind of failure.
    pub kind: Kind,
    /// The cause, one line.
    pub cause: String,
    /// How long the server asks to wait.
    pub retry_after: Option<Duration>,
}

/// Kinds of failure, by what can be done about them.
#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    /// It may go better next time.
    Transient,
    /// The connection had been idle and was dead: the server never saw the request.
    Stale,
    /// It will not go better.
    Permanent,
    /// 200 where a part was asked for.
    RangeIgnored,
    /// The object is another one than at the start.
    Changed {
        /// What changed.
        what: &'static str,
        /// At the start.
        was: String,
        /// Now.
        now: String,
    },
}

impl Failure {
    fn new(kind: Kind, cause: impl Into<String>) -> Self {
        Self {
            kind,
            cause: cause.into(),
            retry_after: None,
        }
    }

    fn transient(cause: impl Into<String>) -> Self {
        Self::new(Kind::Transient, cause)
    }

    fn permanent(cause: impl Into<String>) -> Self {
        Self::new(Kind::Permanent, cause)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)
    }
}

/// What identifies the object behind the URL, learnt from the first answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Object {
    size: Option<u64>,
    etag: Option<String>,
    last_modified: Option<String>,
}

impl Object {
    /// Takes over what `now` says, or fails where it says something else than before.
    fn agree(&mut self, now: Object) -> Result<(), Failure> {
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

/// Fetches ranges of one object over one connection.
pub struct Client {
    agent: Agent,
    /// The URL as the user gave it.
    url: String,
    /// Where redirects led to, if they did.
    redirected: Option<String>,
    object: Object,
    settings: Settings,
    counters: Arc<Counters>,
    /// Tries to connect.
    attempts: Arc<AtomicU64>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("url", &shown(&self.url))
            .field("object", &self.object)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// A client for `url` that has not talked to the server yet.
    pub fn new(url: &str, settings: &Settings, counters: &Arc<Counters>) -> Self {
        let attempts = Arc::new(AtomicU64::new(0));
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(settings.connect_timeout))
            .timeout_resolve(Some(settings.connect_timeout))
            .timeout_per_read(Some(settings.stall_timeout))
            .timeout_per_write(Some(settings.stall_timeout))
            .input_buffer_size(INPUT_BUFFER)
            .output_buffer_size(OUTPUT_BUFFER)
            .max_idle_connections(1)
            .max_idle_connections_per_host(1)
            .max_idle_age(Duration::from_secs(60))
            .accept_encoding("identity")
            .user_agent(concat!("reflash/", env!("CARGO_PKG_VERSION")))
            .build();
        let connector = Attempts(attempts.clone());
        let counting = Counting(counters.clone());
        Self {
            agent: Agent::with_parts(
                config,
                connector.chain(DefaultConnector::new()).chain(counting),
                DefaultResolver::default(),
            ),
            url: url.to_owned(),
            redirected: None,
            object: Object::default(),
            settings: settings.clone(),
            counters: counters.clone(),
            attempts,
        }
    }

    /// Another client for the same object, with a connection of its own.
    pub fn sibling(&self) -> Self {
        let mut sibling = Self::new(&self.url, &self.settings, &self.counters);
        sibling.redirected.clone_from(&self.redirected);
        sibling.object = self.object.clone();
        sibling
    }

    /// The URL for messages: without user info and query, which may hold secrets.
    pub fn url(&self) -> String {
        shown(&self.url)
    }

    /// Size of the object in bytes, as far as a server has said.
    pub fn size(&self) -> Option<u64> {
        self.object.size
    }

    /// Counters of the run.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Something to end this client's blocked reads with, from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.agent.clone())
    }

    /// Asks for a range. The body starts at its first byte and may be shorter than asked for.
    pub fn get(&mut self, range: &Range<u64>) -> Result<Body, Failure> {
        if range.is_empty() {
            return Err(Failure::permanent("an empty range was asked for"));
        }
        let asked = format!("bytes={}-{}", range.start, range.end - 1);
        let response = self.request(Some(&asked))?;
        let headers = response.headers();
        match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let (part, total) = content_range(headers)?;
                self.object.agree(object(headers, total))?;
                if !part.contains(&range.start) {
                    return Err(Failure::transient(format!(
                        "the server answered bytes {}..{} instead",
                        part.start, part.end
                    )));
                }
                let mut body = self.body(
                    response,
                    Some(part.end - part.start),
                    range.end - range.start,
                );
                body.skip = range.start - part.start;
                Ok(body)
            }
            StatusCode::OK => {
                let size = content_length(headers);
                self.object.agree(object(headers, size))?;
                if size == Some(0) {
                    return Err(Failure::permanent("the server has an empty file there"));
                }
                if range.start == 0 && size.is_some_and(|size| size <= range.end) {
                    return Ok(self.body(response, size, range.end));
                }
                Err(Failure::new(
                    Kind::RangeIgnored,
                    "the server ignores ranges and answers with the whole file (200)",
                ))
            }
            status => Err(self.refusal(status, response)),
        }
    }

    /// Asks for the whole object.
    pub fn get_whole(&mut self) -> Result<Body, Failure> {
        let response = self.request(None)?;
        match response.status() {
            StatusCode::OK => {
                let size = content_length(response.headers());
                self.object.agree(object(response.headers(), size))?;
                Ok(self.body(response, size, u64::MAX))
            }
            status => Err(self.refusal(status, response)),
        }
    }

    /// Sends one GET, following redirects. Ranges are asked for at the place where the last
    /// redirect led; if that place now refuses, the first URL is asked once more, since a
    /// redirect may lead to a signed URL that expires.
    fn request(&mut self, range: Option<&str>) -> Result<Response, Failure> {
        let fresh = self.redirected.is_none();
        let response = self.follow(range)?;
        let gone = matches!(response.status().as_u16(), 401 | 403 | 404 | 410);
        let response = if gone && !fresh {
            drain(response);
            self.redirected = None;
            self.follow(range)?
        } else {
            response
        };
        let encoding = response.headers().get(header::CONTENT_ENCODING);
        match encoding.map(|value| value.as_bytes().to_ascii_lowercase()) {
            Some(encoding) if encoding != b"identity" && response.status().is_success() => {
                Err(Failure::permanent(format!(
                    "the server encodes the body ({}) although identity was asked for",
                    String::from_utf8_lossy(&encoding)
                )))
            }
            _ => Ok(response),
        }
    }

    fn follow(&mut self, range: Option<&str>) -> Result<Response, Failure> {
        for _ in 0..=MAX_REDIRECTS {
            let url = self.redirected.as_deref().unwrap_or(&self.url);
            let before = self.attempts.load(Ordering::Relaxed);
            self.counters.requests.fetch_add(1, Ordering::Relaxed);
            let mut request = self.agent.get(url);
            if let Some(range) = range {
                request = request.header(header::RANGE, range);
            }
            let response = request.call().map_err(|error| {
                let reused = self.attempts.load(Ordering::Relaxed) == before;
                classify(error, reused)
            })?;
            log::debug!(
                "request url={} range={} status={}",
                shown(url),
                range.unwrap_or("none"),
                response.status().as_u16()
            );
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(response);
            }
            let Some(next) = location(&response).and_then(|to| join(url, &to)) else {
                return Err(Failure::permanent("a redirect leads nowhere"));
            };
            if !is_http_url(&next) {
                return Err(Failure::permanent(
                    "a redirect leads to a URL that is not http",
                ));
            }
            drain(response);
            self.redirected = Some(next);
        }
        self.redirected = None;
        Err(Failure::permanent(format!(
            "more than {MAX_REDIRECTS} redirects"
        )))
    }

    fn refusal(&self, status: StatusCode, response: Response) -> Failure {
        let transient = matches!(status.as_u16(), 408 | 425 | 429 | 500 | 502 | 503 | 504);
        let mut failure = Failure::new(
            if transient {
                Kind::Transient
            } else {
                Kind::Permanent
            },
            if status == StatusCode::RANGE_NOT_SATISFIABLE {
                "the bundle is shorter than its index says, or empty (416)".to_owned()
            } else {
                format!("the server answered {status}")
            },
        );
        failure.retry_after = response
            .headers()
            .get(header::RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.trim().parse().ok())
            .map(Duration::from_secs);
        drain(response);
        failure
    }

    fn body(&self, response: Response, announced: Option<u64>, wanted: u64) -> Body {
        Body {
            reader: response.into_body().into_reader(),
            skip: 0,
            wanted,
            announced,
            received: 0,
            counters: self.counters.clone(),
        }
    }
}

type Response = ureq::http::Response<ureq::Body>;

/// Ends the blocked reads of a client, which is of no use afterwards.
#[derive(Debug)]
pub struct Stopper(Agent);

impl Stopper {
    /// Shuts the client's sockets down.
    pub fn stop(self) {
        self.0.shutdown();
    }
}

/// The body of an answer.
pub struct Body {
    reader: BodyReader<'static>,
    /// Bytes before the first one that was asked for.
    skip: u64,
    /// Bytes asked for.
    wanted: u64,
    /// Bytes the head announced, those before and behind what was asked for included.
    announced: Option<u64>,
    received: u64,
    counters: Arc<Counters>,
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("wanted", &self.wanted)
            .field("received", &self.received)
            .finish_non_exhaustive()
    }
}

impl Body {
    /// Appends the body to `bytes` and reads on to its end, which lets the connection be used
    /// again. On failure `bytes` keeps what arrived.
    ///
    /// A body that is longer than asked for costs its connection: the rest is not read.
    pub fn read_into(mut self, bytes: &mut Vec<u8>) -> Result<(), Failure> {
        let skipped = io::copy(&mut (&mut self.reader).take(self.skip), &mut io::sink());
        let skipped = skipped.map_err(|error| in_body(error, 0, self.announced))?;
        self.count(skipped);
        let before = bytes.len();
        let result = (&mut self.reader).take(self.wanted).read_to_end(bytes);
        let got = (bytes.len() - before) as u64;
        self.count(got);
        result.map_err(|error| in_body(error, self.received, self.announced))?;
        let announced = self
            .announced
            .map(|size| (size - self.skip).min(self.wanted));
        if announced.is_some_and(|announced| got < announced) || got == 0 {
            return Err(short(self.received, self.announced));
        }
        // The read that returns zero.
        if !matches!(self.reader.read(&mut [0]), Ok(0)) {
            log::debug!("body longer than asked for, connection dropped");
        }
        Ok(())
    }

    /// Reads the next bytes of a body that is wanted whole. Zero at its end.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Failure> {
        match self.reader.read(buffer) {
            Ok(0) if self.announced.is_some_and(|size| self.received < size) => {
                Err(short(self.received, self.announced))
            }
            Ok(n) => {
                self.count(n as u64);
                Ok(n)
            }
            Err(error) => Err(in_body(error, self.received, self.announced)),
        }
    }

    fn count(&mut self, bytes: u64) {
        self.received += bytes;
        self.counters.count_bytes(bytes);
    }
}

/// Counts tries to connect. ureq does not tell whether a request went out on a connection that had
/// been idle; it did if nobody tried to connect.
#[derive(Debug)]
struct Attempts(Arc<AtomicU64>);

impl Connector<()> for Attempts {
    type Out = ();

    fn connect(
        &self,
        _: &ConnectionDetails<'_>,
        chained: Option<()>,
    ) -> Result<Option<()>, ureq::Error> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(chained)
    }
}

/// Counts connections that were made.
#[derive(Debug)]
struct Counting(Arc<Counters>);

impl<In: Transport> Connector<In> for Counting {
    type Out = In;

    fn connect(
        &self,
        _: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<In>, ureq::Error> {
        if chained.is_some() {
            self.0.connections.fetch_add(1, Ordering::Relaxed);
        }
        Ok(chained)
    }
}

fn short(received: u64, announced: Option<u64>) -> Failure {
    Failure::transient(match announced {
        Some(size) => format!("short body: {received} of {size} bytes"),
        None => format!("short body: {received} bytes"),
    })
}

fn in_body(error: io::Error, received: u64, announced: Option<u64>) -> Failure {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return short(received, announced);
    }
    // ureq wraps its own errors, a stall among them, in an I/O error.
    let cause = match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(ureq::Error::Timeout(what)) => timeout(*what),
        Some(inner) => inner.to_string(),
        None => error.to_string(),
    };
    Failure::transient(format!("{cause} after {received} bytes of the body"))
}

fn timeout(what: ureq::Timeout) -> String {
    match what {
        ureq::Timeout::Connect => "no connection within the connect timeout".to_owned(),
        ureq::Timeout::Resolve => "no answer to the name look-up in time".to_owned(),
        _ => "the server kept silent for the stall timeout".to_owned(),
    }
}

fn classify(error: ureq::Error, reused: bool) -> Failure {
    match error {
        ureq::Error::Timeout(what) => Failure::transient(timeout(what)),
        ureq::Error::HostNotFound => Failure::transient("the host name cannot be resolved"),
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => Failure::permanent("the URL is malformed"),
        ureq::Error::TlsRequired => Failure::permanent("this build of reflash has no https"),
        ureq::Error::Io(_) | ureq::Error::Protocol(_) if reused => {
            Failure::new(Kind::Stale, error.to_string())
        }
        ureq::Error::Io(error) => Failure::transient(error.to_string()),
        other => Failure::transient(other.to_string()),
    }
}

/// Reads a small unwanted body to its end, so that its connection can be used again.
fn drain(response: Response) {
    let mut reader = response.into_body().into_reader();
    if let Err(error) = io::copy(&mut (&mut reader).take(MAX_DRAIN), &mut io::sink()) {
        log::debug!("unwanted body: {error}");
    }
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.trim().to_owned())
}

fn object(headers: &HeaderMap, size: Option<u64>) -> Object {
    Object {
        size,
        etag: text(headers, header::ETAG),
        last_modified: text(headers, header::LAST_MODIFIED),
    }
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    text(headers, header::CONTENT_LENGTH)?.parse().ok()
}

fn location(response: &Response) -> Option<String> {
    text(response.headers(), header::LOCATION)
}

/// The part of a 206 answer, half open, and the total size if it is given.
///
/// The one place where the inclusive ranges of HTTP are turned into ours (the other direction is
/// the `bytes=` line of [`Client::get`]).
fn content_range(headers: &HeaderMap) -> Result<(Range<u64>, Option<u64>), Failure> {
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

/// True for URLs this file can fetch.
pub fn is_http_url(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|s| s.eq_ignore_ascii_case("http") || s.eq_ignore_ascii_case("https"))
}

/// Why a URL cannot be fetched, as far as that can be seen from it.
pub fn check_url(url: &str) -> Result<(), &'static str> {
    let uri: Uri = url.parse().map_err(|_| "it is malformed")?;
    let authority = uri.authority().ok_or("it names no host")?;
    if authority.host().is_empty() {
        return Err("it names no host");
    }
    // What stands behind the host, which `authority.port` gives only if it is one.
    let host_on = authority.as_str().rsplit('@').next().unwrap_or_default();
    match host_on
        .strip_prefix(authority.host())
        .map(|port| port.strip_prefix(':'))
    {
        Some(Some(port)) if port.parse::<u16>().is_err() => Err("its port is no port"),
        _ => Ok(()),
    }
}

/// A URL without user info, query and fragment.
pub fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

/// Resolves the target of a redirect against the URL that gave it.
fn join(base: &str, to: &str) -> Option<String> {
    if to.contains("://") {
        return Some(to.to_owned());
    }
    let (scheme, rest) = base.split_once("://")?;
    if let Some(host_on) = to.strip_prefix("//") {
        return Some(format!("{scheme}://{host_on}"));
    }
    let rest = rest.split(['?', '#']).next()?;
    let (host, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    let path = match (to.as_bytes().first()?, path.rfind('/')) {
        (b'/', _) => to.to_owned(),
        (b'?', _) => format!("{path}{to}"),
        (_, Some(at)) => format!("{}/{to}", path.get(..at)?),
        (_, None) => format!("/{to}"),
    };
    Some(format!("{scheme}://{host}{path}"))
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
    fn impossible_urls_are_noticed() {
        for good in [
            "http://h/b",
            "http://u:p@h:80/b?c",
            "http://[::1]:8080/b",
            "https://h",
        ] {
            assert_eq!(check_url(good), Ok(()), "{good}");
        }
        for bad in [
            "http://",
            "http://h:99999/b",
            "http://h:x/b",
            "http://h:/b",
            "http://h/ b",
        ] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        for (url, expected) in [
            ("http://h/p", "http://h/p"),
            ("http://user:pass@h:80/p?sig=1#x", "http://h:80/p"),
            ("https://h?token=1", "https://h"),
            ("http://u@h/p@q", "http://h/p@q"),
        ] {
            assert_eq!(shown(url), expected);
        }
    }

    #[test]
    fn redirects_are_resolved() {
        for (to, expected) in [
            ("https://b/c", "https://b/c"),
            ("//b/c", "http://b/c"),
            ("/c", "http://a:1/c"),
            ("c", "http://a:1/x/c"),
            ("?c", "http://a:1/x/y?c"),
        ] {
            assert_eq!(join("http://a:1/x/y?z", to).as_deref(), Some(expected));
        }
        assert_eq!(join("http://a", "c").as_deref(), Some("http://a/c"));
        assert_eq!(join("http://a", ""), None);
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
}
