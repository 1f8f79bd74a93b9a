//! The registration socket: a unix socket on which a program and the service (process `tidelaned`)
//! exchange messages of fixed size, with descriptors as ancillary data.

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
    control_unsafe::{PIDFD_SPACE, ReceivedMessage, receive},
    memories::MEMORIES,
    message_unsafe::{from_bytes, to_bytes},
};

/// Largest number of descriptors in a message. The message PORT_OPENED, which answers a program
/// with its own TCP/IP stack, has the most: two memories of packet rings and a doorbell for each
/// core (polling thread) of the service, and one service page.
pub const DESCRIPTORS_MAX: usize = 3 * CORES_MAX + 1;
/// Largest number of descriptors that the kernel allows in a message (SCM_MAX_FD).
const KERNEL_MAX: usize = 253;

const _: () = assert!(MEMORIES + 1 + CORES_MAX <= DESCRIPTORS_MAX && DESCRIPTORS_MAX <= KERNEL_MAX);

/// Reason why no message was received.
#[derive(Debug)]
pub enum RecvError {
    /// The call failed. The error is `WouldBlock` if a nonblocking socket has no message, or after
    /// a timeout.
    Io(io::Error),
    /// The sender has this version of the ABI, which differs from ours. The caller may still use
    /// the socket.
    Version(u32),
    /// The message has a wrong size, a wrong magic number, or too many descriptors. The caller must
    /// close the socket.
    Malformed,
}

/// Sends one message with descriptors. Returns `WouldBlock` if a nonblocking socket is full.
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

/// A received message with its descriptors and its sender.
#[derive(Debug)]
pub struct Received {
    /// The message; `Ok(None)` if the peer has closed the socket.
    pub message: Result<Option<Message>, RecvError>,
    /// All received descriptors, including the descriptors of an invalid message. Close-on-exec is
    /// set. Closing a descriptor from an untrusted sender may block.
    pub descriptors: Vec<OwnedFd>,
    /// The sender, if the socket has SO_PASSCRED.
    pub sender: Option<Sender>,
    /// A pidfd of the sender, if the socket has SO_PASSPIDFD. `None` if the sender has ended.
    pub pidfd: Option<OwnedFd>,
}

/// Receives one message with its descriptors from a trusted peer. Returns `None` if the peer has
/// closed the socket. If the message is refused, its descriptors are closed.
pub fn recv_message(socket: BorrowedFd<'_>) -> Result<Option<(Message, Vec<OwnedFd>)>, RecvError> {
    let Received {
        message,
        descriptors,
        ..
    } = recv_untrusted(socket);
    match message? {
        Some(_) if descriptors.len() > DESCRIPTORS_MAX => Err(RecvError::Malformed),
        message => Ok(message.map(|message| (message, descriptors))),
    }
}

/// Receives one message from an untrusted peer. The buffer has room for the largest number of
/// descriptors that the kernel allows. With less room, the kernel would close the excess
/// descriptors in this thread, which may block.
pub fn recv_untrusted(socket: BorrowedFd<'_>) -> Received {
    // The extra byte reveals a message that is too long: the received length then differs from
    // `MESSAGE_LEN`.
    let mut bytes = [0; MESSAGE_LEN + 1];
    // The receiver must own all descriptors, even those of an invalid message.
    const SPACE: usize = cmsg_space!(ScmRights(KERNEL_MAX), ScmCredentials(1)) + PIDFD_SPACE;
    let ReceivedMessage {
        len,
        truncated,
        descriptors,
        sender,
        pidfd,
    } = match receive::<SPACE>(socket, &mut bytes) {
        Ok(received) => received,
        Err(error) => {
            return Received {
                message: Err(RecvError::Io(error.into())),
                descriptors: Vec::new(),
                sender: None,
                pidfd: None,
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
        pidfd,
    }
}

/// Parses a message. The magic number and the version are the first fields in every version of the
/// ABI.
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
