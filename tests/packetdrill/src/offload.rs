//! Segmentation offload (TSO): joins segments into the large packets that Linux would send.
//!
//! Scripts written for Linux expect the packets that Linux passes to a device with TSO, while the
//! engine (Tidelane's TCP) sends single segments. This module joins the segments of one batch (a
//! group of engine calls) by Linux's rules.
//!
//! [`Sizing::segments`] limits the number of segments in a packet. The limit is the number of full
//! segments that leave in about one millisecond at the pacing rate. The sysctl `tcp_tso_rtt_log`
//! raises the limit for flows (connections) with a short RTT. The limit is at least the sysctl
//! `tcp_min_tso_segs`. However, the limit never exceeds half the congestion window, or one segment
//! if half the congestion window is smaller.
//!
//! [`TsoPacket::join`] compares the headers, the lengths and the stream positions of two packets. A
//! stream position is the number of a byte in the flow's sent data. The caller of
//! [`TsoPacket::join`], `Wire::finish_batch`, also checks the end of the packet: a packet gets no
//! further segment if the packet ends where an earlier packet ended, or where an skb of Linux's
//! send queue would end.

use tidelane_engine::{FlowInfo, SegmentOut, TcpFlags};

/// Largest packet that Linux passes to the device, in bytes (GSO_MAX_SIZE).
const GSO_MAX: u64 = 65_536;
/// Linux's `sk_pacing_shift`. The pacing rate in bytes per second, shifted right by this number,
/// gives the number of bytes in one packet. A shift by 10 gives the bytes of about one millisecond.
const PACING_SHIFT: u32 = 10;

/// The settings that determine packet sizes. All but `offload` are sysctls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizing {
    /// True if the device has segmentation offload.
    pub offload: bool,
    /// `tcp_min_tso_segs`: lower bound of the limit on the segments in a packet.
    pub segments_min: u32,
    /// `tcp_tso_rtt_log`: flows with a short RTT get larger packets. The extra length is
    /// `GSO_MAX` bytes, halved for each 2^`rtt_log` µs of the minimum RTT. 0 disables this rule.
    pub rtt_log: u32,
    /// `tcp_pacing_ss_ratio`: pacing rate while cwnd is below half of ssthresh, in percent of cwnd
    /// per RTT.
    pub slow_start_ratio: u64,
    /// `tcp_pacing_ca_ratio`: pacing rate while cwnd is at least half of ssthresh, in percent of
    /// cwnd per RTT.
    pub avoidance_ratio: u64,
}

impl Sizing {
    /// Returns the largest number of segments in a packet of the flow with the state `info`:
    /// Linux's `tcp_tso_autosize`, limited to half the congestion window. The result is at least 1,
    /// and is 1 without offload.
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
        // Linux leaves 320 bytes for headers (MAX_TCP_HEADER).
        let most = (GSO_MAX - 320) / mss;
        let auto = auto.max(self.segments_min.into()).min(most.max(1));
        auto.min((window / 2).max(1)) as u32
    }
}

/// Returns the pacing rate in bytes per second (Linux's `tcp_update_pacing_rate`). Returns
/// `u64::MAX` before the first RTT sample.
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

/// A packet of one or several consecutive segments, before it is encoded.
#[derive(Clone, Debug)]
pub struct TsoPacket {
    /// Header of the packet. The field `payload_len` is the payload length of the first segment.
    /// The last segment may be shorter, and all other segments have this length.
    pub out: SegmentOut,
    /// Payload of all segments.
    pub payload: Vec<u8>,
    /// Number of segments.
    segments: u32,
}

impl TsoPacket {
    /// Returns a packet of one segment.
    pub fn new(out: SegmentOut, payload: Vec<u8>) -> Self {
        Self {
            out,
            payload,
            segments: 1,
        }
    }

    /// Returns the stream position after the last payload byte.
    pub fn end(&self) -> u32 {
        self.out.payload_pos.wrapping_add(self.payload.len() as u32)
    }

    /// Returns true if the packet has only one segment.
    pub fn is_single(&self) -> bool {
        self.segments == 1
    }

    /// Splits off the first `len` payload bytes as a separate packet of one segment, and returns
    /// this packet. The returned packet has no FIN. The rest keeps FIN.
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

