//! A key-value store with the protocol of memcached, for servers on the ring API.
//!
//! A [`Server`] serves the clients of a context (the sockets of one thread). The [`Session`] of a
//! client executes the commands in the received bytes on the server's [`Kv`], and writes the
//! answers to an [`Output`]. The library has no clock and no randomness: the present time and the
//! secret of the hash are arguments. The context does all I/O.
//!
//! ```text
//!   bytes ──> Session::feed ──> commands ──> Store       (one Kv for all clients)
//!                  └──────────> answers ──> Output       (buffers of the client's connection)
//! ```
//!
//! The answers to the classic text protocol and to the meta commands are the answers of memcached
//! 1.6.18, with these differences:
//!
//! * The answer to an earlier command is never dropped. If a `get` has a key of more than 250
//!   bytes, memcached drops the answers that it has not sent yet.
//! * `ma` with `T` sets the expiry even if the number becomes longer. memcached then ignores `T`.
//! * A number that becomes shorter is padded with spaces. If its old value is being sent to a
//!   client, the padding is omitted. memcached has a second exception: it omits the padding while
//!   its maintenance thread refers to the item.
//! * The age of an item (`l` of `mg`, `la` of `me`) counts from the most recent access. The first
//!   read after the item was stored does not count as an access. memcached updates the time of an
//!   access in fewer cases.
//! * `me` reports the slab class 0, and `version` reports `1.6.18-tidelane`.
//! * If a `get` of more than 2,048 bytes arrives in pieces and one of its keys is too long, the
//!   answers to earlier keys may precede the error.
//! * If more than 2,048 bytes of a line have arrived without the end of the line, the server
//!   disconnects the client. Only a `get` or `gets` may be longer.
//! * There are no slab classes, no binary protocol, no `watch` and no `lru_crawler`.

#![forbid(unsafe_code)]

mod arithmetic;
mod backlog;
mod base64;
mod classic;
mod client;
mod clock;
mod get;
mod kv;
mod lingering;
mod meta;
mod meta_commands;
mod number;
mod outcome;
mod output;
mod receive;
mod ring_output;
mod server;
mod session;
mod stats;
mod store;
mod tokens;
mod turn;

pub use crate::{
    kv::{ConnectionCounts, Kv},
    output::Output,
    server::Server,
    session::{Fed, Progress, Session},
    store::{MEMORY_MAX, MEMORY_MIN},
};
