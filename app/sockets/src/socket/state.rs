//! The state machine of a socket.
//!
//! ```text
//!      socket()            connect                           handshake ends
//! Free -----------> Fresh -----------------------> Connecting -------------------> Stream
//!  ^                |   \                          |   |   ^                      (accelerated)
//!  |                |    \ connect, listen:        |   |   | connect                   |
//!  |                |     \ route, option,         |   |   |                           |
//!  |         listen |      \ no service            |   \-> Failed <- refused, timed    |
//!  |                |       v                      |        out, shut down             |
//!  |                |      Kernel <----------------/                                   |
//!  |                v             "it is the kernel's"                                 |
//!  |            Listening --------- accept ------------> Stream (of another socket)    |
//!  |          (both stacks)                                                            |
//!  |                                        fork, in the child                         v
//!  |                                        Inherited <----------------- Connecting, Stream
//!  |                                            | the child uses it          | no heir
//!  |                                            v                            v
//!  |                                        Stream, Connecting            Forked
//!  \------------------------------ last close, from every state
//! ```
//!
//! Effects of the calls in each state. "kernel" means that the call is the kernel's.
//!
//! | call | Fresh | Connecting | Stream | Failed | Listening | Kernel | Inherited | Forked |
//! |---|---|---|---|---|---|---|---|---|
//! | `bind` | kernel | EINVAL | EINVAL | kernel | kernel | kernel | EINVAL | EINVAL |
//! | `connect` | open | EALREADY, or waits | EISCONN | open | kernel | kernel | EISCONN | EISCONN |
//! | `listen` | both stacks | EINVAL | EINVAL | both stacks | kernel | kernel | EINVAL | EINVAL |
//! | `accept` | kernel | EINVAL | EINVAL | EINVAL | a connection | kernel | EINVAL | EINVAL |
//! | `recv` | kernel | waits | bytes | error, end | kernel | kernel | takes it | ECONNRESET |
//! | `send` | kernel | waits, SYN | bytes | EPIPE | kernel | kernel | takes it | ECONNRESET |
//! | `shutdown` | kernel | fails it | FIN, end | ENOTCONN | kernel | kernel | takes it | ENOTCONN |
//! | `setsockopt` | both | applied | applied | applied | both | kernel | takes it | applied |
//! | `getsockopt` | kernel | told | told | told | kernel | kernel | takes it | told |
//! | `poll`, epoll | kernel | told | told | told | both | kernel | told | HUP |
//!
//! "Takes it": the connection comes to this process (`sharing`), and the column of its new state
//! holds. `Free` is a socket of the pool, which no descriptor refers to.

use std::collections::VecDeque;

use tidelane_abi::OpenOptions;
use tidelane_client::ListenerHandle;

use crate::{
    service::{Connection, Lane, session},
    sys::Few,
};

/// The state of a socket.
#[derive(Debug, Default)]
pub(crate) enum State {
    /// In the pool.
    #[default]
    Free,
    /// Made, perhaps bound; the kernel's so far.
    Fresh,
    /// `connect` is under way.
    Connecting(Connecting),
    /// A connection.
    Stream(Connection),
    /// `connect` failed; it may be tried again.
    Failed,
    /// Listens in both stacks.
    Listening(Listening),
    /// The kernel's for good, as far as we are concerned.
    Kernel,
    /// A connection of the parent process, which this one may take: its number.
    Inherited(u64),
    /// A connection of another process, which this one cannot have.
    Forked,
}

impl State {
    /// Returns true if bytes and their options are the kernel's: the columns of the table in which
    /// `recv` and `send` are "kernel".
    #[inline]
    pub(crate) fn is_kernels(&self) -> bool {
        matches!(
            self,
            State::Free | State::Fresh | State::Listening(_) | State::Kernel
        )
    }
}

/// An active open.
#[derive(Debug, Default)]
pub(crate) struct Connecting {
    /// The session that was asked.
    pub(crate) session: u32,
    /// From CONNECT_STARTED on.
    pub(crate) connection: Option<Connection>,
    /// The service sent the connect back: it is the kernel's, for this reason.
    pub(crate) kernel: Option<u32>,
    /// SYN waits for the first write, and carries so much of it. 0: it is out.
    pub(crate) syn_room: u32,
}

impl Connecting {
    /// The service of this session was asked.
    pub(crate) fn asked(session: u32) -> Self {
        Self {
            session,
            ..Self::default()
        }
    }

    /// Returns true if the service died before it answered.
    pub(crate) fn is_orphaned(&self) -> bool {
        let unanswered = self.connection.is_none() && self.kernel.is_none();
        unanswered && self.session <= session::last_gone()
    }
}

/// A listener.
#[derive(Debug)]
pub(crate) struct Listening {
    /// The service's listener and the session that it belongs to.
    pub(crate) handle: Option<(ListenerHandle, u32)>,
    /// The process looks for the next service for it, if there is none.
    pub(crate) watched: bool,
    pub(crate) backlog: i32,
    /// Options of its connections, as the service knows them.
    pub(crate) opening: OpenOptions,
    /// Lanes that joined it.
    pub(crate) joined: Few<&'static Lane>,
    /// Accepted by the service, not yet by the program; and the lane that got each.
    pub(crate) queue: VecDeque<(Connection, &'static Lane)>,
    /// Counts all that ever came into the queue.
    pub(crate) arrivals: u64,
    /// The service refused, or is not there: do not ask before this time, or never
    /// ([`NEVER`](super::listening::NEVER)).
    pub(crate) retry_at_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table above, as this file has it: the row of a call, by state.
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
    fn the_table_says_whose_the_bytes_are() {
        let states = [
            ("Fresh", State::Fresh),
            ("Connecting", State::Connecting(Connecting::default())),
            ("Failed", State::Failed),
            ("Kernel", State::Kernel),
            ("Inherited", State::Inherited(1)),
            ("Forked", State::Forked),
        ];
        for call in ["`recv`", "`send`", "`getsockopt`"] {
            let row = row(call);
            for (name, state) in &states {
                let (_, does) = row.iter().find(|(head, _)| head == name).expect("a column");
                assert_eq!(does == "kernel", state.is_kernels(), "{call} in {name}");
            }
        }
    }
}
