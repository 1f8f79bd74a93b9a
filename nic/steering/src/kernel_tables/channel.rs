//! A netlink socket: dumps, requests with an answer, and events.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader,
    NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind,
        netlink::SocketAddrNetlink, recv, send, socket_with, sockopt,
    },
};

use crate::answers::{ANSWER_WAIT_MAX, limit_wait, receive_answer};

/// Multicast groups (`RTMGRP_*`): links, neighbors, and the addresses and routes of IPv4 and IPv6.
const GROUPS: u32 = 1 | 4 | 0x10 | 0x40 | 0x100 | 0x400;
/// Length of the receive buffer in bytes. The kernel fills at most 32 KiB at a time.
const BUFFER_LEN: usize = 64 << 10;
/// Requested size in bytes of the socket buffer in which the kernel queues events between two
/// polls.
const EVENTS_LEN: usize = 1 << 20;
/// Largest number of attempts to get a dump that no change of the kernel's tables interrupts.
const DUMPS_MAX: usize = 8;

/// Result of reading events.
pub(super) enum Received {
    /// A batch of events was read. More batches may wait.
    Some,
    /// No event was read, because no event was waiting or a signal interrupted the call.
    Nothing,
    /// The kernel dropped events, because the socket buffer was full.
    Overrun,
}

/// A NETLINK_ROUTE socket with its receive buffer.
pub(super) struct Channel {
    socket: OwnedFd,
    buffer: Vec<u8>,
    /// Sequence number of the most recent request.
    sequence: u32,
}

impl Channel {
    /// Opens a socket for requests.
    pub(super) fn new() -> io::Result<Self> {
        Self::bound_to(0)
    }

    /// Opens a socket for events.
    pub(super) fn subscribed() -> io::Result<Self> {
        let channel = Self::bound_to(GROUPS)?;
        let forced = sockopt::set_socket_recv_buffer_size_force(&channel.socket, EVENTS_LEN);
        forced.or_else(|_| sockopt::set_socket_recv_buffer_size(&channel.socket, EVENTS_LEN))?;
        Ok(channel)
    }

    fn bound_to(groups: u32) -> io::Result<Self> {
        // Protocol zero of this family is NETLINK_ROUTE.
        let kind = SocketType::RAW;
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, kind, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        limit_wait(&socket, ANSWER_WAIT_MAX)?;
        Ok(Self {
            socket,
            buffer: vec![0; BUFFER_LEN],
            sequence: 0,
        })
    }

    /// Returns all answers to a dump request. Repeats the request if a change of the kernel's
    /// tables interrupts the dump. Fails after `DUMPS_MAX` interrupted dumps.
    pub(super) fn dump(
        &mut self,
        request: RouteNetlinkMessage,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        for _ in 0..DUMPS_MAX {
            self.send(request.clone(), NLM_F_REQUEST | NLM_F_DUMP)?;
            let mut answers = Vec::new();
            if self.collect(&mut answers)? {
                return Ok(answers);
            }
        }
        Err(io::Error::other(
            "the kernel's tables changed during each of several dumps",
        ))
    }

    /// Returns the kernel's description of one object. Returns an empty list if the kernel does not
    /// have the object.
    pub(super) fn get(
        &mut self,
        request: RouteNetlinkMessage,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.send(request, NLM_F_REQUEST | NLM_F_ACK)?;
        let mut answers = Vec::new();
        match self.collect(&mut answers) {
            Err(error) if has_errno(&error, Errno::NOENT) => Ok(Vec::new()),
            collected => collected.map(|_| answers),
        }
    }

    /// Makes the kernel create an object. If the object exists, the kernel does not change it, and
    /// the function returns success.
    pub(super) fn create_new(&mut self, request: RouteNetlinkMessage) -> io::Result<()> {
        let flags = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK;
        self.send_acked(request, flags, Errno::EXIST)
    }

    /// Makes the kernel change an object. Returns success also if the object does not exist.
    pub(super) fn change(&mut self, request: RouteNetlinkMessage) -> io::Result<()> {
        self.send_acked(request, NLM_F_REQUEST | NLM_F_ACK, Errno::NOENT)
    }

