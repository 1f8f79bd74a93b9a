//! A turn of a port: the progress through one burst of the port's frames.

use crate::{claims::PortId, rate::Amount};

/// A turn of a port. A turn pauses while a packet waits for the NIC, and goes on later.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// The port.
    pub port: PortId,
    /// Position in the burst of the next frame.
    pub next: usize,
    /// Next segment of the next frame, if the frame is a GSO frame.
    pub segment: usize,
    /// The amount of the segments of GSO frames beyond one packet for each frame.
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

    /// Returns the number of packets so far. The segments of a GSO frame count after the last one.
    #[inline]
    pub fn packets(&self) -> usize {
        self.next + self.beyond.packets as usize
    }
}
