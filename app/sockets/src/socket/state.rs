//! The state machine of a socket.
//!
//! An accelerated connection is a connection that the service (the process `tidelaned`) carries.
//! "Both stacks" or "both" means the service and the kernel. A session is a registration of this
//! process with the service. A channel is a set of rings that this process shares with the service.
//!
//! ```text
//!      socket()            connect                           handshake ends
//! Free -----------> Fresh -----------------------> Connecting -------------------> Stream
//!  ^                |   \                          |   |   ^                      (accelerated)
//!  |                |    \ connect, listen:        |   |   | connect
//!  |                |     \ route, option,         |   |   |
//!  |         listen |      \ no service            |   \-> Failed <- refused, timed
//!  |                |       v                      |        out, shut down
//!  |                |      Kernel <----------------/
//!  |                v             left to the kernel
//!  |            Listening --------- accept ------------> Stream (of another socket)
//!  |          (both stacks) -- shutdown --> Fresh
//!  \------------------------------ last close, from every state
//! ```
//!
//! After `fork`, a connection stays in the session of the parent. The child's copy of the socket
//! changes its state:
//!
//! ```text
//!                       fork                 the child uses it
//! Connecting, Stream -----------> Inherited -------------------> Connecting, Stream
//!                  \                  |
//!                   \ fork without    | the service refuses,
//!                    \ a session for  | or fork without a session
//!                     \ the child     v
//!                      \---------> LostByFork
//! ```
//!
//! The table shows the effect of each call in each state. "kernel" means that the kernel handles
//! the call. "applied", "value" and "reported" mean that this crate carries out the call. "open"
//! means that `connect` begins an active open.
//!
//! | call | Fresh | Connecting | Stream | Failed | Listening | Kernel | Inherited | LostByFork |
//! |---|---|---|---|---|---|---|---|---|
//! | `bind` | kernel | EINVAL | EINVAL | kernel | kernel | kernel | EINVAL | EINVAL |
//! | `connect` | open | EALREADY, waits | EISCONN | open | kernel | kernel | migrates | EISCONN |
//! | `listen` | both stacks | EINVAL | EINVAL | both stacks | both | kernel | EINVAL | EINVAL |
//! | `accept` | kernel | EINVAL | EINVAL | EINVAL | a connection | kernel | EINVAL | EINVAL |
//! | `recv` | kernel | waits | bytes | error, end | kernel | kernel | migrates | ECONNRESET |
//! | `send` | kernel | waits, SYN | bytes | EPIPE | kernel | kernel | migrates | ECONNRESET |
//! | `shutdown` | kernel | aborts | FIN, end | ENOTCONN | ends | kernel | migrates | ENOTCONN |
//! | `setsockopt` | both | applied | applied | applied | both | kernel | migrates | applied |
//! | `getsockopt` | kernel | value | value | value | kernel | kernel | migrates | value |
//! | `poll`, epoll | kernel | reported | reported | reported | both | kernel | reported | HUP |
//!
//! In `Connecting`, a non-blocking `connect` fails with EALREADY, and a blocking `connect` waits. A
//! `send` waits for the end of the handshake, or writes the payload of the SYN (`syn_data`). In
//! `Failed`, the first `recv` or `send` returns the error of the active open, if no other call has
//! returned this error before. "end" means a result of 0, the end of the stream. In the row
//! `shutdown`, SHUT_WR sends a FIN. After SHUT_RD, the program reads the bytes that have arrived,
//! and then the end of the stream.
//!
//! "migrates" means that the connection is first migrated to this process (`sharing`), and that the
//! call then has the effect of the socket's new state. No descriptor refers to a `Free` socket. The
//! first `connect` after EINPROGRESS deviates from the table and returns the result of the active
//! open: 0 in `Stream`, and the error in `Failed`.

use std::collections::VecDeque;

use tidelane_abi::OpenOptions;
use tidelane_client::ListenerHandle;

use crate::{
    service::{Channel, Connection, session},
    sys::SmallVec,
};

/// The state of a socket.
#[derive(Debug, Default)]
pub(crate) enum State {
    /// The socket is in the pool of free sockets.
    #[default]
    Free,
    /// The socket is new, and possibly bound to a local address. The kernel handles most of its
    /// calls (see the table).
    Fresh,
    /// An active open: `connect` was called, and the handshake is not complete.
    Connecting(Connecting),
    /// An accelerated connection whose handshake is complete. The socket keeps this state after the
    /// end of the connection.
    Stream(Connection),
    /// The active open failed. The program may call `connect` again.
    Failed,
    /// A listener in both stacks.
    Listening(Listening),
    /// A kernel socket. The kernel handles all its calls.
    Kernel,
    /// A connection of the parent process, which can be migrated to this process. The value is the
    /// service's number of the connection.
    Inherited(u64),
    /// A connection of the parent process, which cannot be migrated to this process.
    LostByFork,
}

