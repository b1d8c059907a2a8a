//! The sockets under ureq: where a request goes, how it gets there, and what was learnt on the way.
//!
//! ```text
//!   URL ─▶ proxy? ─▶ name ─▶ addresses, in turn ─▶ socket ─▶ CONNECT? ─▶ TLS? ─▶ ureq
//! ```
//!
//! A [`Network`] is shared by all clients of a run and remembers what they learn: the addresses of
//! a name, and which of them answer. An address that swallows packets, as IPv6 does on some
//! networks, so costs its share of the connect timeout once and not once per connection.
//!
//! ureq sends every request to a proxy through a tunnel (CONNECT), which many proxies allow to port
//! 443 only, and takes the first proxy variable it finds for all schemes. So it is not told of
//! proxies at all: names are resolved to the proxy's address here, and where a plain request goes
//! to one, its head is rewritten on the way out.
//!
//! With its socket (`wire`) the one module that uses `ureq::unversioned`, which may change with any release.

mod wire;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use socket2::{Socket, TcpKeepalive};
use ureq::config::Config;
use ureq::http::uri::Scheme;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, ShutdownHandle, Transport,
};
use ureq::{Error, Timeout};

pub use self::wire::MIN_BYTES;
use self::wire::{is_quiet, tcp_socket, Wire};
use crate::ahead::{Manners, Pipeline, Wanted};
use crate::proxy::{self, parse_address, Absolute, Proxies, Proxy};
use crate::tls::{self, Session, Tls};

/// Longest wait for one address while there are others to try.
const MAX_SHARE: Duration = Duration::from_millis(2500);

/// Idle time before the kernel asks whether the other side is still there. Less than the minutes
/// after which firewalls forget a connection.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// A connection that was opened ahead is used for as long. Servers drop those on which nothing is
/// asked for sooner than others, the hasty ones after some seconds.
const MAX_PARKED: Duration = Duration::from_secs(4);

/// Connections are opened ahead where it takes so long to make one.
const WORTH_PARKING: Duration = Duration::from_millis(10);

/// Linux: a connection is under way.
const EINPROGRESS: i32 = 115;

/// Room in ureq's list of addresses.
const MAX_ADDRESSES: usize = 16;

/// A failure below HTTP for which ureq has no error. It travels as [`Error::Other`].
#[derive(Debug)]
pub struct Trouble {
    /// What can be done about it.
    pub outlook: Outlook,
    /// One line.
    pub cause: String,
}

/// What can be done about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// It may go better next time.
    Passing,
    /// Not in this run: something here, or the server's certificate, is to be put right.
    Lasting,
    /// The way there is refused.
    Refused,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)
    }
}

impl std::error::Error for Trouble {}

fn trouble(outlook: Outlook, cause: impl Into<String>) -> Error {
    Error::Other(Box::new(Trouble {
        outlook,
        cause: cause.into(),
    }))
}

impl From<tls::Problem> for Trouble {
    fn from(problem: tls::Problem) -> Self {
        let (outlook, cause) = match problem {
            tls::Problem::File { path, reason } => {
                (Outlook::Lasting, format!("{}: {reason}", path.display()))
            }
            tls::Problem::Unsupported(cause) => (Outlook::Refused, cause.to_owned()),
            tls::Problem::Lasting(cause) => (Outlook::Lasting, cause),
            tls::Problem::Passing(cause) => (Outlook::Passing, cause),
            tls::Problem::Io(error) => (Outlook::Passing, error.to_string()),
        };
        Self { outlook, cause }
    }
}

fn proxy_error(problem: proxy::Problem) -> Error {
    match problem {
        proxy::Problem::Refused(cause) => trouble(Outlook::Refused, cause),
        proxy::Problem::Passing(cause) => trouble(Outlook::Passing, cause),
        proxy::Problem::Io(error) => Error::from(error),
    }
}

