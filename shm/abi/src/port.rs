//! Memory of the packet rings between a program's mux port and the mux of the service (the process
//! `tidelaned`).
//!
//! The *mux* shares one NIC and its addresses between several TCP/IP stacks. A program with a stack
//! of its own opens a *mux port*. Through the port, the program sends and receives the packets of
//! the 3-tuples (protocol, local address, local port) that it has claimed.
//!
//! A mux port has two memories for each core (polling thread) of the service. The service writes
//! the first memory, and the program only reads it. The program writes the second memory, and the
//! service only reads it. The first page of a memory has a [`PortHead`] at the offset
//! [`head_offset`]. The packets that the memory's writer sends begin at [`PORT_DATA_OFFSET`].
//!
//! ```text
//! memory       head: produced            consumed                packets
//! service's    units to the program      units from the program  to the program
//! program's    units to the service      units from the service  to the service
//! ```
//!
//! A ring consists of *units* of [`PACKET_UNIT`] bytes. An entry is a [`PacketHead`] and then the
//! frame, in consecutive units. An entry never wraps. If the frame does not fit before the end of
//! the ring, the producer first writes an entry with the length [`PACKET_SKIP`], which extends to
//! the end. The indices `produced` and `consumed` count units and wrap at 2^32.
//!
//! A *GSO frame* is a TCP packet with more payload than one segment may carry. The service or the
//! NIC splits the payload into segments.

use core::sync::atomic::AtomicU32;

/// Length of a unit of a packet ring in bytes.
pub const PACKET_UNIT: u32 = 16;
/// Value of [`PacketHead::len`] for an entry that has no frame and extends to the end of the ring.
pub const PACKET_SKIP: u32 = u32::MAX;
/// Offset of the packets from the start of a mux port's memory, in bytes.
pub const PORT_DATA_OFFSET: u64 = 4096;
/// Smallest length of a mux port's packet ring in bytes.
pub const PORT_RING_LEN_MIN: u32 = 16 * 1024;
/// Largest length of a mux port's packet ring in bytes.
pub const PORT_RING_LEN_MAX: u32 = 4 * 1024 * 1024;
/// Length in bytes of the largest frame of a mux port that is not a GSO frame.
pub const PORT_FRAME_LEN_MAX: u32 = 2048;
/// Length in bytes of the largest GSO frame: an Ethernet header and the longest IP packet.
pub const PORT_GSO_LEN_MAX: u32 = 14 + 65_535;

/// Returns the length in bytes of the largest GSO frame in a packet ring of `ring_len` bytes. A
/// ring has room for four of these frames, so that the program can fill one frame while the service
/// reads another.
pub const fn gso_len_max(ring_len: u32) -> u32 {
    let part = ring_len / 4 - PACKET_UNIT;
    if part < PORT_GSO_LEN_MAX {
        part
    } else {
        PORT_GSO_LEN_MAX
    }
}

/// Number of offsets that a [`PortHead`] may have.
const HEAD_PLACES: u32 = (PORT_DATA_OFFSET / size_of::<PortHead>() as u64) as u32;

/// Returns the offset in bytes of the [`PortHead`] in each memory of mux port `number`. Mux ports
/// with consecutive numbers have heads at different offsets from the start of a page. In a CPU
/// cache, lines at the same offset compete for the same few places. A thread that polls the heads
/// of many mux ports would otherwise find most of them outside of its cache.
pub const fn head_offset(number: u32) -> u64 {
    (number % HEAD_PLACES) as u64 * size_of::<PortHead>() as u64
}

/// A word in a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct PortWord {
    /// The word. Neighbouring words are in other cache lines, so that the processes do not disturb
    /// each other.
    pub word: AtomicU32,
    _pad: [u32; 15],
}

/// The indices in a mux port's memory.
#[repr(C)]
#[derive(Debug)]
pub struct PortHead {
    /// Number of units that the memory's writer has produced in this memory.
    pub produced: PortWord,
    /// Number of units of the other memory that the writer of this memory has consumed.
    pub consumed: PortWord,
    /// In the program's memory: an odd number while the program sleeps or is about to sleep. The
    /// service must then ring the mux port's doorbell (an eventfd). Each sleep has another number,
    /// so that the service, which cannot write the word, rings once for each sleep. Unused in the
    /// service's memory.
    pub sleep: PortWord,
}

/// Start of an entry of a packet ring.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketHead {
    /// Length of the frame in bytes, or [`PACKET_SKIP`].
    pub len: u32,
    /// Zero for an ordinary frame, which has at most [`PORT_FRAME_LEN_MAX`] bytes. For a GSO frame:
    /// payload bytes of each TCP segment except the last segment. Only a program sends GSO frames.
    /// The service ignores the checksums of a GSO frame. The service or the NIC computes the
    /// checksums of the segments.
    pub segment_size: u16,
    /// Zero.
    pub reserved: u16,
}

/// The properties of a mux port in a [`Message`](crate::Message). The doc of each field names the
/// kinds of messages that use the field.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketPort {
    /// PORT_OPENED: number of the mux port.
    pub number: u32,
    /// PORT_OPENED: number of cores of the service.
    pub cores: u32,
    /// OPEN_PORT, PORT_OPENED: length of the packet data in one direction, in bytes. A power of
    /// two.
    pub ring_len: u32,
    /// PORT_OPENED: [`RX_CHECKSUM_MAY_BE_PARTIAL`], or 0.
    pub flags: u32,
    /// PORT_OPENED: largest frame of the service's NIC, in bytes.
    pub frame_len_max: u32,
    /// PORT_OPENED: link address of the interface.
    pub link_address: [u8; 6],
    /// RELEASE_TUPLE: IP protocol, 6 for TCP and 17 for UDP. The local address and port are in
    /// [`Message::local_addr`](crate::Message) and [`Message::port`](crate::Message).
    pub protocol: u16,
    /// Zero.
    pub reserved: u32,
}

/// Bit of [`PacketPort::flags`]: the service may deliver packets whose transport checksum field
/// holds only the sum of the pseudo-header, like CHECKSUM_PARTIAL packets in Linux.
pub const RX_CHECKSUM_MAY_BE_PARTIAL: u32 = 1 << 0;

const _: () = {
    let end = head_offset(HEAD_PLACES - 1) + size_of::<PortHead>() as u64;
    assert!(end <= PORT_DATA_OFFSET && head_offset(HEAD_PLACES) == 0);
};
const _: () = assert!(size_of::<PacketHead>() as u32 <= PACKET_UNIT);
const _: () = assert!(size_of::<PacketPort>() == 32);
