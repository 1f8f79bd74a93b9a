//! Packet I/O: the interface between a TCP/IP stack (crate `tidelane-host`) and a port.
//!
//! A *port* is one queue of a NIC, or one end of a link in memory. A *frame* is one Ethernet frame
//! without its check sequence, in the port's memory. A receiver gets a [`Burst`] of frames, may
//! send through the same port while it reads the frames, and then releases the burst. A transmitter
//! fills the next free frame in place.
//!
//! A *GSO frame* has the payload of many TCP segments. The link or the receiver splits the frame
//! into segments.
#![deny(unsafe_code)]

mod capture;
mod checksum;
mod gso;
mod mem;
pub mod pcapng;
#[allow(unsafe_code)]
mod shared_frames_unsafe;
mod tap;

pub use capture::Capture;
pub use checksum::finish_checksum;
pub use gso::{GSO_SEGMENT_MIN, GsoParameters, GsoPayload};
pub use mem::{MemBurst, MemConfig, MemPort};
pub use shared_frames_unsafe::{FrameData, FrameMemory, SharedFrames};
pub use tap::{Captured, Tap, TapOptions, Tapped};

/// Largest number of frames that a caller usually requests with one [`PacketIo::rx_burst`]. A burst
/// may hold more frames.
pub const BURST_MAX: usize = 64;

/// Offset of the checksum field in a TCP header, in bytes (RFC 9293 §3.1).
pub const TCP_CHECKSUM_AT: u16 = 16;

/// Received frames, oldest first. The port lends the frames to the caller from
/// [`PacketIo::rx_burst`] to [`PacketIo::rx_release`]. A burst is not a part of the port, so that
/// the caller can read the frames while the port sends. If a burst is dropped without a release,
/// the port loses the frames of the burst.
pub trait Burst {
    /// Returns the number of frames.
    fn len(&self) -> usize;

    /// Returns true if the burst has no frame.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of frame `at`, counted from zero; `None` if the burst has no frame `at`.
    fn frame(&self, at: usize) -> Option<&[u8]>;

    /// Returns the segment size (payload bytes) of frame `at` if the frame is a GSO frame, which
    /// the receiver has to split. Returns zero for every other frame. Only the service's end of a
    /// mux port (shared memory between a program and the service, crate `tidelane-packet-ring`)
    /// reports segment sizes.
    #[inline]
    fn segment_size(&self, at: usize) -> u16 {
        let _ = at;
        0
    }

    /// Iterates over the bytes of all frames.
    #[inline]
    fn iter(&self) -> impl Iterator<Item = &[u8]> + Clone {
        (0..self.len()).map_while(|at| self.frame(at))
    }
}

/// State of the transport checksum in a frame that is to be transmitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxChecksum {
    /// The checksum is complete.
    Done,
    /// Partial checksum (Linux: CHECKSUM_PARTIAL): the checksum field holds only the sum of the
    /// pseudo-header. The port completes the checksum, or leaves the checksum to the device or to a
    /// peer on the same machine. Both offsets are in bytes.
    Partial {
        /// Start of the summed range, from the start of the frame.
        start: u16,
        /// Offset of the checksum field from `start`.
        offset: u16,
    },
}

impl TxChecksum {
    /// Returns the state of a partial checksum in a TCP segment whose header starts at byte
    /// `tcp_start` of the frame.
    #[inline(always)]
    pub const fn partial_tcp(tcp_start: usize) -> Self {
        Self::Partial {
            start: tcp_start as u16,
            offset: TCP_CHECKSUM_AT,
        }
    }
}

/// Capabilities of a port, which do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Largest frame that can be transmitted, in bytes.
    pub tx_frame_len_max: u32,
    /// True if the sender should send partial checksums ([`TxChecksum::Partial`]).
    pub tx_checksum: bool,
    /// True if a received frame may come from this machine and have a partial checksum (the field
    /// holds only the pseudo-header sum). A port of a veth interface is an example.
    pub rx_checksum_may_be_partial: bool,
    /// Largest GSO frame that can be transmitted, in bytes; zero if the port sends no GSO frames.
    pub tx_gso_len_max: u32,
}

/// The link has no space for a frame at present. The caller may try again after a later flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkFull;

/// A port: one NIC queue, one end of a link in memory, or a simulated link. No method blocks.
pub trait PacketIo {
    /// Received frames in the port's memory.
    type Burst: Burst;

    /// Returns the capabilities of this port.
    fn capabilities(&self) -> Capabilities;

    /// Returns an empty burst for this port.
    fn new_burst(&self) -> Self::Burst;

    /// Appends up to `max` received frames to `burst`, oldest first. Returns the number of appended
    /// frames.
    fn rx_burst(&mut self, burst: &mut Self::Burst, max: usize) -> usize;

    /// Takes back the frames of `burst`, which must come from this port, and empties the burst.
    fn rx_release(&mut self, burst: &mut Self::Burst);

    /// Returns the number of received frames that the port has lost so far for lack of space.
    fn rx_overruns(&self) -> u64 {
        0
    }

    /// Returns the next free transmit frame of `tx_frame_len_max` bytes; `None` if no frame is
    /// free. Returns the same frame again until [`tx_commit`](Self::tx_commit).
    fn tx_frame(&mut self) -> Option<&mut [u8]>;

    /// Queues the first `len` bytes of the frame that [`tx_frame`](Self::tx_frame) returned most
    /// recently.
    fn tx_commit(&mut self, len: usize, checksum: TxChecksum);

    /// Returns the buffer for the headers of a GSO frame; empty if the port sends no GSO frames.
    fn tx_gso_headers(&mut self) -> &mut [u8] {
        &mut []
    }

    /// Sends a GSO frame: the first `gso.headers_len` bytes of
    /// [`tx_gso_headers`](Self::tx_gso_headers), followed by the payload. The frame follows all
    /// frames that were committed earlier. The port reads each byte of the payload once. A layer
    /// that records frames ([`Capture`], [`Tapped`]) reads the payload once more.
    ///
    /// # Errors
    ///
    /// `LinkFull` if the link has no space, or has not taken all frames that were committed earlier
    /// ([`tx_pending`](Self::tx_pending)).
    fn tx_gso_send(&mut self, payload: GsoPayload<'_>, gso: GsoParameters) -> Result<(), LinkFull> {
        let _ = (payload, gso);
        Err(LinkFull)
    }

    /// Hands all queued frames to the link and reclaims transmitted frames.
    fn tx_flush(&mut self);

    /// Returns true if the link has not taken all flushed frames, so that the caller should flush
    /// again.
    fn tx_pending(&mut self) -> bool {
        false
    }

    /// Returns the interface by which the port and its user (the TCP/IP stack that opened the port)
    /// exchange frames; `None` if the port shares no frames.
    fn shared_frames(&mut self) -> Option<&mut dyn SharedFrames<Self::Burst>> {
        None
    }

    /// Returns the number of system calls that the port has made to move frames; zero if the port
    /// does not count system calls.
    fn system_calls(&self) -> u64 {
        0
    }
}
