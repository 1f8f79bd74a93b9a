//! SACK blocks of outgoing segments: out-of-order ranges (RFC 2018 §4) and duplicates (DSACK, RFC
//! 2883 §4).

use tidelane_flow::{
    Admission, Driver, Event, FlowId, FlowRoute, IpChange, LinkId, ListenerId, NewFlow, SegmentOut,
    TxFull, Verdict, flags,
};
use tidelane_wire::{FlowKey, SackBlocks, SeqNumber, TcpOptions};

use crate::{SlowPath, ranges::Ranges, urgent};

/// Number of ACKs that are sent without delay after out-of-order or duplicate data (quick-ack
/// mode).
pub(crate) const QUICK_ACKS: u32 = 15;
/// Largest number of blocks in a SACK option.
const BLOCKS_MAX: usize = 4;

/// State of the SACK blocks that this end sends to the peer, and their order (RFC 2018 §4).
#[derive(Clone, Copy, Debug, Default)]
pub struct SackReport {
    /// One sequence number in each of the ranges in which data arrived most recently. The first
    /// element is in the range of the most recent data.
    latest: [Option<SeqNumber>; BLOCKS_MAX],
    /// True if the out-of-order ranges have not changed since they were last reported to the peer.
    pub sent: bool,
    /// Segments that arrived out of order (Linux: `tcpi_rcv_ooopack`).
    pub segments: u32,
}

impl SackReport {
    /// Moves the range that contains `start`, where data has just arrived, to the front.
    pub fn arrived(&mut self, start: SeqNumber, ranges: &Ranges) {
        let Some(range) = ranges.containing(start) else {
            return;
        };
        let others = self.latest.into_iter().flatten();
        let mut others = others.filter(|seq| {
            let of = ranges.containing(*seq);
            of.is_some() && of != Some(range)
        });
        let rest = core::array::from_fn::<_, { BLOCKS_MAX - 1 }, _>(|_| others.next());
        self.latest = [Some(start), rest[0], rest[1], rest[2]];
    }

    /// Returns true if data that begins at `start` directly follows the range in which data arrived
    /// most recently.
    pub fn continues_at(&self, start: SeqNumber, ranges: &Ranges) -> bool {
        let latest = self.latest[0].and_then(|seq| ranges.containing(seq));
        latest.is_some_and(|range| range.1 == start)
    }

    /// Returns the ranges in the order in which blocks report them: the most recent ranges first,
    /// then all ranges from the highest down. A range may occur twice.
    fn in_order(self, ranges: &Ranges) -> impl Iterator<Item = (SeqNumber, SeqNumber)> + '_ {
        let known = self.latest.into_iter().flatten();
        let latest = known.filter_map(|seq| ranges.containing(seq));
        latest.chain(ranges.iter().rev())
    }
}

