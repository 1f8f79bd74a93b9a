//! Urgent data (RFC 9293 §3.8.5), with the semantics of Linux.
//!
//! The urgent pointer of a segment points at the byte after urgent data (MUST-62). The application
//! gets the position and the value of the last urgent byte only. The engine leaves all urgent data
//! in the stream. The driver (the program that runs the engine) hides the last urgent byte from the
//! application's reads unless SO_OOBINLINE is set.
//!
//! A flow (connection) with an urgent pointer in either direction stays on the slow path, the
//! engine's code for uncommon cases.

use tidelane_flow::{Driver, Event, SegmentOut, TxFull};
use tidelane_wire::{Segment, SeqNumber, TcpFlags};

use crate::SlowPath;

/// Urgent state of a flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Urgent {
    /// SND.UP; `None` if there is no unacknowledged urgent data.
    pub snd_up: Option<SeqNumber>,
    /// RCV.UP - 1: the last urgent byte. `None` once all data up to this byte has arrived.
    rcv_up: Option<UrgentByte>,
}

/// The last urgent byte of the peer.
#[derive(Clone, Copy, Debug)]
struct UrgentByte {
    /// Sequence number of the byte.
    at: SeqNumber,
    /// True if the byte has arrived, perhaps out of order.
    received: bool,
}

impl Urgent {
    /// Returns true if there is no urgent pointer in either direction.
    pub fn is_over(&self) -> bool {
        self.snd_up.is_none() && self.rcv_up.is_none()
    }
}

/// Returns the urgent pointer of a segment that begins at `seq`: the distance from `seq` to SND.UP,
/// or the largest value of the field if SND.UP is out of reach. Returns `None` if no urgent data
/// ends after `seq`. Also returns `None`, as in Linux, if the largest value would point at data
/// that was already sent: the peer may have this data, and would take a byte of it for the last
/// urgent byte. A pointer beyond SND.NXT is harmless, because later segments correct the pointer.
pub(crate) fn pointer(
    snd_up: Option<SeqNumber>,
    seq: SeqNumber,
    snd_nxt: SeqNumber,
) -> Option<u16> {
    let up = snd_up.filter(|up| seq.before(*up))?;
    let reach = u32::from(u16::MAX);
    let ahead = up.distance_from(seq);
    let fits = ahead <= reach || seq.add(reach).after(snd_nxt);
    fits.then_some(ahead.min(reach) as u16)
}

impl<E: Driver> SlowPath<'_, E> {
    /// Sixth check: URG, even while the window is closed (RFC 9293 MUST-66). One event reports the
    /// position of the last urgent byte to the application immediately (MUST-32). Another event
    /// delivers the last urgent byte when this byte arrives, even out of order.
    pub(crate) fn check_urg(&mut self, segment: &Segment<'_>) {
        if segment.flags.contains(TcpFlags::URG) {
            self.process_urgent_pointer(segment);
        }
        let Some(urgent_byte) = self.cold.urgent.rcv_up.as_mut().filter(|up| !up.received) else {
            return;
        };
        let offset = urgent_byte.at.distance_from(segment.seq) as usize;
        if let Some(byte) = segment.payload.get(offset) {
            urgent_byte.received = true;
            self.driver.event(self.id, Event::UrgentByte(*byte));
        }
    }

    /// Stores an urgent pointer that is beyond the stored urgent pointer. Ignores a pointer to
    /// received data, because a duplicate segment must not make its data urgent again. A pointer of
    /// zero means the first byte of the segment, as in Linux.
    fn process_urgent_pointer(&mut self, segment: &Segment<'_>) {
        let at = segment.seq.add(u32::from(segment.urgent).saturating_sub(1));
        let known = self.cold.urgent.rcv_up;
        let old = at.before(self.hot.rcv_nxt) || known.is_some_and(|up| !at.after(up.at));
        if old || !self.hot.state.receives() {
            return;
        }
        self.cold.urgent.rcv_up = Some(UrgentByte {
            at,
            received: false,
        });
        let pos = self.hot.rx_pos(at);
        self.driver.event(self.id, Event::Urgent(pos));
    }

    /// Clears RCV.UP when its data has been received, and SND.UP when its data has been
    /// acknowledged.
    pub(crate) fn forget_urgent(&mut self) {
        let (next, una) = (self.hot.rcv_nxt, self.hot.snd_una);
        let urgent = &mut self.cold.urgent;
        urgent.rcv_up = urgent.rcv_up.filter(|up| !up.at.before(next));
        urgent.snd_up = urgent.snd_up.filter(|up| up.after(una));
    }

    /// Moves SND.UP forward to `pos`, the stream position after the urgent data (SEND with URGENT,
    /// RFC 9293 §3.10.2).
    pub fn write_urgent(&mut self, pos: u32) {
        let up = self.hot.iss.add(1).add(pos);
        let known = self.cold.urgent.snd_up;
        self.cold.urgent.snd_up = Some(known.map_or(up, |known| up.later_of(known)));
        self.update_fast_path();
    }

    /// Sends `out`, with URG and the urgent pointer if `pointer` returns a pointer for `out`.
    pub(crate) fn transmit(&mut self, out: &SegmentOut) -> Result<(), TxFull> {
        let snd_up = self.cold.urgent.snd_up;
        match pointer(snd_up, out.seq, self.hot.snd_nxt) {
            None => self.driver.transmit(out),
            Some(pointer) => self.driver.transmit(&with_pointer(out, pointer)),
        }?;
        let payload = out.payload_len > 0;
        self.hot.traffic.on_transmission(self.clock.ms, payload);
        Ok(())
    }
}

/// Returns `out` with URG and the urgent pointer `pointer`.
pub(crate) fn with_pointer(out: &SegmentOut, pointer: u16) -> SegmentOut {
    SegmentOut {
        flags: out.flags | TcpFlags::URG,
        urgent: pointer,
        ..*out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: SeqNumber = SeqNumber(100);

    fn at(seq: u32, snd_nxt: u32) -> Option<u16> {
        pointer(Some(UP), SeqNumber(seq), SeqNumber(snd_nxt))
    }

    #[test]
    fn a_pointer_is_relative_to_its_segment_over_the_wrap() {
        assert_eq!(at(99, 99), Some(1));
        assert_eq!(at(u32::MAX, u32::MAX), Some(101));
        assert_eq!(at(100, 100), None);
        assert_eq!(at(101, 101), None);
        assert_eq!(pointer(None, SeqNumber(1), SeqNumber(1)), None);
    }

    #[test]
    fn an_urgent_pointer_beyond_64_kib_is_shortened_or_omitted() {
        let far = UP.sub(65_535);
        assert_eq!(at(far.0, far.0), Some(65_535));
        let farther = UP.sub(65_536);
        assert_eq!(at(farther.0, farther.0), Some(65_535));
        // In this retransmission, the field can only point at data that was already sent.
        assert_eq!(at(farther.0, UP.0), None);
    }
}
