//! Installer for Rugix update bundles over HTTP that downloads only the blocks the device does not
//! have yet.
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
//! [`install`] runs them, [`inspect`] runs the first alone, [`verify`] only compares, [`args`] is the
//! command line. Things: [`trust`] and [`clock`] (signatures), [`remote`], [`ordered`] and [`http`]
//! (where bytes come from), [`connect`], [`ahead`], [`proxy`] and [`tls`] (the sockets below),
//! [`bundle`] (the model), [`rugix`] and [`stlv`] (the format), [`xz`], [`hash`], [`device`],
//! [`busy`] and [`old`] (the target), [`error`]. [`mod@index`] makes block
//! indexes of an [`image`], into an [`output`] that is whole or not there. [`link`] reckons how long a
//! download takes; [`terminal`] and [`notify`] are what [`report`] says it with.
//!
//! # Embedding
//!
//! The program is a thin shell around [`install::install`]: options in, a report out, and a
//! [`report::Reporter`] that is told on the way. [`install::planned::plan`] takes the same options.
//!
//! ```
//! use std::sync::Arc;
//!
//! use reflash::http::Counters;
//! use reflash::install::{install, Options, Targets};
//! use reflash::open::Trust;
//! use reflash::remote::Location;
//! use reflash::report::{Progress, Reporter};
//! use reflash::seed;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("reflash-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # let [old, new, bundle, target] = ["old", "new", "bundle", "target"].map(|name| folder.join(name));
//! # std::fs::write(&old, vec![7; 500_000])?;
//! # std::fs::write(&new, vec![7; 400_000])?;
//! # let packed = reflash::pack::pack(&reflash::pack::Options::new(&new, &bundle))?;
//! # let (url, hash) = (bundle.display().to_string(), packed.hash);
//! // `url` is what a user would type, `hash` a digest that came by a way that is trusted.
//! let mut options = Options::new(
//!     Location::parse(&url),
//!     Trust::Hash(hash),
//!     Targets::One(target.clone()),
//! );
//! options.seeds.push(seed::Spec { path: old, index: None });
//! options.verify = true;
//!
//! let counters = Arc::new(Counters::default());
//! // `Progress::Json` and the others write to standard output and error; this is quiet.
//! let reporter = Reporter::new(Progress::None, counters.clone());
//! let (report, result) = install(&options, &reporter, &counters);
//! // The report is there in any case: what was fetched, reused, written, touched.
//! println!("{}: {} bytes fetched", report.result, report.bytes.fetched);
//! if let Err(error) = result {
//!     eprintln!("{error}; exit {}", error.class().exit_code());
//! }
//! # assert_eq!(report.result, "installed", "{:?}", report.error);
//! # assert_eq!(std::fs::read(&target)?, std::fs::read(&new)?);
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(())
//! # }
//! ```
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
//! runtime and no other thread but those that scan seeds, and in the program the one that waits for
//! signals.
//!
//! # Trust
//!
//! The user names a bundle hash, or roots of which one must have signed it ([`trust`]). It covers the bundle header, which holds the digest of each
//! payload header and of each payload; a payload header holds the digest of each block. Raw bytes
//! are compared with the digest above them before they are interpreted, and a block reaches the
//! target only after its digest matched ([`hash::Verified`]). Servers, seeds and media are not
//! trusted at all. Every limit on what remote bytes may ask for is a named constant.

#[cfg(not(target_os = "linux"))]
compile_error!("reflash writes Linux block devices and runs on Linux only");

pub mod ahead;
pub mod args;
pub mod bundle;
pub mod busy;
pub mod chunker;
pub mod clock;
pub mod connect;
pub mod device;
pub mod error;
#[cfg(feature = "pack")]
pub mod estimate;
pub mod fetch;
pub mod hash;
pub mod http;
pub mod image;
pub mod index;
pub mod inspect;
pub mod install;
pub mod link;
pub mod notify;
pub mod old;
pub mod open;
pub mod ordered;
pub mod output;
#[cfg(feature = "pack")]
pub mod pack;
pub mod plan;
pub mod proxy;
pub mod readback;
pub mod remote;
pub mod report;
pub mod retry;
pub mod rugix;
pub mod scan;
pub mod seed;
#[cfg(feature = "pack")]
pub mod sign;
pub mod stlv;
pub mod terminal;
pub mod tls;
pub mod trust;
pub mod unpack;
pub mod verify;
pub mod write;
pub mod xz;
