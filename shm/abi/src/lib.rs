//! The layout of every byte that crosses the boundary between a program and the service.
//!
//! Data only: no functions beyond constants and assertions (STYLE rule 7). All structures are
//! `repr(C)`, hold offsets instead of pointers, and have no implicit padding. Three memories exist:
//!
//! * the **program region**: three sealed, sparse memfds per program, made by the service, which
//!   both map side by side. The program can only read the receive buffers. Nothing that the
//!   service reads from the rest is trusted.
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
//! A **stream position** (`u32`, wrapping) counts payload bytes of one direction of one connection;
//! the first byte has position 0. A **stream buffer** of `2^log2` bytes at region offset `o` keeps
//! the byte of position `p` at `o + (p & (2^log2 - 1))`, so a buffer can be replaced by a larger
//! one by copying each byte to its place under the new mask.
#![no_std]
#![forbid(unsafe_code)]

pub mod close_cause;
mod options;
mod registration;

use core::sync::atomic::{AtomicU32, AtomicU64};

pub use options::{FIN_WAIT_2_NEVER, OpenOptions, SlotOptions, congestion};
pub use registration::{FlowNumbers, Message, flow_features, message, not_accelerated, refusal};

/// Changes with every change to this crate. A mismatch is refused at registration.
pub const ABI_VERSION: u32 = 12;
/// First eight bytes of a program region.
pub const REGION_MAGIC: u64 = u64::from_le_bytes(*b"TIDELNRG");
/// First eight bytes of the service page.
pub const SERVICE_PAGE_MAGIC: u64 = u64::from_le_bytes(*b"TIDELNSP");
/// First eight bytes of every registration message.
pub const MESSAGE_MAGIC: u64 = u64::from_le_bytes(*b"TIDELNMS");

/// Bytes of the region header.
pub const HEADER_LEN: u64 = 4096;
/// Bytes of region that belong to one context (rings and their indices).
pub const CONTEXT_LEN: u64 = 1 << 20;
/// Sets of rings that one program may have: one per context and fast-path core.
pub const CONTEXTS_MAX: u32 = 128;
/// Fast-path cores that one service may have.
pub const CORES_MAX: usize = 16;
/// Entries of the route table in the service page.
pub const ROUTES_MAX: usize = 256;
/// Smallest stream buffer: 2 KiB.
pub const STREAM_BUFFER_LOG2_MIN: u8 = 11;
/// Largest stream buffer: 8 MiB.
pub const STREAM_BUFFER_LOG2_MAX: u8 = 23;
/// Entries of each data ring (power of two).
pub const DATA_RING_LEN: u32 = 8192;
/// Entries of each control ring (power of two).
pub const CONTROL_RING_LEN: u32 = 1024;

/// Region offset of context `n`.
pub const fn context_offset(n: u32) -> u64 {
    HEADER_LEN + n as u64 * CONTEXT_LEN
}

/// Start of the program region. Written by the service before the program sees it, constant after.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// [`REGION_MAGIC`].
    pub magic: u64,
    /// [`ABI_VERSION`].
    pub abi_version: u32,
    /// Connections that the program can have at once.
    pub slots_max: u32,
    /// Bytes of the region.
    pub region_len: u64,
    /// Region offset of the slot array.
    pub slots_offset: u64,
    /// Region offset and length of the receive-buffer area (allocated by the service).
    pub rx_offset: u64,
    /// See `rx_offset`.
    pub rx_len: u64,
    /// Region offset and length of the send-buffer area (allocated by the program).
    pub tx_offset: u64,
    /// See `tx_offset`.
    pub tx_len: u64,
}

/// Producer and consumer index of a single-producer single-consumer ring, a cache line each.
///
/// Indices count entries since the start and wrap at 2^32; an entry's place is `index & (len - 1)`.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct RingIndex {
    /// Entries produced. Written by the producer only.
    pub produced: AtomicU32,
    _pad0: [u32; 15],
    /// Entries consumed. Written by the consumer only.
    pub consumed: AtomicU32,
    _pad1: [u32; 15],
}

/// Start of a context: indices of its four rings, then the sleep words.
///
/// The rings' entries follow at fixed offsets from the context's start.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ContextHead {
    /// Program to service, entries are words of [`data_request`].
    pub data_request: RingIndex,
    /// Service to program, entries are words of [`data_event`].
    pub data_event: RingIndex,
    /// Program to service, entries are [`ControlRequest`].
    pub control_request: RingIndex,
    /// Service to program, entries are [`ControlEvent`].
    pub control_event: RingIndex,
    /// 1 while the program sleeps, or is about to, and wants its doorbell rung. The program sets
    /// it, looks at the event rings once more, and sleeps; the service clears it when it rings.
    pub needs_wakeup: AtomicU32,
    /// The CPU that the context's thread last ran on plus one, 0 if unknown. A hint.
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

