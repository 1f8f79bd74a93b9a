//! A simulated TCP peer, which mostly follows the protocol, but sometimes sends invalid segments.

use tidelane_engine::{Ecn, SegmentOut, SeqNumber, TcpFlags, TcpOptions};

use crate::{engine_pair::PeerSegment, rng::Rng};

const ACK: TcpFlags = TcpFlags::ACK;

/// Returns the byte of the peer's stream at offset `at`.
pub fn byte_at(at: u32) -> u8 {
    (at.wrapping_mul(31) ^ at >> 8) as u8
}

/// State of the peer: negotiated options, and positions in the two streams.
#[derive(Debug)]
pub struct Peer {
    /// Initial sequence number of the peer, which the engine calls IRS.
    irs: SeqNumber,
    /// Initial sequence number of the engine.
    pub iss: SeqNumber,
    /// SND.NXT of the peer.
    next: SeqNumber,
    /// Ranges of the peer's stream that the peer has skipped, and sends later.
    holes: Vec<(SeqNumber, SeqNumber)>,
    /// Sequence number up to which the peer has acknowledged the engine's data.
    una: SeqNumber,
    /// SND.NXT of the engine.
    sent: SeqNumber,
    /// Right edge of the engine's receive window.
    edge: SeqNumber,
    /// Window shift of the engine.
    shift: u8,
    /// The peer's window field.
    wnd: u16,
    /// True if both ends permit SACK.
    sack: bool,
    /// TSval of the peer's last segment, and of the engine's last segment. `None` if the peer sends
    /// no timestamps.
    timestamps: Option<(u32, u32)>,
    /// True if both ends agree on ECN.
    ecn: bool,
    /// MSS in bytes that the peer announces, and length of its full segments.
    mss: u32,
    /// True after the peer has sent its FIN.
    fin: bool,
}

impl Peer {
    /// Returns a peer with random options, and its SYN.
    pub fn open(rng: &mut Rng) -> (Self, PeerSegment) {
        let irs = SeqNumber(rng.pick(&[0xffff_f000, 0x7fff_ff00, 1, 0x1234_5678]));
        let (sack, timestamps, ecn) = (rng.chance(70), rng.chance(50), rng.chance(40));
        let mss = rng.pick(&[536, 1000, 1460]);
        let options = TcpOptions {
            mss: Some(mss as u16),
            wscale: rng.pick(&[None, Some(0), Some(2), Some(7)]),
            sack_permitted: sack,
            timestamps: TcpOptions::timestamps(1000, 0)
                .timestamps
                .filter(|_| timestamps),
            ..TcpOptions::NONE
        };
        let both = TcpFlags(TcpFlags::ECE.0 | TcpFlags::CWR.0);
        let flags = if ecn {
            TcpFlags::SYN | both
        } else {
            TcpFlags::SYN
        };
        let peer = Self {
            irs,
            iss: SeqNumber(0),
            next: irs.add(1),
            holes: Vec::new(),
            una: SeqNumber(0),
            sent: SeqNumber(0),
            edge: irs.add(1),
            shift: 0,
            wnd: rng.pick(&[60_000, 20_000, 4000, 1000]),
            sack,
            timestamps: timestamps.then_some((1000, 0)),
            ecn,
            mss,
            fin: false,
        };
        let syn = PeerSegment {
            seq: irs,
            ack: SeqNumber(0),
            flags,
            wnd: peer.wnd,
            options,
            ecn: Ecn::NotEct,
            payload: Vec::new(),
        };
        (peer, syn)
    }

    /// Handles a segment of the engine.
    pub fn handle(&mut self, out: &SegmentOut) {
        if out.flags.contains(TcpFlags::SYN) {
            self.iss = out.seq;
            self.una = out.seq.add(1);
            self.sent = self.una;
            self.ecn &= out.flags.contains(TcpFlags::ECE);
            self.sack &= out.options.sack_permitted;
            self.edge = self.edge.add(u32::from(out.wnd));
            self.shift = out.options.wscale.unwrap_or(0);
        } else if out.flags.contains(ACK) {
            let edge = out.ack.add(u32::from(out.wnd) << self.shift);
            self.edge = self.edge.later_of(edge);
            let fin = u32::from(out.flags.contains(TcpFlags::FIN));
            self.sent = self.sent.later_of(out.seq.add(out.payload_len + fin));
        }
        if let (Some(timestamps), Some(seen)) = (&mut self.timestamps, out.options.timestamps) {
            timestamps.1 = seen.tsval;
        }
    }

