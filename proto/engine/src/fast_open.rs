//! State of Fast Open (RFC 7413) that does not belong to a single flow (connection): cookie keys,
//! the client's cookie cache, and the listeners' limits of pending requests.
//! `docs/design/fast-open.md` describes the design.

pub mod cache;
pub mod keys;
pub mod queue;
