//! The options that all subcommands share which read a bundle: how to get at it, what makes it
//! trusted, how much is said.
//!
//! argh has no groups of options, so [`with_common`] writes them behind those of a subcommand; what
//! was typed is then the same [`Common`] everywhere.

use std::path::PathBuf;

use super::values::{FullDownload, Retries, Seconds, Size};
use crate::error::{Error, Result};
use crate::hash::Digest;
use crate::open::Trust;

/// Defines the arguments of a subcommand: its own, and the common ones behind them.
macro_rules! with_common {
    ($(#[$head:meta])* pub(super) struct $name:ident { $($own:tt)* }) => {
        $(#[$head])*
        pub(super) struct $name {
            $($own)*

            /// trust: ALG:HEX, the hash that the bundle header must have
            #[argh(option)]
            bundle_hash: Option<String>,

            /// tries after a failure without a byte received, or infinite; default 5
            #[argh(option, default = "Retries(Some(5))")]
            http_max_retries: Retries,

            /// wait before the first of them, doubled for each more; default 1s
            #[argh(option, default = "Seconds(std::time::Duration::from_secs(1))")]
            http_retry_initial_backoff: Seconds,

            /// longest such wait, default 30s
            #[argh(option, default = "Seconds(std::time::Duration::from_secs(30))")]
            http_retry_max_backoff: Seconds,

            /// most bytes a second, all connections together; such as 500k
            #[argh(option)]
            limit_rate: Option<Size>,

            /// refuse before the first write when more has to be downloaded, stop when more was
            #[argh(option)]
            max_download: Option<Size>,

            /// no bytes for so long is a failure of the request, default 30s
            #[argh(option, default = "Seconds(std::time::Duration::from_secs(30))")]
            stall_timeout: Seconds,

            /// limit for looking the name up and for connecting, each; default 10s
            #[argh(option, default = "Seconds(std::time::Duration::from_secs(10))")]
            connect_timeout: Seconds,

            /// 'Name: value', a header for the bundle's server and no other that it redirects to; repeatable
            #[argh(option, short = 'H')]
            header: Vec<String>,

            /// the http proxy, in place of that of http_proxy, https_proxy or all_proxy; empty for none
            #[argh(option)]
            proxy: Option<String>,

            /// HOST:PORT:ADDR or HOST:PORT:ADDR,ADDR…: the addresses of a host, without DNS; repeatable
            #[argh(option)]
            resolve: Vec<String>,

            /// PEM file of the authorities to trust for https, in place of the system's; repeatable
            #[argh(option)]
            cacert: Vec<PathBuf>,

            /// PEM file with a client certificate for https, and its key unless --key is given
            #[argh(option)]
            cert: Option<PathBuf>,

            /// PEM file with the key of the client certificate
            #[argh(option)]
            key: Option<PathBuf>,

            /// one ordered full download
            #[argh(switch)]
            disable_range_queries: bool,

            /// allow or refuse: what to do when the server has no ranges; default allow
            #[argh(option, default = "FullDownload::Allow")]
            full_download: FullDownload,

            /// say more; twice: each request
            #[argh(switch, short = 'v')]
            verbose: u8,

            /// say nothing but errors
            #[argh(switch, short = 'q')]
            quiet: bool,
        }

        impl $name {
            fn common(&self) -> $crate::args::common::Common {
                $crate::args::common::Common {
                    bundle_hash: self.bundle_hash.clone(),
                    http_max_retries: self.http_max_retries,
                    http_retry_initial_backoff: self.http_retry_initial_backoff,
                    http_retry_max_backoff: self.http_retry_max_backoff,
                    limit_rate: self.limit_rate,
                    max_download: self.max_download,
                    stall_timeout: self.stall_timeout,
                    connect_timeout: self.connect_timeout,
                    header: self.header.clone(),
                    proxy: self.proxy.clone(),
                    resolve: self.resolve.clone(),
                    cacert: self.cacert.clone(),
                    cert: self.cert.clone(),
                    key: self.key.clone(),
                    disable_range_queries: self.disable_range_queries,
                    full_download: self.full_download,
                    verbose: self.verbose,
                    quiet: self.quiet,
                }
            }
        }
    };
}
pub(super) use with_common;

/// What was typed of the common options.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) bundle_hash: Option<String>,
    pub(super) http_max_retries: Retries,
    pub(super) http_retry_initial_backoff: Seconds,
    pub(super) http_retry_max_backoff: Seconds,
    pub(super) limit_rate: Option<Size>,
    pub(super) max_download: Option<Size>,
    pub(super) stall_timeout: Seconds,
    pub(super) connect_timeout: Seconds,
    pub(super) header: Vec<String>,
    pub(super) proxy: Option<String>,
    pub(super) resolve: Vec<String>,
    pub(super) cacert: Vec<PathBuf>,
    pub(super) cert: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
    pub(super) disable_range_queries: bool,
    pub(super) full_download: FullDownload,
    pub(super) verbose: u8,
    pub(super) quiet: bool,
}

impl Common {
    /// Which messages are shown.
    pub(super) fn level(&self) -> log::LevelFilter {
        match self.verbose {
            _ if self.quiet => log::LevelFilter::Off,
            0 => log::LevelFilter::Warn,
            1 => log::LevelFilter::Info,
            _ => log::LevelFilter::Debug,
        }
    }

    /// What the bundle must prove; `insecure` if the user says that it need not prove anything.
    pub(super) fn trust(&self, insecure: bool) -> Result<Trust> {
        let usage = |message: &str| Err(Error::Usage(message.to_owned()));
        match (self.bundle_hash.as_deref(), insecure) {
            (Some(text), false) => match Digest::parse(text) {
                Some(digest) => Ok(Trust::Hash(digest)),
                None => Err(Error::Usage(format!(
                    "--bundle-hash {text:?} is not ALG:HEX: sha256 or sha512-256 and 64 hex digits, or \
                     sha512 and 128"
                ))),
            },
            (None, true) => Ok(Trust::Insecure),
            (Some(_), true) => usage(
                "--bundle-hash and --insecure-skip-bundle-verification exclude each other",
            ),
            (None, false) => usage(
                "what makes the bundle trusted? give --bundle-hash ALG:HEX \
                 (or --insecure-skip-bundle-verification)",
            ),
        }
    }
}