    /// Returns a pure ACK with the present SEG.SEQ and SEG.ACK.
    pub fn pure_ack(&self) -> PeerSegment {
        let timestamps = self.timestamps;
        PeerSegment {
            seq: self.next,
            ack: self.una,
            flags: ACK,
            wnd: self.wnd,
            options: timestamps.map_or(TcpOptions::NONE, |(val, ecr)| {
                TcpOptions::timestamps(val, ecr)
            }),
            ecn: if self.ecn { Ecn::Ect0 } else { Ecn::NotEct },
            payload: Vec::new(),
        }
    }

    fn payload(&self, from: SeqNumber, len: u32) -> Vec<u8> {
        let start = from.distance_from(self.irs.add(1));
        (0..len).map(|at| byte_at(start.wrapping_add(at))).collect()
    }

    fn outstanding(&self) -> u32 {
        self.sent.distance_from(self.una)
    }

    /// Returns the next segment, on a path with loss and reordering. The segment may be invalid.
    pub fn next(&mut self, rng: &mut Rng) -> PeerSegment {
        if let Some(timestamps) = &mut self.timestamps {
            timestamps.0 = timestamps.0.wrapping_add(rng.below(20));
        }
        if self.outstanding() > 0 && rng.chance(60) {
            self.acknowledge(rng);
        }
        if rng.chance(8) {
            self.wnd = rng.pick(&[60_000, 60_000, 20_000, 5000, 900, 0]);
        }
        let mut segment = match rng.below(100) {
            0..45 => self.in_order(rng),
            45..75 => self.pure_ack(),
            75..80 => self.out_of_order(rng),
            80..88 => self.fill_hole(rng),
            88..92 => self.retransmit(rng),
            92..98 => self.sack_ack(rng),
            _ => self.invalid(rng),
        };
        if self.ecn && rng.chance(4) {
            let echo = rng.pick(&[TcpFlags::ECE, TcpFlags::CWR]);
            segment.flags |= echo;
        }
        if rng.chance(2) {
            segment.ecn = Ecn::Ce;
        }
        segment
    }

    /// Returns the next segment on a path without loss and reordering.
    pub fn next_on_clean_path(&mut self, rng: &mut Rng) -> PeerSegment {
        if let Some(timestamps) = &mut self.timestamps {
            timestamps.0 = timestamps.0.wrapping_add(rng.below(20));
        }
        if self.outstanding() > 0 && rng.chance(70) {
            self.acknowledge(rng);
        }
        if rng.chance(3) {
            self.wnd = rng.pick(&[60_000, 20_000, 5000]);
        }
        if rng.chance(60) {
            self.in_order(rng)
        } else {
            self.pure_ack()
        }
    }

    /// Advances `una` by all outstanding data, by one to three full segments, or by a random number
    /// of bytes. `una` does not go beyond the outstanding data.
    fn acknowledge(&mut self, rng: &mut Rng) {
        let all = self.outstanding();
        let more = match rng.below(10) {
            0..4 => all,
            4..9 => (self.mss * (1 + rng.below(3))).min(all),
            _ => 1 + rng.below(all),
        };
        self.una = self.una.add(more);
    }

    /// Returns the number of bytes that the engine's window allows. Returns zero after the peer's
    /// FIN, or if SND.NXT is beyond the window.
    fn room(&self) -> u32 {
        let room = self.edge.distance_from(self.next);
        if self.fin || room > 1 << 30 { 0 } else { room }
    }

    fn length(&self, rng: &mut Rng) -> u32 {
        let len = match rng.below(10) {
            0..6 => self.mss,
            6..9 => 1 + rng.below(self.mss),
            _ => 1,
        };
        len.min(self.room())
    }

    fn in_order(&mut self, rng: &mut Rng) -> PeerSegment {
        let len = self.length(rng);
        let mut segment = self.pure_ack();
        segment.payload = self.payload(self.next, len);
        if rng.chance(50) {
            segment.flags |= TcpFlags::PSH;
        }
        self.next = self.next.add(len);
        segment
    }

    /// Returns a segment that follows a new hole, or an in-order segment if there are six holes or
    /// the window is full.
    fn out_of_order(&mut self, rng: &mut Rng) -> PeerSegment {
        let gap = self.length(rng);
        if gap > 0 && self.holes.len() < 6 {
            self.holes.push((self.next, self.next.add(gap)));
            self.next = self.next.add(gap);
        }
        self.in_order(rng)
    }

