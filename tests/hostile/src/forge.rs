//! Forged segments. The forger makes a plausible segment, and then changes up to three fields,
//! often to values near limits of the receiver's state. Sometimes the forger also overwrites a few
//! bytes of the header with random bytes.

use tidelane_engine::{FlowState, SeqNumber, TcpFlags, TcpOptions};
use tidelane_netem::Rng;
use tidelane_wire::{SackBlocks, SegmentHeader, TCP_HEADER_LEN_MAX, Timestamps, emit_tcp};

/// Maximum payload length of a forged segment, in bytes.
const PAYLOAD_MAX: u64 = 1460;

/// The part of the receiver's state that the forger knows: numbers at which the receiver's checks
/// change their result. Values near these numbers reveal a small error in a check.
#[derive(Clone, Copy, Debug, Default)]
pub struct Edges {
    /// Numbers of the receive sequence space. For a flow: RCV.NXT, the right edge of the advertised
    /// window, IRS, and Last.ACK.sent.
    pub seqs: [SeqNumber; 4],
    /// Numbers of the send sequence space. For a flow: SND.NXT, SND.UNA, ISS, and the end of the
    /// data that the program has written.
    pub acks: [SeqNumber; 4],
    /// TS.Recent of the receiver.
    pub ts_recent: u32,
}

impl Edges {
    /// Returns the edges of a flow with the state `state`.
    pub fn of(state: &FlowState) -> Self {
        Self {
            seqs: [state.rcv_nxt, state.rcv_adv, state.irs, state.last_ack_sent],
            acks: [state.snd_nxt, state.snd_una, state.iss, state.tx_end],
            ts_recent: state.ts_recent,
        }
    }
}

/// Returns one of `edges`, a number near one of them, a number about half the sequence space away,
/// or a random number.
fn near(rng: &mut Rng, edges: &[SeqNumber; 4]) -> SeqNumber {
    let edge = edges[rng.below(4) as usize].0;
    SeqNumber(match rng.below(8) {
        0..3 => edge,
        3..5 => edge.wrapping_add(rng.below(9) as u32).wrapping_sub(4),
        5 => edge
            .wrapping_add(rng.below(1 << 17) as u32)
            .wrapping_sub(1 << 16),
        6 => edge.wrapping_add(1 << 31).wrapping_add(rng.below(3) as u32),
        _ => rng.next_u32(),
    })
}

/// Returns random flags, or one of five combinations of SYN, RST, FIN and ACK.
fn any_flags(rng: &mut Rng) -> TcpFlags {
    match rng.below(6) {
        0 => TcpFlags(rng.next_u32() as u8),
        1 => TcpFlags::SYN,
        2 => TcpFlags::RST.union(TcpFlags::ACK),
        3 => TcpFlags::RST,
        4 => TcpFlags::FIN.union(TcpFlags::ACK),
        _ => TcpFlags::SYN.union(TcpFlags::ACK),
    }
}

/// Returns random options. Many of the values are at or beyond the limits of their ranges.
fn any_options(rng: &mut Rng, edges: &Edges) -> TcpOptions {
    let mut options = TcpOptions::NONE;
    let edge = |rng: &mut Rng, of: u32| of.wrapping_add(rng.below(5) as u32).wrapping_sub(2);
    if rng.chance_ppm(400_000) {
        options.mss = Some([0, 1, 48, 536, 1460, 65_535][rng.below(6) as usize]);
    }
    if rng.chance_ppm(300_000) {
        options.wscale = Some([0, 1, 14, 15, 255][rng.below(5) as usize]);
    }
    options.sack_permitted = rng.chance_ppm(300_000);
    if rng.chance_ppm(500_000) {
        let tsval = if rng.chance_ppm(500_000) {
            edge(rng, edges.ts_recent)
        } else {
            rng.next_u32()
        };
        options.timestamps = Some(Timestamps {
            tsval,
            tsecr: rng.next_u32(),
        });
    }
    if rng.chance_ppm(400_000) {
        let mut sack = SackBlocks::EMPTY;
        for _ in 0..rng.between(1, 3) {
            sack.push(near(rng, &edges.acks), near(rng, &edges.acks));
        }
        options.sack = sack;
    }
    // A TCP header has room for 40 bytes of options.
    if options.len() > 40 {
        options.sack = SackBlocks::EMPTY;
    }
    options
}

/// Returns the header of a segment that an honest peer could send next, except that TSecr is
/// random. `ports` are the source and the destination port.
fn plausible(rng: &mut Rng, edges: &Edges, ports: (u16, u16), timestamps: bool) -> SegmentHeader {
    let options = if timestamps {
        TcpOptions::timestamps(edges.ts_recent, rng.next_u32())
    } else {
        TcpOptions::NONE
    };
    SegmentHeader {
        src_port: ports.0,
        dst_port: ports.1,
        seq: edges.seqs[0],
        ack: edges.acks[rng.below(2) as usize],
        flags: TcpFlags::ACK,
        wnd: 1000,
        urgent: 0,
        options,
    }
}

/// Writes a forged segment to `into` and returns its length in bytes. `ports` are the source and
/// the destination port. `timestamps` is true if the flow uses the timestamps option.
pub fn forge(
    rng: &mut Rng,
    edges: &Edges,
    ports: (u16, u16),
    timestamps: bool,
    into: &mut Vec<u8>,
) -> usize {
    let mut header = plausible(rng, edges, ports, timestamps);
    for _ in 0..rng.below(4) {
        match rng.below(8) {
            0 | 1 => header.seq = near(rng, &edges.seqs),
            2 | 3 => header.ack = near(rng, &edges.acks),
            4 => header.flags = any_flags(rng),
            5 => header.wnd = [0, 1, 2, 65_535, rng.next_u32() as u16][rng.below(5) as usize],
            6 => header.options = any_options(rng, edges),
            _ => {
                header.urgent = rng.next_u32() as u16;
                header.flags.insert(TcpFlags::URG);
            }
        }
    }
    let payload = match rng.below(4) {
        0 | 1 => 0,
        2 => rng.below(9),
        _ => rng.below(PAYLOAD_MAX + 1),
    };
    into.resize(TCP_HEADER_LEN_MAX, 0);
    let header_len = emit_tcp(into, &header);
    into.truncate(header_len);
    into.resize(header_len + payload as usize, 0xa5);
    if rng.chance_ppm(100_000) {
        // Byte 12 of the header holds the data offset. The options after byte 19 may become
        // invalid, too.
        for _ in 0..rng.between(1, 4) {
            let at = rng.between(12, header_len as u64 - 1) as usize;
            into[at] = rng.next_u32() as u8;
        }
    }
    into.len()
}
