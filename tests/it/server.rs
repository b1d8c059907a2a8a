//! A fault-injecting HTTP/1.1 server: files in memory or on disk in, answers and a record out.
//!
//! It is stricter than real servers, because a fake that is laxer than the real thing hides bugs
//! of the client: requests are parsed by the letter of RFC 9112, ranges by RFC 9110 section 14,
//! and whatever is odd is answered with 400 and recorded with the reason.
//!
//! It records every connection and every request, so that a test can assert which ranges were
//! asked for and over how many connections. Numbers are put down *before* the bytes are sent: a
//! client that has its answer can rely on the record.
//!
//! Without rules it never misbehaves. A [`Rule`] applies a [`Fault`] to the requests it selects;
//! all rules that match apply, in the order in which they were given.
//!
//! It never sleeps longer than it lives: dropping the [`Server`] closes all connections, ends all
//! pauses and waits for its threads.

mod answer;
mod request;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use answer::Fault;
pub use request::Request;

/// What a path serves.
#[derive(Clone, Debug)]
pub enum Content {
    Bytes(Arc<Vec<u8>>),
    /// Read piece by piece with pread, so that a large file costs no memory.
    File(Arc<File>),
}

impl Content {
    pub fn size(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(file) => file.metadata().expect("size of a served file").len(),
        }
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) {
        match self {
            Self::Bytes(bytes) => {
                let offset = offset as usize;
                buffer.copy_from_slice(&bytes[offset..offset + buffer.len()]);
            }
            Self::File(file) => file
                .read_exact_at(buffer, offset)
                .expect("read of a served file"),
        }
    }
}

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(Arc::new(bytes))
    }
}

impl From<&[u8]> for Content {
    fn from(bytes: &[u8]) -> Self {
        bytes.to_vec().into()
    }
}

impl From<Arc<Vec<u8>>> for Content {
    fn from(bytes: Arc<Vec<u8>>) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<&Path> for Content {
    fn from(path: &Path) -> Self {
        Self::File(Arc::new(File::open(path).expect("file to serve")))
    }
}

impl From<PathBuf> for Content {
    fn from(path: PathBuf) -> Self {
        path.as_path().into()
    }
}

type Predicate = Box<dyn Fn(&Request) -> bool + Send + Sync>;

/// Which requests a rule applies to. Numbers count requests of the whole server from 0, in the
/// order in which their heads arrived, and start again with [`Server::reset_log`].
pub enum When {
    Always,
    /// Only this one.
    Nth(usize),
    /// The n-th, the 2n-th, …: `Every(3)` is requests 2, 5, 8.
    Every(usize),
    /// The first n.
    First(usize),
    /// All but the first n.
    After(usize),
    /// Those for which the closure says so. Its request has status 0 and no body bytes yet.
    If(Predicate),
}

impl When {
    pub fn matching(predicate: impl Fn(&Request) -> bool + Send + Sync + 'static) -> Self {
        Self::If(Box::new(predicate))
    }

