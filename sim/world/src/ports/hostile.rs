//! A hostile program on a mux port, a pair of packet rings through which a program with a TCP/IP
//! stack of its own shares the NIC.
//!
//! The program knows which of its frames the mux must refuse. The number of refused frames can
//! therefore be checked until the program overwrites its own memory, or until its claims change.

use std::{collections::BTreeMap, ops::ControlFlow};

use tidelane_mux::{PortCounters, PortId, SendRefusal};
use tidelane_netem::Rng;
use tidelane_packet_io::{BURST_MAX, GsoParameters, GsoPayload, PacketIo, TxChecksum};
use tidelane_packet_ring::ProgramEnd;
use tidelane_time::{Duration, Instant};
use tidelane_wire::{IpAddress, TcpFlags};

use super::{
    drafts::{Drafts, GSO_SEGMENT_MIN, Surroundings},
    forge::{Draft, Tuple, spoil},
    frame::TCP,
    harm::Harm,
    oracle::Oracle,
    owners::PortKey,
    rings::{CONSUMED, PRODUCED, Rings},
};

/// Length in bytes of the Ethernet, IPv4 and TCP headers without options.
const HEADERS_V4: usize = 14 + 20 + 20;
/// Length in bytes of the IPv6 and TCP headers with all options.
const HEADERS_V6_MAX: u32 = 40 + 60;
/// Offset of the packets in a mux port's memory, in bytes.
const DATA: u64 = 4096;

/// A request of a hostile program to the driver of the mux, which opens and closes mux ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Demand {
    /// Close the mux port, because the program has died or wants a new port.
    Close,
    /// Move one claim or all claims to another hostile program.
    Move,
    /// Claim a 3-tuple.
    Claim(Tuple),
    /// Release a claim.
    Release(Tuple),
}

/// The expected action of the mux on a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ExpectedAction {
    /// The mux sends this many packets.
    Sent(u64),
    /// The mux refuses the frame for this reason.
    RefusedFor(SendRefusal),
    /// The mux refuses the frame for any reason.
    Refused,
}

/// A hostile program on an open mux port.
pub struct HostileProgram {
    /// Number of the mux port in the run.
    pub key: PortKey,
    /// Number of the mux port in the mux.
    pub id: PortId,
    /// The rings of the mux port.
    pub rings: Rings,
    /// 3-tuples that the program has claimed.
    pub tuples: Vec<Tuple>,
    /// True if the expected numbers of sent and refused packets are known. Becomes false when the
    /// program overwrites its memory or dies, when its claims change, or when it sends a packet
    /// that may be longer than the MTU. Always false if the operator has rules.
    pub is_exact: bool,
    /// True if the program has overwritten its memory.
    pub has_overwritten: bool,
    /// The program's end of the mux port.
    end: ProgramEnd,
    /// Time until which the program reads nothing.
    reads_again_at: Instant,
    /// Number of packets so far that the mux must send.
    genuine: u64,
    /// Number of packets so far that the mux must refuse for a known reason, by reason.
    forged: BTreeMap<SendRefusal, u64>,
    /// Number of packets so far that the mux must refuse for any reason.
    garbage: u64,
}

impl HostileProgram {
    /// Creates the program of a new mux port.
    pub fn new(key: PortKey, id: PortId, rings: Rings, around: &Surroundings) -> Self {
        Self {
            key,
            id,
            end: ProgramEnd::new(&rings.program, around.frame_len_max, false),
            rings,
            tuples: Vec::new(),
            is_exact: true,
            has_overwritten: false,
            reads_again_at: Instant::ZERO,
            genuine: 0,
            forged: BTreeMap::new(),
            garbage: 0,
        }
    }

    /// Ends the program. Its unpublished frames never reach the mux. Returns the rings, which
    /// outlive the program.
    pub fn end(self) -> Rings {
        self.rings
    }

