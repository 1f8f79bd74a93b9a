//! The state of one socket of a context.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd},
    time::Duration,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use tidelane_rings::{Buffer, Cause};

use crate::uring_unsafe::{Request, RequestId, SEND_BUFFERS_MAX};

/// Time for which a listener does not accept after the kernel had no descriptor or no memory for a
/// connection. The connections wait in the accept queue.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Returns the cause for an errno of a connection.
pub fn cause_of(errno: i32) -> Cause {
    match errno {
        libc::ECONNRESET | libc::EPIPE => Cause::Reset,
        libc::ECONNREFUSED => Cause::Refused,
        libc::ETIMEDOUT => Cause::TimedOut,
        libc::ENETUNREACH | libc::EHOSTUNREACH => Cause::Unreachable,
        _ => Cause::Other,
    }
}

/// Opens a TCP socket for an address.
pub fn tcp_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC;
    let fd = socket_with(family, SocketType::STREAM, flags, None)?;
    // Messages leave at once. Accepted connections inherit the option.
    sockopt::set_tcp_nodelay(&fd, true)?;
    Ok(fd)
}

/// Phase of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// The socket accepts connections.
    Listening,
    /// The connection is being established.
    Connecting,
    /// Data can be sent and received.
    Open,
    /// The connection has failed. The program has not closed the descriptor.
    Failed,
}

/// A socket, and the requests and buffers that it has.
#[derive(Debug)]
pub struct Socket {
    fd: Option<OwnedFd>,
    pub phase: Phase,
    /// Data to send, oldest first.
    queue: VecDeque<Buffer>,
    /// True while a send is with the kernel.
    pub is_sending: bool,
    /// True if the socket is in the context's list of sockets with data to send.
    pub is_dirty: bool,
    /// True if a buffer was refused, so that WRITABLE is due when there is room.
    pub owes_writable: bool,
    /// True once the program has closed the sending direction.
    pub is_shut_down: bool,
    /// True once the program has closed the descriptor.
    pub is_closing: bool,
    /// True if the last accept failed at a limit of the process or of the system.
    is_at_limit: bool,
    /// True while the program does not want to accept or receive.
    pub is_paused: bool,
    /// True once the peer has closed its direction.
    pub is_ended: bool,
    /// Number of requests without their last completion.
    pub outstanding: u32,
    /// The request that accepts, connects or receives.
    pub input: Option<RequestId>,
    /// The request that waits for room to send.
    pub room: Option<RequestId>,
}

impl Socket {
    pub fn new(fd: OwnedFd, phase: Phase) -> Self {
        Self {
            fd: Some(fd),
            phase,
            queue: VecDeque::new(),
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

    /// Returns the kernel's descriptor, or -1 after its close.
    pub fn raw(&self) -> RawFd {
        self.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Returns the kernel's socket, until it is closed.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Gives the descriptor away, for its close.
    pub fn take_fd(&mut self) -> Option<RawFd> {
        self.fd.take().map(IntoRawFd::into_raw_fd)
    }

    /// Returns true if the program has closed the socket, the kernel's descriptor is closed, and no
    /// request is outstanding.
    pub fn is_over(&self) -> bool {
        self.is_closing && self.outstanding == 0 && self.fd.is_none()
    }

    /// Returns true until the program closes the descriptor.
    pub fn is_open(&self) -> bool {
        !self.is_closing
    }

    /// Returns true if the program may send, now or once the socket is connected.
    pub fn can_queue(&self) -> bool {
        let is_connection = matches!(self.phase, Phase::Open | Phase::Connecting);
        is_connection && !self.is_shut_down && !self.is_closing
    }

    /// Ends the request that accepts, or the pause after a failure. `result` is the result of
    /// `accept`.
    pub fn end_accept(&mut self, result: i32) {
        self.input = None;
        self.is_at_limit = matches!(
            -result,
            libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM
        );
    }

    /// Returns the request that accepts or receives, if it is due and not with the kernel. A
    /// listener pauses after a failure at a limit, because a new accept would fail at once.
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
            Phase::Connecting | Phase::Failed => None,
        }
    }

    /// Returns the number of buffers to send.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Adds data to send.
    pub fn push(&mut self, buffer: Buffer) {
        self.queue.push_back(buffer);
    }

    /// Takes the data of the next send, if the socket can send now.
    pub fn take_message(&mut self) -> Option<Vec<Buffer>> {
        let can_send = self.phase == Phase::Open && !self.is_sending && self.room.is_none();
        if !can_send || self.queue.is_empty() {
            return None;
        }
        let count = self.queue.len().min(SEND_BUFFERS_MAX);
        Some(self.queue.drain(..count).collect())
    }

    /// Puts data of a send back of which only the first `sent` bytes were sent.
    pub fn put_back(&mut self, buffers: Vec<Buffer>, sent: usize) {
        let mut sent = sent;
        let mut rest: Vec<Buffer> = Vec::new();
        for mut buffer in buffers {
            let part = sent.min(buffer.len());
            sent -= part;
            buffer.advance(part as u32);
            if !buffer.is_empty() {
                rest.push(buffer);
            }
        }
        for buffer in rest.into_iter().rev() {
            self.queue.push_front(buffer);
        }
    }

    /// Drops all data to send.
    pub fn drop_queue(&mut self) {
        self.queue.clear();
    }

    /// Makes the close of the descriptor reset the connection.
    pub fn reset_on_close(&self) -> io::Result<()> {
        match self.fd() {
            Some(fd) => Ok(sockopt::set_socket_linger(fd, Some(Duration::ZERO))?),
            None => Ok(()),
        }
    }

    /// Closes the sending direction of the connection.
    pub fn shut_down_now(&self) -> io::Result<()> {
        match self.fd() {
            Some(fd) => Ok(rustix::net::shutdown(fd, rustix::net::Shutdown::Write)?),
            None => Ok(()),
        }
    }
}