    fn applies(&self, request: &Request) -> bool {
        match self {
            Self::Always => true,
            Self::Nth(n) => request.number == *n,
            Self::Every(n) => (request.number + 1).is_multiple_of(*n),
            Self::First(n) => request.number < *n,
            Self::After(n) => request.number >= *n,
            Self::If(predicate) => predicate(request),
        }
    }
}

/// A fault and the requests it is applied to.
pub struct Rule {
    pub when: When,
    pub fault: Fault,
}

/// A file with the number that makes its validators differ from those of other contents.
#[derive(Clone, Debug)]
struct Entry {
    content: Content,
    version: u64,
}

#[derive(Default)]
struct State {
    files: HashMap<String, Entry>,
    versions: u64,
    rules: Vec<Arc<Rule>>,
    requests: Vec<Request>,
    /// Accepted since the start or the last reset of the log.
    connections: usize,
    /// Accepted ever: the number of the next connection.
    accepted: usize,
    open: BTreeMap<usize, Arc<TcpStream>>,
    peak: usize,
    /// Connections that are being served, and how many may be at once.
    served: usize,
    limit: Option<usize>,
    stopping: bool,
}

struct Shared {
    port: u16,
    state: Mutex<State>,
    /// Notified when a connection ends and when the server stops.
    changed: Condvar,
}

impl Shared {
    /// A panic in one connection must not hide the record from the test.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits, but not longer than the server lives.
    fn pause(&self, duration: Duration) {
        let end = Instant::now() + duration;
        let mut state = self.state();
        while !state.stopping {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            (state, _) = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until fewer than the allowed number of connections are served.
    fn take_place(&self) {
        let mut state = self.state();
        while !state.stopping && state.limit.is_some_and(|limit| state.served >= limit) {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.served += 1;
    }
}

/// The server. Dropping it ends it.
pub struct Server {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves the files on a free port of 127.0.0.1. Paths begin with a slash.
    pub fn start<P, C>(files: impl IntoIterator<Item = (P, C)>) -> Self
    where
        P: Into<String>,
        C: Into<Content>,
    {
        Self::start_on(0, files)
    }

    /// The same on a given port: a server that comes back where another one was.
    pub fn start_on<P, C>(port: u16, files: impl IntoIterator<Item = (P, C)>) -> Self
    where
        P: Into<String>,
        C: Into<Content>,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("a local port");
        let port = listener.local_addr().expect("own address").port();
        let files = files
            .into_iter()
            .map(|(path, content)| {
                let content = content.into();
                (
                    path.into(),
                    Entry {
                        content,
                        version: 0,
                    },
                )
            })
            .collect();
        let shared = Arc::new(Shared {
            port,
            state: Mutex::new(State {
                files,
                ..State::default()
            }),
            changed: Condvar::new(),
        });
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, &shared)
        });
        Self {
            shared,
            acceptor: Some(acceptor),
        }
    }

    pub fn port(&self) -> u16 {
        self.shared.port
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port())
    }

    /// Adds a rule to those there are.
    pub fn on(&self, rule: Rule) {
        self.shared.state().rules.push(Arc::new(rule));
    }

    /// [`Server::on`] in short.
    pub fn fault(&self, when: When, fault: Fault) {
        self.on(Rule { when, fault });
    }

    pub fn clear_rules(&self) {
        self.shared.state().rules.clear();
    }

    /// Adds or replaces a file; its ETag and Last-Modified are new then, whatever it holds.
    pub fn set_file(&self, path: &str, content: impl Into<Content>) {
        let mut state = self.shared.state();
        state.versions += 1;
        let entry = Entry {
            content: content.into(),
            version: state.versions,
        };
        state.files.insert(path.to_owned(), entry);
    }

    /// Takes a file away: 404 from now on.
    pub fn remove_file(&self, path: &str) {
        self.shared.state().files.remove(path);
    }

    /// Serves at most so many connections at once; the others are accepted and hear nothing until
    /// one of the served ones is closed. `1` is what a server without threads does.
    pub fn limit_connections(&self, limit: usize) {
        self.shared.state().limit = Some(limit);
    }

    /// All requests in the order in which their heads arrived.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.state().requests.clone()
    }

    /// The ranges of all requests that had one, half-open, as asked for (not as answered).
    /// An open end is the largest number.
    pub fn ranges(&self) -> Vec<Range<u64>> {
        let state = self.shared.state();
        state.requests.iter().filter_map(Request::bytes).collect()
    }

    /// How many connections were accepted since the start or the last [`Server::reset_log`].
    pub fn connections(&self) -> usize {
        self.shared.state().connections
    }

    /// The greatest number of connections that were open at the same time.
    pub fn peak_connections(&self) -> usize {
        self.shared.state().peak
    }

    /// Body bytes sent in all. Bytes a client left unread in the socket count too.
    pub fn body_bytes(&self) -> u64 {
        let state = self.shared.state();
        state.requests.iter().map(|r| r.body_bytes).sum()
    }

    /// Forgets requests and counts; rules and open connections stay. Numbers begin at 0 again.
    pub fn reset_log(&self) {
        let mut state = self.shared.state();
        state.requests.clear();
        state.connections = 0;
        state.peak = state.open.len();
    }

    /// Fails the test if the client ever sent what the server could not accept (400, 405, 431).
    #[track_caller]
    pub fn assert_well_behaved_client(&self) {
        for request in self.requests() {
            if let Some(reason) = &request.refused {
                panic!("the client sent a bad request ({reason}): {request:#?}");
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.state().stopping = true;
        self.shared.changed.notify_all();
        // accept() has no timeout; a last connection wakes it up.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port())));
        if let Some(acceptor) = self.acceptor.take() {
            // A panic there was printed already; a second one here would abort the test run.
            drop(acceptor.join());
        }
    }
}

/// Looks at a connection that may be about to close: on a busy machine the kernel takes its time to tell
/// the other side.
const LOOKS: usize = 4;

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    for stream in listener.incoming() {
        let mut state = shared.state();
        if state.stopping {
            break;
        }
        let Ok(stream) = stream else { continue };
        // Small pieces (drips) must leave at once.
        stream.set_nodelay(true).expect("socket option");
        let stream = Arc::new(stream);
        let number = state.accepted;
        state.accepted += 1;
        state.connections += 1;
        state.open.insert(number, Arc::clone(&stream));
        if state.open.len() > state.peak {
            let mut open = usize::MAX;
            for _ in 0..LOOKS {
                open = open.min(established(shared.port).unwrap_or(usize::MAX));
                if open <= state.peak {
                    break;
                }
                thread::sleep(Duration::from_millis(1));
            }
            state.peak = state.peak.max(open.clamp(1, state.open.len()));
        }
        drop(state);
        let connection = Connection {
            number,
            stream,
            shared: Arc::clone(shared),
        };
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread::spawn(move || connection.serve()));
    }
    for stream in shared.state().open.values() {
        // It may be closed already.
        let _ = stream.shutdown(Shutdown::Both);
    }
    for thread in threads {
        // As in `Server::drop`.
        drop(thread.join());
    }
}