fn tls_error(problem: tls::Problem) -> Error {
    match problem {
        // The socket's own error, or ureq's in its clothes.
        tls::Problem::Io(error) => Error::from(error),
        problem => Error::Other(Box::new(Trouble::from(problem))),
    }
}

// ---- names -----------------------------------------------------------------------------------

/// `HOST:PORT:ADDR[,ADDR…]`: the addresses of a host at a port, in place of those that DNS gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolve {
    /// In lower case; `*` for every host.
    host: String,
    port: u16,
    addresses: Vec<IpAddr>,
}

impl Resolve {
    /// Parses what the user wrote.
    pub fn parse(text: &str) -> Option<Self> {
        // curl's plus sign: the entry may time out. None does here, a run is short.
        let text = text.strip_prefix('+').unwrap_or(text);
        let (host, rest) = match text.strip_prefix('[') {
            Some(inner) => {
                let (host, rest) = inner.split_once("]:")?;
                (format!("[{host}]"), rest)
            }
            None => {
                let (host, rest) = text.split_once(':')?;
                (host.to_ascii_lowercase(), rest)
            }
        };
        let (port, addresses) = rest.split_once(':')?;
        let addresses: Option<Vec<_>> = addresses.split(',').map(parse_address).collect();
        Some(Self {
            host: Some(host).filter(|host| !host.is_empty())?,
            port: port.parse().ok()?,
            addresses: addresses?,
        })
    }
}

// ---- the network -----------------------------------------------------------------------------

/// How servers are reached, and what was learnt of it. One for all clients of a run.
#[derive(Default)]
pub struct Network {
    resolve: Vec<Resolve>,
    proxies: Proxies,
    tls: Tls,
    learnt: Mutex<Learnt>,
    manners: Arc<Manners>,
    /// Sockets opened ahead, oldest first.
    parked: Mutex<VecDeque<Parked>>,
}

impl fmt::Debug for Network {
    /// Without what it holds: sockets and credentials, and 5 KB of code that nothing would ever run.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

/// A socket that connects, or has connected, without anyone waiting for it.
struct Parked {
    address: SocketAddr,
    socket: Socket,
    since: Instant,
}

impl Parked {
    /// The socket, if it is connected and the other side has not left meanwhile.
    fn take(self) -> Option<Socket> {
        let fresh = self.since.elapsed() < MAX_PARKED;
        let connected = fresh && self.socket.peer_addr().is_ok() && is_quiet(&self.socket);
        (connected && self.socket.set_nonblocking(false).is_ok()).then_some(self.socket)
    }
}

#[derive(Default)]
struct Learnt {
    /// The addresses of `host:port`.
    names: HashMap<String, Vec<SocketAddr>>,
    /// Whether an address could be reached last time.
    reachable: HashMap<SocketAddr, bool>,
    /// Shortest time in which a connection was made: a round trip.
    round_trip: Option<Duration>,
}

impl Network {
    /// Nothing is read or asked for yet.
    pub fn new(resolve: Vec<Resolve>, proxies: Proxies, tls: Tls) -> Self {
        Self {
            resolve,
            proxies,
            tls,
            learnt: Mutex::default(),
            manners: Arc::default(),
            parked: Mutex::default(),
        }
    }

