//! The registration socket: messages of fixed size, with descriptors beside them.

use std::{
    fmt,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::{
    cmsg_space,
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
    process::Pid,
};
use tidelane_abi::{ABI_VERSION, CORES_MAX, MESSAGE_MAGIC, Message};

pub use crate::message_unsafe::{MESSAGE_LEN, new_message};
use crate::message_unsafe::{from_bytes, to_bytes};

/// Descriptors that one message may carry: two memories and a doorbell per core.
pub const DESCRIPTORS_MAX: usize = 2 + CORES_MAX;

/// Why no message was received.
#[derive(Debug)]
pub enum RecvError {
    /// The call failed; `WouldBlock` on a nonblocking or timed-out socket.
    Io(io::Error),
    /// The sender has this version of the ABI, not ours. The connection is still usable.
    Version(u32),
    /// Wrong size, wrong magic, or too many descriptors: end the connection.
    Malformed,
}

/// Sends one message. A full socket of a nonblocking descriptor is `WouldBlock`.
pub fn send_message(
    socket: BorrowedFd<'_>,
    message: &Message,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    assert!(descriptors.len() <= DESCRIPTORS_MAX);
    let bytes = to_bytes(message);
    loop {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            let pushed = control.push(SendAncillaryMessage::ScmRights(descriptors));
            assert!(pushed, "the space is for DESCRIPTORS_MAX");
        }
        match sendmsg(
            socket,
            &[IoSlice::new(&bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        ) {
            Ok(sent) if sent == bytes.len() => return Ok(()),
            Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
    }
}

/// A message as it came.
#[derive(Debug)]
pub struct Received {
    /// The message.
    pub message: Message,
    /// What came beside it (close-on-exec).
    pub descriptors: Vec<OwnedFd>,
    /// Who sent it, on a socket with SO_PASSCRED.
    pub sender: Option<Pid>,
}

/// Receives one message with its descriptors. None: the peer closed.
pub fn recv_message(socket: BorrowedFd<'_>) -> Result<Option<(Message, Vec<OwnedFd>)>, RecvError> {
    let received = recv_signed(socket)?;
    Ok(received.map(|received| (received.message, received.descriptors)))
}

/// As [`recv_message`], with the sender.
pub fn recv_signed(socket: BorrowedFd<'_>) -> Result<Option<Received>, RecvError> {
    // One byte more than a message, so that a longer one is seen as such.
    let mut bytes = [0; MESSAGE_LEN + 1];
    let mut space =
        [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let iov = &mut [IoSliceMut::new(&mut bytes)];
        match recvmsg(socket, iov, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => break received,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(RecvError::Io(error.into())),
        }
    };
    // Owned from here on: whatever is refused below is closed.
    let mut descriptors = Vec::new();
    let mut sender = None;
    for message in control.drain() {
        match message {
            RecvAncillaryMessage::ScmRights(rights) => descriptors.extend(rights),
            RecvAncillaryMessage::ScmCredentials(credentials) => sender = Some(credentials.pid),
            _ => {}
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    let truncated = received.flags.intersects(ReturnFlags::CTRUNC);
    let message = parse(&bytes[..received.bytes.min(bytes.len())])?;
    if truncated || descriptors.len() > DESCRIPTORS_MAX {
        return Err(RecvError::Malformed);
    }
    Ok(Some(Received {
        message,
        descriptors,
        sender,
    }))
}

/// Magic and version come first in every version of the ABI, whatever the rest.
fn parse(bytes: &[u8]) -> Result<Message, RecvError> {
    let magic = bytes.first_chunk().map(|chunk| u64::from_ne_bytes(*chunk));
    if magic != Some(MESSAGE_MAGIC) {
        return Err(RecvError::Malformed);
    }
    let version = bytes[8..]
        .first_chunk()
        .map(|chunk| u32::from_ne_bytes(*chunk));
    match version {
        Some(ABI_VERSION) => {}
        Some(theirs) => return Err(RecvError::Version(theirs)),
        None => return Err(RecvError::Malformed),
    }
    bytes
        .try_into()
        .map(from_bytes)
        .map_err(|_| RecvError::Malformed)
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecvError::Io(error) => error.fmt(f),
            RecvError::Version(theirs) => {
                write!(
                    f,
                    "shared-memory version mismatch: ours {ABI_VERSION}, theirs {theirs}"
                )
            }
            RecvError::Malformed => write!(f, "malformed registration message"),
        }
    }
}

impl std::error::Error for RecvError {}

impl From<RecvError> for io::Error {
    fn from(error: RecvError) -> io::Error {
        match error {
            RecvError::Io(error) => error,
            other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests;
