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
//! * The answer to an earlier command is never dropped. memcached drops the answers that are not
//!   yet sent when a `get` has a key of more than 250 bytes.
//! * `ma` with `T` also sets the expiry when the number becomes longer.
//! * A number that becomes shorter is padded with spaces, unless its old value is being sent.
//!   memcached also omits the padding while its maintenance thread refers to the item.
//! * The age of an item (`l` of `mg`, `la` of `me`) counts from the last access. The first read
//!   does not reset the age. memcached updates the time of an access in fewer cases.
//! * `me` has the slab class 0, and `version` the number `1.6.18-tidelane`.
//! * A `get` of more than 2,048 bytes that comes in pieces may have answers before the error of a
//!   later key that is too long.
//! * A client is disconnected once more than 2,048 bytes of a line have arrived without the end of
//!   the line, unless the line is a `get` or `gets`.
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