    /// Returns an error if the mux has counted other numbers of sent or refused packets than
    /// expected. Checks nothing if the expected numbers are unknown, or if the mux has not taken
    /// all frames.
    pub fn check_counters(&self, counters: &PortCounters) -> Result<(), String> {
        if !self.is_exact || !self.rings.are_drained() {
            return Ok(());
        }
        let refused = counters.refused.values().sum::<u64>();
        let bad = self.forged.values().sum::<u64>() + self.garbage;
        let counted = |reason| counters.refused.get(reason).copied().unwrap_or(0);
        let mut forged = self.forged.iter();
        let are_named = forged.all(|(reason, count)| counted(reason) >= *count);
        match (counters.sent, refused) == (self.genuine, bad) && are_named {
            true => Ok(()),
            false => Err(format!(
                "{:?} sent {} genuine packets, {:?} and {} of garbage: {counters:?}",
                self.key, self.genuine, self.forged, self.garbage
            )),
        }
    }

    /// Misbehaves once. Returns a request to the driver, if any.
    pub fn misbehave(
        &mut self,
        now: Instant,
        harm: Harm,
        around: &Surroundings,
        (oracle, rng): (&mut Oracle, &mut Rng),
    ) -> Option<Demand> {
        if now >= self.reads_again_at {
            self.read_all();
        }
        let count = rng.between(1, 64);
        let mut demand = None;
        let head_at = self.rings.program.head_at;
        match harm {
            Harm::Flood => self.repeat(count, |program| program.send_genuine(around, rng)),
            Harm::Forge => self.repeat(count, |program| program.send_forged(around, oracle, rng)),
            Harm::Garbage => self.repeat(count, |program| program.send_garbage(around, rng)),
            Harm::Gso => self.repeat(count.div_ceil(8), |program| program.send_gso(around, rng)),
            Harm::GsoGarbage => {
                self.repeat(count, |program| program.send_bad_gso(around, oracle, rng));
            }
            Harm::StopsReading => {
                self.reads_again_at = now + Duration::from_micros(rng.below(100_000))
            }
            Harm::Indices => self.overwrite(|memory| {
                let at = [PRODUCED, CONSUMED][rng.below(2) as usize];
                memory.copy_in(head_at + at, &rng.next_u32().to_ne_bytes())
            }),
            Harm::Lengths => self.overwrite_lengths(rng),
            Harm::Change => {
                self.repeat(count, |program| program.send_genuine(around, rng));
                self.end.tx_flush();
                self.change(around, oracle, rng);
            }
            Harm::Zeros => {
                self.repeat(count, |program| program.send_genuine(around, rng));
                self.end.tx_flush();
                self.overwrite(|memory| {
                    let starts = [head_at + PRODUCED, head_at + CONSUMED, DATA];
                    let start = starts[rng.below(3) as usize];
                    memory.copy_in(start, &vec![0; (memory.len() - start) as usize])
                });
            }
            Harm::HalfWritten => {
                self.publish_half_written(rng);
                demand = Some(Demand::Close);
            }
            Harm::Die => {
                self.repeat(count, |program| program.send_genuine(around, rng));
                self.end.tx_frame();
                self.is_exact = false;
                return Some(Demand::Close);
            }
            Harm::Reopen => demand = Some(Demand::Close),
            Harm::Move => demand = Some(Demand::Move),
            Harm::Release => {
                let at = rng.below(self.tuples.len().max(1) as u64) as usize;
                demand = self.tuples.get(at).copied().map(Demand::Release);
            }
            Harm::Claim => demand = self.wish(around, oracle, rng).map(Demand::Claim),
        }
        self.end.tx_flush();
        demand
    }

    /// Repeats an action `count` times, or until the action returns `Break`, for example because
    /// the ring is full.
    fn repeat(&mut self, count: u64, mut action: impl FnMut(&mut Self) -> ControlFlow<()>) {
        for _ in 0..count {
            if action(self).is_break() {
                return;
            }
        }
    }

    fn read_all(&mut self) {
        let mut burst = self.end.new_burst();
        while self.end.rx_burst(&mut burst, BURST_MAX) > 0 {
            self.end.rx_release(&mut burst);
        }
    }

    /// Sends a frame. Returns `Break` if the ring is full, or if the frame is too long.
    fn send(&mut self, frame: &[u8], expected: ExpectedAction) -> ControlFlow<()> {
        let room = self.end.tx_frame();
        let Some(room) = room.and_then(|room| room.get_mut(..frame.len())) else {
            return ControlFlow::Break(());
        };
        room.copy_from_slice(frame);
        self.end.tx_commit(frame.len(), TxChecksum::Done);
        self.count(expected);
        ControlFlow::Continue(())
    }

