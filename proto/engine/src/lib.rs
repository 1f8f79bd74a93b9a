//! The TCP engine as one object: it owns the flows and calls fast path, else slow path.
//!
//! Sans-IO: time, seed and all I/O are arguments. See `docs/design/engine.md`.
#![forbid(unsafe_code)]
