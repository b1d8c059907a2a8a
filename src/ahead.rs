//! Requests that are sent before the answers to earlier ones are in.
//!
//! Where missing blocks lie scattered, an answer is shorter than a round trip, and a connection that
//! asks for one thing at a time is idle most of the time. HTTP/1.1 lets a client send its next
//! requests at once; answers come in order. ureq knows nothing of that, so it is done below it:
//!
//! ```text
//!   ureq     GET a ─▶ ◀─ answer a   GET b ─▶ ◀─ answer b        one at a time, as ever
//!   here     GET a, GET b, GET c ─▶ ◀─ answer a, answer b, …    b is not sent again
//! ```
//!
//! A [`Pipeline`] sits on one connection. It sends the heads of [`Wanted`] ranges early, holds back
//! the head that ureq writes later if that one is on its way already, and gives ureq each answer
//! alone, whose end it finds as ureq does: by its head.
//!
//! Servers are not trusted to be able to do that ([`Manners`], shared by all connections):
//! - it is done only where the first byte of an answer takes `WORTH_WHILE` or longer, and not
//!   through proxies, for which it is known to fail;
//! - only after an answer over the same connection that leaves it open and tells its length;
//! - one connection tries it, and the others wait until that worked `PROOF` times; a server that
//!   forgets what came early costs `PATIENCE` once, and no retry;
//! - failures that outweigh what worked end it for the run.
//!
//! Whatever comes back is checked as any other answer: no range is taken for another.
//!
//! No sockets here: bytes in, bytes out.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes asked for and not received, on one connection, up to which more is asked for: with eight
/// connections what a link of 20 MiB/s carries in 200 ms.
pub const WINDOW: u64 = 512 << 10;

/// Most requests sent ahead on one connection.
pub const MAX_AHEAD: usize = 32;

/// Least wait for the first byte of an answer that is worth it.
const WORTH_WHILE: Duration = Duration::from_millis(5);

/// Answers after which the shortest wait is believed to be the way's, and no hiccup.
const SAMPLES: u32 = 4;

/// Answers to requests sent ahead after which a server is known to take them. The first ones prove
/// little: they may have come just in time not to be early.
const PROOF: u32 = 8;

/// Longest silence in place of an answer to a request sent ahead: of a server that is not known to
/// take them, and of one that is. Either may have lost it, and another connection is soon made.
const PATIENCE: Duration = Duration::from_secs(3);
const PATIENCE_PROVEN: Duration = Duration::from_secs(10);

/// Failures that may be accidents.
const ACCIDENTS: u32 = 3;

/// Answers to requests sent ahead that make up for a failure.
const ANSWERS_PER_FAILURE: u32 = 32;

/// A server that closes a connection after so many requests does so by rule.
const MANY_REQUESTS: u32 = 8;

/// Longest head of an answer. ureq's own limit is what fits in its buffer, which is no more.
const MAX_HEAD: usize = 64 << 10;

/// What is known of how the server takes requests that are sent ahead. One for all connections.
#[derive(Debug)]
pub(crate) struct Manners {
    /// Shortest wait for the first byte of an answer, in microseconds.
    first_byte: AtomicU64,
    /// Answers that were waited for.
    samples: AtomicU32,
    /// Answers to requests that were sent ahead.
    answers: AtomicU32,
    /// Connections that were lost with such requests under way.
    failures: AtomicU32,
    /// A connection is trying.
    trying: AtomicBool,
    /// Requests after which the server closes a connection.
    most_requests: AtomicU32,
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            first_byte: AtomicU64::new(u64::MAX),
            samples: AtomicU32::new(0),
            answers: AtomicU32::new(0),
            failures: AtomicU32::new(0),
            trying: AtomicBool::new(false),
            most_requests: AtomicU32::new(u32::MAX),
        }
    }
}

impl Manners {
    /// Whether asking ahead is of use and, as far as known, works.
    pub(crate) fn allow(&self) -> bool {
        let failures = self.failures.load(Ordering::Relaxed);
        let made_up = failures.saturating_mul(ANSWERS_PER_FAILURE);
        self.samples.load(Ordering::Relaxed) >= SAMPLES
            && self.first_byte() >= Some(WORTH_WHILE)
            && (failures < ACCIDENTS || self.answers.load(Ordering::Relaxed) >= made_up)
    }

