//! The layout of all memory and messages between a program and the service (process `tidelaned`).
//!
//! The crate holds only types, constants and `const` functions. All structures are `repr(C)`, hold
//! offsets instead of pointers, and have no implicit padding. A program and the service share:
//!
//! * the **program region**: three sealed, sparse memfds per program. The service creates them, and
//!   both sides map them next to each other. The program can only read the receive buffers. The
//!   service validates everything that it reads from memory that the program can write.
//! * the **service page**: one sealed memfd per service, mapped read-only by every program.
//! * **registration messages**: fixed-size datagrams over a `SOCK_SEQPACKET` unix socket.
//! * the **memories of a mux port**: packet rings for a program with its own TCP stack ([`port`]).
//!
//! ```text
//! program region
//! 0          HEADER_LEN        slots_offset        rx_offset            tx_offset      region_len
//! | Header   | ring sets ...   | Slot x slots_max  | receive buffers    | send buffers   |
//! |          | 1 MiB each      | 256 B each        | service allocates  | program alloc. |
//! ```
//!
//! A **ring set** has the rings between a program's thread and a fast-path core (a polling thread
//! of the service). A **context** is a program's thread that uses the service, with one ring set
//! for each core. A **slot** holds the state of a connection.
//!
//! A **stream position** (`u32`, wrapping) counts payload bytes of one direction of a connection.
//! The first byte has position 0. A **stream buffer** of `2^log2` bytes at region offset `o` holds
//! the byte at position `p` at `o + (p & (2^log2 - 1))`. To replace a buffer by a larger buffer,
//! the side that allocated it copies each byte to the offset that the new size gives.
#![no_std]
#![forbid(unsafe_code)]

pub mod close_cause;
mod options;
pub mod port;
mod registration;

use core::sync::atomic::{AtomicU32, AtomicU64};

pub use options::{FIN_WAIT_2_NEVER, OpenOptions, SlotOptions, congestion};
pub use registration::{Message, TcpInfo, message, not_accelerated, refusal, tcp_info_features};

/// Version of the ABI. Every change of this crate increases the version. The service refuses the
/// registration of a program with another version.
pub const ABI_VERSION: u32 = 21;
/// Magic number at the start of a program region.
pub const REGION_MAGIC: u64 = u64::from_le_bytes(*b"TIDELNRG");
/// Magic number at the start of the service page.
pub const SERVICE_PAGE_MAGIC: u64 = u64::from_le_bytes(*b"TIDELNSP");
/// Magic number at the start of every registration message.
pub const MESSAGE_MAGIC: u64 = u64::from_le_bytes(*b"TIDELNMS");

/// Length of the region header in bytes.
pub const HEADER_LEN: u64 = 4096;
/// Length of a ring set in the region in bytes: the rings and their indices.
pub const RING_SET_LEN: u64 = 1 << 20;
/// Largest number of ring sets of a program on all fast-path cores together.
pub const RING_SETS_MAX: u32 = 128;
/// Largest number of fast-path cores of a service.
pub const CORES_MAX: usize = 16;
/// Number of entries of the route table in the service page.
pub const ROUTES_MAX: usize = 256;
/// Binary logarithm of the size in bytes of the smallest stream buffer, which has 2 KiB.
pub const STREAM_BUFFER_LOG2_MIN: u8 = 11;
/// Binary logarithm of the size in bytes of the largest stream buffer, which has 8 MiB.
pub const STREAM_BUFFER_LOG2_MAX: u8 = 23;
/// Number of entries of each data ring, a power of two.
pub const DATA_RING_LEN: u32 = 8192;
/// Number of entries of each control ring, a power of two.
pub const CONTROL_RING_LEN: u32 = 1024;

/// Returns the region offset of ring set `n` in bytes.
pub const fn ring_set_offset(n: u32) -> u64 {
    HEADER_LEN + n as u64 * RING_SET_LEN
}

