//! Segmentation offload: scripts see what Linux hands to a device that cuts large packets itself.
//!
//! The segments that the engine sends in one batch are joined again, as far as Linux would have
//! sent them as one: so many that they take a millisecond at the pacing rate, two at least, half
//! the congestion window at most, and never across the ends of packets that were sent before.

use tidelane_engine::{FlowInfo, SegmentOut, TcpFlags};

/// Bytes of the largest packet to the device.
const GSO_MAX: u64 = 65_536;
/// The part of a second that one packet may take at the pacing rate, as a shift: a millisecond.
const PACING_SHIFT: u32 = 10;

/// The sysctls that decide.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizing {
    /// Whether there is offload at all.
    pub offload: bool,
    /// `tcp_min_tso_segs`.
    pub segments_min: u32,
    /// `tcp_tso_rtt_log`; zero switches it off.
    pub rtt_log: u32,
    /// `tcp_pacing_ss_ratio`, percent.
    pub slow_start_ratio: u64,
    /// `tcp_pacing_ca_ratio`, percent.
    pub avoidance_ratio: u64,
}

impl Sizing {
    /// Segments of one packet at most (Linux' `tcp_tso_autosize`, and half the window).
    pub fn segments(&self, info: &FlowInfo) -> u32 {
        if !self.offload {
            return 1;
        }
        let mss = u64::from(info.mss.max(1));
        let window = u64::from(info.cwnd) / mss;
        let mut bytes = pacing_rate(self, info) >> PACING_SHIFT;
        let rtt_us = info.rtt_min.0 / 1000;
        let shift = rtt_us >> self.rtt_log;
        if self.rtt_log > 0 && shift < 32 {
            bytes += GSO_MAX >> shift;
        }
        let auto = bytes.min(GSO_MAX) / mss;
        let most = (GSO_MAX - 320) / mss;
        let auto = auto.max(self.segments_min.into()).min(most.max(1));
        auto.min((window / 2).max(1)) as u32
    }
}

/// Linux' `tcp_update_pacing_rate`, bytes per second.
fn pacing_rate(sizing: &Sizing, info: &FlowInfo) -> u64 {
    let srtt_us = info.srtt.0 / 1000;
    if srtt_us == 0 {
        return u64::MAX;
    }
    let slow_start = u64::from(info.cwnd) < u64::from(info.ssthresh) / 2;
    let ratio = match slow_start {
        true => sizing.slow_start_ratio,
        false => sizing.avoidance_ratio,
    };
    u64::from(info.cwnd.max(info.flight_size)) * 1_000_000 * ratio / 100 / srtt_us
}

/// A segment or several.
#[derive(Clone, Debug)]
pub struct Large {
    /// The header of all.
    pub out: SegmentOut,
    /// The bytes of all.
    pub payload: Vec<u8>,
    /// The urgent pointer; a segment with URG stays alone.
    pub urgent: u16,
    /// How many.
    segments: u32,
}

impl Large {
    /// One segment.
    pub fn new(out: SegmentOut, payload: Vec<u8>) -> Self {
        Self {
            out,
            payload,
            urgent: 0,
            segments: 1,
        }
    }

    /// The stream position after its last byte.
    pub fn end(&self) -> u32 {
        self.out.payload_pos.wrapping_add(self.payload.len() as u32)
    }

    /// Whether it is one segment only.
    pub fn is_single(&self) -> bool {
        self.segments == 1
    }

    /// Cuts off the first `len` bytes, which are a segment of their own then.
    pub fn take_front(&mut self, len: u32) -> Self {
        let later = self.payload.split_off(len as usize);
        let mut front = Self::new(self.out, std::mem::replace(&mut self.payload, later));
        front.out.flags.remove(TcpFlags::FIN);
        front.out.payload_len = len;
        self.out.payload_len -= len.min(self.out.payload_len);
        self.out.seq = self.out.seq.add(len);
        self.out.payload_pos = self.out.payload_pos.wrapping_add(len);
        front
    }

    /// Cuts off the first of several segments. Only the last has PSH then.
    pub fn cut_first(&mut self) -> Self {
        let each = self.out.payload_len;
        let mut first = self.take_front(each);
        first.out.flags.remove(TcpFlags::PSH);
        self.out.payload_len = each.min(self.payload.len() as u32);
        self.segments -= 1;
        first
    }