    /// Shortest wait for the first byte of an answer so far.
    pub(crate) fn first_byte(&self) -> Option<Duration> {
        let first_byte = self.first_byte.load(Ordering::Relaxed);
        (first_byte != u64::MAX).then(|| Duration::from_micros(first_byte))
    }

    /// An answer began to come after so long.
    pub(crate) fn waited(&self, wait: Duration) {
        let wait = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        self.first_byte.fetch_min(wait, Ordering::Relaxed);
        self.samples.fetch_add(1, Ordering::Relaxed);
    }

    fn proven(&self) -> bool {
        self.answers.load(Ordering::Relaxed) >= PROOF
    }

    /// Whether one more connection may do it now: all once it is proven, one until then.
    fn may_begin(&self) -> bool {
        self.allow() && (self.proven() || !self.trying.swap(true, Ordering::Relaxed))
    }

    fn answered(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.trying.store(false, Ordering::Relaxed);
    }

    /// Never again.
    fn give_up(&self) {
        log::debug!("the server forgets requests that are sent ahead");
        self.failures.store(u32::MAX / 2, Ordering::Relaxed);
    }
}

/// The ranges that one client is to ask for after the present one, in order.
#[derive(Debug, Default)]
pub struct Wanted {
    ranges: Mutex<Vec<Range<u64>>>,
    /// Nobody wants anything any more.
    over: AtomicBool,
}

impl Wanted {
    /// Replaces them.
    pub fn set(&self, ranges: impl Iterator<Item = Range<u64>>) {
        let mut wanted = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.clear();
        wanted.extend(ranges);
    }

    /// Nothing is wanted any more: connections that end now do so by our own doing.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn is_empty(&self) -> bool {
        self.get(0).is_none()
    }

    fn get(&self, number: usize) -> Option<Range<u64>> {
        let wanted = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.get(number).cloned()
    }
}

/// Where in the present answer the input is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// What comes is passed on as it is: nothing was, or can be, sent ahead.
    Plain,
    /// In its head, of which these bytes came.
    Head(Vec<u8>),
    /// So many bytes of its body are still to come.
    Body(u64),
}

/// The requests and answers of one connection.
#[derive(Debug)]
pub(crate) struct Pipeline {
    wanted: Arc<Wanted>,
    manners: Arc<Manners>,
    stage: Stage,
    /// The head of the present request.
    head: Vec<u8>,
    /// Bytes that the present request asks for.
    size: u64,
    /// When the present request was sent, if it went alone and nothing came back yet.
    alone_since: Option<Instant>,
    /// The present request was sent ahead, and is not answered yet.
    unanswered: bool,
    /// Requests sent ahead of the present one.
    sent: VecDeque<Range<u64>>,
    /// Bytes received of answers after the present one.
    early: VecDeque<u8>,
    /// An answer over this connection left it open.
    keeps_open: bool,
    /// This connection may send ahead.
    begun: bool,
    /// Requests sent over it.
    requests: u32,
}

impl Pipeline {
    /// For a new connection.
    pub(crate) fn new(wanted: Arc<Wanted>, manners: Arc<Manners>) -> Self {
        Self {
            wanted,
            manners,
            stage: Stage::Plain,
            head: Vec::new(),
            size: 0,
            alone_since: None,
            unanswered: false,
            sent: VecDeque::new(),
            early: VecDeque::new(),
            keeps_open: false,
            begun: false,
            requests: 0,
        }
    }

