//! The layout of all memory and messages that cross the boundary between a program and the service.
//!
//! The crate holds only data: no functions beyond constants and assertions (STYLE rule 7). All
//! structures are `repr(C)`, hold offsets instead of pointers, and have no implicit padding. The
//! boundary consists of three memories:
//!
//! * the **program region**: three sealed, sparse memfds per program, which the service creates and
//!   both sides map next to each other. The program can only read the receive buffers. The service
//!   trusts nothing that it reads from the rest.
//! * the **service page**: one sealed memfd per service, mapped read-only by every program.
//! * **registration messages**: fixed-size datagrams over a `SOCK_SEQPACKET` unix socket.
//!
//! ```text
//! program region
//! 0          HEADER_LEN        slots_offset        rx_offset            tx_offset      region_len
//! | Header   | contexts ...    | Slot x slots_max  | receive buffers    | send buffers   |
//! |          | 1 MiB each      | 256 B each        | service allocates  | program alloc. |
//! ```
//!
//! A **stream position** (`u32`, wrapping) counts payload bytes of one direction of a connection;
//! the first byte has position 0. A **stream buffer** of `2^log2` bytes at region offset `o` holds
//! the byte at position `p` at `o + (p & (2^log2 - 1))`. A larger buffer can therefore replace a
//! buffer by copying each byte to its offset under the new mask.
#![no_std]
#![forbid(unsafe_code)]

pub mod close_cause;
mod options;
mod registration;

use core::sync::atomic::{AtomicU32, AtomicU64};

pub use options::{FIN_WAIT_2_NEVER, OpenOptions, SlotOptions, congestion};
pub use registration::{FlowNumbers, Message, flow_features, message, not_accelerated, refusal};

/// Version of the ABI, increased with every change of this crate. Registration refuses another
/// version.
pub const ABI_VERSION: u32 = 15;
/// Magic number at the start of a program region.
pub const REGION_MAGIC: u64 = u64::from_le_bytes(*b"TIDELNRG");
/// Magic number at the start of the service page.
pub const SERVICE_PAGE_MAGIC: u64 = u64::from_le_bytes(*b"TIDELNSP");
/// Magic number at the start of every registration message.
pub const MESSAGE_MAGIC: u64 = u64::from_le_bytes(*b"TIDELNMS");

/// Length of the region header in bytes.
pub const HEADER_LEN: u64 = 4096;
/// Length of a context's part of the region in bytes (rings and indices).
pub const CONTEXT_LEN: u64 = 1 << 20;
/// Largest number of ring sets of a program: one per context and fast-path core.
pub const CONTEXTS_MAX: u32 = 128;
/// Largest number of fast-path cores of a service.
pub const CORES_MAX: usize = 16;
/// Number of entries of the route table in the service page.
pub const ROUTES_MAX: usize = 256;
/// Smallest stream buffer: 2 KiB.
pub const STREAM_BUFFER_LOG2_MIN: u8 = 11;
/// Largest stream buffer: 8 MiB.
pub const STREAM_BUFFER_LOG2_MAX: u8 = 23;
/// Number of entries of each data ring (power of two).
pub const DATA_RING_LEN: u32 = 8192;
/// Number of entries of each control ring (power of two).
pub const CONTROL_RING_LEN: u32 = 1024;

/// Returns the region offset of context `n`.
pub const fn context_offset(n: u32) -> u64 {
    HEADER_LEN + n as u64 * CONTEXT_LEN
}

/// Header of the program region. The service writes it before the program maps the region, and it
/// is constant afterwards.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// [`REGION_MAGIC`].
    pub magic: u64,
    /// [`ABI_VERSION`].
    pub abi_version: u32,
    /// Number of slots: connections that the program can have at the same time.
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

/// Producer and consumer index of a single-producer single-consumer ring, in a cache line each.
///
/// Indices count entries since the start and wrap at 2^32. The slot of an entry is `index & (len -
/// 1)`.
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

