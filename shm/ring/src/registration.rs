//! The registration socket: messages of fixed size, with descriptors as ancillary data.

use std::{
    fmt,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::{
    cmsg_space,
    io::Errno,
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
};
use tidelane_abi::{ABI_VERSION, CORES_MAX, MESSAGE_MAGIC, Message};

pub use crate::{
    control_unsafe::Sender,
    message_unsafe::{MESSAGE_LEN, new_message},
};
use crate::{
    control_unsafe::{ReceivedMessage, receive},
    memories::MEMORIES,
    message_unsafe::{from_bytes, to_bytes},
};

/// Largest number of descriptors of a message: a program's memories, the service page and a
/// doorbell per core.
pub const DESCRIPTORS_MAX: usize = MEMORIES + 1 + CORES_MAX;
/// Largest number of descriptors that the kernel allows in a message (SCM_MAX_FD).
const KERNEL_MAX: usize = 253;

/// Reason for which no message was received.
#[derive(Debug)]
pub enum RecvError {
    /// The call failed; `WouldBlock` for a nonblocking socket or after a timeout.
    Io(io::Error),
    /// The sender has this version of the ABI instead of ours. The connection is still usable.
    Version(u32),
    /// Wrong size, wrong magic number, or too many descriptors: the connection has to end.
    Malformed,
}

/// Sends one message. Returns `WouldBlock` if a nonblocking socket is full.
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

/// A received message.
#[derive(Debug)]
pub struct Received {
    /// The message; None if the peer closed.
    pub message: Result<Option<Message>, RecvError>,
    /// All received descriptors (close-on-exec), even those of an invalid message. Closing a
    /// descriptor from an untrusted sender may take any time.
    pub descriptors: Vec<OwnedFd>,
    /// The sender, on a socket with SO_PASSCRED.
    pub sender: Option<Sender>,
}

/// Receives one message with its descriptors from a trusted peer, and closes the descriptors of a
/// refused message. Returns None if the peer closed.
pub fn recv_message(socket: BorrowedFd<'_>) -> Result<Option<(Message, Vec<OwnedFd>)>, RecvError> {
    let Received {
        message,
        descriptors,
        ..
    } = recv_signed(socket);
    match message? {
        Some(_) if descriptors.len() > DESCRIPTORS_MAX => Err(RecvError::Malformed),
        message => Ok(message.map(|message| (message, descriptors))),
    }
}

/// Receives one message from an untrusted peer. The buffer has space for all descriptors that a
/// message may have, because the kernel would close excess ones in this thread.
pub fn recv_signed(socket: BorrowedFd<'_>) -> Received {
    // One byte more than a message shows that a message is too long.
    let mut bytes = [0; MESSAGE_LEN + 1];
    // The receiver owns all descriptors, whether or not the message is valid.
    const SPACE: usize = cmsg_space!(ScmRights(KERNEL_MAX), ScmCredentials(1));
    let ReceivedMessage {
        len,
        truncated,
        descriptors,
        sender,
    } = match receive::<SPACE>(socket, &mut bytes) {
        Ok(received) => received,
        Err(error) => {
            return Received {
                message: Err(RecvError::Io(error.into())),
                descriptors: Vec::new(),
                sender: None,
            };
        }
    };
    let message = match len {
        0 => Ok(None),
        _ if truncated => Err(RecvError::Malformed),
        len => parse(&bytes[..len.min(bytes.len())]).map(Some),
    };
    Received {
        message,
        descriptors,
        sender,
    }
}

/// Parses a message. Magic number and version come first in every version of the ABI.
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