    /// Takes the head of the next request and gives what is to be sent for it now: nothing if it was
    /// sent before. `None` if answers to other requests are due, and this connection is of no use.
    pub(crate) fn request(&mut self, output: &[u8]) -> Option<Vec<u8>> {
        if let Some(range) = self.sent.pop_front() {
            // What was sent for it then: it may be for another range now, or another URL.
            if with_range(&self.head, &range).as_deref() != Some(output) {
                self.sent.push_front(range);
                return None;
            }
            self.size = range.end - range.start;
            self.unanswered = true;
            self.stage = Stage::Head(Vec::new());
            return Some(self.more());
        }
        self.requests = self.requests.saturating_add(1);
        self.alone_since = Some(Instant::now());
        self.head.clear();
        self.stage = Stage::Plain;
        let asked = (!self.wanted.is_empty()).then(|| asked_size(output));
        if let Some(size) = asked.flatten() {
            self.head.extend_from_slice(output);
            self.size = size;
            self.stage = Stage::Head(Vec::new());
        }
        let mut bytes = output.to_vec();
        bytes.extend(self.more());
        Some(bytes)
    }

    /// The heads that are to be sent now, ahead of their time.
    pub(crate) fn more(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.stage == Stage::Plain || !self.keeps_open || !self.manners.allow() {
            return bytes;
        }
        let left = match self.stage {
            Stage::Body(left) => left,
            _ => self.size,
        };
        let sizes = self.sent.iter().map(|range| range.end - range.start);
        // `left` is whatever the server says.
        let mut under_way = left.saturating_add(sizes.sum());
        let most = self.manners.most_requests.load(Ordering::Relaxed);
        while under_way < WINDOW && self.sent.len() < MAX_AHEAD && self.requests < most {
            let Some(range) = self.wanted.get(self.sent.len()) else {
                break;
            };
            self.begun = self.begun || self.manners.may_begin();
            let head = with_range(&self.head, &range).filter(|_| self.begun);
            let Some(head) = head else { break };
            bytes.extend(head);
            under_way += range.end - range.start;
            self.sent.push_back(range);
            self.requests += 1;
        }
        bytes
    }

    /// Moves what came early, as far as it belongs to the present answer, to `buffer`: its length.
    pub(crate) fn take_early(&mut self, buffer: &mut [u8]) -> usize {
        let mut taken = 0;
        while taken < buffer.len() && !self.early.is_empty() {
            let (first, _) = self.early.as_slices();
            let some = first.len().min(buffer.len() - taken);
            let Some((place, first)) = buffer.get_mut(taken..taken + some).zip(first.get(..some))
            else {
                break;
            };
            place.copy_from_slice(first);
            let mine = self.own(place);
            if mine == 0 {
                break;
            }
            self.early.drain(..mine);
            taken += mine;
        }
        taken
    }

    /// Takes what was received: the number of bytes that belong to the present answer. The rest is
    /// kept for the next ones.
    pub(crate) fn received(&mut self, bytes: &[u8]) -> usize {
        let mine = self.own(bytes);
        self.early.extend(bytes.get(mine..).unwrap_or_default());
        mine
    }

    /// How many of these bytes belong to the present answer.
    fn own(&mut self, bytes: &[u8]) -> usize {
        if let Some(since) = self.alone_since.take().filter(|_| !bytes.is_empty()) {
            self.manners.waited(since.elapsed());
        }
        let mut mine = 0;
        loop {
            let rest = bytes.get(mine..).unwrap_or_default();
            match &mut self.stage {
                Stage::Plain => return bytes.len(),
                Stage::Head(head) => {
                    let before = head.len();
                    head.extend_from_slice(rest);
                    // Its end may have begun in an earlier piece.
                    let from = before.saturating_sub(3);
                    let end = head
                        .get(from..)
                        .and_then(|tail| tail.windows(4).position(|it| it == b"\r\n\r\n"))
                        .map(|at| from + at + 4);
                    let Some(end) = end else {
                        if head.len() > MAX_HEAD {
                            self.lose();
                        }
                        return bytes.len();
                    };
                    mine += end - before;
                    let head = head.get(..end).unwrap_or_default().to_vec();
                    self.answered(&head);
                }
                Stage::Body(left) => {
                    let some = usize::try_from(*left).map_or(rest.len(), |it| it.min(rest.len()));
                    *left -= some as u64;
                    mine += some;
                    if *left == 0 && self.sent.is_empty() {
                        // Nothing was asked for that these could be: ureq is to see them.
                        return bytes.len();
                    }
                    return mine;
                }
            }
        }
    }