impl<E: Driver> SlowPath<'_, E> {
    /// Reports the duplicate `[start, end)` in the next ACK, and enters quick-ack mode, because the
    /// peer is retransmitting.
    pub(crate) fn note_duplicate(&mut self, start: SeqNumber, end: SeqNumber) {
        self.hot.set_quick_acks(QUICK_ACKS);
        self.report_duplicate(start, end);
    }

    /// Reports the duplicate `[start, end)`, which may be a part of a segment with new data (RFC
    /// 2883 §4.2). A DSACK holds one range. If a range is pending and the new range does not
    /// continue this range, the pending range is sent first.
    pub(crate) fn report_duplicate(&mut self, start: SeqNumber, end: SeqNumber) {
        if self.hot.has(flags::SACK) {
            let before = self.cold.dsack.filter(|before| before.1 != start);
            if before.is_some() && before != Some((start, end)) {
                // If no transmit frame (packet buffer) is free, the pending DSACK is dropped. The
                // network might drop it, too.
                let _ = self.send_ack();
            }
            let joined = self.cold.dsack.filter(|before| before.1 == start);
            self.cold.dsack = Some((joined.map_or(start, |before| before.0), end));
        }
        self.hot.set(flags::ACK_OWED | flags::ACK_NOW);
    }

    /// Returns true if an ACK would carry SACK blocks.
    pub fn has_sack(&self) -> bool {
        self.hot.has(flags::SACK) && (self.cold.dsack.is_some() || !self.cold.ooo.is_empty())
    }

    /// Returns true if there are SACK blocks that no segment has carried yet.
    pub fn has_unsent_sack(&self) -> bool {
        self.has_sack() && (self.cold.dsack.is_some() || !self.cold.sack_report.sent)
    }

    /// Adds SACK blocks to `options`: the DSACK block first, then the out-of-order ranges, the most
    /// recent first.
    pub(crate) fn add_sack(&self, options: &mut TcpOptions) {
        let room = if options.timestamps.is_some() { 3 } else { 4 };
        let duplicate = usize::from(self.cold.dsack.is_some());
        if let Some((start, end)) = self.cold.dsack {
            options.sack.push(start, end);
        }
        for range in self.cold.sack_report.in_order(&self.cold.ooo) {
            let blocks = options.sack.as_slice();
            if blocks.len() >= room {
                break;
            }
            let range = (range.0, self.with_fin(range.1));
            if !blocks[duplicate..].contains(&range) {
                options.sack.push(range.0, range.1);
            }
        }
    }

    /// Adds SACK blocks to the options of a segment with `payload` bytes, if the segment has room
    /// for them: options count against the segment's size (RFC 9293 §3.7.1). Returns true if a
    /// DSACK block was added.
    pub(crate) fn add_sack_if_room(&self, options: &mut TcpOptions, payload: u32) -> bool {
        if !self.has_sack() {
            return false;
        }
        let mut with_blocks = *options;
        self.add_sack(&mut with_blocks);
        let blocks_len = (with_blocks.len() - options.len()) as u32;
        if payload + blocks_len > u32::from(self.hot.mss) {
            return false;
        }
        *options = with_blocks;
        self.cold.dsack.is_some()
    }

    /// Counts the pending DSACK as sent, if there is one. Each duplicate is reported once (RFC 2883
    /// §4).
    pub(crate) fn note_dsack_sent(&mut self) {
        self.counters.dsack_sent += u64::from(self.cold.dsack.take().is_some());
    }

    /// Returns `end`, or the end of the peer's FIN if this FIN begins at `end`. Linux counts a
    /// segment as delivered only if the SACK block covers its FIN, too.
    fn with_fin(&self, end: SeqNumber) -> SeqNumber {
        if self.cold.fin_at == Some(end) {
            end.add(1)
        } else {
            end
        }
    }

    /// Returns the SACK blocks that a data segment carries, and their length in bytes. Returns no
    /// blocks while a DSACK waits for the next pure ACK, or if the blocks would take more than half
    /// of the MSS.
    fn blocks_for_data(&self) -> (SackBlocks, u16) {
        let none = (SackBlocks::EMPTY, 0);
        if !self.hot.has(flags::SACK) || self.cold.ooo.is_empty() || self.cold.dsack.is_some() {
            return none;
        }
        let seq = self.hot.snd_nxt;
        let ack = tidelane_wire::TcpFlags::ACK;
        let out = self.hot.segment_out(self.id, &self.clock, seq, ack, 0);
        let mut options = out.options;
        self.add_sack(&mut options);
        let len = (options.len() - out.options.len()) as u16;
        if len * 2 > self.hot.mss {
            return none;
        }
        (options.sack, len)
    }

    /// Sends new data by `send_new`, the function of the fast path (the engine's code for the
    /// common cases). The segments carry SACK blocks while there is out-of-order data, and the
    /// urgent pointer while there is unacknowledged urgent data. The payload of a segment is
    /// shorter by the length of its blocks (RFC 9293 §3.7.1).
    pub(crate) fn send_with_sack_blocks(
        &mut self,
        send_new: impl Fn(&mut SlowPath<'_, WithSackBlocks<'_, E>>) -> Result<u32, TxFull>,
    ) -> Result<u32, TxFull> {
        let (blocks, len) = self.blocks_for_data();
        let before = self.hot.snd_nxt;
        let snd_up = self.cold.urgent.snd_up;
        let held = self.hot.flags & (flags::CORK | flags::NODELAY);
        self.hot.mss -= len;
        if snd_up.is_some() {
            // Neither Nagle nor a cork holds urgent data back (as in Linux).
            self.hot.set(flags::NODELAY);
            self.hot.clear(flags::CORK);
        }
        let sent = send_new(&mut SlowPath {
            id: self.id,
            hot: self.hot,
            cold: self.cold,
            clock: self.clock,
            config: self.config,
            timeouts: self.timeouts,
            counters: self.counters,
            path_mtus: self.path_mtus,
            challenges: self.challenges,
            driver: &mut WithSackBlocks {
                driver: self.driver,
                blocks,
                snd_up,
            },
        });
        self.track_sent(before, self.hot.mss);
        self.hot.mss += len;
        self.hot.clear(flags::CORK | flags::NODELAY);
        self.hot.set(held);
        self.cold.sack_report.sent |= len > 0 && self.hot.snd_nxt != before;
        sent
    }
}