/// A word of the data-request ring: `kind << 56 | arg << 32 | slot`.
pub mod data_request {
    /// The program's half of the slot has changed: bytes written, bytes read, flags.
    pub const ADVANCE: u8 = 1;
    /// Events of the slot go to context `arg` from now on; its present state is announced there.
    pub const ASSIGN: u8 = 2;
    /// The program took `arg` connections from the accept queue of listener `slot`.
    pub const ACCEPT_TAKEN: u8 = 3;
}

/// A word of the data-event ring: `kind << 56 | slot`.
pub mod data_event {
    /// The service's half of the slot has changed.
    pub const READY: u8 = 1;
    /// The service is done with the slot: its send buffer is the program's again, and the slot's
    /// number may come back with another generation. Last event of a connection.
    pub const RELEASED: u8 = 2;
}

/// What the program knows of a connection and shares with the service, and the reverse. Two hot
/// lines, one written by each side, then the cold lines, written by the service once.
#[repr(C, align(256))]
#[derive(Debug)]
pub struct Slot {
    /// Written by the service.
    pub service: ServiceHalf,
    /// Written by the program.
    pub program: ProgramHalf,
    /// Written by the service before the slot is announced.
    pub names: SlotNames,
    /// Written by the program, seldom.
    pub options: SlotOptions,
}

/// The service's half of a [`Slot`]. The program only reads it.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ServiceHalf {
    /// Where received bytes lie: see [`BufferWord`]. Stored before `rx_head`. With
    /// [`buffer_word::MARKED`]: what lies from the position in `urgent` on is not read as the rest.
    pub rx_buffer: AtomicU64,
    /// The last value of the program's `tx_buffer` that the service uses: an older buffer is free.
    pub tx_buffer_seen: AtomicU64,
    /// Counts uses of this slot: even while free, odd while a connection has it.
    pub generation: AtomicU32,
    /// Stream position after the last in-order byte received.
    pub rx_head: AtomicU32,
    /// Stream position after the last byte that the peer acknowledged: older ones may be
    /// overwritten.
    pub tx_acked: AtomicU32,
    /// Bits of [`service_flags`].
    pub flags: AtomicU32,
    /// What ended the connection, as [`CloseCause`]; 0 while it lives.
    pub cause: AtomicU32,
    /// Receive window limit in bytes: the program announces its reads (ADVANCE) when it has read a
    /// quarter of this since its last announcement.
    pub rx_window: AtomicU32,
    /// Bytes that the program may have written and not yet acknowledged (the send buffer's limit).
    pub tx_limit: AtomicU32,
    /// With [`SlotOptions::tx_reports`]: stream position after the last byte that was sent.
    pub tx_sent: AtomicU32,
    /// With SOFT_ERROR: the last one, as `count << 8 | cause`, the cause as [`CloseCause`].
    pub soft_error: AtomicU32,
    /// With URGENT: stream position of the urgent byte before the one in `urgent`, or that one's.
    pub urgent_before: AtomicU32,
    /// With URGENT: the last urgent byte, as `position << 32 | state << 8 | byte`, the state one of
    /// [`urgent_state`]; the byte counts once it is there. Stored before `rx_head`.
    pub urgent: AtomicU64,
}

/// The program's half of a [`Slot`]. The service reads each field once per use and validates it.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ProgramHalf {
    /// Where bytes to send lie: see [`BufferWord`]. Stored before `tx_head`.
    pub tx_buffer: AtomicU64,
    /// The last value of the service's `rx_buffer` that the program uses: an older one is free.
    pub rx_buffer_seen: AtomicU64,
    /// Equals the generation that the program acts for; others are ignored.
    pub generation: AtomicU32,
    /// Stream position after the last byte that the program wrote.
    pub tx_head: AtomicU32,
    /// Stream position after the last byte that the program read.
    pub rx_read: AtomicU32,
    /// Bits of [`program_flags`].
    pub flags: AtomicU32,
    /// SO_LINGER seconds plus one, 0 if off. Linger 0 is CLOSE with ABORT.
    pub linger: AtomicU32,
    /// Not 0 while the program moves bytes of a SHARED connection: it is not to be taken away now.
    pub held: AtomicU32,
    _pad: [u32; 6],
}