/// Header of the program region. The service writes the header before the program maps the region.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// [`REGION_MAGIC`].
    pub magic: u64,
    /// [`ABI_VERSION`].
    pub abi_version: u32,
    /// Number of slots, which is the largest number of simultaneous connections of the program.
    pub slots_max: u32,
    /// Length of the region in bytes.
    pub region_len: u64,
    /// Region offset of the slot array.
    pub slots_offset: u64,
    /// Region offset of the receive-buffer area, which the service allocates from.
    pub rx_offset: u64,
    /// Length of the receive-buffer area in bytes.
    pub rx_len: u64,
    /// Region offset of the send-buffer area, which the program allocates from.
    pub tx_offset: u64,
    /// Length of the send-buffer area in bytes.
    pub tx_len: u64,
}

/// Indices of a single-producer single-consumer ring, each in its own cache line.
///
/// The indices count entries since the creation of the ring and wrap at 2^32. The position of an
/// entry is `index & (len - 1)`.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct RingIndex {
    /// Number of entries produced. Only the producer writes it.
    pub produced: AtomicU32,
    _pad0: [u32; 15],
    /// Number of entries consumed. Only the consumer writes it.
    pub consumed: AtomicU32,
    _pad1: [u32; 15],
}

/// Start of a ring set: the indices of its four rings, and the words of the sleep protocol.
///
/// The entries of the rings follow at fixed offsets from the start of the ring set.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct RingSetHead {
    /// Ring from program to service. The entries are words of [`data_request`].
    pub data_request: RingIndex,
    /// Ring from service to program. The entries are words of [`data_event`].
    pub data_event: RingIndex,
    /// Ring from program to service. The entries are [`ControlRequest`].
    pub control_request: RingIndex,
    /// Ring from service to program. The entries are [`ControlEvent`].
    pub control_event: RingIndex,
    /// 1 while a thread of the program sleeps or is about to sleep. The service must then ring the
    /// thread's doorbell (an eventfd). The thread sets the word, checks the event rings once more,
    /// and sleeps. The service clears the word when it rings the doorbell.
    pub needs_wakeup: AtomicU32,
    /// CPU that the thread used most recently, plus one; 0 if unknown. The value is only a hint.
    pub cpu_hint: AtomicU32,
    _pad: [u32; 14],
}

/// Offset of the data-request entries (`u64` each) from the start of the ring set, in bytes.
pub const DATA_REQUEST_OFFSET: u64 = 4096;
/// Offset of the data-event entries (`u64` each) from the start of the ring set, in bytes.
pub const DATA_EVENT_OFFSET: u64 = DATA_REQUEST_OFFSET + 8 * DATA_RING_LEN as u64;
/// Offset of the control-request entries (128 bytes each) from the start of the ring set, in bytes.
pub const CONTROL_REQUEST_OFFSET: u64 = DATA_EVENT_OFFSET + 8 * DATA_RING_LEN as u64;
/// Offset of the control-event entries (64 bytes each) from the start of the ring set, in bytes.
pub const CONTROL_EVENT_OFFSET: u64 = CONTROL_REQUEST_OFFSET + 128 * CONTROL_RING_LEN as u64;

/// Kinds of words in the data-request ring. A word is `kind << 56 | arg << 32 | slot`.
pub mod data_request {
    /// The program's half of the slot has changed: bytes written, bytes read, or flags.
    pub const ADVANCE: u8 = 1;
    /// From now on, context `arg` gets the events of the slot, beginning with the slot's state.
    pub const ASSIGN: u8 = 2;
    /// The program has accepted `arg` connections of listener `slot`.
    pub const ACCEPT_TAKEN: u8 = 3;
}

/// Kinds of words in the data-event ring. A word is `kind << 56 | slot`.
pub mod data_event {
    /// The service's half of the slot has changed.
    pub const READY: u8 = 1;
    /// The service has released the slot. The connection has no further events. The send buffer
    /// belongs to the program again, and the service may reuse the slot with another generation.
    pub const RELEASED: u8 = 2;
}