    /// Sends a request and waits for the acknowledgment. Returns success also if the kernel answers
    /// with the error `allowed`.
    fn send_acked(
        &mut self,
        request: RouteNetlinkMessage,
        flags: u16,
        allowed: Errno,
    ) -> io::Result<()> {
        self.send(request, flags)?;
        match self.collect(&mut Vec::new()) {
            Err(error) if has_errno(&error, allowed) => Ok(()),
            collected => collected.map(drop),
        }
    }

    fn send(&mut self, request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        send(&self.socket, &bytes, SendFlags::empty())?;
        Ok(())
    }

    /// Reads all answers to the most recent request. Returns false if a change of the kernel's
    /// tables interrupted the dump. Fails if the kernel answers with an error, or if the kernel
    /// takes longer than [`ANSWER_WAIT_MAX`] for a part of the answer.
    fn collect(&mut self, answers: &mut Vec<RouteNetlinkMessage>) -> io::Result<bool> {
        let mut consistent = true;
        loop {
            let len = receive_answer(&self.socket, &mut self.buffer)?;
            for bytes in Messages(&self.buffer[..len]) {
                let Some(message) = parse(bytes) else {
                    continue;
                };
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                consistent &= message.header.flags & NLM_F_DUMP_INTR == 0;
                match message.payload {
                    NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                    NetlinkPayload::Done(_) => return Ok(consistent),
                    NetlinkPayload::Error(error) => {
                        let Some(code) = error.code else {
                            return Ok(consistent);
                        };
                        return Err(io::Error::from_raw_os_error(-code.get()));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Reads the next batch of events, if there is one.
    pub(super) fn receive(
        &mut self,
        mut on_message: impl FnMut(RouteNetlinkMessage),
    ) -> io::Result<Received> {
        let len = match recv(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
            Ok((len, _)) => len,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
            Err(Errno::NOBUFS) => return Ok(Received::Overrun),
            Err(error) => return Err(error.into()),
        };
        for bytes in Messages(&self.buffer[..len]) {
            let message = parse(bytes).map(|message| message.payload);
            if let Some(NetlinkPayload::InnerMessage(message)) = message {
                on_message(message);
            }
        }
        Ok(Received::Some)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn has_errno(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// Parses a message. Returns `None` if the message is malformed or of an unknown type.
fn parse(bytes: &[u8]) -> Option<NetlinkMessage<RouteNetlinkMessage>> {
    NetlinkMessage::deserialize(bytes).ok()
}

/// The netlink messages in a buffer, each aligned to four bytes.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        const HEADER_LEN: usize = 16;
        let len = u32::from_ne_bytes(*self.0.first_chunk::<4>()?) as usize;
        if len < HEADER_LEN || len > self.0.len() {
            return None;
        }
        let message = &self.0[..len];
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use std::{io, time::Duration};

    use super::{Channel, Messages, limit_wait};

    #[test]
    fn a_lost_answer_is_an_error() {
        let mut channel = Channel::new().expect("a netlink socket");
        limit_wait(&channel.socket, Duration::from_millis(1)).expect("a limit");
        // Without a request, no answer comes.
        let error = channel.collect(&mut Vec::new()).expect_err("no answer");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    fn message(len: u32, fill: u8) -> Vec<u8> {
        let mut bytes = len.to_ne_bytes().to_vec();
        bytes.resize((len as usize).next_multiple_of(4), fill);
        bytes
    }

    #[test]
    fn messages_are_split_by_their_aligned_lengths() {
        let buffer = [message(17, 1), message(16, 2), message(20, 3)].concat();
        let lens: Vec<_> = Messages(&buffer).map(<[u8]>::len).collect();
        assert_eq!(lens, [17, 16, 20]);
    }

    #[test]
    fn nonsense_lengths_end_the_iteration() {
        for len in [0, 15, 1000, u32::MAX] {
            let mut buffer = message(16, 0);
            buffer.extend(len.to_ne_bytes());
            buffer.resize(40, 0);
            assert_eq!(Messages(&buffer).count(), 1);
        }
        assert_eq!(Messages(&[1, 2]).count(), 0);
    }
}
