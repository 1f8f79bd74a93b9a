//! io_uring requests, and the memory that each request lends to the kernel.
//!
//! A request owns the buffers to send, the socket addresses and the headers that the kernel
//! accesses. This memory does not move when the request moves.

use std::{net::SocketAddr, os::fd::RawFd};

use io_uring::{
    opcode, squeue,
    types::{Fd, Timespec},
};
use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, iovec, msghdr};
use tidelane_rings::{Buffer, Pool};

use crate::{
    address::{SocketAddress, address_of},
    piece::{Piece, drop_sent, split_off_unsent},
};

/// Identifier of the only group of provided buffers (buffers into which the kernel receives).
pub const GROUP: u16 = 0;
/// Largest number of buffers in one stream send. Also the largest number of datagrams of one socket
/// whose sends the kernel has not completed.
pub const SEND_BUFFERS_MAX: usize = 64;
/// Length in bytes of the header (`struct io_uring_recvmsg_out`) that the kernel stores before the
/// sender's address of a received datagram.
const DATAGRAM_HEAD: usize = 16;
/// Number of bytes that the kernel reserves for the sender's address of a received datagram.
const SENDER_LEN: usize = size_of::<libc::sockaddr_in6>();
/// Flag that makes the notification of a zero-copy send report whether the kernel has copied the
/// payload (Linux 6.2).
const IORING_SEND_ZC_REPORT_USAGE: u16 = 1 << 3;
/// Number of a request, unique among the requests of a ring (the `user_data` of io_uring).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId(pub u64);

/// A request to the kernel: one io_uring operation.
#[derive(Debug)]
pub enum Request {
    /// Accepts connections until an accept fails (multishot: each connection has a completion).
    Accept(RawFd),
    /// Receives stream data into provided buffers until the end of the stream or an error
    /// (multishot).
    Receive(RawFd),
    /// Sends the payloads of buffers, as many bytes as the socket has room for (MSG_DONTWAIT). The
    /// kernel completes the request during its submission.
    Send(RawFd, Message),
    /// Sends as [`Request::Send`] does, but the kernel reads the buffers instead of copying them.
    /// The first completion is the answer (the number of bytes sent), which the kernel posts during
    /// the submission. The last completion is the notification that the kernel has read the
    /// buffers. A failed send may have only the answer.
    SendZeroCopy(RawFd, Message),
    /// Receives datagrams into provided buffers until a receive fails (multishot).
    ReceiveFrom(RawFd, Box<ReceiveHeader>),
    /// Sends a datagram if the socket has room (MSG_DONTWAIT). The kernel completes the request
    /// during its submission.
    SendTo(RawFd, Datagram),
    /// Waits until the socket has room to send (a poll request).
    AwaitRoom(RawFd),
    /// Completes after a time, for the pause of a listener.
    Pause(Box<Timespec>),
    /// Connects to an address.
    Connect(RawFd, Box<SocketAddress>),
    /// Cancels another request. The kernel completes the cancel during its submission.
    Cancel(RequestId),
    /// Closes a descriptor. The kernel completes the close during its submission.
    Close(RawFd),
}

/// The argument of one `sendmsg`: the pieces to send, and the `msghdr` that points to their
/// payloads.
#[derive(Debug)]
pub struct Message {
    pieces: Vec<Piece>,
    parts: Box<Parts>,
}

/// The `msghdr` and the vector of payloads to which it points.
#[derive(Debug)]
struct Parts {
    header: msghdr,
    payloads: Vec<iovec>,
}

impl Message {
    /// Returns a message of `pieces`. The caller passes at most [`SEND_BUFFERS_MAX`] pieces.
    pub fn new(pieces: Vec<Piece>) -> Self {
        let payloads = pieces.iter().map(|piece| {
            let payload = piece.payload();
            iovec {
                iov_base: payload.as_ptr().cast_mut().cast(),
                iov_len: payload.len(),
            }
        });
        let payloads = payloads.collect();
        // SAFETY: all zero is a valid `msghdr`: no name, no parts and no control data.
        let header = unsafe { std::mem::zeroed() };
        let mut parts = Box::new(Parts { header, payloads });
        parts.header.msg_iov = parts.payloads.as_mut_ptr();
        parts.header.msg_iovlen = parts.payloads.len();
        Self { pieces, parts }
    }

    /// Returns the number of buffers that the message holds.
    pub fn held(&self) -> usize {
        self.pieces.len()
    }

    /// Returns the unsent pieces after the end of a send that has sent `sent` bytes. Frees the sent
    /// buffers.
    pub fn into_unsent(self, sent: usize) -> Vec<Piece> {
        drop_sent(self.pieces, sent)
    }

    /// Returns the unsent pieces after the answer to a zero-copy send, which has sent `sent` bytes.
    /// The message keeps the sent pieces, which the kernel still reads.
    pub fn take_unsent(&mut self, sent: usize) -> Vec<Piece> {
        split_off_unsent(&mut self.pieces, sent)
    }

