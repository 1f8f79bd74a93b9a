//! Netlink dumps as bytes. The callers search the messages for hooks: parts of the kernel's
//! firewall that packets of the service (a TCP/IP stack in user space) bypass.
//!
//! An operator may rely on a hook, and would not learn about a hook that the search misses. A
//! message that cannot be parsed is therefore an error, and never skipped.

use std::io;

use rustix::{
    io::Errno,
    net::{
        AddressFamily, SendFlags, SocketFlags, SocketType, bind, netlink,
        netlink::SocketAddrNetlink, send, socket_with,
    },
};

use crate::answers::{ANSWER_WAIT_MAX, limit_wait, receive_part};

/// Length of the receive buffer in bytes. The kernel fills at most 32 KiB at a time.
const BUFFER_LEN: usize = 64 << 10;
/// Largest number of attempts to get a dump that no change of the kernel's tables interrupts.
const DUMPS_MAX: usize = 8;
/// Length of `struct nlmsghdr` in bytes.
const HEADER_LEN: usize = 16;

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// Returns the error for bytes of the kernel in an unexpected form.
pub(super) fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "malformed netlink message")
}

/// Sends a dump request of type `kind` with `body` to the netlink protocol `protocol` (`None` for
/// NETLINK_ROUTE). Returns the messages of the answer without their headers. Returns `None` if the
/// kernel lacks the netlink protocol, or if the kernel answers EINVAL. EINVAL is the answer to a
/// request for an unknown subsystem of netfilter.
pub(super) fn dump(
    protocol: Option<rustix::net::Protocol>,
    kind: u16,
    body: &[u8],
) -> io::Result<Option<Vec<Vec<u8>>>> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol);
    let socket = match socket {
        Err(Errno::PROTONOSUPPORT) => return Ok(None),
        socket => socket?,
    };
    bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    limit_wait(&socket, ANSWER_WAIT_MAX)?;
    let mut buffer = vec![0; BUFFER_LEN];
    for sequence in 1..=DUMPS_MAX as u32 {
        send(&socket, &request(kind, sequence, body), SendFlags::empty())?;
        let mut dump = Dump::new(sequence);
        while !dump.done {
            let (len, whole) = receive_part(&socket, &mut buffer)?;
            if whole > len {
                return Err(malformed());
            }
            match dump.take(&buffer[..len]) {
                // The netlink protocol of netfilter answers EINVAL for an unknown subsystem.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(None),
                taken => taken?,
            }
        }
        if dump.consistent {
            return Ok(Some(dump.messages));
        }
    }
    Err(io::Error::other(
        "the kernel's tables changed during each of several dumps",
    ))
}

fn request(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = ((HEADER_LEN + body.len()) as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0u32.to_ne_bytes());
    bytes.extend(body);
    bytes
}

/// The answers to one dump request.
pub(super) struct Dump {
    /// Sequence number of the request. Messages with another number are ignored.
    sequence: u32,
    /// Bodies of the messages received.
    pub(super) messages: Vec<Vec<u8>>,
    /// True while no change of the kernel's tables has interrupted the dump.
    consistent: bool,
    /// True after the last message of the dump.
    done: bool,
}

impl Dump {
    pub(super) fn new(sequence: u32) -> Self {
        Self {
            sequence,
            messages: Vec::new(),
            consistent: true,
            done: false,
        }
    }

    /// Appends the messages of a received datagram.
    pub(super) fn take(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() && !self.done {
            let header: &[u8; HEADER_LEN] = bytes.first_chunk().ok_or_else(malformed)?;
            let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, ..] = *header;
            let len = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
            let body = bytes.get(HEADER_LEN..len).ok_or_else(malformed)?;
            bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
            if u32::from_ne_bytes([s0, s1, s2, s3]) != self.sequence {
                continue;
            }
            self.consistent &= u16::from_ne_bytes([f0, f1]) & NLM_F_DUMP_INTR == 0;
            match u16::from_ne_bytes([k0, k1]) {
                NLMSG_DONE => self.done = true,
                NLMSG_ERROR => {
                    let code = i32::from_ne_bytes(*body.first_chunk().ok_or_else(malformed)?);
                    if code != 0 {
                        return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
                    }
                    self.done = true;
                }
                _ => self.messages.push(body.to_vec()),
            }
        }
        Ok(())
    }
}

/// Attributes as bytes: the part of a message after the fixed part, or the value of a nested
/// attribute. The iterator returns the type (without flags) and the value of each attribute.
pub(super) struct Attributes<'a>(pub(super) &'a [u8]);

impl<'a> Attributes<'a> {
    /// Returns the value of the first attribute of type `kind`.
    pub(super) fn find(&self, kind: u16) -> io::Result<Option<&'a [u8]>> {
        for attribute in Attributes(self.0) {
            let (found, value) = attribute?;
            if found == kind {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Returns the text of the first attribute of type `kind`, up to the first NUL.
    pub(super) fn text(&self, kind: u16) -> io::Result<Option<String>> {
        Ok(self.find(kind)?.map(text))
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = io::Result<(u16, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        const TYPE_MASK: u16 = 0x3fff;
        if self.0.is_empty() {
            return None;
        }
        let Some([l0, l1, k0, k1]) = self.0.first_chunk::<4>().copied() else {
            self.0 = &[];
            return Some(Err(malformed()));
        };
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let Some(value) = self.0.get(4..len) else {
            self.0 = &[];
            return Some(Err(malformed()));
        };
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok((u16::from_ne_bytes([k0, k1]) & TYPE_MASK, value)))
    }
}

/// Returns the text of an attribute's value, up to the first NUL.
pub(super) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&value[..end.unwrap_or(value.len())]).into_owned()
}

/// The netlink protocol of netfilter.
pub(super) const NETFILTER: rustix::net::Protocol = netlink::NETFILTER;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prefix_of_a_dump_is_an_error_or_a_part_of_it() {
        let mut bytes = request(7, 1, b"body");
        bytes.extend(request(NLMSG_DONE, 1, &[]));
        for end in 0..=bytes.len() {
            let mut dump = Dump::new(1);
            let taken = dump.take(&bytes[..end]);
            match end {
                0 => assert!(taken.is_ok() && dump.messages.is_empty()),
                20 => assert!(taken.is_ok() && !dump.done && dump.messages.len() == 1),
                36 => assert!(taken.is_ok() && dump.done),
                _ => assert!(taken.is_err(), "{end}"),
            }
        }
    }

    #[test]
    fn lengths_that_lie_are_errors() {
        for len in [0u16, 3, 9, u16::MAX] {
            let mut bytes = len.to_ne_bytes().to_vec();
            bytes.extend([1, 0, b'x', 0, 0, 0]);
            assert!(Attributes(&bytes).find(1).is_err(), "{len}");
        }
        assert!(Attributes(&[1, 2, 3]).find(1).is_err());
        let mut message = request(7, 1, b"");
        message[0] = 15;
        assert!(Dump::new(1).take(&message).is_err());
    }
}
