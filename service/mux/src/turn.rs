//! A turn of a mux port: the mux's progress through one burst of the port's frames. A mux port is a
//! pair of packet rings through which a program with a TCP/IP stack of its own shares the NIC.

use crate::{claims::PortId, rate::Amount};

/// Progress of one packet that a mux port sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The packet was sent, refused or lost.
    Done,
    /// The packet waits until the NIC has room.
    WaitsForNic,
}

/// A turn of a mux port. A turn pauses while a packet waits for room in the NIC, and goes on later.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// The mux port.
    pub port: PortId,
    /// Position of the next frame in the burst.
    pub next: usize,
    /// Number of the next segment, counted from 0, if the next frame is a GSO frame (the headers of
    /// one TCP segment with the payload of several segments). Otherwise zero.
    pub segment: usize,
    /// Packets and bytes by which the segments of the turn's GSO frames exceed the frames. A GSO
    /// frame of ten segments adds nine packets, and the bytes of nine copies of the headers.
    pub beyond: Amount,
}

impl Turn {
    /// Returns a turn of `port` before its first frame.
    pub fn new(port: PortId) -> Self {
        Self {
            port,
            next: 0,
            segment: 0,
            beyond: Amount::default(),
        }
    }

    /// Goes on to the next frame. A GSO frame may end before its last segment: if the frame has
    /// waited for room in the NIC, the mux checks the frame again, and may refuse the rest.
    #[inline]
    pub fn end_frame(&mut self) {
        self.next += 1;
        self.beyond.packets += self.segment.saturating_sub(1) as u64;
        self.segment = 0;
    }

    /// Returns the number of packets of the frames that have ended. A GSO frame counts as the
    /// number of its sent segments, or as one packet if no segment was sent.
    #[inline]
    pub fn packets(&self) -> usize {
        self.next + self.beyond.packets as usize
    }
}
