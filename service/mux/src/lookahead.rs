//! Look-ups of the receivers of frames, some frames before the mux copies the frames. A *mux port*
//! is a pair of packet rings through which a program with a TCP/IP stack of its own shares the NIC.

use crate::{claims::PortId, port_end::PortEnd, port_table::PortTable};

/// Largest number of frames whose receivers are known and that the mux has not copied yet.
const FRAMES: usize = 8;

/// The receivers of the next frames of a burst. A packet ring is often in the cache of its
/// program's CPU. The mux therefore prefetches the memory for a frame as soon as the receiver is
/// known, and copies the frame later.
#[derive(Debug, Default)]
pub struct Lookahead {
    /// The mux port that receives each frame. The index is the frame's number in the burst, modulo
    /// [`FRAMES`]. `None` if no mux port receives the frame.
    receivers: [Option<PortId>; FRAMES],
    /// Number of frames whose receivers were added.
    found: usize,
    /// Number of frames whose receivers were taken.
    taken: usize,
    /// Number of the first frame of a run. The run ends with the newest added frame, and all its
    /// frames have one receiver.
    same_since: usize,
}

impl Lookahead {
    /// Returns true if there is no room for a further receiver.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.found - self.taken == FRAMES
    }

    /// Adds the receiver of the next frame, and prefetches the memory for the frame in the
    /// receiver's packet ring. `len` is the length of the frame in bytes. There must be room.
    ///
    /// The prefetch skips the memory of earlier frames that the mux has still to copy to this
    /// receiver. Only an unbroken run of frames directly before this frame counts. If a frame for
    /// another receiver interrupts the run, the prefetch gets the memory of an earlier frame.
    #[inline]
    pub fn add<P: PortEnd>(&mut self, receiver: Option<PortId>, len: usize, table: &PortTable<P>) {
        if self.receivers[self.found.wrapping_sub(1) % FRAMES] != receiver {
            self.same_since = self.found;
        }
        if let Some(port) = receiver.and_then(|id| table.get(id)) {
            let before = self.found - self.same_since.max(self.taken);
            port.io.prefetch_tx(before, len);
        }
        self.receivers[self.found % FRAMES] = receiver;
        self.found += 1;
    }

    /// Takes the receiver of the next frame. There must be a receiver.
    #[inline]
    pub fn take(&mut self) -> Option<PortId> {
        let receiver = self.receivers[self.taken % FRAMES];
        self.taken += 1;
        receiver
    }
}

#[cfg(test)]
mod tests {
    use tidelane_packet_io::MemPort;

    use super::*;

    #[test]
    fn receivers_are_taken_in_the_order_of_the_frames() {
        let table = PortTable::<MemPort>::new(0);
        let mut ahead = Lookahead::default();
        let receiver =
            |frame: usize| (!frame.is_multiple_of(3)).then_some(PortId(frame as u32 / 5));
        let mut added = 0;
        for frame in 0..100 {
            while !ahead.is_full() {
                ahead.add(receiver(added), 60, &table);
                added += 1;
            }
            assert_eq!(ahead.take(), receiver(frame), "frame {frame}");
        }
        assert_eq!(added, 99 + FRAMES);
    }
}