    /// Gives up the buffers, which the kernel still reads ([`Piece::give_up`]).
    pub fn give_up(self, pool: &Pool) {
        self.pieces
            .into_iter()
            .for_each(|piece| piece.give_up(pool));
    }
}

/// The `msghdr` of a multishot `recvmsg`. The `msghdr` reserves room for the sender's address, but
/// no room for control data.
#[derive(Debug)]
pub struct ReceiveHeader(msghdr);

impl ReceiveHeader {
    /// Returns a `msghdr` with room for the sender's address.
    pub fn new() -> Box<Self> {
        // SAFETY: all zero is a valid `msghdr`: no name, no parts and no control data.
        let mut header: msghdr = unsafe { std::mem::zeroed() };
        header.msg_namelen = SENDER_LEN as u32;
        Box::new(Self(header))
    }
}

/// A datagram to send, with the address of its receiver.
#[derive(Debug)]
pub struct Datagram {
    message: Message,
    /// The address to which the header of the message points.
    peer: Box<SocketAddress>,
}

impl Datagram {
    /// Returns a datagram to `peer` with the payload of `buffer`.
    pub fn new(peer: SocketAddr, buffer: Buffer) -> Self {
        let mut message = Message::new(vec![Piece::Whole(buffer)]);
        let peer = Box::new(SocketAddress::from(peer));
        let (pointer, len) = peer.as_raw();
        message.parts.header.msg_name = pointer.cast_mut().cast();
        message.parts.header.msg_namelen = len;
        Self { message, peer }
    }

    /// Returns the peer and the buffer. Always `Some` for a datagram of [`Self::new`].
    pub fn into_parts(mut self) -> Option<(SocketAddr, Buffer)> {
        match self.message.pieces.pop()? {
            Piece::Whole(buffer) => Some((self.peer.to_address(), buffer)),
            Piece::Shared(..) => None,
        }
    }
}

/// Reads the header that the kernel has stored before a received datagram. Reduces the buffer to
/// the datagram's payload, and returns the sender. Returns `None` if the kernel has truncated the
/// datagram because the buffer had too little room after the header, or if the header is invalid.
pub fn strip_head(buffer: &mut Buffer) -> Option<SocketAddr> {
    let bytes = buffer.payload();
    let word = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let (name_len, payload_len, flags) = (word(0)?, word(8)?, word(12)?);
    let name_end = DATAGRAM_HEAD + (name_len as usize).min(SENDER_LEN);
    let sender = address_of(bytes.get(DATAGRAM_HEAD..name_end)?)?;
    let start = (DATAGRAM_HEAD + SENDER_LEN) as u32;
    let end = start.checked_add(payload_len)?;
    if flags & libc::MSG_TRUNC as u32 != 0 || end > buffer.range().end {
        return None;
    }
    buffer.set_payload(start..end);
    Some(sender)
}

/// Returns the submission queue entry of a request.
pub fn entry_of(request: &Request) -> squeue::Entry {
    match request {
        Request::Accept(socket) => opcode::AcceptMulti::new(Fd(*socket))
            .flags(libc::SOCK_CLOEXEC)
            .build(),
        Request::Receive(socket) => opcode::RecvMulti::new(Fd(*socket), GROUP).build(),
        // MSG_DONTWAIT makes a send without room fail with EAGAIN, so the request completes during
        // its submission.
        Request::Send(socket, message) => {
            opcode::SendMsg::new(Fd(*socket), &raw const message.parts.header)
                .flags((MSG_DONTWAIT | MSG_NOSIGNAL) as u32)
                .build()
        }
        Request::SendZeroCopy(socket, message) => {
            opcode::SendMsgZc::new(Fd(*socket), &raw const message.parts.header)
                .ioprio(IORING_SEND_ZC_REPORT_USAGE)
                .flags((MSG_DONTWAIT | MSG_NOSIGNAL) as u32)
                .build()
        }
        Request::ReceiveFrom(socket, form) => {
            opcode::RecvMsgMulti::new(Fd(*socket), &raw const form.0, GROUP).build()
        }
        Request::SendTo(socket, datagram) => {
            opcode::SendMsg::new(Fd(*socket), &raw const datagram.message.parts.header)
                .flags((MSG_DONTWAIT | MSG_NOSIGNAL) as u32)
                .build()
        }
        Request::AwaitRoom(socket) => {
            opcode::PollAdd::new(Fd(*socket), libc::POLLOUT as u32).build()
        }
        Request::Pause(time) => opcode::Timeout::new(&raw const **time).build(),
        Request::Connect(socket, address) => {
            let (pointer, len) = address.as_raw();
            opcode::Connect::new(Fd(*socket), pointer, len).build()
        }
        Request::Cancel(other) => opcode::AsyncCancel::new(other.0).build(),
        Request::Close(socket) => opcode::Close::new(Fd(*socket)).build(),
    }
}
