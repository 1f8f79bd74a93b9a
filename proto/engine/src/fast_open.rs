//! What Fast Open (RFC 7413) needs beyond a single flow: cookies given, cookies had, and how many
//! requests are pending. `docs/design/fast-open.md` has the whole.

pub mod cache;
pub mod keys;
pub mod queue;