/// Start of a context: the indices of its four rings, followed by the sleep words.
///
/// The entries of the rings follow at fixed offsets from the start of the context.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ContextHead {
    /// Program to service; entries are words of [`data_request`].
    pub data_request: RingIndex,
    /// Service to program; entries are words of [`data_event`].
    pub data_event: RingIndex,
    /// Program to service; entries are [`ControlRequest`].
    pub control_request: RingIndex,
    /// Service to program; entries are [`ControlEvent`].
    pub control_event: RingIndex,
    /// 1 while the program sleeps or is about to sleep, and needs its doorbell rung. The program
    /// sets the word, checks the event rings once more, and sleeps. The service clears the word
    /// when it rings.
    pub needs_wakeup: AtomicU32,
    /// CPU on which the context's thread ran last, plus one; 0 if unknown. This is a hint.
    pub cpu_hint: AtomicU32,
    _pad: [u32; 14],
}

/// Offset of the data-request entries (`u64` each) from the context's start.
pub const DATA_REQUEST_OFFSET: u64 = 4096;
/// Offset of the data-event entries (`u64` each) from the context's start.
pub const DATA_EVENT_OFFSET: u64 = DATA_REQUEST_OFFSET + 8 * DATA_RING_LEN as u64;
/// Offset of the control-request entries (128 bytes each) from the context's start.
pub const CONTROL_REQUEST_OFFSET: u64 = DATA_EVENT_OFFSET + 8 * DATA_RING_LEN as u64;
/// Offset of the control-event entries (64 bytes each) from the context's start.
pub const CONTROL_EVENT_OFFSET: u64 = CONTROL_REQUEST_OFFSET + 128 * CONTROL_RING_LEN as u64;

/// Words of the data-request ring: `kind << 56 | arg << 32 | slot`.
pub mod data_request {
    /// The program's half of the slot has changed: bytes written, bytes read, or flags.
    pub const ADVANCE: u8 = 1;
    /// Sends the events of the slot to context `arg` from now on, beginning with its current state.
    pub const ASSIGN: u8 = 2;
    /// The program has accepted `arg` connections of listener `slot`.
    pub const ACCEPT_TAKEN: u8 = 3;
}

/// Words of the data-event ring: `kind << 56 | slot`.
pub mod data_event {
    /// The service's half of the slot has changed.
    pub const READY: u8 = 1;
    /// Last event of a connection: the service has released the slot. The send buffer belongs to
    /// the program again, and the slot may be reused with another generation.
    pub const RELEASED: u8 = 2;
}

/// State of a connection that the program and the service share. Each side writes one hot cache
/// line. Two cold lines follow.
#[repr(C, align(256))]
#[derive(Debug)]
pub struct Slot {
    /// Written by the service.
    pub service: ServiceHalf,
    /// Written by the program.
    pub program: ProgramHalf,
    /// Written by the service before it announces the slot.
    pub names: SlotNames,
    /// Written by the program, rarely.
    pub options: SlotOptions,
}

/// The service's half of a [`Slot`], which the program only reads.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ServiceHalf {
    /// Receive buffer: see [`BufferWord`]. Stored before `rx_head`. With [`buffer_word::URGENT`],
    /// bytes from the position in `urgent` on are not read like ordinary data.
    pub rx_buffer: AtomicU64,
    /// Last value of the program's `tx_buffer` that the service uses. An older buffer is free.
    pub tx_buffer_seen: AtomicU64,
    /// Number of uses of this slot: even while free, odd while a connection has the slot.
    pub generation: AtomicU32,
    /// Stream position after the last in-order byte received.
    pub rx_head: AtomicU32,
    /// Stream position after the last byte that the peer acknowledged. Older bytes may be
    /// overwritten.
    pub tx_acked: AtomicU32,
    /// Bits of [`service_flags`].
    pub flags: AtomicU32,
    /// Cause of the connection's end, as [`CloseCause`]; 0 while it lives.
    pub cause: AtomicU32,
    /// Receive window limit in bytes. The program announces its reads (ADVANCE) when it has read a
    /// quarter of the limit since its last announcement.
    pub rx_window: AtomicU32,
    /// Limit of bytes that are written and not acknowledged: the limit of the send buffer.
    pub tx_limit: AtomicU32,
    /// With [`SlotOptions::tx_reports`]: stream position after the last byte that was sent.
    pub tx_sent: AtomicU32,
    /// With SOFT_ERROR: the last error, as `count << 8 | cause`, with the cause as [`CloseCause`].
    pub soft_error: AtomicU32,
    /// With URGENT: stream position of the urgent byte before the one in `urgent`, or the same
    /// position.
    pub urgent_before: AtomicU32,
    /// With URGENT: the last urgent byte, as `position << 32 | state << 8 | byte`. The state is one
    /// of [`urgent_state`]; the byte is valid in state ARRIVED. Stored before `rx_head`.
    pub urgent: AtomicU64,
}