    /// Begins to open so many connections to where this URL leads, before they are needed, and
    /// counts them. Only where one was made before, and where a round trip is worth it.
    pub(crate) fn open_ahead(&self, uri: &Uri, count: usize, connections: &AtomicU64) {
        // Either alone may be a hiccup of this machine.
        let shortest = self.learnt().round_trip.min(self.manners.first_byte());
        if shortest.is_none_or(|it| it < WORTH_PARKING) {
            return;
        }
        let (host, port) = self.next_hop(uri);
        let addresses = self
            .fixed(&host, port)
            .or_else(|| Some(vec![SocketAddr::new(parse_address(&host)?, port)]))
            .or_else(|| self.learnt().names.get(&format!("{host}:{port}")).cloned())
            .unwrap_or_default();
        let is_good = |it: &SocketAddr| self.learnt().reachable.get(it) == Some(&true);
        let Some(address) = addresses.into_iter().find(is_good) else {
            return;
        };
        for _ in 0..count {
            let opened = tcp_socket(address).and_then(|socket| {
                socket.set_nonblocking(true)?;
                match socket.connect(&address.into()) {
                    Err(error) if error.raw_os_error() != Some(EINPROGRESS) => Err(error),
                    _ => Ok(socket),
                }
            });
            match opened {
                Ok(socket) => {
                    // Connected as soon as asked: what seemed to be a round trip was this machine,
                    // and no time is to be saved.
                    let is_near = socket.peer_addr().is_ok();
                    connections.fetch_add(1, Ordering::Relaxed);
                    self.parked().push_back(Parked {
                        address,
                        socket,
                        since: Instant::now(),
                    });
                    if is_near {
                        break;
                    }
                }
                Err(error) => {
                    log::debug!("no connection ahead to {address}: {error}");
                    break;
                }
            }
        }
    }

    /// A connection to this address that was opened ahead.
    fn unpark(&self, address: SocketAddr) -> Option<Socket> {
        let mut parked = self.parked();
        // The oldest first: it is the one that a server with one thread waits for.
        while let Some(number) = parked.iter().position(|it| it.address == address) {
            if let Some(socket) = parked.remove(number).and_then(Parked::take) {
                return Some(socket);
            }
        }
        None
    }

    fn parked(&self) -> MutexGuard<'_, VecDeque<Parked>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of how the server takes requests that are sent ahead.
    pub(crate) fn manners(&self) -> &Manners {
        &self.manners
    }

    fn learnt(&self) -> MutexGuard<'_, Learnt> {
        self.learnt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn proxy(&self, uri: &Uri) -> Option<&Proxy> {
        self.proxies
            .of(is_https(uri), uri.host().unwrap_or_default())
    }

    /// The host and port to which a request for this URL is sent: its own, or a proxy's.
    fn next_hop(&self, uri: &Uri) -> (String, u16) {
        match self.proxy(uri) {
            Some(proxy) => (proxy.host.clone(), proxy.port),
            None => (uri.host().unwrap_or_default().to_owned(), port(uri)),
        }
    }

    /// Names the proxy where a failure is the proxy's: the server of the URL may be fine.
    fn through_proxy(&self, uri: &Uri, error: Error) -> Error {
        let Some(proxy) = self.proxy(uri) else {
            return error;
        };
        let cause = match error {
            Error::Timeout(_) => "no connection within the connect timeout".to_owned(),
            Error::Io(error) => error.to_string(),
            other => other.to_string(),
        };
        let hop = format!("{}:{}", proxy.host, proxy.port);
        let cause = format!("the proxy {hop} (--proxy \"\" does without): {cause}");
        trouble(Outlook::Passing, cause)
    }

    fn fixed(&self, host: &str, port: u16) -> Option<Vec<SocketAddr>> {
        let named = |wanted: &str| {
            let mut entries = self.resolve.iter().rev();
            entries.find(|entry| entry.host == wanted && entry.port == port)
        };
        let entry = named(&host.to_ascii_lowercase()).or_else(|| named("*"))?;
        let addresses = entry.addresses.iter();
        Some(addresses.map(|it| SocketAddr::new(*it, port)).collect())
    }

