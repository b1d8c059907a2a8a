//! What is told to others than the terminal: the service manager, and a log of its own.
//!
//! [`Manager`] speaks the protocol of `sd_notify(3)`: what `systemctl status` shows of a unit, and
//! `READY=1` when all is done. [`LogFile`] takes the lines for people, in a file or in the kernel's
//! log (`/dev/kmsg`), whose messages outlive a console that nobody watched. Neither can fail a run:
//! what cannot be written is dropped.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use crate::output::open_unwaiting;

/// Longest message that the kernel's log takes as one.
const MAX_KERNEL_LINE: usize = 900;

/// The service manager that started this program.
#[derive(Debug)]
pub struct Manager {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl Manager {
    /// The one that listens at the address in `NOTIFY_SOCKET`: a path, or `@` and an abstract name.
    pub fn at(address: &OsStr) -> io::Result<Self> {
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            path => SocketAddr::from_pathname(Path::new(OsStr::from_bytes(path)))?,
        };
        let socket = UnixDatagram::unbound()?;
        // A manager that does not listen must not keep the run waiting.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, address })
    }

    /// Tells it where the run is.
    pub fn status(&self, text: &str) {
        self.send(&format!("STATUS={text}\n"));
    }

    /// Tells it that all is done.
    pub fn ready(&self, text: &str) {
        self.send(&format!("READY=1\nSTATUS={text}\n"));
    }

    fn send(&self, text: &str) {
        // It is only told for somebody's convenience.
        drop(self.socket.send_to_addr(text.as_bytes(), &self.address));
    }
}

/// A file that takes the lines for people.
#[derive(Debug)]
pub struct LogFile {
    file: File,
    /// It is the kernel's log: a line has a level, and a length at most.
    kernel: bool,
}

impl LogFile {
    /// Opens it to write behind what is there.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = open_unwaiting(path, OpenOptions::new().create(true).append(true))?;
        let kernel = file.metadata()?.file_type().is_char_device();
        Ok(Self { file, kernel })
    }

    /// Writes the lines of a text, each with one call, so that those of other writers do not run
    /// into it.
    pub fn write(&self, level: log::Level, text: &str) {
        for line in text.lines() {
            let text = if self.kernel {
                kernel_line(level, line)
            } else {
                format!("reflash: {}\n", line.trim_start_matches("reflash: "))
            };
            // Nobody is left to tell.
            drop((&self.file).write_all(text.as_bytes()));
        }
    }
}

/// A line with its level as syslog numbers them, cut to what the kernel takes.
fn kernel_line(level: log::Level, line: &str) -> String {
    let level = match level {
        log::Level::Error => 3,
        log::Level::Warn => 4,
        log::Level::Info => 6,
        log::Level::Debug | log::Level::Trace => 7,
    };
    let line = line.trim_start_matches("reflash: ");
    let mut end = line.len().min(MAX_KERNEL_LINE);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    format!(
        "<{level}>reflash: {}\n",
        line.get(..end).unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_have_a_level_and_an_end() {
        assert_eq!(
            kernel_line(log::Level::Info, "phase open"),
            "<6>reflash: phase open\n"
        );
        assert_eq!(
            kernel_line(log::Level::Error, "reflash: no"),
            "<3>reflash: no\n"
        );
        let long = "é".repeat(1000);
        let line = kernel_line(log::Level::Warn, &long);
        assert!(line.len() < 940 && line.ends_with("é\n"));
    }
}
