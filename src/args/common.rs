//! The options that all subcommands share which read a bundle: how to get at it, what makes it
//! trusted, how much is said.
//!
//! argh has no groups of options: these are a list of their own, to which the words of a command line
//! are sorted out before. What was typed is then the same [`Common`] everywhere.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use argh::{ArgsInfo, FromArgs};

use super::values::{Floor, FullDownload, Retries, Seconds, Size};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::hash::Digest;
use crate::open::Trust;
use crate::output::check_apart;
use crate::trust::{self, Roots};

/// What was typed of the common options.
///
/// (In the help, behind the options of the subcommand.)
#[derive(FromArgs, ArgsInfo, Debug)]
pub(super) struct Common {
    /// trust: ALG:HEX, the hash that the bundle header must have
    #[argh(option)]
    pub(super) bundle_hash: Option<String>,

    /// trust: PEM file with roots of which one must have signed the bundle, by way of a signature
    /// that it carries; repeatable
    #[argh(option)]
    pub(super) root_cert: Vec<PathBuf>,

    /// a time that has passed, such as 2026-11-30: certificates are judged by it where the clock
    /// is behind
    #[argh(option)]
    pub(super) time_floor: Option<Floor>,

    /// tries after a failure without a byte received, or infinite; default 5
    #[argh(option, default = "Retries(Some(5))")]
    pub(super) http_max_retries: Retries,

    /// wait before the first of them, doubled for each more; default 1s
    #[argh(option, default = "Seconds(Duration::from_secs(1))")]
    pub(super) http_retry_initial_backoff: Seconds,

    /// longest such wait, default 30s
    #[argh(option, default = "Seconds(Duration::from_secs(30))")]
    pub(super) http_retry_max_backoff: Seconds,

    /// most bytes a second, all connections together; such as 500k
    #[argh(option)]
    pub(super) limit_rate: Option<Size>,

    /// refuse before the first write when more has to be downloaded, stop when more was
    #[argh(option)]
    pub(super) max_download: Option<Size>,

    /// no bytes for so long is a failure of the request, default 30s
    #[argh(option, default = "Seconds(Duration::from_secs(30))")]
    pub(super) stall_timeout: Seconds,

    /// limit for looking the name up and for connecting, each; default 10s
    #[argh(option, default = "Seconds(Duration::from_secs(10))")]
    pub(super) connect_timeout: Seconds,

    /// 'Name: value', a header for the bundle's server and no other that it redirects to; repeatable
    #[argh(option, short = 'H')]
    pub(super) header: Vec<String>,

    /// the http proxy, in place of that of http_proxy, https_proxy or all_proxy; empty for none
    #[argh(option)]
    pub(super) proxy: Option<String>,

    /// HOST:PORT:ADDR or HOST:PORT:ADDR,ADDR…: the addresses of a host, without DNS; repeatable
    #[argh(option)]
    pub(super) resolve: Vec<String>,

    /// PEM file of the authorities to trust for https, in place of the system's; repeatable
    #[argh(option)]
    pub(super) cacert: Vec<PathBuf>,

    /// PEM file with a client certificate for https, and its key unless --key is given
    #[argh(option)]
    pub(super) cert: Option<PathBuf>,

    /// PEM file with the key of the client certificate
    #[argh(option)]
    pub(super) key: Option<PathBuf>,

    /// one ordered full download
    #[argh(switch)]
    pub(super) disable_range_queries: bool,

    /// allow or refuse: what to do when the server has no ranges; default allow
    #[argh(option, default = "FullDownload::Allow")]
    pub(super) full_download: FullDownload,

    /// write messages to this file, too, at least those of -v; /dev/kmsg for the kernel's log
    #[argh(option)]
    pub(super) log: Option<PathBuf>,

    /// say more; twice: each request
    #[argh(switch, short = 'v')]
    pub(super) verbose: u8,

    /// say nothing but errors
    #[argh(switch, short = 'q')]
    pub(super) quiet: bool,
}

