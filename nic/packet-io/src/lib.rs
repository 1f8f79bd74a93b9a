//! Packets in and out: the trait between a host and whatever carries its frames.
//!
//! A *frame* is one Ethernet frame without its check sequence. Frames live in the port's memory; a
//! receiver gets a [`Burst`] of them, looks at the bytes while it sends through the same port, and
//! gives the burst back. A transmitter fills the next free frame in place.
#![forbid(unsafe_code)]

use std::sync::atomic::AtomicU8;

mod capture;
mod checksum;
mod mem;

pub use capture::Capture;
pub use checksum::finish_checksum;
pub use mem::{MemBurst, MemConfig, MemPort};

/// Frames that one burst may hold.
pub const BURST_MAX: usize = 64;

/// Received frames that a port has lent out, oldest first: from [`PacketIo::rx_burst`] to
/// [`PacketIo::rx_release`]. It is apart from the port, so that they can be read while the port
/// sends. What is dropped without a release is lost to the port.
pub trait Burst {
    /// How many there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of frame `at`, counted from zero. `None` if there are no more than `at`.
    fn frame(&self, at: usize) -> Option<&[u8]>;

    /// The bytes of all frames.
    #[inline]
    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map_while(|at| self.frame(at))
    }
}

/// What the port does with the transport checksum of a frame it transmits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxChecksum {
    /// The frame is complete.
    Done,
    /// The field holds the pseudo-header sum; the port, or the peer if it is on the same machine,
    /// finishes it. Offsets in bytes from the frame's start, and from there to the field.
    Partial {
        /// Where summing starts.
        start: u16,
        /// The field's offset from `start`.
        offset: u16,
    },
}

/// What a port can do; asked once at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Largest frame that can be transmitted, in bytes.
    pub tx_frame_len_max: u32,
    /// [`TxChecksum::Partial`] is finished by the port.
    pub tx_checksum: bool,
    /// A received frame that comes from this same machine may have an unfinished checksum (the
    /// field holds the pseudo-header sum): veth, and the memory port.
    pub rx_checksum_may_be_partial: bool,
    /// Largest super-frame that can be transmitted, in bytes; zero where there are none.
    pub tx_super_len_max: u32,
}

/// How the link cuts a super-frame into frames (segmentation offload): each gets the headers, with
/// lengths, sequence numbers and checksums as TCP has them, and a piece of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuperFrame {
    /// Bytes of all headers, link to TCP.
    pub headers_len: u16,
    /// Bytes of payload of each frame but the last.
    pub segment_size: u16,
    /// Where the TCP header begins. Its checksum field holds the pseudo-header sum of the whole.
    pub tcp_start: u16,
    /// The IP header is IPv6's.
    pub is_v6: bool,
}

/// Bytes of a super-frame's payload, in memory that somebody else may be writing: two runs,
/// because a stream buffer wraps.
pub type SharedPayload<'a> = [&'a [AtomicU8]; 2];

/// The link has no room for a super-frame now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkFull;

/// A port: one NIC queue, a memory link, a simulated link. Never blocks.
pub trait PacketIo {
    /// Received frames in the port's memory.
    type Burst: Burst;

    /// What this port can do.
    fn capabilities(&self) -> Capabilities;

    /// A burst without frames, for this port.
    fn new_burst(&self) -> Self::Burst;

    /// Appends up to `max` received frames to `burst`, oldest first; returns how many.
    fn rx_burst(&mut self, burst: &mut Self::Burst, max: usize) -> usize;

    /// Takes the frames of `burst` back, which came from this port. It is empty afterwards.
    fn rx_release(&mut self, burst: &mut Self::Burst);

    /// Frames that came and were lost because the port had no room for them, ever.
    fn rx_overruns(&self) -> u64 {
        0
    }

    /// The next free transmit frame, `tx_frame_len_max` bytes long, or `None` when all are in
    /// flight. Calling it again without [`tx_commit`](Self::tx_commit) gives the same frame.
    fn tx_frame(&mut self) -> Option<&mut [u8]>;

    /// Queues the frame last given by [`tx_frame`](Self::tx_frame), its first `len` bytes.
    fn tx_commit(&mut self, len: usize, checksum: TxChecksum);

    /// Where the headers of a super-frame are written; empty where there are none.
    fn tx_super_headers(&mut self) -> &mut [u8] {
        &mut []
    }

    /// Hands the first `cut.headers_len` bytes of [`tx_super_headers`](Self::tx_super_headers) and
    /// the payload behind them to the link, after all frames that were committed before. The
    /// payload is read once, at any time during the call.
    fn tx_super_send(
        &mut self,
        payload: SharedPayload<'_>,
        cut: SuperFrame,
    ) -> Result<(), LinkFull> {
        let _ = (payload, cut);
        Err(LinkFull)
    }

    /// Hands all queued frames to the link and collects finished ones.
    fn tx_flush(&mut self);

    /// Whether the link has not taken all flushed frames yet: flush again soon.
    fn tx_pending(&mut self) -> bool {
        false
    }
}
