//! [`Socket`]: a kernel socket, with its queue of data to send and its io_uring requests. The
//! sockets of one thread form a context.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd},
    time::Duration,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use tidelane_rings::{Buffer, Cause};

use crate::{
    piece::Piece,
    request_unsafe::{Datagram, Message, ReceiveHeader, Request, RequestId, SEND_BUFFERS_MAX},
    zero_copy::{Lending, Policy},
};

/// Time for which a listener pauses after an accept has failed at a limit of descriptors or memory.
/// Meanwhile the connections wait in the accept queue.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Maps an errno of a connection or of a datagram to the cause that the event list reports.
pub fn cause_of(errno: i32) -> Cause {
    match errno {
        libc::ECONNRESET | libc::EPIPE => Cause::Reset,
        libc::ECONNREFUSED => Cause::Refused,
        libc::ETIMEDOUT => Cause::TimedOut,
        libc::ENETUNREACH | libc::EHOSTUNREACH => Cause::Unreachable,
        libc::EMSGSIZE => Cause::TooLong,
        _ => Cause::Other,
    }
}

/// Opens a socket for the address family of `address`.
fn socket_of(address: SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    Ok(socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
}

/// Opens a UDP socket that is bound to `local`.
pub fn udp_socket(local: SocketAddr) -> io::Result<OwnedFd> {
    let fd = socket_of(local, SocketType::DGRAM)?;
    bind(&fd, &local)?;
    Ok(fd)
}

/// Opens a TCP socket for the address family of `address`.
pub fn tcp_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let fd = socket_of(address, SocketType::STREAM)?;
    // With TCP_NODELAY, the kernel does not delay small segments. Accepted connections inherit the
    // option.
    sockopt::set_tcp_nodelay(&fd, true)?;
    Ok(fd)
}

/// Phase of a socket. The phase decides which requests the socket may start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// The socket accepts connections.
    Listening,
    /// The connection is being established.
    Connecting,
    /// The connection is established: data can be sent and received.
    Open,
    /// The socket is a UDP socket: datagrams can be sent and received.
    Datagram,
    /// The connection or the UDP socket has failed. The program can only close the descriptor.
    Failed,
}

/// A socket of the kernel, with its queue of data to send and its requests.
#[derive(Debug)]
pub struct Socket {
    /// The kernel's descriptor. `None` after [`Self::take_fd`].
    fd: Option<OwnedFd>,
    pub phase: Phase,
    /// Stream data to send, oldest first.
    queue: VecDeque<Piece>,
    /// State of the zero-copy sends of the connection, for which the kernel reads the buffers
    /// instead of copying them.
    pub lending: Lending,
    /// Datagrams to send, oldest first.
    datagrams: VecDeque<(SocketAddr, Buffer)>,
    /// Number of datagrams whose send has not completed.
    datagrams_sending: u32,
    /// Datagrams for which the socket had no room. These datagrams return to `datagrams` when
    /// `datagrams_sending` becomes zero.
    returned: Vec<(SocketAddr, Buffer)>,
    /// True while a stream send has not completed. A zero-copy send counts only until its answer,
    /// not until its notification.
    pub is_sending: bool,
    /// True if the socket is in the dirty list of the [`Driver`](crate::driver::Driver): a send, a
    /// shutdown or a close may be due.
    pub is_dirty: bool,
    /// True if the context has refused a buffer. The event WRITABLE is due once the queue has room.
    pub owes_writable: bool,
    /// True once the program has closed the sending direction.
    pub is_shut_down: bool,
    /// True once the program has closed the descriptor.
    pub is_closing: bool,
    /// True after an accept has failed at a limit of descriptors or memory, until the pause that
    /// follows has ended.
    is_at_limit: bool,
    /// True while the program has paused accepting or receiving.
    pub is_paused: bool,
    /// True once the peer has closed its sending direction.
    pub is_ended: bool,
    /// Number of requests whose last completion has not arrived.
    pub outstanding: u32,
    /// The pending input request: it accepts, connects or receives, or is the pause after a failed
    /// accept.
    pub input: Option<RequestId>,
    /// The pending request that waits for room to send.
    pub room: Option<RequestId>,
}