impl State {
    /// Returns true if the kernel handles the socket's payload and `getsockopt`: the columns of the
    /// table in which `recv`, `send` and `getsockopt` are "kernel". Also returns true for `Free`.
    #[inline]
    pub(crate) fn is_in_kernel(&self) -> bool {
        matches!(
            self,
            State::Free | State::Fresh | State::Listening(_) | State::Kernel
        )
    }
}

/// An active open whose handshake is not complete.
#[derive(Debug, Default)]
pub(crate) struct Connecting {
    /// Number of the session in which the connection was requested. The lowest number is 1.
    pub(crate) session: u32,
    /// The connection, after the service has answered with the event CONNECT_STARTED.
    pub(crate) connection: Option<Connection>,
    /// If the service has refused the connect request, so that the kernel has to connect, the
    /// reason (`tidelane_abi::not_accelerated`). Otherwise `None`.
    pub(crate) kernel: Option<u32>,
    /// Number of bytes that the SYN can carry, while the SYN waits for the first write. 0 if the
    /// SYN does not wait.
    pub(crate) syn_room: u32,
}

impl Connecting {
    /// Creates the state of an active open that was requested in this session.
    pub(crate) fn requested(session: u32) -> Self {
        Self {
            session,
            ..Self::default()
        }
    }

    /// Returns true if the service died before it answered the connect request.
    pub(crate) fn has_lost_service(&self) -> bool {
        let unanswered = self.connection.is_none() && self.kernel.is_none();
        unanswered && self.session <= session::last_gone()
    }
}

/// The service's part of a listener in both stacks. The kernel's listener is behind the socket's
/// descriptor.
#[derive(Debug)]
pub(crate) struct Listening {
    /// The service's listener, and the number of the session that the listener belongs to. `None`
    /// while the service does not have the listener.
    pub(crate) handle: Option<(ListenerHandle, u32)>,
    /// True if the process looks for the next service on behalf of this listener.
    pub(crate) wants_service: bool,
    /// The backlog that the program passed to `listen`.
    pub(crate) backlog: i32,
    /// The options that the service's listener gives to new connections.
    pub(crate) opening: OpenOptions,
    /// The channels that joined the listener: the service delivers new connections to them.
    pub(crate) joined: SmallVec<&'static Channel>,
    /// The accept queue: connections that the program has not accepted yet, each with the channel
    /// that received it.
    pub(crate) queue: VecDeque<(Connection, &'static Channel)>,
    /// Counts all connections that ever entered the accept queue.
    pub(crate) queued_count: u64,
    /// Time (CLOCK_MONOTONIC, in nanoseconds) before which this process does not ask the service to
    /// listen again, because the service refused or is gone. [`NEVER`](super::listening::NEVER)
    /// leaves the listener to the kernel for good.
    pub(crate) retry_at_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the row of a call from the table in this file's doc comment, by state.
    fn row(call: &str) -> Vec<(String, String)> {
        let lines = include_str!("state.rs").lines();
        let mut table = lines.filter_map(|line| line.strip_prefix("//! | "));
        let cells = |line: &str| -> Vec<String> {
            let line = line.trim_end().trim_end_matches('|');
            line.split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        let head = cells(table.next().expect("a head"));
        let row = table.map(cells).find(|row| row[0] == call).expect("a row");
        assert_eq!(row.len(), head.len());
        head.into_iter().zip(row).skip(1).collect()
    }

    #[test]
    fn the_table_agrees_with_is_in_kernel() {
        let states = [
            ("Fresh", State::Fresh),
            ("Connecting", State::Connecting(Connecting::default())),
            ("Failed", State::Failed),
            ("Kernel", State::Kernel),
            ("Inherited", State::Inherited(1)),
            ("LostByFork", State::LostByFork),
        ];
        for call in ["`recv`", "`send`", "`getsockopt`"] {
            let row = row(call);
            for (name, state) in &states {
                let (_, does) = row.iter().find(|(head, _)| head == name).expect("a column");
                assert_eq!(does == "kernel", state.is_in_kernel(), "{call} in {name}");
            }
        }
    }
}