/// State of a connection, in memory that program and service share. The service initializes both
/// halves. Each side then writes only its own half. The fields `ids` and `options` rarely change.
#[repr(C, align(256))]
#[derive(Debug)]
pub struct Slot {
    /// Written by the service.
    pub service: ServiceHalf,
    /// Written by the program.
    pub program: ProgramHalf,
    /// Written by the service before it announces the slot.
    pub ids: ConnectionIds,
    /// Written by the program, rarely.
    pub options: SlotOptions,
}

/// The half of a [`Slot`] that the service writes and the program only reads.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ServiceHalf {
    /// Receive buffer: see [`BufferWord`]. Stored before `rx_head`. With [`buffer_word::URGENT`],
    /// a read by the program stops at the urgent byte in `urgent`.
    pub rx_buffer: AtomicU64,
    /// Value of `ProgramHalf::tx_buffer` that the service uses. The program may free older buffers.
    pub tx_buffer_seen: AtomicU64,
    /// Increased at each use and each release of the slot: odd while a connection has the slot.
    pub generation: AtomicU32,
    /// Stream position after the last in-order byte received.
    pub rx_head: AtomicU32,
    /// Stream position after the last acknowledged byte. Older bytes may be overwritten.
    pub tx_acked: AtomicU32,
    /// Bits of [`service_flags`].
    pub flags: AtomicU32,
    /// Cause of the connection's end, as [`CloseCause`]. 0 while the connection is open.
    pub cause: AtomicU32,
    /// Limit of the receive window in bytes. The program sends ADVANCE when it has read a quarter
    /// of the limit since its last ADVANCE.
    pub rx_window: AtomicU32,
    /// Size limit in bytes of the send buffer, which holds the unacknowledged bytes.
    pub tx_limit: AtomicU32,
    /// Stream position after the last byte sent. Valid with [`SlotOptions::tx_reports`].
    pub tx_sent: AtomicU32,
    /// Soft errors: `count << 8 | cause` with the newest [`CloseCause`]. Valid with SOFT_ERROR.
    pub soft_error: AtomicU32,
    /// Stream position of the previous urgent byte. Equal to the position in `urgent` if there is
    /// no previous urgent byte. Valid with URGENT.
    pub previous_urgent: AtomicU32,
    /// Newest urgent byte, as `position << 32 | state << 8 | byte`. Valid with URGENT, and stored
    /// before `rx_head`. The state is one of [`urgent_state`]. `byte` is valid in state ARRIVED.
    pub urgent: AtomicU64,
}

/// The half of a [`Slot`] that the program writes. The service reads each field once per use and
/// validates the value.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ProgramHalf {
    /// Send buffer: see [`BufferWord`]. The program stores it before `tx_head`.
    pub tx_buffer: AtomicU64,
    /// Value of `ServiceHalf::rx_buffer` that the program uses. The service may free older buffers.
    pub rx_buffer_seen: AtomicU64,
    /// The service reads this half only if the value equals [`ServiceHalf::generation`].
    pub generation: AtomicU32,
    /// Stream position after the last byte that the program wrote.
    pub tx_head: AtomicU32,
    /// Stream position after the last byte that the program read.
    pub rx_read: AtomicU32,
    /// Bits of [`program_flags`].
    pub flags: AtomicU32,
    /// SO_LINGER in seconds, plus one; 0 if off. CLOSE with ABORT expresses a linger time of 0.
    pub linger: AtomicU32,
    /// Not 0 while the program copies bytes of a SHARED connection. Another process cannot take the
    /// connection during this time.
    pub busy: AtomicU32,
    _pad: [u32; 6],
}

/// A stream buffer in one word: `kib << 8 | log2`, where `kib` is the region offset in KiB. Zero
/// stands for no buffer.
pub mod buffer_word {
    /// Number of bits for the binary logarithm of the size.
    pub const LOG2_BITS: u32 = 8;
    /// Unit of the region offset, in bytes.
    pub const OFFSET_UNIT: u64 = 1024;
    /// Flag of a receive buffer that has, or will have, urgent data. The flag does not change the
    /// location of the buffer.
    pub const URGENT: u64 = 1 << 63;
}

