//! The registration socket: messages of fixed size, with descriptors beside them.

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
    control_unsafe::{Arrived, receive},
    memories::MEMORIES,
    message_unsafe::{from_bytes, to_bytes},
};

/// Descriptors that one message may carry: a program's memories, the service page and a doorbell
/// per core.
pub const DESCRIPTORS_MAX: usize = MEMORIES + 1 + CORES_MAX;
/// Descriptors that the kernel lets one message carry (SCM_MAX_FD).
const KERNEL_MAX: usize = 253;

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

/// A message as the receiver got it.
#[derive(Debug)]
pub struct Received {
    /// The message; `None` if the peer closed.
    pub message: Result<Option<Message>, RecvError>,
    /// All descriptors that came (close-on-exec), beside whatever came. Closing one that a stranger
    /// sent may take any time.
    pub descriptors: Vec<OwnedFd>,
    /// Who sent it, on a socket with SO_PASSCRED.
    pub sender: Option<Sender>,
}

/// Receives one message with its descriptors, from a trusted peer: those of a refused message are
/// closed. None: the peer closed.
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

/// Receives one message of a peer that is not trusted. Descriptors that there is no room for are
/// closed by the kernel at once, in this thread: there is room for all that a message may have.
pub fn recv_signed(socket: BorrowedFd<'_>) -> Received {
    // One byte more than a message, so that a longer one is seen as such.
    let mut bytes = [0; MESSAGE_LEN + 1];
    // Descriptors in it are the receiver's, whatever becomes of the message.
    const SPACE: usize = cmsg_space!(ScmRights(KERNEL_MAX), ScmCredentials(1));
    let Arrived {
        len,
        truncated,
        descriptors,
        sender,
    } = match receive::<SPACE>(socket, &mut bytes) {
        Ok(arrived) => arrived,
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