/// How many connections to this port are open on both sides, by the kernel's own table.
///
/// The server's own count is too large when a client closes one connection and opens the next: the
/// thread of the first may notice the end later than the acceptor the beginning.
fn established(port: u16) -> Option<usize> {
    const ESTABLISHED: &str = "01";
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    let own = format!(":{port:04X}");
    let open = table.lines().skip(1).filter(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        fields.len() > 3 && fields[1].ends_with(&own) && fields[3] == ESTABLISHED
    });
    Some(open.count())
}

/// One accepted connection, served by its own thread.
struct Connection {
    number: usize,
    stream: Arc<TcpStream>,
    shared: Arc<Shared>,
}

impl Connection {
    fn serve(&self) {
        self.shared.take_place();
        // An error means that the client is gone (or the server stops): nobody to tell.
        while let Ok(true) = self.exchange() {}
    }

    /// One request and its answer. False: the connection ends here.
    fn exchange(&self) -> io::Result<bool> {
        let Some(head) = request::read_head(&self.stream)? else {
            return Ok(false);
        };
        let parsed = head.and_then(|head| request::parse(&head));
        let mut request = match &parsed {
            Ok(parsed) => parsed.request.clone(),
            Err(bad) => bad.to_request(),
        };
        request.connection = self.number;
        let (entry, rules) = {
            let mut state = self.shared.state();
            request.number = state.requests.len();
            let entry = state.files.get(&request.path).cloned();
            if let (Ok(parsed), Some(entry)) = (&parsed, &entry) {
                request.range = parsed.range(entry.content.size());
            }
            state.requests.push(request.clone());
            (entry, state.rules.clone())
        };
        let faults: Vec<&Fault> = rules
            .iter()
            // Not under the lock: a predicate may ask the server something.
            .filter(|rule| parsed.is_ok() && rule.when.applies(&request))
            .map(|rule| &rule.fault)
            .collect();
        answer::Answer::new(&parsed, &request, entry.as_ref(), &faults).send(self, request.number)
    }

    /// Changes the record of a request, unless the log was reset meanwhile.
    fn note(&self, number: usize, change: impl FnOnce(&mut Request)) {
        let mut state = self.shared.state();
        if let Some(request) = state.requests.get_mut(number) {
            if request.connection == self.number {
                change(request);
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        // The other handle of the socket: the descriptor must really close when this one goes.
        state.open.remove(&self.number);
        state.served -= 1;
        drop(state);
        self.shared.changed.notify_all();
    }
}