/// A stream buffer as a word: see [`buffer_word`].
pub type BufferWord = u64;

/// Bits of [`ServiceHalf::flags`].
pub mod service_flags {
    /// The handshake is complete.
    pub const ESTABLISHED: u32 = 1 << 0;
    /// The peer sent FIN, and all data before the FIN has arrived. End of file follows `rx_head`.
    pub const FIN_RECEIVED: u32 = 1 << 1;
    /// The connection is over, and `cause` has the reason. Unread bytes can still be read.
    pub const CLOSED: u32 = 1 << 2;
    /// The peer has acknowledged the FIN that follows the program's data.
    pub const FIN_ACKED: u32 = 1 << 3;
    /// Both ends are programs of this service, so no segment passes a NIC (the local path).
    pub const LOCAL_PATH: u32 = 1 << 4;
    /// Other processes hold the connection, too, because of a fork.
    pub const SHARED: u32 = 1 << 5;
    /// Another process has the connection at present. The other fields of this slot are not valid.
    /// The message TAKE_CONNECTION brings the connection back. Only set together with SHARED.
    pub const MIGRATED: u32 = 1 << 6;
    /// With MIGRATED: the connection has changed since it moved, or the other process has ended.
    pub const EVENT_PENDING: u32 = 1 << 7;
    /// A path error, such as an ICMP error, did not end the connection: see `soft_error`.
    pub const SOFT_ERROR: u32 = 1 << 8;
    /// The program has not read beyond the urgent byte in `urgent`.
    pub const URGENT: u32 = 1 << 9;
}

/// State of an urgent byte in [`ServiceHalf::urgent`].
pub mod urgent_state {
    /// The peer has announced the byte, and the byte has not arrived.
    pub const ANNOUNCED: u8 = 1;
    /// The byte has arrived, possibly before all data that precedes it.
    pub const ARRIVED: u8 = 2;
}

/// Bits of [`ProgramHalf::flags`].
pub mod program_flags {
    /// The program writes no more data: send FIN after `tx_head`.
    pub const SHUT_WRITE: u32 = 1 << 0;
    /// The program discards data that arrives from now on, because of a shutdown for reading.
    pub const SHUT_READ: u32 = 1 << 1;
    /// The program closed the socket and does not read this slot again.
    pub const CLOSE: u32 = 1 << 2;
    /// Send RST. Without CLOSE, the program keeps the slot and its buffers until CLOSE is set.
    pub const ABORT: u32 = 1 << 3;
    /// TCP_NODELAY.
    pub const NODELAY: u32 = 1 << 4;
    /// TCP_CORK, or MSG_MORE on the last write.
    pub const CORK: u32 = 1 << 5;
    /// SO_KEEPALIVE.
    pub const KEEPALIVE: u32 = 1 << 6;
    /// The program has accepted this connection.
    pub const TAKEN: u32 = 1 << 7;
    /// TCP_QUICKACK.
    pub const QUICKACK: u32 = 1 << 8;
    /// Do not wait for data: send the SYN now ([`syn_room`](super::ControlEvent::syn_room)).
    pub const OPEN_NOW: u32 = 1 << 9;
    /// Unit of the counter in the upper bits. The counter counts changes of
    /// [`SlotOptions`](super::SlotOptions).
    pub const OPTIONS_ONE: u32 = 1 << 10;
    /// Mask of the counter of option changes.
    pub const OPTIONS: u32 = !(OPTIONS_ONE - 1);
}

/// Reason for the end of a connection: see [`close_cause`].
pub type CloseCause = u32;

/// Addresses and ports of a connection. IPv4 is `::ffff:a.b.c.d`. Ports are in host byte order.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionIds {
    /// Local address.
    pub local_addr: [u8; 16],
    /// Peer's address.
    pub peer_addr: [u8; 16],
    /// Local port.
    pub local_port: u16,
    /// Peer's port.
    pub peer_port: u16,
    /// Effective send MSS in bytes when the connection was established.
    pub mss: u32,
    /// Identity of the connection, unique during the lifetime of the service.
    pub connection: u64,
    /// Must be zero.
    pub reserved: [u64; 2],
}

