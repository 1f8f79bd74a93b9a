//! Rules for the TCP segments of Tidelane's stacks, both of the stacks in services and of the
//! stacks within programs. The checker keeps its own account of each host's segments, independently
//! of the engine.
//!
//! The account cannot know which delivered frames the host has processed, because a frame may still
//! be in the receive queue. Segments of an old connection may also be in flight. The checker
//! therefore accepts a segment that is correct in at least one possible state of the host.

mod received;

use std::collections::BTreeMap;

use tidelane_time::Instant;
use tidelane_wire::{
    Endpoint, FlowKey, Segment, SeqNumber, TcpFlags, parse_frame, parse_tcp, protocol,
    tcp_checksum_ok,
};

use crate::ledger::{Violation, violation};
use received::Received;

/// Largest number of incarnations that the account keeps for two endpoints. An incarnation is one
/// of the successive connections between the two endpoints. Segments of old incarnations may arrive
/// late.
const INCARNATIONS_MAX: usize = 4;
/// Send MSS in bytes for an IPv4 peer that has announced no MSS (RFC 9293 §3.7.1 MUST-15). The
/// default for IPv6 would be larger, but each stack of a run announces its MSS.
const MSS_DEFAULT: u32 = 536;

/// Record of the segments that a host has sent on one connection.
#[derive(Debug)]
struct Sent {
    iss: SeqNumber,
    /// Sequence number after the highest byte, SYN or FIN that the host has sent.
    max: SeqNumber,
    /// Window shift that the host's SYN offered.
    wscale: Option<u8>,
    /// Largest right edge of the windows that the host has advertised. `None` before its first ACK.
    edge: Option<SeqNumber>,
}

/// Record of the segments that have reached a host in one incarnation of a connection.
#[derive(Debug)]
struct Incarnation {
    irs: SeqNumber,
    /// Positions of the peer's stream that have arrived.
    received: Received,
    /// Window shift that the peer's SYN offered.
    wscale: Option<u8>,
    /// MSS that the peer has announced, in bytes.
    mss: u32,
    /// Largest right edge of the windows that the peer has advertised. `None` before its first ACK.
    edge: Option<SeqNumber>,
    /// Highest TSval received, in the cyclic order of RFC 7323.
    tsval: Option<u32>,
    /// Sequence number after the peer's FIN. `None` before the FIN arrives.
    fin: Option<SeqNumber>,
}

/// Record of one host for all successive connections between two endpoints.
#[derive(Debug, Default)]
struct End {
    sent: Option<Sent>,
    /// Incarnations of the connection, the oldest first.
    incarnations: Vec<Incarnation>,
}

/// The new bytes of one segment that a host has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advance {
    /// 4-tuple of the connection. The local end is the sender.
    pub key: FlowKey,
    /// Number of new bytes. A FIN counts as one byte.
    pub bytes: u32,
}

/// The account of the segments of all hosts, and the checks against it.
#[derive(Debug, Default)]
pub struct WireRules {
    /// Records by host, local endpoint and peer's endpoint.
    ends: BTreeMap<(usize, Endpoint, Endpoint), End>,
    /// New bytes that hosts have sent since the caller last took this list.
    pub advances: Vec<Advance>,
    /// Number of segments checked.
    pub segments: u64,
}

/// Parses the TCP segment in a frame if its checksum is valid. Returns the 4-tuple as the receiver
/// sees it, and the segment.
fn segment(frame: &[u8]) -> Option<(FlowKey, Segment<'_>)> {
    let packet = parse_frame(frame).ok()?;
    if packet.protocol != protocol::TCP
        || !tcp_checksum_ok(packet.src, packet.dst, packet.payload, false)
    {
        return None;
    }
    let segment = parse_tcp(packet.payload).ok()?;
    let local = Endpoint::new(packet.dst, segment.dst_port);
    let peer = Endpoint::new(packet.src, segment.src_port);
    Some((FlowKey::new(local, peer), segment))
}

fn is_syn(seg: &Segment<'_>) -> bool {
    seg.flags.contains(TcpFlags::SYN)
}

fn end_of(seg: &Segment<'_>) -> SeqNumber {
    seg.seq.add(seg.len())
}

/// Returns the number of bits by which the window field of `seg` is shifted left. `own` is the
/// shift that the sender of `seg` has offered. `others` is the shift that the receiver of `seg` has
/// offered.
fn shift(seg: &Segment<'_>, own: Option<u8>, others: Option<u8>) -> u32 {
    if is_syn(seg) {
        return 0;
    }
    // Window scaling is used in both directions or not at all (RFC 7323 §2.2).
    own.zip(others).map_or(0, |(own, _)| u32::from(own.min(14)))
}

impl WireRules {
    /// Removes the connections of a host when the host's service or stack restarts.
    pub fn forget(&mut self, host: usize) {
        self.ends.retain(|(of, _, _), _| *of != host);
    }

