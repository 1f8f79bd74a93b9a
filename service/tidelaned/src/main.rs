//! Placeholder main, replaced by the first commit of this crate.

fn main() {}
