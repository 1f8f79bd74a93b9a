//! The interface between a run in virtual time ([`crate::virtual_time`]) and the sockets of the
//! stack under test. The clock of the run is simulated: the time jumps from timer to timer.

use tidelane_engine::{Endpoint, Instant};
use tidelane_packetdrill::{errno::CallResult, settings::Settings, socket::Shutdown};

use crate::{calls::Fd, ip::Version};

/// The sockets of a stack in virtual time, with the calls and errors of Linux. No call blocks: even
/// without O_NONBLOCK, a call that would block fails with EAGAIN. The caller chooses the
/// descriptors of new sockets.
pub trait Sockets {
    /// Returns a stack without sockets, whose device carries IP packets of `version`.
    fn new(settings: Settings, version: Version) -> Self;

    /// Returns the present time.
    fn now(&self) -> Instant;

    /// Returns the time at which the next timer is due, or `None` if no timer runs.
    fn next_timeout(&self) -> Option<Instant>;

    /// Advances the time to `to` and runs the timers that are due.
    fn advance_to(&mut self, to: Instant);

    /// Delivers a packet to the stack.
    fn inject(&mut self, packet: &[u8]);

    /// Removes and returns the oldest packet that the stack has sent, with the time of its
    /// transmission.
    fn next_sent(&mut self) -> Option<(Instant, Vec<u8>)>;

    /// Implements `socket(2)`.
    fn socket(&mut self, fd: Fd, domain: i32, kind: i32, protocol: i32) -> CallResult<()>;

    /// Implements `bind(2)`.
    fn bind(&mut self, fd: Fd, local: Endpoint) -> CallResult<()>;

    /// Implements `listen(2)`.
    fn listen(&mut self, fd: Fd, backlog: i32) -> CallResult<()>;

    /// Implements `accept(2)`. The connection gets the descriptor `new`.
    fn accept(&mut self, fd: Fd, new: Fd) -> CallResult<()>;

    /// Starts `connect(2)`.
    fn connect(&mut self, fd: Fd, peer: Endpoint) -> CallResult<()>;

    /// Returns the result of the handshake that `connect` or `send_with_syn` has started, or EAGAIN
    /// during the handshake.
    fn connect_result(&mut self, fd: Fd) -> CallResult<()>;

    /// Implements `shutdown(2)`.
    fn shutdown(&mut self, fd: Fd, how: Shutdown) -> CallResult<()>;

    /// Implements `close(2)`.
    fn close(&mut self, fd: Fd) -> CallResult<()>;

    /// Implements `recv(2)`. Returns at most `len` bytes.
    fn receive(&mut self, fd: Fd, len: usize, flags: i32) -> CallResult<Vec<u8>>;

    /// Implements `send(2)`. Returns the number of bytes that the send buffer had room for.
    fn send(&mut self, fd: Fd, bytes: &[u8], flags: i32) -> CallResult<usize>;

    /// Records whether the next write has MSG_MORE.
    fn more_to_come(&mut self, fd: Fd, more: bool) -> CallResult<()>;

    /// Returns true if a write with `flags` opens the connection (RFC 7413), because `flags` has
    /// MSG_FASTOPEN or a `connect` is deferred. A deferred `connect` (TCP_FASTOPEN_CONNECT) leaves
    /// the SYN to the first write.
    fn sends_with_syn(&self, fd: Fd, flags: i32) -> CallResult<bool>;

    /// Opens the connection with as many of `bytes` as the SYN may carry, and returns their number.
    /// Returns `None` if the connection is already open and the caller must use [`Self::send`]. If
    /// a `connect` is deferred, its address is the peer. Otherwise `to` is the peer. `waits` is
    /// true if the program's write blocks until the bytes that do not fit into the SYN are written,
    /// too.
    fn send_with_syn(
        &mut self,
        fd: Fd,
        bytes: &[u8],
        to: Option<Endpoint>,
        waits: bool,
    ) -> CallResult<Option<usize>>;

    /// Implements `setsockopt(2)`.
    fn set_option(&mut self, fd: Fd, level: i32, name: i32, value: &[u8]) -> CallResult<()>;

    /// Implements `getsockopt(2)`.
    fn option(&mut self, fd: Fd, level: i32, name: i32) -> CallResult<Vec<u8>>;

    /// Implements `fcntl(2)` with F_GETFL or F_SETFL.
    fn control(&mut self, fd: Fd, command: i32, argument: i32) -> CallResult<i64>;

    /// Returns the events that `poll(2)` reports for `fd`.
    fn readiness(&self, fd: Fd) -> u32;

    /// Returns the number of readable bytes (SIOCINQ).
    fn unread(&self, fd: Fd) -> CallResult<u32>;

    /// Returns the number of written bytes that are not acknowledged (SIOCOUTQ).
    fn unacknowledged(&self, fd: Fd) -> CallResult<u32>;

    /// Returns the number of written bytes that are not sent (SIOCOUTQNSD).
    fn unsent(&self, fd: Fd) -> CallResult<u32>;

    /// Returns 1 if the next byte to read is the urgent byte, and 0 otherwise (SIOCATMARK).
    fn at_mark(&self, fd: Fd) -> CallResult<u32>;
}
