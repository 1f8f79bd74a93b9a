//! Ancillary data of a message: descriptors, and the credentials and the pidfd of the sender.
//!
//! `rustix` receives the message, but this module parses the ancillary data, because `rustix`
//! cannot represent the process id zero. The kernel reports this id for a sender outside of the
//! receiver's PID namespace.

use std::{
    io::IoSliceMut,
    mem::{MaybeUninit, forget},
    os::fd::{BorrowedFd, FromRawFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recvmsg},
    process::Pid,
};

/// Length of `struct cmsghdr` in bytes: the total length, the level and the type.
const HEADER_LEN: usize = 16;
const SOL_SOCKET: i32 = 1;
const SCM_RIGHTS: i32 = 1;
const SCM_CREDENTIALS: i32 = 2;
const SCM_PIDFD: i32 = 4;

/// Space in bytes of the control message with the sender's pidfd.
pub(crate) const PIDFD_SPACE: usize = (HEADER_LEN + 4).next_multiple_of(8);

/// Credentials of the sender of a message, as seen in the receiver's namespaces. If the sender sent
/// no credentials, the kernel reports the real ids. A sender without privileges can choose among
/// its real, effective and saved ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Process id, or `None` if the sender is outside of the receiver's PID namespace.
    pub pid: Option<Pid>,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl Sender {
    /// Parses a `struct ucred`.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<4>();
        let [pid, uid, gid] = *words.first_chunk::<3>()?;
        Some(Self {
            pid: Pid::from_raw(i32::from_ne_bytes(pid)),
            uid: u32::from_ne_bytes(uid),
            gid: u32::from_ne_bytes(gid),
        })
    }
}

/// A message with its ancillary data.
#[derive(Debug)]
pub(crate) struct ReceivedMessage {
    /// Length of the message in bytes.
    pub(crate) len: usize,
    /// True if the ancillary data was truncated.
    pub(crate) truncated: bool,
    /// Received descriptors, with close-on-exec set.
    pub(crate) descriptors: Vec<OwnedFd>,
    /// The sender, if the socket has SO_PASSCRED.
    pub(crate) sender: Option<Sender>,
    /// A pidfd of the sender, if the socket has SO_PASSPIDFD. `None` if the sender has ended.
    pub(crate) pidfd: Option<OwnedFd>,
}

/// Receives a message into `bytes`, with up to `SPACE` bytes of ancillary data.
pub(crate) fn receive<const SPACE: usize>(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> rustix::io::Result<ReceivedMessage> {
    loop {
        // The bytes after the ancillary data stay zero. A header of length zero ends the parsing.
        let mut space = [MaybeUninit::new(0_u8); SPACE];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let iov = &mut [IoSliceMut::new(bytes)];
        let received = recvmsg(socket, iov, &mut control, RecvFlags::CMSG_CLOEXEC);
        // Do not run the destructor of the buffer: it would parse the ancillary data and close the
        // descriptors.
        forget(control);
        let received = match received {
            Err(Errno::INTR) => continue,
            received => received?,
        };
        // SAFETY: the array was initialised above, and the kernel wrote only bytes.
        let space = space.map(|byte| unsafe { byte.assume_init() });
        // SAFETY: the kernel has just created the descriptors in `space` for this receiver.
        let (descriptors, sender, pidfd) = unsafe { take(&space) };
        return Ok(ReceivedMessage {
            len: received.bytes,
            truncated: received.flags.intersects(ReturnFlags::CTRUNC),
            descriptors,
            sender,
            pidfd,
        });
    }
}

/// Returns the descriptors, the sender and the sender's pidfd in `control`.
///
/// # Safety
/// No other code owns the descriptors in `control`.
unsafe fn take(control: &[u8]) -> (Vec<OwnedFd>, Option<Sender>, Option<OwnedFd>) {
    let mut descriptors = Vec::new();
    let (mut sender, mut pidfd) = (None, None);
    for (level, kind, data) in messages(control) {
        match (level, kind) {
            (SOL_SOCKET, SCM_RIGHTS) => {
                let (numbers, _) = data.as_chunks::<4>();
                let numbers = numbers.iter().map(|number| i32::from_ne_bytes(*number));
                // SAFETY: the caller guarantees that no other code owns the descriptors.
                descriptors.extend(numbers.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
            (SOL_SOCKET, SCM_CREDENTIALS) => sender = Sender::from_bytes(data),
            (SOL_SOCKET, SCM_PIDFD) => {
                // A negative number is an error: the sender has ended.
                let number = data.first_chunk().map(|number| i32::from_ne_bytes(*number));
                let number = number.filter(|number| *number >= 0);
                // SAFETY: the caller guarantees that no other code owns the descriptor.
                pidfd = number.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
            }
            _ => {}
        }
    }
    (descriptors, sender, pidfd)
}

/// Returns the level, type and data of each control message (`cmsghdr`) in `control`.
fn messages(mut control: &[u8]) -> impl Iterator<Item = (i32, i32, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from_ne_bytes(*control.first_chunk::<8>()?);
        let message = control.get(..len).filter(|_| len >= HEADER_LEN)?;
        let word = |at: usize| {
            message[at..]
                .first_chunk::<4>()
                .copied()
                .map(i32::from_ne_bytes)
        };
        let (level, kind) = (word(8)?, word(12)?);
        control = control.get(len.next_multiple_of(8)..).unwrap_or_default();
        Some((level, kind, &message[HEADER_LEN..]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(kind: i32, data: &[u8]) -> Vec<u8> {
        let mut bytes = (HEADER_LEN + data.len()).to_ne_bytes().to_vec();
        bytes.extend(SOL_SOCKET.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    fn credentials(pid: i32) -> Vec<u8> {
        let words = [pid, 65534, 65534].map(i32::to_ne_bytes);
        control(SCM_CREDENTIALS, &words.concat())
    }

    /// Returns the sender's process id in `control`, which must have no descriptors. Zero stands
    /// for a process outside of the PID namespace. Returns `None` if `control` has no credentials.
    fn sender(control: &[u8]) -> Option<i32> {
        // SAFETY: the messages of these tests have no descriptors.
        let (descriptors, sender, pidfd) = unsafe { take(control) };
        assert!(descriptors.is_empty() && pidfd.is_none());
        let sender = sender?;
        assert_eq!((sender.uid, sender.gid), (65534, 65534));
        Some(sender.pid.map_or(0, |pid| pid.as_raw_nonzero().get()))
    }

    #[test]
    fn a_sender_outside_of_the_pid_namespace_has_pid_zero() {
        assert_eq!(sender(&credentials(4711)), Some(4711));
        assert_eq!(sender(&credentials(0)), Some(0));
        let mut both = control(99, &[7; 5]);
        both.extend(credentials(4711));
        both.extend(control(SCM_PIDFD, &(-3_i32).to_ne_bytes()));
        both.extend([0; 64]);
        assert_eq!(sender(&both), Some(4711));
    }

    #[test]
    fn lengths_that_lie_end_the_messages() {
        for len in [0, 1, 15, 27, 33, 1 << 40, usize::MAX] {
            let mut bytes = credentials(4711);
            bytes[..8].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(sender(&bytes), None, "{len}");
        }
        assert_eq!(sender(&credentials(4711)[..7]), None);
    }
}