    fn count(&mut self, expected: ExpectedAction) {
        match expected {
            ExpectedAction::Sent(packets) => self.genuine += packets,
            ExpectedAction::RefusedFor(reason) => *self.forged.entry(reason).or_default() += 1,
            ExpectedAction::Refused => self.garbage += 1,
        }
    }

    fn overwrite(&mut self, write: impl FnOnce(&tidelane_ring::Region) -> bool) {
        self.is_exact = false;
        self.has_overwritten = true;
        assert!(
            write(&self.rings.program.own),
            "the write stays within the memory"
        );
    }

    fn drafts<'a>(&'a self, around: &'a Surroundings) -> Drafts<'a> {
        Drafts {
            key: self.key,
            tuples: &self.tuples,
            around,
        }
    }

    fn send_genuine(&mut self, around: &Surroundings, rng: &mut Rng) -> ControlFlow<()> {
        let draft = self.drafts(around).genuine(rng);
        match draft.and_then(|draft| draft.frame(rng)) {
            Some(frame) => self.send(&frame, ExpectedAction::Sent(1)),
            None => ControlFlow::Break(()),
        }
    }

    fn send_forged(
        &mut self,
        around: &Surroundings,
        oracle: &Oracle,
        rng: &mut Rng,
    ) -> ControlFlow<()> {
        let Some((draft, refusal)) = self.drafts(around).forged(oracle, rng) else {
            return ControlFlow::Continue(());
        };
        match draft.frame(rng) {
            Some(frame) => self.send(&frame, ExpectedAction::RefusedFor(refusal)),
            None => ControlFlow::Continue(()),
        }
    }

    fn send_garbage(&mut self, around: &Surroundings, rng: &mut Rng) -> ControlFlow<()> {
        let draft = self.drafts(around).genuine(rng);
        let draft = draft.filter(|draft| draft.src.0 == TCP);
        let Some(mut frame) = draft.and_then(|draft| draft.frame(rng)) else {
            return ControlFlow::Continue(());
        };
        spoil(rng, &mut frame);
        self.send(&frame, ExpectedAction::Refused)
    }

    /// Sends a GSO frame. Returns `Break` if the ring is full.
    fn send_gso_frame(
        &mut self,
        frame: &[u8],
        size: u16,
        expected: ExpectedAction,
    ) -> ControlFlow<()> {
        // The ring carries the frame in one piece, so the length of the headers has no effect.
        let headers_len = frame.len().min(HEADERS_V4);
        let (headers, payload) = frame.split_at(headers_len);
        let room = self.end.tx_gso_headers();
        room[..headers_len].copy_from_slice(headers);
        let gso = GsoParameters {
            headers_len: headers_len as u16,
            segment_size: size,
            tcp_start: 34,
            is_v6: false,
        };
        match self
            .end
            .tx_gso_send(GsoPayload::Private([payload, &[]]), gso)
        {
            Ok(()) => {
                self.count(expected);
                ControlFlow::Continue(())
            }
            Err(_) => ControlFlow::Break(()),
        }
    }

    fn send_gso(&mut self, around: &Surroundings, rng: &mut Rng) -> ControlFlow<()> {
        let Some((draft, size)) = self.drafts(around).gso(rng) else {
            return ControlFlow::Continue(());
        };
        let segments = draft.payload_len.div_ceil(usize::from(size)) as u64;
        let packet_len = u32::from(size) + HEADERS_V6_MAX;
        self.is_exact &= around.mtu_min.is_none_or(|mtu| packet_len <= mtu);
        match draft.frame(rng) {
            Some(frame) => self.send_gso_frame(&frame, size, ExpectedAction::Sent(segments)),
            None => ControlFlow::Continue(()),
        }
    }

