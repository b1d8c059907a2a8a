//! One agent, one URL: ask for a range of one object, or say why it cannot be had.
//!
//! The only user of ureq, but for the sockets below it (`connect.rs`). A [`Client`] belongs to one
//! worker and holds one keep-alive connection. Headers and credentials that the user gives go to the
//! origin of the first URL alone, wherever redirects lead. No answer is trusted:
//!
//! | the server | here |
//! |---|---|
//! | 206, Content-Range covers the start of what was asked | body from the first byte asked for |
//! | 206 elsewhere, without Content-Range, of odd length | transient failure |
//! | 200 to a range | the body if it is the range, else [`Kind::RangeIgnored`] |
//! | encodes the body | permanent failure: a range of an encoded body is no range of the bundle |
//! | another size, ETag, Last-Modified than in the first answer | [`Kind::Changed`] |
//! | 408, 425, 429, 500, 502, 503, 504 | transient, with its Retry-After |
//! | a certificate that is not trusted | [`Kind::Lasting`] |
//! | other statuses, more than 10 redirects | permanent; on a redirected URL one fresh trip |
//!
//! A body must be read until a read returns zero, or ureq will not use the connection again:
//! [`Body::read_some`] does. There is no limit on the time of a whole body, only on silence
//! (`stall_timeout`): a healthy slow link may need minutes. Failures are classified here;
//! retrying and waiting is `fetch.rs`'s business.

mod answer;
mod body;
mod url;

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ureq::http::{header, HeaderName, HeaderValue, StatusCode};
use ureq::Agent;

use self::answer::{content_length, content_range, location, object, retry_after, Object};
use self::body::drain;
pub use self::body::Body;
pub use self::url::{check_url, is_http_url, shown};
use self::url::{join, same_origin, split_user_info};
use crate::ahead::Wanted;
pub use crate::ahead::{MAX_AHEAD, WINDOW};
pub use crate::connect::MIN_BYTES;
use crate::connect::{Dialler, Names, Network, Outlook, Trouble};
use crate::proxy;

/// Redirects followed for one request, as curl and browsers do it.
const MAX_REDIRECTS: u32 = 10;

/// Bytes before the range asked for that are passed over, where a server rounds ranges down.
const MAX_SKIP: u64 = 64 << 10;

/// A whole head, with all interim ones before it, may take as many stall timeouts.
const HEAD_STALLS: u32 = 2;

/// ureq's buffer for what comes in. Larger ones were measured to gain nothing for 1 MiB bodies.
const INPUT_BUFFER: usize = 64 << 10;

/// ureq's buffer for what goes out: a request head.
const OUTPUT_BUFFER: usize = 8 << 10;

/// How to reach the server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Limit for name look-up and for making a connection, each.
    pub connect_timeout: Duration,
    /// No byte for so long is a failure of the request. The same option as the policy's, which ends a
    /// body that trickles: whoever changes one changes both.
    pub stall_timeout: Duration,
    /// Headers to send to the first URL's origin.
    pub headers: Vec<Header>,
    /// Names, proxies and TLS, and what was learnt of them.
    pub network: Arc<Network>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            headers: Vec::new(),
            network: Arc::default(),
        }
    }
}

/// Headers that this program must set itself, or that would change what an answer means.
const RESERVED: [&str; 19] = [
    "accept-encoding",
    "connection",
    "content-length",
    "expect",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// A header that the user wants to be sent. Its value may be a secret and is never shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    name: HeaderName,
    value: HeaderValue,
}

impl Header {
    /// Parses `Name: value`. Errors do not repeat the value.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, value) = text
            .split_once(':')
            .map(|(name, value)| (name.trim(), value.trim()))
            .filter(|(name, value)| !name.is_empty() && !value.is_empty())
            .ok_or("it is not of the form 'Name: value'")?;
        let parsed: HeaderName = name.parse().map_err(|_| "its name is no header's")?;
        if RESERVED.contains(&parsed.as_str()) {
            return Err(format!("reflash sets {name} itself"));
        }
        let mut value: HeaderValue = value
            .parse()
            .map_err(|_| format!("the value of {name} has characters that no header can have"))?;
        value.set_sensitive(true);
        Ok(Self {
            name: parsed,
            value,
        })
    }
}

/// What all clients of a run did together.
#[derive(Debug, Default)]
pub struct Counters {
    requests: AtomicU64,
    connections: Arc<AtomicU64>,
    bytes: AtomicU64,
    retries: AtomicU64,
    /// When a warning of a failure was last given.
    warned: Mutex<Option<Instant>>,
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