    fn look_up(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<Vec<SocketAddr>, Error> {
        let (host, port) = self.next_hop(uri);
        if let Some(addresses) = self.fixed(&host, port) {
            return Ok(addresses);
        }
        if let Some(address) = parse_address(&host) {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let key = format!("{host}:{port}");
        if let Some(addresses) = self.learnt().names.get(&key) {
            return Ok(addresses.clone());
        }
        let hop = format!("http://{key}/");
        let hop: Uri = hop.parse().map_err(|_| Error::BadUri(host.clone()))?;
        let found = DefaultResolver::default().resolve(&hop, config, timeout);
        let found = found.map_err(|error| {
            let error = unresolved(&host, error, Path::new(RESOLV_CONF));
            self.through_proxy(uri, error)
        })?;
        let found = found.to_vec();
        self.learnt().names.insert(key, found.clone());
        Ok(found)
    }

    /// Tries the addresses in turn: those that answered last time first, those that did not last.
    ///
    /// While others wait, an address gets half of what is left of the time, and no more than
    /// [`MAX_SHARE`]. If that was too little for a slow one, it is the last one of the next try, and
    /// has all the rest.
    fn reach(
        &self,
        uri: &Uri,
        addresses: &[SocketAddr],
        deadline: Option<Instant>,
        open: impl Fn(SocketAddr, Option<Duration>) -> Result<Wire, Error>,
    ) -> Result<Wire, Error> {
        let mut addresses = addresses.to_vec();
        {
            let learnt = self.learnt();
            addresses.sort_by_key(|address| match learnt.reachable.get(address) {
                Some(true) => 0,
                None => 1,
                Some(false) => 2,
            });
        }
        let mut last = Error::ConnectionFailed;
        let count = addresses.len();
        for (number, address) in addresses.into_iter().enumerate() {
            let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                last = Error::Timeout(Timeout::Connect);
                break;
            }
            let share = match left {
                Some(left) if number + 1 < count => Some((left / 2).min(MAX_SHARE)),
                None if number + 1 < count => Some(MAX_SHARE),
                left => left,
            };
            let result = open(address, share);
            // An error that is not the socket's is that of a client that was shut down.
            let reachable = match &result {
                Ok(_) => true,
                Err(Error::Io(_) | Error::Timeout(_)) => false,
                Err(_) => return result,
            };
            self.learnt().reachable.insert(address, reachable);
            match result {
                Ok(wire) => return Ok(wire),
                Err(error) => {
                    log::debug!("no connection to {address}: {error}");
                    last = error;
                }
            }
        }
        // It may have moved.
        let (host, port) = self.next_hop(uri);
        self.learnt().names.remove(&format!("{host}:{port}"));
        Err(last)
    }
}

fn port(uri: &Uri) -> u16 {
    let default = if is_https(uri) { 443 } else { 80 };
    uri.port_u16().unwrap_or(default)
}

fn is_https(uri: &Uri) -> bool {
    uri.scheme() == Some(&Scheme::HTTPS)
}

const RESOLV_CONF: &str = "/etc/resolv.conf";

fn unresolved(host: &str, error: Error, resolv_conf: &Path) -> Error {
    let cause = match error {
        Error::Timeout(_) => "no answer within the connect timeout".to_owned(),
        Error::Io(error) => error.to_string(),
        Error::HostNotFound => "it has no address".to_owned(),
        other => return other,
    };
    let why = if resolv_conf.exists() {
        String::new()
    } else {
        format!(
            ", there is no {}: give --resolve or an address",
            resolv_conf.display()
        )
    };
    trouble(
        Outlook::Passing,
        format!("the host name {host} cannot be resolved ({cause}{why})"),
    )
}

/// Resolves as a [`Network`] says.
#[derive(Debug)]
pub struct Names(pub Arc<Network>);

impl Resolver for Names {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let found = self.0.look_up(uri, config, timeout)?;
        let mut addresses = self.empty();
        for address in found.into_iter().take(MAX_ADDRESSES) {
            addresses.push(address);
        }
        Ok(addresses)
    }
}

/// Connects as a [`Network`] says, for one client.
#[derive(Debug)]
pub struct Dialler {
    /// What it goes by.
    pub network: Arc<Network>,
    /// A limit for data without acknowledgement.
    pub stall_timeout: Duration,
    /// Counts tries to connect. ureq does not tell whether a request went out on a connection that
    /// had been idle; it did if nobody tried to connect.
    pub attempts: Arc<AtomicU64>,
    /// Counts connections that were made, those of all clients.
    pub connections: Arc<AtomicU64>,
    /// What is asked for next.
    pub wanted: Arc<Wanted>,
}

impl Connector<()> for Dialler {
    type Out = Connection;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _: Option<()>,
    ) -> Result<Option<Connection>, Error> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        let uri = details.uri;
        let host = uri.host().unwrap_or_default();
        // Before anything is sent: what is missing here is missing whatever the server says.
        let session = match details.needs_tls() {
            true => Some(self.network.tls.session(host).map_err(tls_error)?),
            false => None,
        };
        let limit = (!details.timeout.after.is_not_happening()).then(|| *details.timeout.after);
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut wire = self
            .network
            .reach(uri, &details.addrs, deadline, |address, share| {
                self.open(address, share, details)
            })
            .map_err(|error| self.network.through_proxy(uri, error))?;