    fn send_bad_gso(
        &mut self,
        around: &Surroundings,
        oracle: &Oracle,
        rng: &mut Rng,
    ) -> ControlFlow<()> {
        let Some((mut draft, mut size)) = self.drafts(around).gso(rng) else {
            return ControlFlow::Continue(());
        };
        let kind = rng.below(6);
        match kind {
            0 => size = 1 + rng.below(u64::from(GSO_SEGMENT_MIN) - 1) as u16,
            1 => {
                let flags = [TcpFlags::SYN, TcpFlags::RST, TcpFlags::URG];
                draft.flags = flags[rng.below(3) as usize];
            }
            2 => draft.payload_len = rng.between(1, u64::from(size)) as usize,
            3 => {
                let Some((forged, _)) = self.drafts(around).forged(oracle, rng) else {
                    return ControlFlow::Continue(());
                };
                let payload_len = draft.payload_len;
                draft = Draft {
                    payload_len,
                    flags: TcpFlags::ACK,
                    ..forged
                };
            }
            _ => {}
        }
        let Some(mut frame) = draft.frame(rng) else {
            return ControlFlow::Continue(());
        };
        match kind {
            // Ethernet padding after the packet.
            4 => frame.push(0),
            5 => rng.fill(&mut frame[6..]),
            _ => {}
        }
        self.send_gso_frame(&frame, size, ExpectedAction::Refused)
    }

    fn overwrite_lengths(&mut self, rng: &mut Rng) {
        let ring_len = u64::from(self.rings.program.ring_len);
        self.overwrite(|memory| {
            (0..rng.between(1, 64)).all(|_| {
                let at = DATA + rng.below(ring_len / 16) * 16;
                let mut head = [0; 8];
                let len = match rng.below(3) {
                    0 => rng.next_u32(),
                    1 => u32::MAX,
                    _ => rng.below(4096) as u32,
                };
                head[..4].copy_from_slice(&len.to_ne_bytes());
                head[4..6].copy_from_slice(&(rng.next_u32() as u16).to_ne_bytes());
                memory.copy_in(at, &head)
            })
        });
    }

    /// Writes forged frames to random places of the ring, which may hold published frames.
    fn change(&mut self, around: &Surroundings, oracle: &mut Oracle, rng: &mut Rng) {
        let ring_len = u64::from(self.rings.program.ring_len);
        for _ in 0..rng.between(1, 16) {
            let draft = self.drafts(around).forged(oracle, rng);
            let Some(frame) = draft.and_then(|(draft, _)| draft.frame(rng)) else {
                continue;
            };
            oracle.publishes(self.key, &frame, 0);
            let at = DATA + rng.below((ring_len - 2048) / 16) * 16;
            self.overwrite(|memory| {
                let len = (frame.len() as u32).to_ne_bytes();
                memory.copy_in(at, &len)
                    && memory.copy_in(at + 4, &[0; 4])
                    && memory.copy_in(at + 8, &frame)
            });
        }
    }

    /// Publishes up to 200 units (of 16 bytes) of the ring without writing them.
    fn publish_half_written(&mut self, rng: &mut Rng) {
        let produced_at = self.rings.program.head_at + PRODUCED;
        self.overwrite(|memory| {
            let mut produced = [0; 4];
            let read = memory.copy_out(produced_at, &mut produced);
            let more = 1 + rng.below(200) as u32;
            let produced = u32::from_ne_bytes(produced).wrapping_add(more);
            read && memory.copy_in(produced_at, &produced.to_ne_bytes())
        });
    }

    /// Draws a 3-tuple to claim. The draw begins with a 3-tuple that a mux port has claimed. The
    /// draw may replace the address by the unspecified address or by an address of the host. If the
    /// program's own mux port has the claim, the draw may add four to the port number instead.
    fn wish(&self, around: &Surroundings, oracle: &Oracle, rng: &mut Rng) -> Option<Tuple> {
        let all: Vec<_> = oracle.owners.all().collect();
        let (owner, protocol, mut local) = *rng.pick(&all)?;
        match rng.below(4) {
            0 => local.addr = IpAddress::UNSPECIFIED_V4,
            1 => local.addr = *rng.pick(&around.addresses)?,
            2 if owner == self.key => local.port += 4 * rng.below(2) as u16,
            _ => {}
        }
        Some((protocol, local))
    }
}