    /// Takes in `next` if it continues this one and there are at most `most` then.
    pub fn join(&mut self, next: &Self, most: u32) -> bool {
        let (a, b) = (&self.out, &next.out);
        let each = self.payload.len() / self.segments as usize;
        let full = self.payload.len() == each * self.segments as usize;
        let same =
            (a.flow, a.ack, a.wnd, a.options, a.ecn) == (b.flow, b.ack, b.wnd, b.options, b.ecn);
        let ends = TcpFlags::PSH | TcpFlags::FIN;
        let urgent = (a.flags | b.flags).contains(TcpFlags::URG);
        let joins = a.flow.is_some()
            && same
            && !urgent
            && full
            && (1..=each).contains(&next.payload.len())
            && self.end() == b.payload_pos
            && self.segments < most
            && !a.flags.contains(TcpFlags::FIN)
            && a.flags.0 & !ends.0 == b.flags.0 & !ends.0;
        if joins {
            self.payload.extend(&next.payload);
            self.segments += 1;
            // Linux sets PSH on all that a receiver's offload might otherwise hold back.
            self.out.flags = b.flags | TcpFlags::PSH;
        }
        joins
    }
}

#[cfg(test)]
mod tests {
    use tidelane_engine::{Ecn, Endpoint, FlowId, FlowKey, SeqNumber, TcpOptions};

    use super::*;
    use crate::packet::LINK;

    fn segment(seq: u32, len: usize, flags: TcpFlags) -> Large {
        let out = SegmentOut {
            flow: Some(FlowId(1)),
            key: FlowKey {
                local: Endpoint::v4([192, 168, 0, 1], 8080),
                peer: Endpoint::v4([192, 0, 2, 1], 4242),
            },
            link: LINK,
            seq: SeqNumber(seq),
            ack: SeqNumber(1),
            flags,
            wnd: 1,
            options: TcpOptions::NONE,
            payload_pos: seq - 1,
            payload_len: len as u32,
            segment_size: 1460,
            ecn: Ecn::NotEct,
        };
        Large::new(out, vec![0; len])
    }

    #[test]
    fn full_segments_in_order_are_joined_and_pushed() {
        let mut all = segment(1, 1000, TcpFlags::ACK);
        assert!(all.join(&segment(1001, 1000, TcpFlags::ACK), 3));
        assert!(all.join(&segment(2001, 10, TcpFlags::ACK | TcpFlags::PSH), 3));
        assert_eq!((all.end(), all.payload.len()), (2010, 2010));
        assert_eq!(all.out.flags, TcpFlags::ACK | TcpFlags::PSH);
        assert!(
            !all.join(&segment(2011, 1000, TcpFlags::ACK), 9),
            "behind a short one"
        );
    }

    #[test]
    fn what_the_device_does_not_cut_has_push_on_the_last_only() {
        let mut all = segment(1, 1000, TcpFlags::ACK);
        assert!(all.join(&segment(1001, 1000, TcpFlags::ACK), 3));
        assert!(all.join(&segment(2001, 10, TcpFlags::ACK | TcpFlags::PSH), 3));
        let (first, second) = (all.cut_first(), all.cut_first());
        let spans =
            [first, second, all].map(|one| (one.out.seq.0, one.payload.len(), one.out.flags));
        let pushed = TcpFlags::ACK | TcpFlags::PSH;
        let plain = TcpFlags::ACK;
        assert_eq!(
            spans,
            [(1, 1000, plain), (1001, 1000, plain), (2001, 10, pushed)]
        );
    }

    #[test]
    fn what_does_not_continue_or_is_too_much_is_not_joined() {
        let mut all = segment(1, 1000, TcpFlags::ACK);
        assert!(!all.join(&segment(2001, 1000, TcpFlags::ACK), 9));
        assert!(!all.join(&segment(1001, 1000, TcpFlags::ACK), 1));
        assert!(!all.join(&segment(1001, 1001, TcpFlags::ACK), 9));
        assert!(!all.join(&segment(1001, 0, TcpFlags::ACK), 9));
        assert_eq!(all.out.flags, TcpFlags::ACK);
    }
}