/// A stream buffer in one word: `kib << 8 | log2`, `kib` the region offset in units of 1 KiB.
/// Zero: no buffer.
pub mod buffer_word {
    /// Bits of the size's logarithm.
    pub const LOG2_BITS: u32 = 8;
    /// Unit of the offset.
    pub const OFFSET_UNIT: u64 = 1024;
    /// A receive buffer in which there is, or will be, urgent data: no part of the word's meaning.
    pub const MARKED: u64 = 1 << 63;
}

/// See [`buffer_word`].
pub type BufferWord = u64;

/// Bits of [`ServiceHalf::flags`].
pub mod service_flags {
    /// The handshake is complete.
    pub const ESTABLISHED: u32 = 1 << 0;
    /// The peer sent FIN and all before it is in the buffer: end of file after `rx_head`.
    pub const FIN_RECEIVED: u32 = 1 << 1;
    /// The connection is over; `cause` says why. Unread bytes can still be read.
    pub const CLOSED: u32 = 1 << 2;
    /// Our FIN was acknowledged.
    pub const FIN_ACKED: u32 = 1 << 3;
    /// The connection stays within this service (the memory wire).
    pub const MEMORY_WIRE: u32 = 1 << 4;
    /// Other processes hold the connection too (fork).
    pub const SHARED: u32 = 1 << 5;
    /// With SHARED: another process has the connection at present; nothing else in this slot is
    /// true any more. TAKE brings it back.
    pub const ELSEWHERE: u32 = 1 << 6;
    /// With ELSEWHERE: something happened to it since it went, or that process is gone.
    pub const NEWS: u32 = 1 << 7;
    /// There was an error of the path that did not end the connection: `soft_error` says which.
    pub const SOFT_ERROR: u32 = 1 << 8;
    /// There is urgent data that the program has not read beyond: `urgent` says where.
    pub const URGENT: u32 = 1 << 9;
}

/// What is known of an urgent byte, in [`ServiceHalf::urgent`].
pub mod urgent_state {
    /// It is announced, and has not come.
    pub const ANNOUNCED: u8 = 1;
    /// It came, though perhaps not all before it.
    pub const THERE: u8 = 2;
}

/// Bits of [`ProgramHalf::flags`].
pub mod program_flags {
    /// No more bytes after `tx_head`: send FIN.
    pub const SHUT_WRITE: u32 = 1 << 0;
    /// The program discards what arrives from now on (shutdown for reading).
    pub const SHUT_READ: u32 = 1 << 1;
    /// The program closed the socket: it will not look at this slot again.
    pub const CLOSE: u32 = 1 << 2;
    /// With CLOSE: reset instead of FIN.
    pub const ABORT: u32 = 1 << 3;
    /// TCP_NODELAY.
    pub const NODELAY: u32 = 1 << 4;
    /// TCP_CORK, or MSG_MORE on the last write.
    pub const CORK: u32 = 1 << 5;
    /// SO_KEEPALIVE.
    pub const KEEPALIVE: u32 = 1 << 6;
    /// The program has taken this connection from the accept queue.
    pub const TAKEN: u32 = 1 << 7;
    /// TCP_QUICKACK.
    pub const QUICKACK: u32 = 1 << 8;
    /// A SYN that waits for text shall leave without ([`syn_room`](super::ControlEvent::syn_room)).
    pub const OPEN_NOW: u32 = 1 << 9;
    /// The bits from here on count the changes of [`SlotOptions`](super::SlotOptions).
    pub const OPTIONS_ONE: u32 = 1 << 10;
    /// The bits of that count.
    pub const OPTIONS: u32 = !(OPTIONS_ONE - 1);
}

/// See [`close_cause`].
pub type CloseCause = u32;

/// Addresses of a connection. IPv4 is kept as `::ffff:a.b.c.d`. Ports are in host byte order.
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
    /// Identity of the connection, unique while the service lives.
    pub connection: u64,
    /// Zero.
    pub reserved: [u64; 2],
}

/// One entry of the control-request ring.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct ControlRequest {
    /// One of [`control_request`].
    pub kind: u32,
    /// Option bits of [`program_flags`] that hold from the start.
    pub flags: u32,
    /// The program's own number for the socket; comes back in events.
    pub cookie: u64,
    /// CONNECT: peer.
    pub peer_addr: [u8; 16],
    /// CONNECT: local address, zero to let the service choose.
    pub local_addr: [u8; 16],
    /// CONNECT: peer's port, host byte order.
    pub peer_port: u16,
    /// CONNECT: local port of a reservation made before (RESERVE message), zero to choose.
    pub local_port: u16,
    /// Listener number (LISTENER_*).
    pub listener: u32,
    /// CONNECT: bits of [`fast_open`]; 0: none of it.
    pub fast_open: u32,
    /// Zero.
    pub reserved_word: u32,
    /// CONNECT: what the SYN depends on.
    pub options: OpenOptions,
    /// Zero.
    pub reserved: [u64; 3],
}