        let left = || {
            let mut timeout = details.timeout;
            if let Some(deadline) = deadline {
                timeout.after = deadline.saturating_duration_since(Instant::now()).into();
            }
            timeout
        };
        let proxy = self.network.proxy(uri);
        let target = format!("{host}:{}", port(uri));
        let mut absolute = None;
        if let Some(proxy) = proxy {
            match session {
                Some(_) => {
                    let asked = proxy::tunnel(&mut wire.timed(left()), &target, proxy);
                    asked.map_err(proxy_error)?
                }
                None => absolute = Some(Absolute::new(&target, proxy)),
            }
        }
        // Proxies are known to fail at it.
        let pipeline = absolute
            .is_none()
            .then(|| Pipeline::new(self.wanted.clone(), self.network.manners.clone()));
        let mut connection = Connection {
            wire,
            pipeline,
            session,
            absolute,
            buffers: LazyBuffers::new(
                details.config.input_buffer_size(),
                details.config.output_buffer_size(),
            ),
        };
        if let Some(session) = &mut connection.session {
            let begun = session.handshake(&mut connection.wire.timed(left()));
            begun.map_err(tls_error)?;
        }
        Ok(Some(connection))
    }
}

impl Dialler {
    /// Connects to one address.
    fn open(
        &self,
        address: SocketAddr,
        limit: Option<Duration>,
        details: &ConnectionDetails<'_>,
    ) -> Result<Wire, Error> {
        let parked = self.network.unpark(address);
        let is_connected = parked.is_some();
        let socket = parked.map_or_else(|| tcp_socket(address), Ok)?;
        let wire = Wire::new(socket);
        // From here on: an agent that is shut down need not wait for a connection either.
        let handle = Arc::downgrade(&wire.socket) as Weak<dyn ShutdownHandle>;
        (details.register_shutdown)(handle)
            .map_err(|error| trouble(Outlook::Passing, error.to_string()))?;
        let socket = &wire.socket.0;
        let began = Instant::now();
        match limit {
            _ if is_connected => Ok(()),
            Some(limit) => socket.connect_timeout(&address.into(), limit),
            None => socket.connect(&address.into()),
        }
        .map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => Error::Timeout(Timeout::Connect),
            _ => Error::Io(error),
        })?;
        if !is_connected {
            self.connections.fetch_add(1, Ordering::Relaxed);
            let mut learnt = self.network.learnt();
            let took = began.elapsed();
            learnt.round_trip = Some(learnt.round_trip.map_or(took, |it| it.min(took)));
        }
        let keepalive = TcpKeepalive::new()
            .with_time(KEEPALIVE_IDLE)
            .with_interval(KEEPALIVE_INTERVAL)
            .with_retries(KEEPALIVE_RETRIES);
        let options = socket
            .set_tcp_nodelay(true)
            .and_then(|()| socket.set_tcp_keepalive(&keepalive))
            .and_then(|()| socket.set_tcp_user_timeout(Some(self.stall_timeout)));
        if let Err(error) = options {
            log::debug!("socket option: {error}");
        }
        Ok(wire)
    }
}