/// The program's half of a [`Slot`]. The service reads each field once per use and validates the
/// value.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ProgramHalf {
    /// Send buffer: see [`BufferWord`]. Stored before `tx_head`.
    pub tx_buffer: AtomicU64,
    /// Last value of the service's `rx_buffer` that the program uses. An older buffer is free.
    pub rx_buffer_seen: AtomicU64,
    /// Generation that the program acts for. The service ignores a half with another generation.
    pub generation: AtomicU32,
    /// Stream position after the last byte that the program wrote.
    pub tx_head: AtomicU32,
    /// Stream position after the last byte that the program read.
    pub rx_read: AtomicU32,
    /// Bits of [`program_flags`].
    pub flags: AtomicU32,
    /// SO_LINGER seconds plus one, 0 if off. Linger 0 is CLOSE with ABORT.
    pub linger: AtomicU32,
    /// Not 0 while the program moves bytes of a SHARED connection, which must not be taken away
    /// then.
    pub busy: AtomicU32,
    _pad: [u32; 6],
}

/// A stream buffer in one word: `kib << 8 | log2`, where `kib` is the region offset in units of 1
/// KiB. Zero: no buffer.
pub mod buffer_word {
    /// Number of bits of the logarithm of the size.
    pub const LOG2_BITS: u32 = 8;
    /// Unit of the offset in bytes.
    pub const OFFSET_UNIT: u64 = 1024;
    /// Flag of a receive buffer that has, or will have, urgent data. The flag does not change the
    /// buffer.
    pub const URGENT: u64 = 1 << 63;
}

/// A buffer as a word: see [`buffer_word`].
pub type BufferWord = u64;

/// Bits of [`ServiceHalf::flags`].
pub mod service_flags {
    /// The handshake is complete.
    pub const ESTABLISHED: u32 = 1 << 0;
    /// The peer sent FIN and all data before it is in the buffer: end of file after `rx_head`.
    pub const FIN_RECEIVED: u32 = 1 << 1;
    /// The connection is over, and `cause` has the reason. Unread bytes can still be read.
    pub const CLOSED: u32 = 1 << 2;
    /// The peer has acknowledged our FIN.
    pub const FIN_ACKED: u32 = 1 << 3;
    /// The connection stays within this service: the local path.
    pub const LOCAL_PATH: u32 = 1 << 4;
    /// Other processes hold the connection too (fork).
    pub const SHARED: u32 = 1 << 5;
    /// With SHARED: another process has the connection at present, and nothing else in this slot is
    /// valid any more. TAKE brings the connection back.
    pub const MIGRATED: u32 = 1 << 6;
    /// With MIGRATED: the connection has changed since it moved, or the other process is gone.
    pub const EVENT_PENDING: u32 = 1 << 7;
    /// A path error occurred that did not end the connection: see `soft_error`.
    pub const SOFT_ERROR: u32 = 1 << 8;
    /// The program has not read beyond the urgent data: see `urgent`.
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
    /// No data follows `tx_head`: send FIN.
    pub const SHUT_WRITE: u32 = 1 << 0;
    /// The program discards data that arrives from now on (shutdown for reading).
    pub const SHUT_READ: u32 = 1 << 1;
    /// The program closed the socket and does not read this slot again.
    pub const CLOSE: u32 = 1 << 2;
    /// With CLOSE: send RST instead of FIN.
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
    /// A SYN that waits for data is sent without data
    /// ([`syn_room`](super::ControlEvent::syn_room)).
    pub const OPEN_NOW: u32 = 1 << 9;
    /// Unit of the counter in the upper bits, which counts changes of
    /// [`SlotOptions`](super::SlotOptions).
    pub const OPTIONS_ONE: u32 = 1 << 10;
    /// Mask of that counter.
    pub const OPTIONS: u32 = !(OPTIONS_ONE - 1);
}

