//! A server without any rules: it sends what a closure says to each request, and closes; for answers
//! that the other server is too proper for.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub(super) struct Scripted {
    port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Scripted {
    /// The closure gets the number of the request and its range.
    pub(super) fn start(answer: impl Fn(usize, Range<u64>) -> Vec<u8> + Send + 'static) -> Self {
        Self::dripping(move |number, range| (answer(number, range), ""))
    }

    /// The same, and what the closure gives besides is sent now and then as long as anybody listens.
    pub(super) fn dripping(
        answer: impl Fn(usize, Range<u64>) -> (Vec<u8>, &'static str) + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let mut stream = stream.unwrap();
                let range = read_range(&stream);
                let (at_once, drip) = answer(number, range);
                // The client may have seen enough and be gone.
                let mut listens = stream.write_all(&at_once).is_ok();
                while listens && !drip.is_empty() && !stopped.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(20));
                    listens = stream.write_all(drip.as_bytes()).is_ok();
                }
            }
        });
        Self {
            port,
            stop,
            thread: Some(thread),
        }
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/b", self.port)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
        // A panic there was printed already.
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Reads a head; the range in it, or an empty one.
fn read_range(stream: &TcpStream) -> Range<u64> {
    let mut range = 0..0;
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        if line.is_empty() {
            break;
        }
        let line = line.to_ascii_lowercase();
        if let Some((first, last)) = line
            .strip_prefix("range: bytes=")
            .and_then(|r| r.split_once('-'))
        {
            range = first.parse().unwrap()..last.parse::<u64>().unwrap() + 1;
        }
    }
    range
}

/// A proper 206 with these extra header lines.
pub(super) fn partial(file: &[u8], range: Range<u64>, headers: &str) -> Vec<u8> {
    let (start, end) = (range.start as usize, (range.end as usize).min(file.len()));
    let (last, size) = (end - 1, file.len());
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nConnection: close\r\nContent-Length: {}\r\n\
         Content-Range: bytes {start}-{last}/{size}\r\n{headers}\r\n",
        end - start
    );
    [head.as_bytes(), &file[start..end]].concat()
}
