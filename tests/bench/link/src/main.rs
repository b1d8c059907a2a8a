//! A link between two network devices: a serial line of some rate with a queue before it, and a
//! delay behind it, the same both ways.
//!
//! ```text
//! delay-line NAME NAME RATE QUEUE          bytes a second, bytes
//! ```
//!
//! Makes the two TAP devices in the network namespace in which it is started; who starts it moves
//! them to where they are wanted, which leaves them connected. Then it reads commands from standard
//! input until that ends, and with it the link:
//!
//! ```text
//! delay MICROSECONDS                       one way, from now on
//! ```
//!
//! Each command is answered with `frames N dropped N late N`: what went on since the last one. Late
//! are frames that left more than a millisecond after their time, because the processor was busy.
//!
//! The devices announce no offloads, so the kernel hands over what a wire would carry: frames no
//! longer than the MTU, segmented and with checksums.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// While frames flow, they are looked after once in this time. A wake-up for each frame would
/// cost several times the processor time.
const TICK: Duration = Duration::from_micros(100);

/// Most frames taken in at once, so that those which are due do not wait for it.
const BATCH: usize = 128;

const LATE: Duration = Duration::from_millis(1);

/// Longer than any Ethernet frame without offloads.
const FRAME: usize = 2048;

struct Line {
    /// Bytes a second.
    rate: f64,
    /// Bytes that may wait; more are dropped.
    queue: f64,
    delay_micros: AtomicU64,
    frames: AtomicU64,
    dropped: AtomicU64,
    late: AtomicU64,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("delay-line: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [a, b, rate, queue] = &words[..] else {
        return Err("usage: delay-line NAME NAME RATE QUEUE".to_owned());
    };
    let number = |text: &String| text.parse().map_err(|e| format!("{text}: {e}"));
    let line = Arc::new(Line {
        rate: number(rate)?,
        queue: number(queue)?,
        delay_micros: AtomicU64::new(0),
        frames: AtomicU64::new(0),
        dropped: AtomicU64::new(0),
        late: AtomicU64::new(0),
    });
    let open = |name: &String| tap(name).map(Arc::new).map_err(|e| format!("{name}: {e}"));
    let (a, b) = (open(a)?, open(b)?);
    real_time();
    for (from, to) in [(a.clone(), b.clone()), (b, a)] {
        let line = line.clone();
        std::thread::spawn(move || {
            if let Err(error) = carry(&from, &to, &line) {
                eprintln!("delay-line: {error}");
                std::process::exit(1);
            }
        });
    }
    println!("up");
    for command in io::stdin().lock().lines().map_while(Result::ok) {
        match command.split_once(' ').map(|(name, n)| (name, n.parse())) {
            Some(("delay", Ok(micros))) => line.delay_micros.store(micros, Relaxed),
            _ => return Err(format!("unknown command {command:?}")),
        }
        let taken = |count: &AtomicU64| count.swap(0, Relaxed);
        let (frames, dropped) = (taken(&line.frames), taken(&line.dropped));
        println!(
            "frames {frames} dropped {dropped} late {}",
            taken(&line.late)
        );
    }
    Ok(())
}

/// One way of the link, for ever.
fn carry(mut from: &File, mut to: &File, line: &Line) -> io::Result<()> {
    let mut under_way: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    // When the line will have sent all it has taken so far.
    let mut free = Instant::now();
    let mut buffer = [0; FRAME];
    loop {
        let mut busy = false;
        for _ in 0..BATCH {
            let len = match from.read(&mut buffer) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            busy = true;
            let now = Instant::now();
            let begin = free.max(now);
            let waiting = begin.duration_since(now).as_secs_f64() * line.rate;
            if waiting + len as f64 > line.queue {
                line.dropped.fetch_add(1, Relaxed);
                continue;
            }
            free = begin + Duration::from_secs_f64(len as f64 / line.rate);
            let delay = Duration::from_micros(line.delay_micros.load(Relaxed));
            under_way.push_back((free + delay, buffer[..len].to_vec()));
        }
        let now = Instant::now();
        // A frame may leave half a tick before or after its time.
        while under_way
            .front()
            .is_some_and(|(due, _)| *due <= now + TICK / 2)
        {
            let Some((due, frame)) = under_way.pop_front() else {
                break;
            };
            line.frames.fetch_add(1, Relaxed);
            if now.saturating_duration_since(due) > LATE {
                line.late.fetch_add(1, Relaxed);
            }
            // A device that is down or full loses frames, as everywhere.
            if to.write(&frame).is_err() {
                line.dropped.fetch_add(1, Relaxed);
            }
        }
        if busy {
            std::thread::sleep(TICK);
        } else {
            let next = under_way.front().map(|(due, _)| *due);
            wait(
                from,
                next.map(|due| due.saturating_duration_since(Instant::now())),
            );
        }
    }
}

/// A new TAP device, not blocking.
fn tap(name: &str) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: zeros are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes an ifreq, which outlives the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &mut request) };
    if result == 0 {
        Ok(file)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Until a frame comes or the time is over.
fn wait(file: &File, time: Option<Duration>) {
    let mut poll = libc::pollfd {
        fd: file.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let time = time.map(|time| libc::timespec {
        tv_sec: time.as_secs() as _,
        tv_nsec: time.subsec_nanos() as _,
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: one valid pollfd; a timeout or none; no signal mask.
    unsafe { libc::ppoll(&mut poll, 1, time, std::ptr::null()) };
}

/// A busy machine must not make the link slow. A refusal costs accuracy only.
fn real_time() {
    // SAFETY: zeros are a valid sched_param.
    let mut parameter: libc::sched_param = unsafe { std::mem::zeroed() };
    parameter.sched_priority = 1;
    // SAFETY: reads the parameter; threads started later inherit the class.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &parameter) };
}
