//! [`Context`]: the sockets of one thread, as a trait that all back ends implement.

use std::{fmt, io, net::SocketAddr, os::fd::BorrowedFd, time::Duration};

use crate::{Buffer, Pool, ReadyList, descriptor::Descriptor};

/// Options of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Limit of established connections that wait to be accepted by [`Context::sync`].
    pub backlog: u32,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { backlog: 4096 }
    }
}

/// How long [`Context::sync`] waits if there is no event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Return without a wait.
    No,
    /// Wait for the first event, but not longer than this time.
    For(Duration),
    /// Wait for the first event.
    Forever,
}

/// Reason why a buffer was not accepted for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendRefusal {
    /// The send queue of the descriptor is full. The event WRITABLE reports when the queue has
    /// room.
    Full,
    /// The descriptor is not an open connection, or its sending direction is closed. For
    /// [`Context::send_to`]: the descriptor is not an open UDP socket.
    NotConnected,
    /// The payload is longer than a UDP datagram can be, or longer than the back end can send.
    TooLong,
}

/// Error of [`Context::send`] and [`Context::send_to`]: the buffer, unchanged, and the reason.
#[derive(Debug)]
pub struct SendError {
    /// The buffer that the context did not accept.
    pub buffer: Buffer,
    /// The reason.
    pub refusal: SendRefusal,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.refusal {
            SendRefusal::Full => f.write_str("the descriptor has no room for another buffer"),
            SendRefusal::NotConnected => f.write_str("the descriptor cannot send"),
            SendRefusal::TooLong => f.write_str("the payload is longer than a datagram can be"),
        }
    }
}

impl std::error::Error for SendError {}

/// The TCP and UDP sockets of one thread, with the buffers of their data. Each back end, such as
/// the kernel's TCP or a TCP engine in the program, implements this trait.
pub trait Context {
    /// Returns the pool of the context's buffers, for data that may be sent on any descriptor.
    fn pool(&self) -> &Pool;

    /// Returns a buffer without payload for [`Self::send`] on `descriptor`. Returns `None` if there
    /// is no free buffer.
    ///
    /// A back end that sends from memory of the connection itself returns a part of this memory, so
    /// that the payload is not copied. The length of such a buffer varies ([`Buffer::capacity`]).
    /// Such a back end also returns `None` if the connection has no room or cannot send. If the
    /// connection has no room, the event WRITABLE reports when there is room. A buffer from the
    /// pool, or a buffer that was allocated for another descriptor, can be sent as well, but such a
    /// back end copies its payload.
    fn allocate(&mut self, descriptor: Descriptor) -> Option<Buffer> {
        let _ = descriptor;
        self.pool().allocate()
    }

    /// Opens a listener. Unless the listener is paused, each [`Self::sync`] accepts the connections
    /// that are established. An accepted connection has an entry with the event ACCEPTED in the
    /// list.
    ///
    /// # Errors
    ///
    /// The errors are those of `bind` and `listen`.
    fn listen(&mut self, local: SocketAddr, options: &ListenOptions) -> io::Result<Descriptor>;

    /// Starts a connection to `peer`. The event CONNECTED or CLOSED reports the result.
    ///
    /// # Errors
    ///
    /// The errors are those of `socket`. A back end that does not use the kernel's TCP may also
    /// find no route to `peer`, no link address of the next hop, or no free port.
    fn connect(&mut self, peer: SocketAddr) -> io::Result<Descriptor>;

