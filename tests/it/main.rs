//! The integration tests: one crate, so that it links once.