/// An entry of the control-request ring.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct ControlRequest {
    /// One of [`control_request`].
    pub kind: u32,
    /// CONNECT: initial option bits of [`program_flags`].
    pub flags: u32,
    /// CONNECT, LISTENER_JOIN: the program's own number for the socket, which events return.
    pub cookie: u64,
    /// CONNECT: peer's address.
    pub peer_addr: [u8; 16],
    /// CONNECT: local address. Zero lets the service choose.
    pub local_addr: [u8; 16],
    /// CONNECT: peer's port, in host byte order.
    pub peer_port: u16,
    /// CONNECT: local port that the program has reserved with a RESERVE message. Zero lets the
    /// service choose.
    pub local_port: u16,
    /// LISTENER_JOIN, LISTENER_LEAVE: number of the listener.
    pub listener: u32,
    /// CONNECT: bits of [`fast_open`]. 0 for a connection without Fast Open.
    pub fast_open: u32,
    /// Must be zero.
    pub reserved_word: u32,
    /// CONNECT: options that affect the SYN.
    pub options: OpenOptions,
    /// Must be zero.
    pub reserved: [u64; 3],
}

/// Bits of [`ControlRequest::fast_open`].
pub mod fast_open {
    /// Send data with the SYN, or request a cookie (TCP_FASTOPEN_CONNECT, MSG_FASTOPEN).
    pub const REQUESTED: u32 = 1 << 0;
    /// Send data without a cookie (TCP_FASTOPEN_NO_COOKIE).
    pub const WITHOUT_COOKIE: u32 = 1 << 1;
}

/// Kinds of [`ControlRequest`].
pub mod control_request {
    /// Opens a connection. The answer is CONNECT_STARTED, CONNECT_FAILED or CONNECT_KERNEL.
    pub const CONNECT: u32 = 1;
    /// This context's thread accepts connections of `listener` from now on.
    pub const LISTENER_JOIN: u32 = 2;
    /// This context accepts no further connections of `listener`.
    pub const LISTENER_LEAVE: u32 = 3;
}

/// An entry of the control-event ring.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct ControlEvent {
    /// One of [`control_event`].
    pub kind: u32,
    /// Number of the connection's slot.
    pub slot: u32,
    /// Cookie of the CONNECT request. ACCEPTED: cookie of the listener.
    pub cookie: u64,
    /// Generation of the slot.
    pub generation: u32,
    /// CONNECT_FAILED: a [`close_cause`]. CONNECT_KERNEL: one of [`not_accelerated`].
    pub cause: u32,
    /// ACCEPTED: number of the listener.
    pub listener: u32,
    /// CONNECT_STARTED: 0 if the SYN has been sent. Otherwise the number of data bytes that the SYN
    /// can carry. The SYN then waits until the program writes data or sets OPEN_NOW.
    pub syn_room: u32,
    /// Zero.
    pub reserved: [u32; 8],
}

/// Kinds of [`ControlEvent`].
pub mod control_event {
    /// The connection has `slot`, whose ids are valid. The SYN has been sent, or waits for data.
    pub const CONNECT_STARTED: u32 = 1;
    /// The connection could not be opened, and has no slot. `cause` has the reason.
    pub const CONNECT_FAILED: u32 = 2;
    /// A connection of a listener is established in `slot`, whose ids are valid.
    pub const ACCEPTED: u32 = 3;
    /// The program must connect through the kernel. The destination is an address of this host, and
    /// either no program of the service listens there, or a limit was reached. The event occurs
    /// only for routes with [`super::ROUTE_ASK_SERVICE`] or [`super::ROUTE_WITHIN_HOST`].
    pub const CONNECT_KERNEL: u32 = 4;
}