    /// Returns a segment that fills a hole or a part of a hole, or an in-order segment if there is
    /// no hole.
    fn fill_hole(&mut self, rng: &mut Rng) -> PeerSegment {
        if self.holes.is_empty() {
            return self.in_order(rng);
        }
        let at = rng.below(self.holes.len() as u32) as usize;
        let (start, end) = self.holes[at];
        let mut len = end.distance_from(start);
        if rng.chance(30) && len > 1 {
            len = 1 + rng.below(len - 1);
            self.holes[at].0 = start.add(len);
        } else {
            self.holes.remove(at);
        }
        let payload = self.payload(start, len);
        PeerSegment {
            seq: start,
            payload,
            ..self.pure_ack()
        }
    }

    /// Returns a retransmission of recent data, or a pure ACK if the peer has sent no data.
    fn retransmit(&mut self, rng: &mut Rng) -> PeerSegment {
        let sent = self.next.distance_from(self.irs.add(1)).min(5000);
        if sent == 0 {
            return self.pure_ack();
        }
        let back = 1 + rng.below(sent);
        let start = self.next.sub(back);
        let len = back.min(1 + rng.below(self.mss));
        let payload = self.payload(start, len);
        PeerSegment {
            seq: start,
            payload,
            ..self.pure_ack()
        }
    }

    /// Returns an ACK. If the connection uses SACK, the ACK sometimes has a DSACK block, and has
    /// SACK blocks for outstanding data if more than one full segment is outstanding.
    fn sack_ack(&mut self, rng: &mut Rng) -> PeerSegment {
        let mut segment = self.pure_ack();
        let all = self.outstanding();
        if !self.sack {
            return segment;
        }
        if rng.chance(15) {
            let back = 1 + rng.below(2000);
            segment.options.sack.push(self.una.sub(back), self.una);
        }
        for _ in 0..=rng.below(2) {
            if all > self.mss {
                let start = 1 + rng.below(all - 1);
                let len = (self.mss * (1 + rng.below(3))).min(all - start);
                let left = self.una.add(start);
                segment.options.sack.push(left, left.add(len));
            }
        }
        segment
    }

    /// Returns a segment that a correct peer seldom or never sends.
    fn invalid(&mut self, rng: &mut Rng) -> PeerSegment {
        let mut segment = self.pure_ack();
        match rng.below(12) {
            0 => segment.ack = self.sent.add(1 + rng.below(5000)),
            // SEG.ACK is 1, 800 or 2^30 below SND.UNA, but never between 800 and 2^30 below. In
            // between, MAX.SND.WND would decide whether the ACK is accepted (RFC 5961 §5.2). The
            // fast path does not update MAX.SND.WND, so the two engines could decide differently.
            1 => segment.ack = self.una.sub(rng.pick(&[1, 800, 1 << 30])),
            2 => segment.seq = self.next.add(1 + rng.below(1 << 30)),
            3 => segment.seq = self.next.sub(1 + rng.below(1 << 20)),
            4 => segment.flags = TcpFlags::PSH,
            5 => segment.flags = ACK | TcpFlags::SYN,
            6 => {
                segment.seq = self.next.add(1 + rng.below(100));
                segment.flags = TcpFlags::RST;
            }
            7 => segment.flags = ACK | TcpFlags::URG,
            8 => {
                let old = self
                    .timestamps
                    .map_or(0, |timestamps| timestamps.0.wrapping_sub(5000));
                segment.options = TcpOptions::timestamps(old, 0);
            }
            9 => segment.options = TcpOptions::NONE,
            10 => segment.options.wscale = Some(3),
            _ => segment.wnd = 1,
        }
        if rng.chance(40) {
            let len = 1 + rng.below(self.mss);
            segment.payload = self.payload(segment.seq, len);
        }
        segment
    }

    /// Returns a FIN at the end of the peer's stream.
    pub fn finish(&mut self) -> PeerSegment {
        self.fin = true;
        let end = self.next;
        self.next = end.add(1);
        PeerSegment {
            seq: end,
            flags: ACK | TcpFlags::FIN,
            ..self.pure_ack()
        }
    }

    /// Acknowledges all data. If there is a hole, removes the newest hole and returns the segment
    /// that fills this hole.
    pub fn fill_next_hole(&mut self) -> Option<PeerSegment> {
        self.una = self.sent;
        let (start, end) = self.holes.pop()?;
        let payload = self.payload(start, end.distance_from(start));
        Some(PeerSegment {
            seq: start,
            payload,
            ..self.pure_ack()
        })
    }
}