    /// The head of the present answer is complete.
    fn answered(&mut self, head: &[u8]) {
        let answer = answer(head);
        if answer == Some(Answer::Interim) {
            self.stage = Stage::Head(Vec::new());
            return;
        }
        // From here on it is a body like any other, whatever its length.
        let was_early = std::mem::take(&mut self.unanswered);
        match answer {
            Some(Answer::Sized { status, size }) => {
                self.keeps_open = true;
                self.stage = Stage::Body(size);
                if was_early && status == 206 {
                    self.manners.answered();
                }
            }
            Some(Answer::Last) => {
                let under_way = u32::try_from(self.sent.len()).unwrap_or(0);
                let answered = self.requests.saturating_sub(under_way);
                if answered >= MANY_REQUESTS {
                    // Announced, and a rule: no failure, but a lesson for the next connection.
                    let most = &self.manners.most_requests;
                    most.fetch_min(answered, Ordering::Relaxed);
                    self.sent.clear();
                }
                self.lose();
            }
            Some(Answer::Interim) | None => self.lose(),
        }
    }

    /// The end of this answer cannot be told, or it is the last one.
    fn lose(&mut self) {
        self.stage = Stage::Plain;
        self.keeps_open = false;
    }

    /// True while answers to requests sent ahead are due: input before the next request is none
    /// of the server's mistakes.
    pub(crate) fn expects(&self) -> bool {
        !self.sent.is_empty() && self.stage != Stage::Plain
    }

    /// How long to wait for the next bytes, if the server may have forgotten the present request, as
    /// some do with what comes early.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.unanswered.then(|| match self.manners.proven() {
            true => PATIENCE_PROVEN,
            false => PATIENCE,
        })
    }

    /// Nothing came for so long.
    pub(crate) fn forgotten(&self) {
        if !self.manners.proven() {
            self.manners.give_up();
        }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        let lost = self.unanswered || !self.sent.is_empty();
        if lost && !self.wanted.is_over() {
            self.manners.failed();
        } else if self.begun && !self.manners.proven() {
            self.manners.trying.store(false, Ordering::Relaxed);
        }
    }
}

/// What a head says of the end of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The answer proper follows (1xx).
    Interim,
    /// A body of so many bytes, and the connection stays open.
    Sized { status: u16, size: u64 },
    /// The connection is closed after it.
    Last,
}

/// `None` where the length is not plain to see: chunked, or contradictory.
fn answer(head: &[u8]) -> Option<Answer> {
    let head = std::str::from_utf8(head).ok()?;
    let mut lines = head.split("\r\n");
    let mut status_line = lines.next()?.split(' ');
    let version = status_line.next()?;
    let status: u16 = status_line.next()?.parse().ok()?;
    let mut size = None;
    let mut last = version != "HTTP/1.1";
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':')?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            let value: u64 = value.parse().ok()?;
            if size.replace(value).is_some_and(|before| before != value) {
                return None;
            }
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            return None;
        } else if name.eq_ignore_ascii_case("connection") {
            last |= value
                .split(',')
                .any(|it| it.trim().eq_ignore_ascii_case("close"));
        }
    }
    match status {
        100..=199 => Some(Answer::Interim),
        _ if last => Some(Answer::Last),
        _ => size.map(|size| Answer::Sized { status, size }),
    }
}

/// The line of a head that asks for a range, without its line end.
fn range_line(head: &[u8]) -> Option<Range<usize>> {
    if !head.starts_with(b"GET ") || !head.ends_with(b"\r\n\r\n") {
        return None;
    }
    let mut at = 0;
    for line in head.split_inclusive(|&byte| byte == b'\n') {
        let name = line.get(..6);
        if name.is_some_and(|name| name.eq_ignore_ascii_case(b"range:")) {
            return Some(at..at + line.len().checked_sub(2)?);
        }
        at += line.len();
    }
    None
}

/// The same request for another range. `None` if it asks for none.
fn with_range(head: &[u8], range: &Range<u64>) -> Option<Vec<u8>> {
    let line = range_line(head)?;
    let name = head.get(line.start..line.start + 6)?;
    let value = format!(" bytes={}-{}", range.start, range.end.checked_sub(1)?);
    Some(
        [
            head.get(..line.start)?,
            name,
            value.as_bytes(),
            head.get(line.end..)?,
        ]
        .concat(),
    )
}