/// The part of a help that lists options, under a title.
pub(super) fn list<T: FromArgs>(title: &str) -> String {
    let Err(exit) = T::from_args(&["reflash"], &["--help"]) else {
        return String::new();
    };
    let list = exit.output.lines();
    let list = list.skip_while(|line| *line != "Options:").skip(1);
    let list = list.take_while(|line| !line.trim_start().starts_with("--help"));
    let lines: Vec<&str> = list.collect();
    format!("\n{title}\n{}\n", lines.join("\n"))
}

/// The roots of these files, if there are any.
pub(super) fn load_roots(files: &[PathBuf], clock: Clock) -> Result<Option<Roots>> {
    if files.is_empty() {
        return Ok(None);
    }
    let roots = Roots::load(files, clock).map(Some);
    roots.map_err(|bad| Error::Usage(format!("cannot use --root-cert {bad}")))
}

impl Common {
    /// Refuses a log that is one of the files in use, each of which is said to be something.
    pub(super) fn check_log<'a>(
        &self,
        files: impl IntoIterator<Item = (&'static str, &'a Path)>,
    ) -> Result<()> {
        let log = self.log.as_deref();
        log.map_or(Ok(()), |log| check_apart("--log", log, files))
    }

    /// Which messages are shown.
    pub(super) fn level(&self) -> log::LevelFilter {
        match self.verbose {
            _ if self.quiet => log::LevelFilter::Off,
            0 => log::LevelFilter::Warn,
            1 => log::LevelFilter::Info,
            _ => log::LevelFilter::Debug,
        }
    }

    /// The clock to judge certificates by.
    pub(super) fn clock(&self) -> Clock {
        Clock::new(self.time_floor.map(|floor| floor.0))
    }

    /// What the bundle must prove; `insecure` if the user says that it need not prove anything.
    /// Without any of the options, what the system's administrator configured.
    pub(super) fn trust(&self, insecure: bool) -> Result<Trust> {
        let usage = |message: &str| Err(Error::Usage(message.to_owned()));
        match (self.hash()?, self.roots()?, insecure) {
            (None, None, true) => Ok(Trust::Insecure),
            (_, _, true) => usage(
                "--bundle-hash and --root-cert exclude --insecure-skip-bundle-verification",
            ),
            (Some(hash), None, false) => Ok(Trust::Hash(hash)),
            (None, Some(roots), false) => Ok(Trust::Signed(Arc::new(roots))),
            (Some(hash), Some(roots), false) => Ok(Trust::HashAndSigned(hash, Arc::new(roots))),
            (None, None, false) => match self.configured_roots()? {
                Some(roots) => Ok(Trust::Signed(Arc::new(roots))),
                None => usage(
                    "what makes the bundle trusted? give --bundle-hash ALG:HEX or --root-cert FILE \
                     (or --insecure-skip-bundle-verification)",
                ),
            },
        }
    }

    /// The bundle hash that is given.
    pub(super) fn hash(&self) -> Result<Option<Digest>> {
        let Some(text) = &self.bundle_hash else {
            return Ok(None);
        };
        let hash = Digest::parse(text).map(Some);
        hash.ok_or_else(|| {
            Error::Usage(format!(
                "--bundle-hash {text:?} is not ALG:HEX: sha256 or sha512-256 and 64 hex digits, or \
                 sha512 and 128"
            ))
        })
    }

    /// The roots that are given.
    pub(super) fn roots(&self) -> Result<Option<Roots>> {
        load_roots(&self.root_cert, self.clock())
    }

    /// The roots that this system's administrator configured.
    pub(super) fn configured_roots(&self) -> Result<Option<Roots>> {
        trust::configured(Path::new("/etc"), self.clock()).map_err(|bad| {
            Error::Usage(format!(
                "cannot use the configured roots in {bad}\nhint: --root-cert or --bundle-hash \
                 is used in their place"
            ))
        })
    }
}
