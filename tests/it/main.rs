//! The integration tests: one crate, so that it links once.

#![allow(
    clippy::cast_possible_truncation,
    clippy::let_underscore_must_use,
    clippy::unwrap_used,
    missing_docs,
    unreachable_pub,
    reason = "a test fails by panicking, and nothing outside this crate reads it"
)]

// Bundles, block indexes and images made to order, independent of the product's code; the golden
// vectors check it.
#[allow(dead_code, reason = "a toolbox: not every tool is in use at all times")]
mod make_bundle;
// Packed bundles against the golden ones, and through our own reader.
#[cfg(feature = "pack")]
mod pack;
// The fault-injecting, recording HTTP server.
#[allow(dead_code, reason = "a toolbox: not every tool is in use at all times")]
mod server;
// A bundle on a server, and a folder: the scene of many tests.
mod site;
// Temp dir, runner of the binary, assertions.
#[allow(dead_code, reason = "a toolbox: not every tool is in use at all times")]
mod util;
// A medium in memory that loses power and fails, and installs onto it through the library.
#[allow(dead_code, reason = "a toolbox: not every tool is in use at all times")]
mod medium;
// The old image on the target itself, in any layout.
mod inplace;
// Power cuts at every operation, kills at any instant, and the same command again.
mod resume;
// Read-back, `verify`, `--write-index`, `--discard`, refusals; real devices are in tests/system.
mod devices;
// Every file in tests/data/vectors: what the library reads in it, what the binary makes of it.
mod golden;
// Installs that go well, or end as they should: seeds, encodings, requests, targets.
mod install;
// Offsets past 4 GiB; only in `make test-cross`, since it takes minutes.
#[cfg(feature = "pack")]
mod large;
// What an install would do, against what it does.
mod plan;
// Bad networks and servers: a table of faults against exit, requests, bytes and target.
mod faults;
// Requests that are sent before the answers to earlier ones are in, to servers good and bad.
mod ahead;
// SIGINT, SIGTERM and SIGHUP, from every kind of wait.
mod signals;
// The way to the server: names and addresses, proxies, headers and credentials, https.
mod connect;
// Certificates and CMS signatures made to order.
#[cfg(feature = "signatures")]
#[allow(dead_code, reason = "a toolbox: not every tool is in use at all times")]
mod make_signature;
// Whom to trust: signatures, chains, clocks, and what is said of those that fail.
#[cfg(feature = "signatures")]
mod trust;
// Bundles made to hurt: every bit flipped, every length cut, promises of gigabytes, bombs.
#[cfg(feature = "signatures")]
mod hostile;
// What an update would cost, against what it does.
#[cfg(feature = "pack")]
mod estimate;
// Block indexes: those of the reference, and what they are good for.
mod index;
// Signatures that are prepared and added.
#[cfg(all(feature = "pack", feature = "signatures"))]
mod sign;
// What a bundle is, as told to people and programs.
mod inspect;
// The command line as users and scripts see it: exit codes, messages, report, progress.
mod cli;
// Progress on terminals, in logs, to the service manager; the log file.
mod terminal;
// What people read when something is wrong: transcripts of runs.
mod messages;
// The manual page and the completions of shells.
mod manual;
// What the README promises and tells people to do, against the tests.
mod readme;
// The crates: licences, sources, duplicates, C.
mod dependencies;
// The repository itself: structure, owners, versions.
mod tidy;