/// Bytes that a request asks for. `None` if it asks for no range.
fn asked_size(head: &[u8]) -> Option<u64> {
    let line = std::str::from_utf8(head.get(range_line(head)?)?).ok()?;
    let (first, last) = line.split_once('=')?.1.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    last.checked_sub(first)?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] = b"GET /b HTTP/1.1\r\nhost: h\r\nRange: bytes=0-9\r\naccept: */*\r\n\r\n";

    fn head_of(range: Range<u64>) -> Vec<u8> {
        with_range(HEAD, &range).expect("it asks for a range")
    }

    fn response(body: &[u8]) -> Vec<u8> {
        let head = format!("HTTP/1.1 206 P\r\nContent-Length: {}\r\n\r\n", body.len());
        [head.as_bytes(), body].concat()
    }

    /// One that may ask ahead, as all servers are known to be slow and able.
    fn pipeline(ranges: &[Range<u64>]) -> Pipeline {
        let wanted = Arc::new(Wanted::default());
        wanted.set(ranges.iter().cloned());
        let manners = Arc::new(Manners::default());
        (0..SAMPLES).for_each(|_| manners.waited(WORTH_WHILE));
        manners.answers.store(PROOF, Ordering::Relaxed);
        let mut pipeline = Pipeline::new(wanted, manners);
        pipeline.keeps_open = true;
        pipeline
    }

    #[test]
    fn answers_are_told_apart_however_they_arrive() {
        let bodies: [&[u8]; 4] = [b"0123456789", b"", b"\r\n\r\nHTTP/1.1 200", b"x"];
        let ends = [10u64, 1000, 1016, 1017];
        let ranges: Vec<_> = bodies
            .iter()
            .zip(ends)
            .map(|(body, end)| end - (body.len() as u64).max(1)..end)
            .collect();
        let stream: Vec<u8> = bodies.iter().flat_map(|body| response(body)).collect();
        for piece in 1..stream.len() + 1 {
            let mut pipeline = pipeline(&ranges[1..]);
            let sent = pipeline
                .request(&head_of(ranges[0].clone()))
                .expect("it is new");
            // All of them at once.
            let all: Vec<u8> = ranges
                .iter()
                .flat_map(|range| head_of(range.clone()))
                .collect();
            assert_eq!(sent, all);
            let mut wire = stream.chunks(piece);
            for (number, body) in bodies.iter().enumerate() {
                if number > 0 {
                    pipeline.wanted.set(ranges[number + 1..].iter().cloned());
                    let sent = pipeline.request(&head_of(ranges[number].clone()));
                    assert_eq!(sent.as_deref(), Some(&[][..]), "it was sent before");
                }
                let expected = response(body);
                let mut found = Vec::new();
                let mut buffer = [0; 16];
                while found.len() < expected.len() {
                    let early = pipeline.take_early(&mut buffer);
                    found.extend_from_slice(&buffer[..early]);
                    if early == 0 {
                        let bytes = wire.next().expect("more was sent");
                        let mine = pipeline.received(bytes);
                        found.extend_from_slice(&bytes[..mine]);
                    }
                }
                assert_eq!(found, expected, "piece={piece}");
                assert_eq!(pipeline.expects(), number + 1 < bodies.len());
            }
        }
    }

    #[test]
    fn a_request_for_something_else_gets_another_connection() {
        let mut pipeline = pipeline(&[20..30, 40..50]);
        pipeline.request(&head_of(0..10)).expect("it is new");
        pipeline.received(&response(b"0123456789"));
        assert_eq!(pipeline.request(&head_of(40..50)), None);
        // And that one was lost with what was under way.
        let manners = pipeline.manners.clone();
        drop(pipeline);
        assert_eq!(manners.failures.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn an_answer_from_another_url_is_not_taken() {
        let mut pipeline = pipeline(&[20..30, 30..40]);
        pipeline.request(&head_of(0..10)).expect("it is new");
        pipeline.received(&response(b"0123456789"));
        let elsewhere = String::from_utf8(head_of(20..30)).expect("text");
        let elsewhere = elsewhere.replace("GET /b", "GET /c");
        assert_eq!(pipeline.request(elsewhere.as_bytes()), None);
        // The server is not to be blamed for what we end ourselves.
        pipeline.wanted.end();
        let manners = pipeline.manners.clone();
        drop(pipeline);
        assert_eq!(manners.failures.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_endless_answer_is_only_an_answer() {
        let mut pipeline = pipeline(&[20..30, 40..50]);
        pipeline.request(&head_of(0..10)).expect("it is new");
        let endless = format!("HTTP/1.1 206 P\r\nContent-Length: {}\r\n\r\nx", u64::MAX);
        assert_eq!(pipeline.received(endless.as_bytes()), endless.len());
        assert!(pipeline.more().is_empty());
        assert_eq!(pipeline.stage, Stage::Body(u64::MAX - 1));
    }

    #[test]
    fn only_an_answer_that_has_not_begun_may_be_forgotten() {
        for (head, goes_on) in [
            ("206 P\r\nContent-Length: 10", true),
            ("206 P\r\nContent-Length: 10\r\nConnection: close", false),
            ("206 P\r\nTransfer-Encoding: chunked", false),
        ] {
            let mut pipeline = pipeline(&[20..30, 30..40]);
            pipeline.request(&head_of(0..10)).expect("it is new");
            pipeline.received(&response(b"0123456789"));
            assert_eq!(pipeline.patience(), None);
            pipeline.request(&head_of(20..30)).expect("it was sent");
            pipeline.received(b"HTTP/1.1 100 Continue\r\n\r\n");
            assert!(pipeline.patience().is_some(), "{head}");
            pipeline.received(format!("HTTP/1.1 {head}\r\n\r\n").as_bytes());
            assert_eq!(pipeline.patience(), None, "{head}");
            assert_eq!(pipeline.expects(), goes_on, "{head}");
        }
    }

    #[test]
    fn no_more_than_the_window_is_asked_for() {
        let ranges: Vec<_> = (0..100)
            .map(|n| n * WINDOW / 4..(n + 1) * WINDOW / 4)
            .collect();
        let mut first = pipeline(&ranges);
        let sent = first.request(&head_of(0..WINDOW / 2)).expect("it is new");
        assert_eq!(
            sent.len(),
            [0..WINDOW / 2, 0..WINDOW / 4, WINDOW / 4..WINDOW / 2]
                .map(|it| head_of(it).len())
                .iter()
                .sum::<usize>()
        );
        let small: Vec<_> = (0..100).map(|n| n * 10..n * 10 + 9).collect();
        let mut second = pipeline(&small);
        second.request(&head_of(5000..5009)).expect("it is new");
        assert_eq!(second.sent.len(), MAX_AHEAD);
    }

    #[test]
    fn only_plain_answers_are_followed() {
        let read = |text: &str| answer(format!("{text}\r\n\r\n").as_bytes());
        let sized = |status, size| Some(Answer::Sized { status, size });
        assert_eq!(
            read("HTTP/1.1 206 OK\r\ncontent-length:  7 "),
            sized(206, 7)
        );
        assert_eq!(read("HTTP/1.1 503 OK\r\nContent-Length: 0"), sized(503, 0));
        assert_eq!(read("HTTP/1.1 100 Continue"), Some(Answer::Interim));
        for last in [
            "HTTP/1.0 206 OK\r\nContent-Length: 7",
            "HTTP/1.1 206 OK\r\nContent-Length: 7\r\nconnection: x, Close",
        ] {
            assert_eq!(read(last), Some(Answer::Last), "{last}");
        }
        for odd in [
            "HTTP/1.1 206 OK",
            "HTTP/1.1 206 OK\r\nContent-Length: -7",
            "HTTP/1.1 206 OK\r\nContent-Length: 7\r\nContent-Length: 8",
            "HTTP/1.1 206 OK\r\nContent-Length: 7\r\nTransfer-Encoding: chunked",
            "HTTP/1.1 206 OK\r\nContent-Length",
            "HTTP/1.1\r\nContent-Length: 7",
            "",
        ] {
            assert_eq!(read(odd), None, "{odd}");
        }
    }
}