/// A wrapper of the driver (the program that runs the engine). The wrapper adds SACK blocks and the
/// urgent pointer to the segments with new data that the fast path transmits.
pub struct WithSackBlocks<'a, E> {
    /// The wrapped driver.
    driver: &'a mut E,
    /// SACK blocks of each segment; empty for segments without SACK blocks.
    blocks: SackBlocks,
    /// SND.UP; `None` if there is no unacknowledged urgent data.
    snd_up: Option<SeqNumber>,
}

impl<E: Driver> Driver for WithSackBlocks<'_, E> {
    fn transmit(&mut self, out: &SegmentOut) -> Result<(), TxFull> {
        // A segment with new data begins at SND.NXT.
        let pointer = urgent::pointer(self.snd_up, out.seq, out.seq);
        if self.blocks.is_empty() && pointer.is_none() {
            return self.driver.transmit(out);
        }
        let mut out = *out;
        if !self.blocks.is_empty() {
            out.options.sack = self.blocks;
        }
        if let Some(pointer) = pointer {
            out = urgent::with_pointer(&out, pointer);
        }
        self.driver.transmit(&out)
    }

    fn place(&mut self, flow: FlowId, pos: u32, payload: &[u8]) -> bool {
        self.driver.place(flow, pos, payload)
    }

    fn event(&mut self, flow: FlowId, event: Event) {
        self.driver.event(flow, event);
    }

    fn burst_len(&self, flow: FlowId, segment_size: u32) -> u32 {
        // Segmentation offload cannot split a segment with URG, because the pointer is relative to
        // each segment.
        match self.snd_up {
            Some(_) => 0,
            None => self.driver.burst_len(flow, segment_size),
        }
    }

    fn route(&mut self, key: &FlowKey, link: LinkId) -> FlowRoute {
        self.driver.route(key, link)
    }

    fn created(&mut self, flow: FlowId, new: &NewFlow) {
        self.driver.created(flow, new);
    }

    fn set_ip(&mut self, flow: FlowId, change: IpChange) {
        self.driver.set_ip(flow, change);
    }

    fn filter(&mut self, key: &FlowKey, link: LinkId, listener: Option<ListenerId>) -> Verdict {
        self.driver.filter(key, link, listener)
    }

    fn admit(&mut self, listener: ListenerId, half_open: bool) -> Admission {
        self.driver.admit(listener, half_open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(n: u32) -> SeqNumber {
        SeqNumber(n)
    }

    #[test]
    fn rfc2018_section_4_the_most_recent_range_comes_first() {
        let (mut ranges, mut sack_report) = (Ranges::default(), SackReport::default());
        let mut arrive = |start: u32, end: u32| {
            ranges.insert(s(start), s(end));
            sack_report.arrived(s(start), &ranges);
            let mut order = Vec::new();
            for range in sack_report.in_order(&ranges) {
                if !order.contains(&range.0.0) {
                    order.push(range.0.0);
                }
            }
            order
        };
        assert_eq!(arrive(30, 40), [30]);
        assert_eq!(arrive(10, 20), [10, 30]);
        assert_eq!(arrive(50, 60), [50, 10, 30]);
        assert_eq!(arrive(40, 45), [30, 50, 10]);
        // The new data joins two ranges.
        assert_eq!(arrive(20, 30), [10, 50]);
        for start in [70, 90, 110] {
            arrive(start, start + 10);
        }
        // The list holds the four most recent ranges. All other ranges follow, from the highest
        // down.
        assert_eq!(arrive(130, 140), [130, 110, 90, 70, 50, 10]);
    }
}