/// Reason for the end of a connection: see [`close_cause`].
pub type CloseCause = u32;

/// Addresses of a connection, with IPv4 as `::ffff:a.b.c.d`. Ports are in host byte order.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotNames {
    /// Local address.
    pub local_addr: [u8; 16],
    /// Peer's address.
    pub peer_addr: [u8; 16],
    /// Local port.
    pub local_port: u16,
    /// Peer's port.
    pub peer_port: u16,
    /// Effective send MSS when the connection was established.
    pub mss: u32,
    /// Identity of the connection, unique during the life of the service.
    pub connection: u64,
    /// Zero.
    pub reserved: [u64; 2],
}

/// An entry of the control-request ring.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct ControlRequest {
    /// One of [`control_request`].
    pub kind: u32,
    /// Initial option bits of [`program_flags`].
    pub flags: u32,
    /// The program's own number for the socket, which events return.
    pub cookie: u64,
    /// CONNECT: peer's address.
    pub peer_addr: [u8; 16],
    /// CONNECT: local address; zero lets the service choose.
    pub local_addr: [u8; 16],
    /// CONNECT: peer's port, host byte order.
    pub peer_port: u16,
    /// CONNECT: local port of a reservation made before (RESERVE message); zero lets the service
    /// choose.
    pub local_port: u16,
    /// LISTENER_*: number of the listener.
    pub listener: u32,
    /// CONNECT: bits of [`fast_open`]; 0 for no Fast Open.
    pub fast_open: u32,
    /// Zero.
    pub reserved_word: u32,
    /// CONNECT: options that affect the SYN.
    pub options: OpenOptions,
    /// Zero.
    pub reserved: [u64; 3],
}

/// Bits of [`ControlRequest::fast_open`].
pub mod fast_open {
    /// Sends data with the SYN, or requests a cookie (TCP_FASTOPEN_CONNECT, MSG_FASTOPEN).
    pub const ASK: u32 = 1 << 0;
    /// TCP_FASTOPEN_NO_COOKIE.
    pub const WITHOUT_COOKIE: u32 = 1 << 1;
}

/// Kinds of [`ControlRequest`].
pub mod control_request {
    /// Active open. The answer is CONNECT_STARTED, CONNECT_FAILED or CONNECT_KERNEL.
    pub const CONNECT: u32 = 1;
    /// This context accepts connections of `listener` (it called accept, or waits for it).
    pub const LISTENER_JOIN: u32 = 2;
    /// This context accepts no more connections of `listener`.
    pub const LISTENER_LEAVE: u32 = 3;
}

/// An entry of the control-event ring.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct ControlEvent {
    /// One of [`control_event`].
    pub kind: u32,
    /// Slot of the connection.
    pub slot: u32,
    /// Cookie of the request (CONNECT_*) or of the listener (ACCEPTED).
    pub cookie: u64,
    /// Generation of the slot.
    pub generation: u32,
    /// CONNECT_FAILED: a [`close_cause`]. CONNECT_KERNEL: one of [`not_accelerated`].
    pub cause: u32,
    /// ACCEPTED: number of the listener.
    pub listener: u32,
    /// CONNECT_STARTED: number of bytes that the SYN can carry, while it waits for the program to
    /// write or to set OPEN_NOW. 0: the SYN has been sent.
    pub syn_room: u32,
    /// Zero.
    pub reserved: [u32; 8],
}