    /// Records a frame that has reached `host`.
    pub fn delivered(&mut self, host: usize, frame: &[u8]) {
        let Some((key, seg)) = segment(frame) else {
            return;
        };
        let end = self.ends.entry((host, key.local, key.peer)).or_default();
        if is_syn(&seg)
            && end
                .incarnations
                .iter()
                .all(|incarnation| incarnation.irs != seg.seq)
        {
            if end.incarnations.len() == INCARNATIONS_MAX {
                end.incarnations.remove(0);
            }
            end.incarnations.push(Incarnation::new(&seg));
        }
        let own_scale = end.sent.as_ref().and_then(|sent| sent.wscale);
        for incarnation in &mut end.incarnations {
            incarnation.record(&seg, own_scale);
        }
    }

    /// Checks a frame that `host` has sent.
    pub fn sent(&mut self, now: Instant, host: usize, frame: &[u8]) -> Result<(), Violation> {
        let Some((key, seg)) = segment(frame) else {
            return Ok(());
        };
        // A RST is not checked, because its sequence number may come from the segment that the RST
        // answers (RFC 9293 §3.5.2).
        if seg.flags.contains(TcpFlags::RST) {
            return Ok(());
        }
        let key = key.reversed();
        let end = self.ends.entry((host, key.local, key.peer)).or_default();
        self.segments += 1;
        match end.check(&seg) {
            Ok(0) => Ok(()),
            Ok(bytes) => {
                self.advances.push(Advance { key, bytes });
                Ok(())
            }
            Err((rule, text)) => {
                let text = format!("host {host} to {}: {text}\n{seg:?}\n{end:?}", key.peer);
                Err(violation(now, rule, text))
            }
        }
    }
}