/// Bits of [`ControlRequest::fast_open`].
pub mod fast_open {
    /// Text may go with SYN, or a cookie is asked for (TCP_FASTOPEN_CONNECT, MSG_FASTOPEN).
    pub const ASK: u32 = 1 << 0;
    /// TCP_FASTOPEN_NO_COOKIE.
    pub const WITHOUT_COOKIE: u32 = 1 << 1;
}

/// Kinds of [`ControlRequest`].
pub mod control_request {
    /// Active open. Answered by CONNECT_STARTED and CONNECTED, or CONNECT_FAILED.
    pub const CONNECT: u32 = 1;
    /// This context wants connections of `listener` (it called accept, or waits for it).
    pub const LISTENER_JOIN: u32 = 2;
    /// This context wants no more connections of `listener`.
    pub const LISTENER_LEAVE: u32 = 3;
}

/// One entry of the control-event ring.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct ControlEvent {
    /// One of [`control_event`].
    pub kind: u32,
    /// The connection's slot.
    pub slot: u32,
    /// The request's cookie (CONNECT_*), or the listener's (ACCEPTED).
    pub cookie: u64,
    /// The slot's generation.
    pub generation: u32,
    /// CONNECT_FAILED: a [`close_cause`]. CONNECT_KERNEL: one of
    /// [`not_accelerated`].
    pub cause: u32,
    /// ACCEPTED: the listener's number.
    pub listener: u32,
    /// CONNECT_STARTED: SYN waits for the program to write, or to set OPEN_NOW, and will carry so
    /// many bytes. 0: it is on its way.
    pub syn_room: u32,
    /// Zero.
    pub reserved: [u32; 8],
}

/// Kinds of [`ControlEvent`].
pub mod control_event {
    /// The SYN is on its way; `slot` is the connection's, its names are valid.
    pub const CONNECT_STARTED: u32 = 1;
    /// There will be no slot: `cause`. (A later failure is seen in the slot.)
    pub const CONNECT_FAILED: u32 = 2;
    /// A connection for a listener, established, in `slot`; its names are valid.
    pub const ACCEPTED: u32 = 3;
    /// The service does not carry this destination (its own address, and no accelerated program
    /// listens there), or a limit was reached: connect with the kernel. Only for routes with
    /// [`super::ROUTE_ASK`].
    pub const CONNECT_KERNEL: u32 = 4;
}

/// Read-only for programs. One per service.
#[repr(C)]
#[derive(Debug)]
pub struct ServicePage {
    /// [`SERVICE_PAGE_MAGIC`].
    pub magic: u64,
    /// [`ABI_VERSION`].
    pub abi_version: u32,
    /// Fast-path cores in use.
    pub cores: u32,
    /// Counts changes of `routes`: odd while one is being made (a sequence lock).
    pub routes_sequence: AtomicU32,
    /// Entries of `routes` in use, longest prefix first.
    pub routes_len: AtomicU32,
    _pad: [u64; 5],
    /// One line per core.
    pub core: [CoreLine; CORES_MAX],
    /// Which destinations are accelerated.
    pub routes: [RouteEntry; ROUTES_MAX],
}

/// What a program may know of a fast-path core.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct CoreLine {
    /// 1 while the core sleeps, or is about to, and wants its doorbell rung.
    pub needs_wakeup: AtomicU32,
    /// The CPU it runs on plus one, 0 if it is not pinned.
    pub cpu: AtomicU32,
    _pad: [u32; 14],
}

/// One prefix. Addresses as in [`SlotNames`]; words so that they can be read under the sequence
/// lock.
#[repr(C)]
#[derive(Debug)]
pub struct RouteEntry {
    /// The address' two halves, big-endian bytes read as native words.
    pub addr: [AtomicU64; 2],
    /// Prefix length on the 128-bit form (IPv4: 96 more than usual).
    pub prefix_len: AtomicU32,
    /// [`ROUTE_KERNEL`], [`ROUTE_ACCELERATED`] or [`ROUTE_ASK`].
    pub accelerated: AtomicU32,
}

/// Connections to this prefix stay with the kernel.
pub const ROUTE_KERNEL: u32 = 0;
/// Connections to this prefix are accelerated.
pub const ROUTE_ACCELERATED: u32 = 1;
/// The interface's own address: the service knows at CONNECT whether an accelerated program listens
/// there, so wait for the first answer (CONNECT_STARTED or CONNECT_KERNEL) before connect returns.
pub const ROUTE_ASK: u32 = 2;

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
