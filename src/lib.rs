//! Installer for Rugix update bundles over HTTP that downloads only the blocks the device does not
//! have yet.
//!
//! The program `reflash` is a thin shell around [`Install`]: what to install as a value, a [`Reporter`]
//! that is told on the way, a [`Report`] in the end. [`Install::plan`] decides the same and writes
//! nothing; [`inspect`], [`verify`] and [`mod@index`] are the subcommands of these names, and with the
//! feature `pack` there are `pack`, `sign` and `estimate`. All of them are synchronous, none exits,
//! panics or writes to the terminal; messages go through the `log` crate.
//!
//! ```
//! use std::sync::mpsc;
//!
//! use reflash::{Class, Event, Install, Location, Reporter, Targets, Trust};
//!
//! # #[cfg(not(feature = "pack"))]
//! # fn main() {}
//! # #[cfg(feature = "pack")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("reflash-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # let [old, new, bundle, target] = ["old", "new", "bundle", "target"].map(|name| folder.join(name));
//! # std::fs::write(&old, vec![7; 500_000])?;
//! # std::fs::write(&new, [vec![7; 400_000], vec![8; 100_000]].concat())?;
//! # let packed = reflash::pack::pack(&reflash::pack::Options::new(&new, &bundle))?;
//! # let (url, hash) = (bundle.display().to_string(), packed.hash);
//! // `url` is what a user would type, `hash` a digest that came by a way that is trusted.
//! let install = Install::new(
//!     Location::parse(&url),
//!     Trust::Hash(hash),
//!     Targets::One(target.clone()),
//! )
//! .seed(&old)
//! .verify(true);
//!
//! // Events come while it runs, from several threads; here they are looked at afterwards.
//! let (sender, events) = mpsc::channel();
//! let reporter = Reporter::new(move |event: &Event<'_>| {
//!     if let Event::Progress(progress) = event {
//!         // Nobody listens any more: then it need not be told.
//!         sender.send(*progress).ok();
//!     }
//! });
//! match install.run(&reporter) {
//!     Ok(report) => {
//!         assert_eq!(report.result, "installed");
//!         println!("{} of {} blocks fetched", report.blocks.fetched, report.blocks.total);
//!     }
//!     Err(failed) => match failed.error.class() {
//!         Class::Network => println!("{failed}: later, perhaps"),
//!         // The report is there in any case.
//!         _ => println!("{failed}; target touched: {}", failed.report.target_touched),
//!     },
//! }
//! # drop(reporter);
//! let percent: Vec<f64> = events.iter().map(|progress| progress.percent).collect();
//! assert!(percent.is_sorted() && percent.last() == Some(&100.0));
//! # assert_eq!(std::fs::read(&target)?, std::fs::read(&new)?);
//!
//! // Again: it is there, and nothing is written.
//! let report = install.run(&Reporter::silent())?;
//! assert_eq!((report.result, report.bytes.written), ("current", 0));
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(())
//! # }
//! ```
//!
//! A server is reached as [`Access`] says: patience, rate, most bytes, headers, proxies, certificates.
//! There is no way to stop a run but to end the process, which the target is safe against at every
//! moment, as it is against a power cut; [`Reporter::interrupted`] has the last words.
//!
//! # Structure
//!
//! ```text
//!   bundle url ─▶ open ─▶ seed ─▶ plan ─▶ fetch ⇄ write ─▶ report
//!                trusted  what we  spans,  workers  in order,
//!                index    have     steps   (http)   verified
//! ```
//!
//! Verbs are stages, nouns are things; stages import things, things never import stages:
//!
//! | stage | turns | into |
//! |---|---|---|
//! | [`open`] | a URL, file or stream | a trusted header and the index of each payload |
//! | [`seed`] | local devices and files | a claim which blocks they hold ([`scan`], [`chunker`]) |
//! | [`plan`] | blocks wanted and blocks had | ordered steps and the ranges to ask for; a pure function |
//! | [`fetch`] | ranges | bytes, on worker threads; [`retry`] says when to try again |
//! | [`unpack`] | bytes | verified blocks, on the cores that the writer leaves, ahead of it |
//! | [`mod@write`] | steps and bytes | verified blocks on the target, in order |
//! | [`readback`] | a written target | what of it is not as it should be, and mends that |
//! | [`report`] | events | progress, messages and the final report |
//!
//! [`install`] runs them, [`inspect`] runs the first alone, [`verify`] only compares. [`args`] is the
//! command line, [`console`] what the program says.
//!
//! | things | what they are about |
//! |---|---|
//! | [`bundle`] | the model |
//! | [`rugix`], [`stlv`], [`xz`], [`hash`] | the format |
//! | [`trust`], [`clock`] | signatures |
//! | [`remote`], [`ordered`], [`http`] | where bytes come from |
//! | [`connect`], [`ahead`], [`proxy`], [`tls`] | the sockets below |
//! | [`device`], [`busy`], [`old`] | the target |
//! | [`mod@index`], [`image`], [`output`] | block indexes, in a file that is whole or not there |
//! | [`link`], [`work`] | how long a download takes, how far a tool is |
//! | [`terminal`], [`notify`] | what [`console`] says it with |
//! | [`error`] | what can go wrong, and the exit code of it |
//!
//! # Threads
//!
//! ```text
//!   calling thread = writer                N workers, each with one keep-alive connection
//!   ┌───────────────────────────┐  jobs    ┌──────────────────────┐
//!   │ hand out spans while      │─────────▶│ receive a job        │
//!   │ their bytes fit the budget│          │ get range, retry,    │
//!   │ take span k, in order     │◀─────────│ ask for missing tail │
//!   │ decompress, verify what   │ arrivals └──────────────────────┘
//!   │ is not, write             │          one thread for each core but the writer's
//!   │                           │  pool    ┌──────────────────────┐
//!   │                           │◀────────▶│ decompress, verify   │
//!   └───────────────────────────┘          └──────────────────────┘
//!                │ all bytes in order, and one for the payload digest
//! ```
//!
//! The writer owns submission, so memory is bounded and nothing can deadlock; shutdown is
//! disconnection. With one core the writer decompresses and hashes all itself. There is no async
//! runtime and no other thread but those that scan seeds, one that tells of progress while nothing
//! happens, and in the program the one that waits for signals.
//!
//! # Trust
//!
//! The user names a bundle hash, or roots of which one must have signed it ([`trust`]). It covers the
//! bundle header, which holds the digest of each payload header and of each payload; a payload header
//! holds the digest of each block. Raw bytes are compared with the digest above them before they are
//! interpreted, and a block reaches the target only after its digest matched ([`hash::Verified`]).
//! Servers, seeds and media are not trusted at all. Every limit on what remote bytes may ask for is a
//! named constant.