/// What ureq speaks HTTP over.
pub struct Connection {
    wire: Wire,
    session: Option<Session>,
    absolute: Option<Absolute>,
    pipeline: Option<Pipeline>,
    buffers: LazyBuffers,
}

impl Connection {
    fn send(&mut self, bytes: &[u8], timeout: NextTimeout) -> Result<(), Error> {
        let mut wire = self.wire.timed(timeout);
        match &mut self.session {
            Some(session) => session.write_all(&mut wire, bytes).map_err(tls_error),
            None => Ok(wire.write_all(bytes)?),
        }
    }

    /// Receives the next bytes of the present answer into ureq's buffer: their number.
    fn receive(&mut self, mut timeout: NextTimeout) -> Result<usize, Error> {
        let input = self.buffers.input_append_buf();
        let early = self.pipeline.as_mut().map_or(0, |it| it.take_early(input));
        if early > 0 {
            self.buffers.input_appended(early);
            return Ok(early);
        }
        let per_read = timeout.for_read();
        let patience = self.pipeline.as_ref().and_then(Pipeline::patience);
        let patience =
            patience.filter(|it| per_read.after.is_not_happening() || *per_read.after > *it);
        if let Some(patience) = patience {
            timeout.after = patience.into();
        }
        let mut wire = self.wire.timed(timeout);
        let read = match &mut self.session {
            Some(session) => session.read(&mut wire, input).map_err(tls_error),
            None => wire.read(input).map_err(Error::from),
        };
        let mut amount = match (read, &self.pipeline) {
            (Err(Error::Timeout(_)), Some(pipeline)) if patience.is_some() => {
                pipeline.forgotten();
                return Err(Error::Io(io::ErrorKind::ConnectionAborted.into()));
            }
            (read, _) => read?,
        };
        if let Some(pipeline) = &mut self.pipeline {
            amount = pipeline.received(input.get(..amount).unwrap_or_default());
        }
        self.buffers.input_appended(amount);
        Ok(amount)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("tls", &self.session.is_some())
            .field("proxy", &self.absolute.is_some())
            .finish_non_exhaustive()
    }
}

impl Transport for Connection {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let output: &[u8] = self.buffers.output();
        let output = output.get(..amount).unwrap_or(output);
        let bytes = match (&mut self.absolute, &mut self.pipeline) {
            (Some(absolute), _) => absolute.rewrite(output),
            (None, Some(pipeline)) => pipeline
                .request(output)
                .ok_or_else(|| Error::Io(io::ErrorKind::NotConnected.into()))?,
            (None, None) => output.to_vec(),
        };
        self.send(&bytes, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let amount = self.receive(timeout)?;
        let more = self.pipeline.as_mut().map(Pipeline::more);
        if let Some(more) = more.filter(|more| !more.is_empty()) {
            // If the other side takes no more, the next answer will not come, and that is told then.
            if let Err(error) = self.send(&more, timeout) {
                log::debug!("requests ahead: {error}");
            }
        }
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        if self.pipeline.as_ref().is_some_and(Pipeline::expects) {
            return !self.wire.has_ended();
        }
        self.session.as_ref().is_none_or(Session::is_quiet) && self.wire.is_quiet()
    }

