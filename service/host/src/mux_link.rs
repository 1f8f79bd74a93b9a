//! The link in memory between the engine of the host and the ports of the mux. Programs with
//! sockets on the service and programs with TCP/IP stacks of their own reach each other over this
//! link.

use tidelane_engine::{LinkId, SegmentOut, TxFull};
use tidelane_packet_io::{Burst, Capabilities, PacketIo, TxChecksum};
use tidelane_time::Instant;
use tidelane_wire::HeaderTemplate;

use crate::{
    HostCounters,
    transmit::{Source, Transmitter},
};

/// Number of the link to the ports of the mux.
pub const MUX_LINK: LinkId = LinkId(u16::MAX);
/// Length in bytes of the largest frame of the link.
const FRAME_LEN_MAX: usize = 2048;
/// MTU of the link in bytes: the largest frame without its Ethernet header.
pub const MTU: u32 = FRAME_LEN_MAX as u32 - 14;
/// Limit of frames that wait in each direction.
const FRAMES_MAX: usize = 1024;

/// A queue of frames, oldest first.
#[derive(Default)]
pub struct FrameQueue {
    bytes: Vec<u8>,
    /// Offset in `bytes` of the end of each frame.
    ends: Vec<usize>,
}

impl FrameQueue {
    /// Returns true if no frame waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the offset of the end of the last frame.
    fn end(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Removes all frames.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

impl Burst for FrameQueue {
    fn len(&self) -> usize {
        self.ends.len()
    }

    fn frame(&self, at: usize) -> Option<&[u8]> {
        let end = *self.ends.get(at)?;
        let start = match at {
            0 => 0,
            _ => *self.ends.get(at - 1)?,
        };
        self.bytes.get(start..end)
    }
}

/// The queue is the port of a [`Transmitter`]. The queue receives no frames.
impl PacketIo for FrameQueue {
    type Burst = Self;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            tx_frame_len_max: FRAME_LEN_MAX as u32,
            tx_checksum: false,
            rx_checksum_may_be_partial: false,
            tx_gso_len_max: 0,
        }
    }

    fn new_burst(&self) -> Self {
        Self::default()
    }

    fn rx_burst(&mut self, _burst: &mut Self, _max: usize) -> usize {
        0
    }

    fn rx_release(&mut self, burst: &mut Self) {
        burst.clear();
    }

    fn tx_frame(&mut self) -> Option<&mut [u8]> {
        if self.ends.len() >= FRAMES_MAX {
            return None;
        }
        let start = self.end();
        self.bytes.resize(start + FRAME_LEN_MAX, 0);
        self.bytes.get_mut(start..)
    }

    fn tx_commit(&mut self, len: usize, _checksum: TxChecksum) {
        let end = self.end() + len;
        self.bytes.truncate(end);
        self.ends.push(end);
    }

    fn tx_flush(&mut self) {}
}

/// The frames that wait on the link, in both directions.
#[derive(Default)]
pub struct MuxLink {
    /// Frames from the engine to ports of the mux.
    pub to_ports: FrameQueue,
    /// Frames from ports of the mux to the engine.
    pub from_ports: FrameQueue,
    /// Frames between ports that the operator's rules have refused. The host answers these frames.
    pub refused: FrameQueue,
    /// True if the last step gave the ports no turns, so that the engine could send packets that
    /// had waited for room in the NIC.
    pub engine_had_turn: bool,
    /// Time since which the NIC has had no room for packets of ports. `None` if the NIC had room at
    /// the last attempt.
    pub full_since: Option<Instant>,
}

impl MuxLink {
    /// Queues `out` for the port that has claimed its destination. Sets `queued` to true if the
    /// link has a frame to deliver, and `blocked` to true if the link has no room.
    pub fn transmit(
        &mut self,
        counters: &mut HostCounters,
        (queued, blocked): (&mut bool, &mut bool),
        out: &SegmentOut,
        template: &mut HeaderTemplate,
        source: Source<'_>,
    ) -> Result<(), TxFull> {
        let transmitter = Transmitter {
            ports: std::slice::from_mut(&mut self.to_ports),
            counters,
            queued,
            blocked,
        };
        // The queue is the only port of this transmitter, and has link number 1 there.
        let mut out = *out;
        out.link = LinkId(1);
        transmitter.transmit_single(&out, template, source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_in_order_and_the_queue_is_bounded() {
        let mut queue = FrameQueue::default();
        for number in 0..FRAMES_MAX {
            let frame = queue.tx_frame().expect("room");
            frame[0] = number as u8;
            queue.tx_commit(1 + number % 3, TxChecksum::Done);
        }
        assert!(queue.tx_frame().is_none());
        assert_eq!(Burst::len(&queue), FRAMES_MAX);
        for (number, frame) in queue.iter().enumerate() {
            assert_eq!((frame[0], frame.len()), (number as u8, 1 + number % 3));
        }
        queue.clear();
        assert!(FrameQueue::is_empty(&queue) && queue.tx_frame().is_some());
        // The queue has no frame until `tx_commit`.
        assert!(queue.frame(0).is_none());
    }
}
