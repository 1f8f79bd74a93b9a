//! The structures of `tidelane_rings.h`. The back end of a context (the sockets of one thread) is
//! the TCP/IP stack that carries its connections.

use std::{ffi::c_char, mem::offset_of, ptr};

use tidelane_rings::{Cause, Descriptor, Entry, Events};

/// Back end `TLR_IO_URING`: the kernel's TCP.
pub const IO_URING: u32 = 1;
/// Back end `TLR_DIRECT`: TCP in this process, on a queue of an interface.
pub const DIRECT: u32 = 2;
/// Back end `TLR_SERVICE`: TCP in the Tidelane service, a process of its own.
pub const SERVICE: u32 = 3;
/// Flag `TLR_STEERED`: the NIC sends the packets of the program's ports to [`Options::queue`].
pub const STEERED: u32 = 1;
/// `TLR_NONE`: no next slot, no first slot, or no listener (in an entry without `TLR_ACCEPTED`).
pub const NONE: i32 = -1;

/// `struct tlr_options`: parameters of a context. Zero or a null pointer stands for the default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// [`IO_URING`], [`DIRECT`] or [`SERVICE`].
    pub back_end: u32,
    /// Number of buffers of the pool.
    pub buffers: u32,
    /// Bytes of each buffer. `TLR_DIRECT` ignores this number.
    pub buffer_len: u32,
    /// Limit of the buffers that wait for sending on one descriptor.
    pub send_queue_max: u32,
    /// `TLR_IO_URING`: microseconds for which a wait polls the NIC.
    pub busy_poll_us: u32,
    /// `TLR_DIRECT`: number of the interface's queue. A queue other than 0 requires [`STEERED`].
    pub queue: u32,
    /// Zero or [`STEERED`].
    pub flags: u32,
    /// Zero.
    pub padding: u32,
    /// `TLR_DIRECT`: name of the interface, which has no default.
    pub interface: *const c_char,
    /// `TLR_SERVICE`: path of the service's socket.
    pub service: *const c_char,
    /// Zero, so that later versions can give a meaning to other values.
    pub reserved: [u64; 4],
}

const _: () = assert!(size_of::<Options>() == 80 && offset_of!(Options, interface) == 32);
const _: () = assert!(offset_of!(Options, reserved) == 48);

impl Default for Options {
    fn default() -> Self {
        Self {
            back_end: 0,
            buffers: 0,
            buffer_len: 0,
            send_queue_max: 0,
            busy_poll_us: 0,
            queue: 0,
            flags: 0,
            padding: 0,
            interface: ptr::null(),
            service: ptr::null(),
            reserved: [0; 4],
        }
    }
}

/// `struct tlr_entry`: a descriptor with data or events.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CEntry {
    descriptor: i32,
    /// The bits of the [`Events`].
    events: u32,
    /// Errno of a CLOSED or SEND_FAILED event, otherwise zero.
    cause: i32,
    /// Listener of an ACCEPTED event, otherwise [`NONE`].
    listener: i32,
    /// Index of the first slot, or [`NONE`].
    first: i32,
    /// Number of slots.
    slots: u32,
    /// Number of bytes in all slots.
    bytes: u32,
}

const _: () = assert!(size_of::<CEntry>() == 28 && offset_of!(CEntry, bytes) == 24);

// The events have the values of `TLR_ACCEPTED` to `TLR_SEND_FAILED` in the header.
const _: () = assert!(Events::ACCEPTED.bits() == 1 && Events::CONNECTED.bits() == 2);
const _: () = assert!(Events::READABLE.bits() == 4 && Events::END.bits() == 8);
const _: () = assert!(Events::WRITABLE.bits() == 16 && Events::CLOSED.bits() == 32);
const _: () = assert!(Events::SEND_FAILED.bits() == 64);

impl From<Entry> for CEntry {
    fn from(entry: Entry) -> Self {
        let cause = entry.cause.map_or(0, |cause| match cause {
            Cause::Reset => libc::ECONNRESET,
            Cause::Refused => libc::ECONNREFUSED,
            Cause::TimedOut => libc::ETIMEDOUT,
            Cause::Unreachable => libc::EHOSTUNREACH,
            Cause::TooLong => libc::EMSGSIZE,
            Cause::Other => libc::EIO,
        });
        Self {
            descriptor: to_c(entry.descriptor),
            events: entry.events.bits().into(),
            cause,
            listener: entry.listener.map_or(NONE, to_c),
            first: entry.first.map_or(NONE, |slot| slot as i32),
            slots: entry.slots,
            bytes: entry.bytes,
        }
    }
}

/// `struct tlr_slot`: received data of a connection, or one datagram of a UDP socket.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CSlot {
    /// Number of the buffer with the data.
    pub buffer: i64,
    pub descriptor: i32,
    /// Bytes of the data.
    pub len: u32,
    /// Index of the next slot of the descriptor, or [`NONE`].
    pub next: i32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<CSlot>() == 24 && offset_of!(CSlot, next) == 16);

/// `struct tlr_counters`: counters of a context.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    /// Calls of `tlr_sync`, `tlr_rx_sync` and `tlr_tx_sync`.
    pub syncs: u64,
    /// System calls that these calls have made.
    pub system_calls: u64,
    /// Buffers of the pool.
    pub buffers: u32,
    /// Buffers of the pool that can be allocated.
    pub buffers_free: u32,
    /// Buffers that the program owns.
    pub buffers_held: u32,
    /// Bytes of each buffer of the pool.
    pub buffer_len: u32,
}

const _: () = assert!(size_of::<Counters>() == 32 && offset_of!(Counters, buffer_len) == 28);

/// Converts a descriptor to its number in C. A context has fewer than 2^31 descriptors, because
/// each needs memory for its socket.
pub fn to_c(descriptor: Descriptor) -> i32 {
    descriptor.0 as i32
}