    /// Whether a warning is due: the last one was a second ago or more.
    pub fn may_warn(&self) -> bool {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let due = warned.is_none_or(|last| last.elapsed() >= Duration::from_secs(1));
        if due {
            *warned = Some(Instant::now());
        }
        due
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
    /// It will not go better in this run, but may when something is put right.
    Lasting,
    /// 200 where a part was asked for.
    RangeIgnored,
    /// The body comes far slower than others: it is not waited for.
    Slow,
    /// More bytes came than the user allows.
    Limit,
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
    /// A failure of some kind, with its cause in one line.
    pub fn new(kind: Kind, cause: impl Into<String>) -> Self {
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

/// Fetches ranges of one object over one connection.
pub struct Client {
    agent: Agent,
    /// The first URL, without user info.
    url: String,
    /// What goes to the first URL's origin alone.
    headers: Arc<Vec<Header>>,
    /// Where redirects led to, if they did.
    redirected: Option<String>,
    object: Object,
    settings: Arc<Settings>,
    counters: Arc<Counters>,
    /// Tries to connect.
    attempts: Arc<AtomicU64>,
    wanted: Arc<Wanted>,
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
        let (url, user_info) = split_user_info(url);
        let mut headers = settings.headers.clone();
        if !headers.iter().any(|it| it.name == header::AUTHORIZATION) {
            headers.extend(user_info.and_then(credentials));
        }
        Self::with(url, Arc::new(headers), Arc::new(settings.clone()), counters)
    }

    fn with(
        url: String,
        headers: Arc<Vec<Header>>,
        settings: Arc<Settings>,
        counters: &Arc<Counters>,
    ) -> Self {
        let attempts = Arc::new(AtomicU64::new(0));
        let wanted = Arc::new(Wanted::default());
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(settings.connect_timeout))
            .timeout_resolve(Some(settings.connect_timeout))
            .timeout_recv_response(Some(settings.stall_timeout.saturating_mul(HEAD_STALLS)))
            .timeout_per_read(Some(settings.stall_timeout))
            .timeout_per_write(Some(settings.stall_timeout))
            .input_buffer_size(INPUT_BUFFER)
            .output_buffer_size(OUTPUT_BUFFER)
            .max_idle_connections(1)
            .max_idle_connections_per_host(1)
            .max_idle_age(Duration::from_secs(60))
            .accept_encoding("identity")
            .user_agent(concat!("reflash/", env!("CARGO_PKG_VERSION")))
            // connect.rs knows better.
            .proxy(None)
            .build();
        let dialler = Dialler {
            network: settings.network.clone(),
            stall_timeout: settings.stall_timeout,
            attempts: attempts.clone(),
            connections: counters.connections.clone(),
            wanted: wanted.clone(),
        };
        Self {
            agent: Agent::with_parts(config, dialler, Names(settings.network.clone())),
            url,
            headers,
            redirected: None,
            object: Object::default(),
            settings,
            counters: counters.clone(),
            attempts,
            wanted,
        }
    }

    /// Another client for the same object, with a connection of its own.
    pub fn sibling(&self) -> Self {
        let headers = self.headers.clone();
        let settings = self.settings.clone();
        let mut sibling = Self::with(self.url.clone(), headers, settings, &self.counters);
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
        Stopper(self.agent.clone(), self.wanted.clone())
    }

    /// Begins to open so many further connections, for clients that are to be.
    pub fn open_ahead(&self, count: usize) {
        let url = self.redirected.as_deref().unwrap_or(&self.url);
        if let Ok(uri) = split_user_info(url).0.parse() {
            let connections = &self.counters.connections;
            self.settings.network.open_ahead(&uri, count, connections);
        }
    }

    /// True if it pays to say what is asked for next ([`Client::will_ask`]).
    pub fn asks_ahead(&self) -> bool {
        self.settings.network.manners().allow()
    }

    /// Says which ranges the requests after the next one will be for, in order. They may then be
    /// sent early, and their answers be here when they are asked for.
    pub fn will_ask(&self, ranges: impl Iterator<Item = Range<u64>>) {
        self.wanted.set(ranges);
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
                if !part.contains(&range.start) || range.start - part.start > MAX_SKIP {
                    return Err(Failure::transient(format!(
                        "the server answered bytes {}..{} instead",
                        part.start, part.end
                    )));
                }
                let (announced, wanted) = (part.end - part.start, range.end - range.start);
                let skip = range.start - part.start;
                Ok(Body::new(
                    response,
                    Some(announced),
                    skip,
                    wanted,
                    &self.counters,
                ))
            }
            StatusCode::OK => {
                let size = content_length(headers);
                if size == Some(0) && self.object.size.is_none() {
                    return Err(Failure::permanent("the server has an empty file there"));
                }
                if range.start == 0 && size.is_some_and(|size| (1..=range.end).contains(&size)) {
                    self.object.agree(object(headers, size))?;
                    return Ok(Body::new(response, size, 0, range.end, &self.counters));
                }
                // Whose file that is does not matter: it may be the page of a captive portal.
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
                Ok(Body::new(response, size, 0, u64::MAX, &self.counters))
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
            let (plain, user_info) = split_user_info(url);
            let at_home = same_origin(&plain, &self.url);
            let mut request = self.agent.get(plain);
            if let Some(range) = range {
                request = request.header(header::RANGE, range);
            }
            let ours = self.headers.iter().filter(|_| at_home);
            // Those that a redirect gives are for where it leads.
            let given = user_info.filter(|_| !at_home).and_then(credentials);
            for Header { name, value } in ours.chain(&given) {
                request = request.header(name, value);
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
            let Some(next) = location(response.headers()).and_then(|to| join(url, &to)) else {
                return Err(Failure::permanent("a redirect leads nowhere"));
            };
            if !is_http_url(&next) {
                return Err(Failure::permanent(
                    "a redirect leads to a URL that is not http",
                ));
            }
            if let Err(why) = check_url(&next) {
                let cause = format!("a redirect leads to a URL that cannot be fetched: {why}");
                return Err(Failure::permanent(cause));
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
            match status {
                StatusCode::RANGE_NOT_SATISFIABLE => {
                    "the bundle is shorter than its index says, or empty (416)".to_owned()
                }
                StatusCode::PROXY_AUTHENTICATION_REQUIRED => proxy::WANTS_CREDENTIALS.to_owned(),
                status => format!("the server answered {status}"),
            },
        );
        failure.retry_after = retry_after(response.headers());
        drain(response);
        failure
    }
}

type Response = ureq::http::Response<ureq::Body>;

/// Ends the blocked reads of a client, which is of no use afterwards.
#[derive(Debug)]
pub struct Stopper(Agent, Arc<Wanted>);

impl Stopper {
    /// Shuts the client's sockets down.
    pub fn stop(self) {
        self.1.end();
        self.0.shutdown();
    }
}

fn timeout(what: ureq::Timeout) -> String {
    match what {
        ureq::Timeout::Connect => "no connection within the connect timeout".to_owned(),
        ureq::Timeout::Resolve => "no answer to the name look-up in time".to_owned(),
        ureq::Timeout::RecvResponse => {
            format!("no complete head within {HEAD_STALLS} stall timeouts")
        }
        _ => "the server kept silent for the stall timeout".to_owned(),
    }
}

fn classify(error: ureq::Error, reused: bool) -> Failure {
    match error {
        ureq::Error::Timeout(what) => Failure::transient(timeout(what)),
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => Failure::permanent("the URL is malformed"),
        ureq::Error::Other(inner) => {
            let kind = match inner
                .downcast_ref()
                .map(|trouble: &Trouble| trouble.outlook)
            {
                Some(Outlook::Refused) => Kind::Permanent,
                Some(Outlook::Lasting) => Kind::Lasting,
                Some(Outlook::Passing) | None => Kind::Transient,
            };
            Failure::new(kind, inner.to_string())
        }
        ureq::Error::Io(_) | ureq::Error::Protocol(_) if reused => {
            Failure::new(Kind::Stale, error.to_string())
        }
        ureq::Error::Io(error) => Failure::transient(error.to_string()),
        other => Failure::transient(other.to_string()),
    }
}

fn credentials(user_info: &str) -> Option<Header> {
    let mut value: HeaderValue = proxy::basic(user_info).parse().ok()?;
    value.set_sensitive(true);
    Some(Header {
        name: header::AUTHORIZATION,
        value,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_parsed() {
        let header = Header::parse("X-Token:  a: b ").expect("a header");
        assert_eq!(header.name, "x-token");
        assert_eq!(header.value, "a: b");
        assert!(!format!("{header:?}").contains("a: b"));
        for (bad, reason) in [
            ("secret", "'Name: value'"),
            (": secret", "'Name: value'"),
            ("X-Token:", "'Name: value'"),
            ("a b: secret", "its name"),
            ("A: secret\nB: c", "characters"),
            ("RANGE: bytes=0-1", "sets RANGE itself"),
            ("Host: secret", "sets Host itself"),
        ] {
            let message = Header::parse(bad).expect_err(bad);
            assert!(message.contains(reason), "{bad:?}: {message}");
            assert!(!message.contains("secret"), "{message}");
        }
    }
}