    /// Splits off the first of several segments, and returns this segment as a packet. PSH stays
    /// with the last segment.
    pub fn cut_first(&mut self) -> Self {
        let each = self.out.payload_len;
        let mut first = self.take_front(each);
        first.out.flags.remove(TcpFlags::PSH);
        self.out.payload_len = each.min(self.payload.len() as u32);
        self.segments -= 1;
        first
    }

    /// Appends `next`, a packet of one segment, to this packet. Returns true if `next` was
    /// appended. The packet then has at most `most` segments, and can be split into the same
    /// segments again.
    ///
    /// Both packets must belong to the same flow, and `next` must continue the payload of this
    /// packet. The headers must be equal except for the sequence number, PSH and FIN. Neither
    /// header may have URG, and this packet must not have FIN. All segments of this packet must
    /// have the payload length of the first segment. The payload of `next` must be neither longer
    /// than this length nor empty.
    pub fn join(&mut self, next: &Self, most: u32) -> bool {
        let (a, b) = (&self.out, &next.out);
        let each = a.payload_len as usize;
        let full = self.payload.len() == each * self.segments as usize;
        let same = (a.origin, a.ack, a.wnd, a.options, a.ecn)
            == (b.origin, b.ack, b.wnd, b.options, b.ecn);
        let ends = TcpFlags::PSH | TcpFlags::FIN;
        let urgent = (a.flags | b.flags).contains(TcpFlags::URG);
        let joins = a.flow().is_some()
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
            // Linux sets PSH so that GRO at the receiver does not hold the packet back.
            self.out.flags = b.flags | TcpFlags::PSH;
        }
        joins
    }
}

#[cfg(test)]
mod tests {
    use tidelane_engine::{Ecn, Endpoint, FlowId, FlowKey, Origin, SeqNumber, TcpOptions};

    use super::*;
    use crate::inbound::LINK;

    fn segment(seq: u32, len: usize, flags: TcpFlags) -> TsoPacket {
        let out = SegmentOut {
            origin: Origin::Flow(FlowId(1)),
            key: FlowKey {
                local: Endpoint::v4([192, 168, 0, 1], 8080),
                peer: Endpoint::v4([192, 0, 2, 1], 4242),
            },
            link: LINK,
            seq: SeqNumber(seq),
            ack: SeqNumber(1),
            flags,
            wnd: 1,
            urgent: 0,
            options: TcpOptions::NONE,
            payload_pos: seq - 1,
            payload_len: len as u32,
            segment_size: 1460,
            ecn: Ecn::NotEct,
        };
        TsoPacket::new(out, vec![0; len])
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
            "joined behind a short segment"
        );
    }

    /// The last segment of the packet is short, but the length of the packet is a multiple of the
    /// number of its segments. `join` must not assume that each segment has the length of the
    /// packet divided by the number of segments.
    #[test]
    fn a_segment_after_a_short_segment_is_not_joined() {
        for (short, next) in [(10, 500), (500, 500), (998, 998)] {
            let mut all = segment(1, 1000, TcpFlags::ACK);
            assert!(all.join(&segment(1001, short, TcpFlags::ACK), 9));
            let seq = 1001 + short as u32;
            assert!(
                !all.join(&segment(seq, next, TcpFlags::ACK), 9),
                "joined {next} bytes behind a short segment of {short} bytes"
            );
            let (first, last) = (all.cut_first(), all);
            assert_eq!((first.payload.len(), last.payload.len()), (1000, short));
            assert!(last.is_single());
        }
    }

    #[test]
    fn cut_segments_have_push_on_the_last_only() {
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
    fn segments_with_a_gap_or_above_the_limit_are_not_joined() {
        let mut all = segment(1, 1000, TcpFlags::ACK);
        assert!(!all.join(&segment(2001, 1000, TcpFlags::ACK), 9));
        assert!(!all.join(&segment(1001, 1000, TcpFlags::ACK), 1));
        assert!(!all.join(&segment(1001, 1001, TcpFlags::ACK), 9));
        assert!(!all.join(&segment(1001, 0, TcpFlags::ACK), 9));
        assert_eq!(all.out.flags, TcpFlags::ACK);
    }
}