impl Socket {
    pub fn new(fd: OwnedFd, phase: Phase) -> Self {
        Self {
            fd: Some(fd),
            phase,
            queue: VecDeque::new(),
            lending: Lending::default(),
            datagrams: VecDeque::new(),
            datagrams_sending: 0,
            returned: Vec::new(),
            is_sending: false,
            is_dirty: false,
            owes_writable: false,
            is_shut_down: false,
            is_closing: false,
            is_at_limit: false,
            is_paused: false,
            is_ended: false,
            outstanding: 0,
            input: None,
            room: None,
        }
    }

    /// Returns the kernel's descriptor, or -1 after [`Self::take_fd`].
    pub fn raw(&self) -> RawFd {
        self.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Returns the kernel's descriptor, or `None` after [`Self::take_fd`].
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Takes the kernel's descriptor out of the socket. The caller must close the descriptor.
    pub fn take_fd(&mut self) -> Option<RawFd> {
        self.fd.take().map(IntoRawFd::into_raw_fd)
    }

    /// Returns true if the program has closed the socket, the kernel's descriptor is closed, and no
    /// request is outstanding.
    pub fn is_over(&self) -> bool {
        self.is_closing && self.outstanding == 0 && self.fd.is_none()
    }

    /// Returns true if the program has not closed the descriptor.
    pub fn is_open(&self) -> bool {
        !self.is_closing
    }

    /// Returns true if the program may queue data: the connection is open or being established, and
    /// the program has closed neither the sending direction nor the descriptor.
    pub fn can_queue(&self) -> bool {
        let is_connection = matches!(self.phase, Phase::Open | Phase::Connecting);
        is_connection && !self.is_shut_down && !self.is_closing
    }

    /// Processes the end of an accept request, or of the pause after a failed accept. `result` is
    /// the result of `accept`, or zero for the end of the pause.
    pub fn end_accept(&mut self, result: i32) {
        self.input = None;
        self.is_at_limit = matches!(
            -result,
            libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM
        );
    }

    /// Returns the next request that accepts or receives. If an accept has failed at a limit, the
    /// request is a pause, because another accept would fail immediately. Returns `None` if the
    /// socket already has an input request, is paused, is not connected yet, or has failed. Also
    /// returns `None` if the peer has closed its sending direction or the program has closed the
    /// descriptor.
    pub fn next_input(&self) -> Option<Request> {
        if self.is_paused || self.is_ended || self.is_closing || self.input.is_some() {
            return None;
        }
        match self.phase {
            Phase::Listening if self.is_at_limit => {
                Some(Request::Pause(Box::new(ACCEPT_PAUSE.into())))
            }
            Phase::Listening => Some(Request::Accept(self.raw())),
            Phase::Open => Some(Request::Receive(self.raw())),
            Phase::Datagram => Some(Request::ReceiveFrom(self.raw(), ReceiveHeader::new())),
            Phase::Connecting | Phase::Failed => None,
        }
    }

    /// Returns true if no buffer or datagram waits for sending.
    pub fn is_queue_empty(&self) -> bool {
        self.queue.is_empty() && self.datagrams.is_empty()
    }

    /// Returns the number of buffers that count towards the limit of the queue: the buffers that
    /// wait for sending, and the buffers that the kernel reads in zero-copy sends.
    pub fn queued(&self) -> usize {
        self.queue.len() + self.datagrams.len() + self.lending.held()
    }

    /// Returns true if the send of stream data or of a datagram has not completed.
    pub fn is_sending(&self) -> bool {
        self.is_sending || self.datagrams_sending > 0
    }

    /// Returns true if the socket is an open UDP socket.
    pub fn can_queue_datagram(&self) -> bool {
        self.phase == Phase::Datagram && !self.is_closing
    }

    /// Appends a datagram to the queue.
    pub fn push_datagram(&mut self, peer: SocketAddr, buffer: Buffer) {
        self.datagrams.push_back((peer, buffer));
    }

    /// Takes the oldest datagram from the queue. Returns `None` if the queue is empty, if the
    /// socket waits for room, or if the sends of [`SEND_BUFFERS_MAX`] datagrams have not completed.
    fn take_datagram(&mut self) -> Option<Datagram> {
        let is_full = self.datagrams_sending as usize >= SEND_BUFFERS_MAX;
        if is_full || self.room.is_some() {
            return None;
        }
        let (peer, buffer) = self.datagrams.pop_front()?;
        self.datagrams_sending += 1;
        Some(Datagram::new(peer, buffer))
    }

    /// Processes the end of a datagram's send. If there was no room, the datagram returns to the
    /// queue when the sends of all other datagrams have ended, so that the datagrams keep their
    /// order. Returns true if datagrams have returned, so that the socket has to wait for room.
    pub fn end_datagram(&mut self, datagram: Datagram, had_room: bool) -> bool {
        self.datagrams_sending -= 1;
        if !had_room {
            self.returned.extend(datagram.into_parts());
        }
        if self.datagrams_sending > 0 || self.returned.is_empty() {
            return false;
        }
        for datagram in self.returned.drain(..).rev() {
            self.datagrams.push_front(datagram);
        }
        true
    }

    /// Takes the data of the next send from the queue, and returns the request. Returns `None` if
    /// there is no data, or if the socket cannot send now.
    pub fn next_send(&mut self, policy: &Policy) -> Option<Request> {
        let raw = self.raw();
        let request = match self.take_message() {
            Some(pieces) => {
                self.is_sending = true;
                match self.lending.is_due(policy, &pieces) {
                    true => Request::SendZeroCopy(raw, Message::new(pieces)),
                    false => Request::Send(raw, Message::new(pieces)),
                }
            }
            None => Request::SendTo(raw, self.take_datagram()?),
        };
        self.outstanding += 1;
        Some(request)
    }

    /// Appends a buffer to the queue.
    pub fn push(&mut self, buffer: Buffer) {
        self.queue.push_back(Piece::Whole(buffer));
    }

    /// Takes the pieces of the next stream send. Returns `None` if there is no data, or if the
    /// connection cannot send now.
    fn take_message(&mut self) -> Option<Vec<Piece>> {
        let can_send = self.phase == Phase::Open && !self.is_sending && self.room.is_none();
        if !can_send || self.queue.is_empty() {
            return None;
        }
        let count = self.queue.len().min(SEND_BUFFERS_MAX);
        Some(self.queue.drain(..count).collect())
    }

    /// Puts the unsent pieces of a send back to the front of the queue.
    pub fn put_back(&mut self, unsent: Vec<Piece>) {
        for piece in unsent.into_iter().rev() {
            self.queue.push_front(piece);
        }
    }

    /// Drops the stream data and the datagrams that wait for sending.
    pub fn drop_queue(&mut self) {
        self.queue.clear();
        self.datagrams.clear();
    }

    /// Sets SO_LINGER to zero, so that the close of the descriptor resets the connection.
    pub fn reset_on_close(&self) -> io::Result<()> {
        match self.fd() {
            Some(fd) => Ok(sockopt::set_socket_linger(fd, Some(Duration::ZERO))?),
            None => Ok(()),
        }
    }

    /// Closes the sending direction of the connection: the kernel sends a FIN.
    pub fn shut_down_now(&self) -> io::Result<()> {
        match self.fd() {
            Some(fd) => Ok(rustix::net::shutdown(fd, rustix::net::Shutdown::Write)?),
            None => Ok(()),
        }
    }
}