/// Kinds of [`ControlEvent`].
pub mod control_event {
    /// The connection has `slot`, whose names are valid. The SYN has been sent, or waits for data.
    pub const CONNECT_STARTED: u32 = 1;
    /// The open failed and there is no slot: see `cause`. (A later failure shows in the slot.)
    pub const CONNECT_FAILED: u32 = 2;
    /// An established connection of a listener, in `slot`, whose names are valid.
    pub const ACCEPTED: u32 = 3;
    /// The service does not carry this destination (its own address, without an accelerated
    /// listener), or a limit was reached: the program connects with the kernel. Only for routes
    /// with [`super::ROUTE_ASK`] or [`super::ROUTE_WITHIN_HOST`].
    pub const CONNECT_KERNEL: u32 = 4;
}

/// The service page: one per service, read-only for programs.
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
    /// Number of entries of `routes` in use, longest prefix first.
    pub routes_len: AtomicU32,
    _pad: [u64; 5],
    /// A cache line per core.
    pub core: [CoreLine; CORES_MAX],
    /// Routes that decide if a destination is accelerated.
    pub routes: [RouteEntry; ROUTES_MAX],
}

/// The part of a fast-path core's state that programs may read.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct CoreLine {
    /// 1 while the core sleeps or is about to sleep, and needs its doorbell rung.
    pub needs_wakeup: AtomicU32,
    /// CPU of the core plus one; 0 if the core is not pinned.
    pub cpu: AtomicU32,
    _pad: [u32; 14],
}

/// An address prefix, with addresses as in [`SlotNames`]. The fields are words, so that they can be
/// read under the sequence lock.
#[repr(C)]
#[derive(Debug)]
pub struct RouteEntry {
    /// The two halves of the address: big-endian bytes, read as native words.
    pub addr: [AtomicU64; 2],
    /// Prefix length in the 128-bit form (for IPv4, 96 more than the usual length).
    pub prefix_len: AtomicU32,
    /// [`ROUTE_KERNEL`], [`ROUTE_ACCELERATED`], [`ROUTE_ASK`] or [`ROUTE_WITHIN_HOST`].
    pub accelerated: AtomicU32,
}

/// Connections to this prefix stay with the kernel.
pub const ROUTE_KERNEL: u32 = 0;
/// Connections to this prefix are accelerated.
pub const ROUTE_ACCELERATED: u32 = 1;
/// The interface's own address: the service knows at CONNECT if an accelerated program listens
/// there. The program waits for the first answer (CONNECT_STARTED or CONNECT_KERNEL) before connect
/// returns.
pub const ROUTE_ASK: u32 = 2;
/// Loopback, or another address of this host: as [`ROUTE_ASK`] for programs that want such
/// connections within the service, as [`ROUTE_KERNEL`] for the others.
pub const ROUTE_WITHIN_HOST: u32 = 3;

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Header>() == 64);
    assert!(size_of::<RingIndex>() == 128);
    assert!(size_of::<ContextHead>() == 576);
    assert!(offset_of!(ContextHead, needs_wakeup) == 512);
    assert!(size_of::<ContextHead>() as u64 <= DATA_REQUEST_OFFSET);
    assert!(CONTROL_EVENT_OFFSET + 64 * CONTROL_RING_LEN as u64 <= CONTEXT_LEN);
    assert!(DATA_RING_LEN.is_power_of_two() && CONTROL_RING_LEN.is_power_of_two());
    assert!(size_of::<Slot>() == 256);
    assert!(offset_of!(Slot, program) == 64 && offset_of!(Slot, names) == 128);
    assert!(size_of::<ServiceHalf>() == 64 && size_of::<ProgramHalf>() == 64);
    assert!(size_of::<SlotNames>() == 64 && size_of::<SlotOptions>() == 64);
    assert!(offset_of!(Slot, options) == 192 && size_of::<OpenOptions>() == 40);
    assert!(size_of::<ControlRequest>() == 128 && size_of::<ControlEvent>() == 64);
    assert!(size_of::<CoreLine>() == 64 && size_of::<RouteEntry>() == 24);
    assert!(offset_of!(ServicePage, core) == 64);
};