#![allow(
    rustdoc::private_intra_doc_links,
    reason = "the map of the modules is for those who read all of it"
)]

#[cfg(not(target_os = "linux"))]
compile_error!("reflash writes Linux block devices and runs on Linux only");

mod ahead;
mod args;
mod bundle;
mod busy;
mod chunker;
mod clock;
mod connect;
mod console;
mod device;
mod error;
#[cfg(feature = "pack")]
pub mod estimate;
mod fetch;
mod hash;
mod http;
mod image;
pub mod index;
pub mod inspect;
mod install;
mod link;
mod notify;
mod old;
mod open;
mod ordered;
mod output;
#[cfg(feature = "pack")]
pub mod pack;
mod plan;
mod proxy;
mod readback;
mod remote;
mod report;
mod retry;
mod rugix;
mod scan;
mod seed;
#[cfg(feature = "pack")]
pub mod sign;
mod stlv;
mod terminal;
mod tls;
mod trust;
mod unpack;
pub mod verify;
mod work;
mod write;

// A package of its own, so that it can be compiled for speed where the rest is for size.
use reflash_xz as xz;

pub use chunker::Chunker;
pub use error::{Class, Error, Result, Subject};
pub use hash::{Digest, HashAlgorithm};
pub use install::planned::{Expected, OnLink, PlanReport, SpanReport};
pub use install::{Install, Targets, MAX_WORKERS, MEMORY, WORKERS};
#[cfg(feature = "pack")]
pub use link::Link;
pub use open::Trust;
pub use remote::{Access, Location};
pub use report::{
    BlocksReport, BundleReport, BytesReport, ComparedReport, Event, Failed, HttpReport,
    PayloadReport, Phase, Progress, Report, Reporter, SecondsReport, VerifyReport, SCHEMA,
};
pub use trust::{BadFile, Roots};
pub use work::{Step, Tell};

/// The parts of an [`Access`]: how servers are reached.
pub mod network {
    pub use crate::clock::{Clock, Time};
    pub use crate::connect::{Network, Resolve};
    pub use crate::http::{Header, Settings};
    pub use crate::proxy::{Exceptions, Proxies, Proxy};
    pub use crate::retry::{Limiter, Policy};
    pub use crate::tls::{Files, Problem, Tls};
}

/// What the program, the tests, benchmarks and fuzz targets of this package use besides. No part of
/// the API: it may change with every version.
#[doc(hidden)]
pub mod internal {
    macro_rules! open {
        ($($name:ident)*) => { $(pub mod $name { pub use crate::$name::*; })* };
    }

    open! {
        args bundle chunker clock connect console device error fetch hash http image install link notify old
        open output plan proxy remote report rugix scan seed stlv tls trust unpack write xz
    }
}
