//! A socket with the time limits that ureq gives for each operation.
//!
//! Limits are of the whole operation, also where a signal interrupts it. Another thread can shut the
//! socket down.

use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use ureq::unversioned::transport::{NextTimeout, ShutdownHandle};
use ureq::{Error, Timeout};

use super::{trouble, Outlook};

/// Fewer bytes than this within the stall timeout are as good as none.
pub const MIN_BYTES: u64 = 64;

/// Linux: a read that does not wait. One system call, where a socket that is made non-blocking and
/// blocking again takes five.
const MSG_DONTWAIT: i32 = 0x40;

/// Linux: what is read stays to be read.
const MSG_PEEK: i32 = 0x02;

pub(super) fn tcp_socket(address: SocketAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    Socket::new(domain, Type::STREAM, Some(Protocol::TCP))
}

pub(super) fn is_quiet(socket: &Socket) -> bool {
    let mut byte = [MaybeUninit::uninit()];
    let read = socket.recv_with_flags(&mut byte, MSG_DONTWAIT);
    matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// A socket that another thread can shut down.
#[derive(Debug)]
pub(super) struct Handle(pub(super) Socket);

impl ShutdownHandle for Handle {
    fn shutdown(&self) {
        if let Err(error) = self.0.shutdown(Shutdown::Both) {
            log::debug!("shutdown: {error}");
        }
    }
}

/// A socket, and the timeouts it has now.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) socket: Arc<Handle>,
    read_timeout: Option<Duration>,
    write_timeout: Option<Duration>,
    /// How long was waited for bytes of late, and how many came.
    waited: Duration,
    came: u64,
}

impl Wire {
    pub(super) fn new(socket: Socket) -> Self {
        Self {
            socket: Arc::new(Handle(socket)),
            read_timeout: None,
            write_timeout: None,
            waited: Duration::ZERO,
            came: 0,
        }
    }

    /// Counts what a read brought. Whatever it is part of (a head, a body that nobody wants, a TLS
    /// handshake, what frames a body): a byte now and then is not to keep anybody for ever.
    fn count(&mut self, waited: Duration, came: usize, limit: Option<Duration>) -> io::Result<()> {
        self.waited += waited;
        self.came += came as u64;
        if limit.is_none_or(|limit| self.waited < limit) {
            return Ok(());
        }
        self.waited = Duration::ZERO;
        let came = std::mem::take(&mut self.came);
        if came < MIN_BYTES {
            let cause = format!("no more than {came} bytes came in the stall timeout");
            return Err(io::Error::other(trouble(Outlook::Passing, cause)));
        }
        Ok(())
    }

    /// The socket as a stream that fails when the time is up.
    pub(super) fn timed(&mut self, timeout: NextTimeout) -> Timed<'_> {
        Timed {
            wire: self,
            timeout,
            since: Instant::now(),
        }
    }

    /// True if the other side has neither sent something unasked nor gone.
    pub(super) fn is_quiet(&self) -> bool {
        is_quiet(&self.socket.0)
    }

    /// True if the other side has gone, and all that it sent was read.
    pub(super) fn has_ended(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        let flags = MSG_DONTWAIT | MSG_PEEK;
        match self.socket.0.recv_with_flags(&mut byte, flags) {
            Ok(read) => read == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}

/// A [`Wire`] for one operation. Errors of time are ureq's, wrapped as ureq wraps them.
pub(super) struct Timed<'a> {
    wire: &'a mut Wire,
    timeout: NextTimeout,
    /// When the operation began.
    since: Instant,
}

impl Timed<'_> {
    /// What is left of the limit that comes first, none if there is no limit, and its name. `cap` is
    /// the limit of a single read or write.
    fn left(
        &self,
        cap: impl Fn(NextTimeout) -> NextTimeout,
    ) -> io::Result<(Option<Duration>, Timeout)> {
        let mut limit = self.timeout;
        if !limit.after.is_not_happening() {
            limit.after = limit.after.saturating_sub(self.since.elapsed()).into();
        }
        let limit = cap(limit);
        if limit.after.is_zero() {
            return Err(io::Error::other(Error::Timeout(limit.reason)));
        }
        let left = (!limit.after.is_not_happening()).then(|| (*limit.after).max(SHORTEST));
        Ok((left, limit.reason))
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (whole, reason) = self.left(NextTimeout::for_read)?;
        let began = Instant::now();
        loop {
            // A signal interrupts a read with a timeout, whatever its handler asks for.
            let left = whole.map(|whole| whole.saturating_sub(began.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(io::Error::other(Error::Timeout(reason)));
            }
            // The full value as long as nothing was lost: it then need not be set each time.
            let wanted = left.filter(|_| began.elapsed() > GRACE).or(whole);
            let wanted = wanted.map(|wanted| wanted.max(SHORTEST));
            if self.wire.read_timeout != wanted {
                self.wire.socket.0.set_read_timeout(wanted)?;
                self.wire.read_timeout = wanted;
            }
            match (&self.wire.socket.0).read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What TCP_USER_TIMEOUT and keep-alive find is an error of this kind, too.
                Err(error) if is_timeout(&error) => {
                    return Err(io::Error::other(Error::Timeout(reason)))
                }
                other => {
                    let came = other?;
                    let limit = self.timeout.per_read.map(|limit| *limit);
                    self.wire.count(began.elapsed(), came, limit)?;
                    return Ok(came);
                }
            }
        }
    }
}

/// Less may be rounded to zero, which is no limit at all.
const SHORTEST: Duration = Duration::from_millis(1);

/// An interruption so early needs no shorter timeout.
const GRACE: Duration = Duration::from_millis(50);

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (wanted, reason) = self.left(NextTimeout::for_write)?;
        if self.wire.write_timeout != wanted {
            self.wire.socket.0.set_write_timeout(wanted)?;
            self.wire.write_timeout = wanted;
        }
        loop {
            match (&self.wire.socket.0).write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => {
                    return Err(io::Error::other(Error::Timeout(reason)))
                }
                other => return other,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