/// The service page: state of the service that all programs may read. Programs map it read-only.
#[repr(C)]
#[derive(Debug)]
pub struct ServicePage {
    /// [`SERVICE_PAGE_MAGIC`].
    pub magic: u64,
    /// [`ABI_VERSION`].
    pub abi_version: u32,
    /// Number of fast-path cores in use.
    pub cores: u32,
    /// Sequence lock of `routes`: odd while the service changes the table.
    pub routes_sequence: AtomicU32,
    /// Number of entries of `routes` in use. The entries with the longest prefixes come first.
    pub routes_len: AtomicU32,
    _pad: [u64; 5],
    /// One cache line for each core.
    pub core: [CoreLine; CORES_MAX],
    /// Routes that decide whether the service or the kernel handles connections to a destination.
    pub routes: [RouteEntry; ROUTES_MAX],
}

/// State of a fast-path core that programs may read.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct CoreLine {
    /// 1 while the core sleeps or is about to sleep. Programs must then ring the core's doorbell.
    pub needs_wakeup: AtomicU32,
    /// CPU of the core plus one. 0 if the core is not pinned.
    pub cpu: AtomicU32,
    _pad: [u32; 14],
}

/// A route: an address prefix (IPv4 is `::ffff:a.b.c.d`), and the handling of connections to it.
/// The fields are atomic words, so that programs can read them under the sequence lock.
#[repr(C)]
#[derive(Debug)]
pub struct RouteEntry {
    /// The two halves of the address: bytes in network order, read as native words.
    pub addr: [AtomicU64; 2],
    /// Prefix length in bits of the 128-bit form. For IPv4, this is 96 more than the usual length.
    pub prefix_len: AtomicU32,
    /// [`ROUTE_KERNEL`], [`ROUTE_ACCELERATED`], [`ROUTE_ASK_SERVICE`] or [`ROUTE_WITHIN_HOST`].
    pub handling: AtomicU32,
}

/// Connections to this prefix stay with the kernel.
pub const ROUTE_KERNEL: u32 = 0;
/// Connections to this prefix are accelerated: the service handles them instead of the kernel.
pub const ROUTE_ACCELERATED: u32 = 1;
/// The prefix is an address of the service's interface. Only the service knows whether a program
/// listens at the address, so `connect` waits for the service's answer to CONNECT.
pub const ROUTE_ASK_SERVICE: u32 = 2;
/// The prefix is loopback or another address of this host. A program started with `--loopback` asks
/// the service ([`ROUTE_ASK_SERVICE`]), and any other program uses the kernel ([`ROUTE_KERNEL`]).
pub const ROUTE_WITHIN_HOST: u32 = 3;

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Header>() == 64);
    assert!(size_of::<RingIndex>() == 128);
    assert!(size_of::<RingSetHead>() == 576);
    assert!(offset_of!(RingSetHead, needs_wakeup) == 512);
    assert!(size_of::<RingSetHead>() as u64 <= DATA_REQUEST_OFFSET);
    assert!(CONTROL_EVENT_OFFSET + 64 * CONTROL_RING_LEN as u64 <= RING_SET_LEN);
    assert!(DATA_RING_LEN.is_power_of_two() && CONTROL_RING_LEN.is_power_of_two());
    assert!(size_of::<Slot>() == 256);
    assert!(offset_of!(Slot, program) == 64 && offset_of!(Slot, ids) == 128);
    assert!(size_of::<ServiceHalf>() == 64 && size_of::<ProgramHalf>() == 64);
    assert!(size_of::<ConnectionIds>() == 64 && size_of::<SlotOptions>() == 64);
    assert!(offset_of!(Slot, options) == 192 && size_of::<OpenOptions>() == 40);
    assert!(size_of::<ControlRequest>() == 128 && size_of::<ControlEvent>() == 64);
    assert!(size_of::<CoreLine>() == 64 && size_of::<RouteEntry>() == 24);
    assert!(offset_of!(ServicePage, core) == 64);
};