    /// Opens a UDP socket with the address `local`. Each [`Self::sync`] reports the received
    /// datagrams, each in a slot of its own: see [`ReadyList::take_datagram`](crate::ReadyList).
    /// The number of datagrams that wait for a call of [`Self::sync`] is limited. A datagram is
    /// dropped if this limit is reached, or if the datagram is longer than a buffer. The events of
    /// a UDP socket are READABLE, WRITABLE, SEND_FAILED, and CLOSED after an error of the socket.
    ///
    /// # Errors
    ///
    /// The errors are those of `bind`, such as `AddrInUse`. `Unsupported` if the back end has no
    /// UDP.
    fn bind(&mut self, local: SocketAddr) -> io::Result<Descriptor> {
        let _ = local;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Queues the payload of `buffer`, which may be empty, as one datagram to `peer`. The next
    /// [`Self::sync`] sends the datagram. The buffer returns to the pool when the context no
    /// longer needs its contents.
    ///
    /// # Errors
    ///
    /// The error returns the buffer if the send queue of the socket is full, if the descriptor is
    /// not a UDP socket, or if the payload is too long.
    fn send_to(
        &mut self,
        descriptor: Descriptor,
        buffer: Buffer,
        peer: SocketAddr,
    ) -> Result<(), SendError> {
        let _ = (descriptor, peer);
        let refusal = SendRefusal::NotConnected;
        Err(SendError { buffer, refusal })
    }

    /// Queues the payload of `buffer` on a connection. The next [`Self::sync`] sends the payload.
    /// Data beyond the send window stays queued for a later call. The buffer returns to the pool
    /// when the context no longer needs its contents.
    ///
    /// # Errors
    ///
    /// The error returns the buffer if the send queue of the connection is full, or if the
    /// connection cannot send.
    fn send(&mut self, descriptor: Descriptor, buffer: Buffer) -> Result<(), SendError>;

    /// Sends the queued data, receives, and accepts connections. A back end whose TCP runs within
    /// the calls also runs TCP for all connections, and fires due timers.
    ///
    /// The call replaces the contents of `list` by the events of this call. Each buffer that the
    /// program has not taken from the former contents returns to its pool or lender. The call may
    /// return an empty list before the time of `wait` has passed.
    ///
    /// # Errors
    ///
    /// An error concerns the whole context, for example a back end that is gone. The event CLOSED
    /// reports the error of a single connection.
    fn sync(&mut self, list: &mut ReadyList, wait: Wait) -> io::Result<()>;

    /// The sending half of [`Self::sync`]: sends the queued data, and continues shutdowns and
    /// closes. Never waits, and reports no events. Events that occur during the call, such as
    /// errors of the sends, are in the list of the next [`Self::sync`] or [`Self::rx_sync`].
    ///
    /// # Errors
    ///
    /// As those of [`Self::sync`].
    fn tx_sync(&mut self) -> io::Result<()>;

    /// The receiving half of [`Self::sync`]: reports events, and starts the handshakes of new
    /// connections ([`Self::connect`]). The call does not send the data that [`Self::send`] has
    /// queued since the most recent [`Self::sync`] or [`Self::tx_sync`].
    ///
    /// Data that was queued earlier may wait for room in its connection. When the connection has
    /// room, the call returns, perhaps with an empty list, and the next [`Self::tx_sync`] sends the
    /// data. A back end whose TCP runs within the calls may instead send this earlier data, and all
    /// queued datagrams, in the call itself.
    ///
    /// # Errors
    ///
    /// As those of [`Self::sync`].
    fn rx_sync(&mut self, list: &mut ReadyList, wait: Wait) -> io::Result<()>;

    /// Stops receiving on a connection or a UDP socket, or stops accepting on a listener. Data that
    /// the context has already received may still be in the next list. Further data of a connection
    /// stays with TCP, whose receive window closes, so that the peer waits. A paused UDP socket
    /// keeps a limited number of datagrams, and loses the others.
    ///
    /// The end of a paused connection is usually reported only after [`Self::resume`]. If the
    /// program waits for WRITABLE after a [`SendRefusal::Full`], CLOSED is reported during the
    /// pause, and the list may also have the data that has arrived before. The failure of a send or
    /// of the handshake may be reported during the pause, too.
    fn pause(&mut self, descriptor: Descriptor);

    /// Receives or accepts again after [`Self::pause`].
    ///
    /// # Errors
    ///
    /// As those of [`Self::sync`].
    fn resume(&mut self, descriptor: Descriptor) -> io::Result<()>;

    /// Closes the sending direction of a connection: sends a FIN after all queued data.
    fn shutdown(&mut self, descriptor: Descriptor);

    /// Closes a descriptor of any kind. Queued data is sent first, however long that takes. Until
    /// then, the context keeps the buffers of this data. If received data has not reached the ready
    /// list, the connection is reset instead, as by `close` in Linux (RFC 2525 §2.17). The
    /// descriptor has no more events.
    fn close(&mut self, descriptor: Descriptor);

    /// Resets a connection, or closes a listener or a UDP socket. Queued data is dropped, and its
    /// buffers return to the pool with the next call that sends, or earlier. The descriptor has no
    /// more events.
    fn abort(&mut self, descriptor: Descriptor);

    /// Returns true if the descriptor is open. The call that returns the descriptor of a listener,
    /// connection or UDP socket opens it. The event ACCEPTED opens the descriptor of an accepted
    /// connection. A descriptor stays open until the program closes or aborts it.
    fn is_open(&self, descriptor: Descriptor) -> bool;

    /// Returns the kernel's socket of an open descriptor, for socket calls beside the context:
    /// options, addresses and `TCP_INFO`. Reads and writes on the socket itself bypass the
    /// context's queues. Returns `None` if the kernel has no socket for the descriptor.
    fn socket(&self, descriptor: Descriptor) -> Option<BorrowedFd<'_>>;

    /// Returns the number of system calls that [`Self::sync`], [`Self::tx_sync`] and
    /// [`Self::rx_sync`] have made for data.
    fn system_calls(&self) -> u64;
}