/// A rule, and the observation that contradicts the rule.
type Broken = (&'static str, String);

impl End {
    /// Checks a segment that this end sends. Returns the number of new bytes in the segment.
    fn check(&mut self, seg: &Segment<'_>) -> Result<u32, Broken> {
        let Some(sent) = self.follow(seg)? else {
            // A restart of the service or stack has removed the connection's SYN from the account.
            return Ok(0);
        };
        if !seg.flags.contains(TcpFlags::ACK) {
            return Ok(0);
        }
        let mut refused = None;
        let incarnations = self.incarnations.iter_mut().rev();
        let fits = incarnations
            .map(|incarnation| incarnation.allows(seg))
            .any(|allowed| {
                let fits = allowed.is_ok();
                refused = refused.take().or(allowed.err());
                fits
            });
        match refused.filter(|_| !fits) {
            Some(broken) => return Err(broken),
            None if !fits => {
                let text = "acknowledges a peer whose SYN never arrived".to_owned();
                return Err(("an ACK is for what was received", text));
            }
            None => {}
        }
        // No data follows the peer's FIN, so a window that is advertised after the FIN has no
        // meaning.
        if self
            .incarnations
            .iter()
            .any(|incarnation| incarnation.fin == Some(seg.ack))
        {
            return Ok(sent);
        }
        let peer_scale = self
            .incarnations
            .last()
            .and_then(|incarnation| incarnation.wscale);
        let Some(own) = &mut self.sent else {
            return Ok(0);
        };
        own.check_window(seg, peer_scale)?;
        Ok(sent)
    }

    /// Records the sequence numbers of a sent segment, and checks that the segment leaves no gap in
    /// sequence space. Returns the number of new bytes, in which a FIN counts as one byte. Returns
    /// `None` if the SYN of the connection is unknown.
    fn follow(&mut self, seg: &Segment<'_>) -> Result<Option<u32>, Broken> {
        let known = self.sent.as_ref().is_some_and(|sent| sent.iss == seg.seq);
        if is_syn(seg) && !known {
            self.sent = Some(Sent {
                iss: seg.seq,
                max: end_of(seg),
                wscale: seg.options.wscale,
                edge: None,
            });
        }
        let Some(sent) = &mut self.sent else {
            return Ok(None);
        };
        if seg.seq.after(sent.max) {
            let text = format!("{} bytes after SND.NXT", seg.seq.distance_from(sent.max));
            return Err(("sequence space has no gaps", text));
        }
        let end = end_of(seg);
        if !end.after(sent.max) {
            return Ok(Some(0));
        }
        let new = end.distance_from(sent.max);
        sent.max = end;
        Ok(Some(new))
    }
}

impl Sent {
    /// Checks that the right edge of the window does not move back (RFC 9293 §3.8.6 SHLD-14). The
    /// edge may move back by less than one unit of the scaled window, because window scaling
    /// rounds. `peer` is the shift that the peer has offered.
    fn check_window(&mut self, seg: &Segment<'_>, peer: Option<u8>) -> Result<(), Broken> {
        if is_syn(seg) && self.edge.is_some() {
            // A retransmitted SYN-ACK repeats the first window without scaling (RFC 7323 §2.2),
            // although later segments may have advertised a larger window.
            return Ok(());
        }
        let shift = shift(seg, self.wscale, peer);
        let edge = seg.ack.add(u32::from(seg.wnd) << shift);
        let old = self.edge.replace(edge);
        let shrunk = old.filter(|old| old.after(edge.add((1 << shift) - 1)));
        if let Some(old) = shrunk {
            self.edge = Some(old);
            let text = format!("by {} bytes", old.distance_from(edge));
            return Err(("a window does not shrink", text));
        }
        self.edge = Some(old.map_or(edge, |old| old.later_of(edge)));
        Ok(())
    }
}

impl Incarnation {
    fn new(seg: &Segment<'_>) -> Self {
        Self {
            irs: seg.seq,
            received: Received::default(),
            wscale: seg.options.wscale,
            mss: seg.options.mss.map_or(MSS_DEFAULT, u32::from),
            edge: None,
            tsval: None,
            fin: None,
        }
    }

    fn record(&mut self, seg: &Segment<'_>, own_scale: Option<u8>) {
        let Some(start) = self.position(seg.seq) else {
            return;
        };
        self.received.insert(start, start + u64::from(seg.len()));
        if seg.flags.contains(TcpFlags::FIN) {
            self.fin = Some(end_of(seg));
        }
        if seg.flags.contains(TcpFlags::ACK) && !seg.flags.contains(TcpFlags::RST) {
            let shift = shift(seg, self.wscale, own_scale);
            let edge = seg.ack.add(u32::from(seg.wnd) << shift);
            self.edge = Some(self.edge.map_or(edge, |old| old.later_of(edge)));
        }
        if let Some(timestamps) = seg.options.timestamps {
            let old = self.tsval.map_or(timestamps.tsval, |old| {
                SeqNumber(old).later_of(SeqNumber(timestamps.tsval)).0
            });
            self.tsval = Some(old);
        }
    }

    /// Returns the stream position of a sequence number. Positions count from the SYN and do not
    /// wrap. Returns `None` if the number is before the SYN or far ahead, and thus belongs to
    /// another incarnation.
    fn position(&self, number: SeqNumber) -> Option<u64> {
        const FAR: u32 = 1 << 30;
        let here = self.received.first_end();
        let at = self.irs.add(here as u32);
        if number.at_or_after(at) {
            let ahead = number.distance_from(at);
            (ahead <= FAR).then_some(here + u64::from(ahead))
        } else {
            here.checked_sub(u64::from(at.distance_from(number)))
        }
    }

    /// Checks that the host may send `seg` to this incarnation of the peer.
    fn allows(&self, seg: &Segment<'_>) -> Result<(), Broken> {
        let acked = self.position(seg.ack).unwrap_or(u64::MAX);
        if acked > self.received.first_end() {
            let text = format!("{acked} of {} bytes", self.received.first_end());
            return Err(("an ACK is for what was received", text));
        }
        for (number, (left, right)) in seg.options.sack.as_slice().iter().enumerate() {
            let left_at = self.position(*left).unwrap_or(u64::MAX);
            let right_at = self.position(*right).unwrap_or(u64::MAX);
            // Only the first block may cover data below the cumulative ACK (RFC 2883).
            let below = number > 0 && left.before(seg.ack);
            if below || left_at >= right_at || !self.received.contains(left_at, right_at) {
                let text = format!("block {number}: {left_at} to {right_at}");
                return Err(("a SACK block is of what was received", text));
            }
        }
        if let (Some(sent), Some(latest)) = (seg.options.timestamps, self.tsval)
            && SeqNumber(sent.tsecr).after(SeqNumber(latest))
        {
            let text = format!("{} after {latest}", sent.tsecr);
            return Err(("an echoed timestamp was received", text));
        }
        self.allows_data(seg)
    }

    fn allows_data(&self, seg: &Segment<'_>) -> Result<(), Broken> {
        let len = seg.payload.len() as u32;
        if len == 0 {
            return Ok(());
        }
        // The announced MSS is the limit for a segment without options. Options reduce the payload
        // of a segment (RFC 9293 §3.7.1).
        if len + seg.options.len() as u32 > self.mss {
            let text = format!("{len} and options above {}", self.mss);
            return Err(("a segment is at most the peer's MSS", text));
        }
        let end = seg.seq.add(len);
        // A zero-window probe may be one byte beyond the window (RFC 9293 §3.8.6.1).
        let allowed = self.edge.map(|edge| edge.add(u32::from(len == 1)));
        match allowed.filter(|edge| end.after(*edge)) {
            Some(edge) => {
                let text = format!("{} bytes beyond", end.distance_from(edge));
                Err(("nothing is sent beyond the window", text))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