    fn is_tls(&self) -> bool {
        self.session.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolve_entries_are_curls() {
        let entry = |host: &str, port, addresses: &[&str]| Resolve {
            host: host.to_owned(),
            port,
            addresses: addresses
                .iter()
                .map(|it| it.parse().expect("it is right"))
                .collect(),
        };
        for (text, expected) in [
            ("Host:80:1.2.3.4", entry("host", 80, &["1.2.3.4"])),
            ("+h:80:[::1]", entry("h", 80, &["::1"])),
            ("h:443:::1,1.2.3.4", entry("h", 443, &["::1", "1.2.3.4"])),
            ("*:443:1.2.3.4", entry("*", 443, &["1.2.3.4"])),
            ("[::2]:80:[::1]", entry("[::2]", 80, &["::1"])),
        ] {
            assert_eq!(Resolve::parse(text), Some(expected), "{text}");
        }
        for bad in [
            "",
            "h",
            "h:80",
            "h:80:",
            "h:x:1.2.3.4",
            "h:80:name",
            "h:80:1.2.3.4,",
            ":80:1.2.3.4",
            "h:99999:1.2.3.4",
        ] {
            assert_eq!(Resolve::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_last_entry_and_the_named_one_win() {
        let entries = [
            "*:80:1.1.1.1",
            "h:80:2.2.2.2",
            "h:80:3.3.3.3",
            "*:81:4.4.4.4",
        ];
        let entries = entries
            .iter()
            .map(|text| Resolve::parse(text).expect("it is right"));
        let network = Network::new(entries.collect(), Proxies::default(), Tls::default());
        let first = |host, port| Some(network.fixed(host, port)?[0].ip().to_string());
        assert_eq!(first("H", 80).as_deref(), Some("3.3.3.3"));
        assert_eq!(first("other", 80).as_deref(), Some("1.1.1.1"));
        assert_eq!(first("h", 81).as_deref(), Some("4.4.4.4"));
        assert_eq!(first("h", 82), None);
    }

    /// What is worth it only with a round trip is not done on one machine, and is done once at most
    /// where this machine was taken for one.
    #[test]
    fn connections_are_opened_ahead_where_that_saves_time() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let uri: Uri = format!("http://{address}/b").parse().expect("it is right");
        let opened = AtomicU64::new(0);
        let count = || opened.load(Ordering::Relaxed);
        let network = Network::default();
        // Nothing is known yet; then nothing is gained; then it is not known to be reachable.
        network.open_ahead(&uri, 3, &opened);
        network.manners().waited(WORTH_PARKING);
        network.learnt().round_trip = Some(WORTH_PARKING / 2);
        network.learnt().reachable.insert(address, true);
        network.open_ahead(&uri, 3, &opened);
        network.learnt().round_trip = Some(WORTH_PARKING);
        network.learnt().reachable.insert(address, false);
        network.open_ahead(&uri, 3, &opened);
        assert_eq!(count(), 0);
        network.learnt().reachable.insert(address, true);
        network.open_ahead(&uri, 3, &opened);
        assert_eq!(count(), 1);
        let other: SocketAddr = "127.0.0.1:1".parse().expect("it is right");
        assert!(network.unpark(other).is_none());
        assert!(network.unpark(address).is_some());
        assert!(network.unpark(address).is_none());
        // One that the other side has closed is of no use, nor one that has waited too long.
        network.open_ahead(&uri, 1, &opened);
        network.open_ahead(&uri, 1, &opened);
        drop(listener);
        if let Some(oldest) = network.parked().back_mut() {
            oldest.since = Instant::now() - MAX_PARKED;
        }
        assert!(network.unpark(address).is_none());
        assert!(network.parked().is_empty());
    }

    #[test]
    fn a_name_that_does_not_resolve_says_why() {
        let text = |error, resolv_conf| match unresolved("h", error, Path::new(resolv_conf)) {
            Error::Other(inner) => inner.to_string(),
            other => panic!("{other}"),
        };
        let found = text(Error::HostNotFound, "/dev/null");
        assert_eq!(
            found,
            "the host name h cannot be resolved (it has no address)"
        );
        let found = text(Error::Timeout(Timeout::Resolve), "/none/resolv.conf");
        assert!(found.contains("there is no /none/resolv.conf"), "{found}");
    }
}
