//! The `reflash` command.

fn main() {}
