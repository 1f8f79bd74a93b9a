//! Tests of packetization layer path MTU discovery (RFC 4821): black holes (paths that drop large
//! packets without an ICMP error), probes, and congestion control. A rig is one TCP engine, with
//! the test as its peer.

use tidelane_engine::{EngineConfig, MtuProbing, SeqNumber, SocketOptions, TcpOptions};

use crate::rig::{Out, Rig, ack, spans, syn};

fn established(mtu_probing: MtuProbing, sack_permitted: bool) -> Rig {
    let config = EngineConfig {
        mtu_probing,
        ..EngineConfig::default()
    };
    let peer = TcpOptions {
        mss: Some(1460),
        sack_permitted,
        ..TcpOptions::NONE
    };
    Rig::established_with(config, SocketOptions::default(), peer)
}

/// A peer behind a path that silently drops segments with more than `limit` bytes of payload.
struct Peer {
    limit: u32,
    /// RCV.NXT, relative to the engine's ISS.
    next: u32,
    /// Ranges received out of order.
    held: Vec<(u32, u32)>,
}

impl Peer {
    fn new(limit: u32) -> Self {
        Self {
            limit,
            next: 1,
            held: Vec::new(),
        }
    }

    /// Delivers the segments of `sent` that the path carries, and acknowledges each delivered
    /// segment. Returns the engine's answers.
    fn take(&mut self, rig: &mut Rig, sent: &[Out]) -> Vec<Out> {
        let mut more = Vec::new();
        for out in sent.iter().filter(|out| out.len <= self.limit) {
            self.held.push((out.seq, out.seq + out.len));
            self.held.sort_unstable();
            while let Some(first) = self.held.first().filter(|first| first.0 <= self.next) {
                self.next = self.next.max(first.1);
                self.held.remove(0);
            }
            let blocks: Vec<_> = self.held.iter().copied().rev().take(3).collect();
            more.extend(rig.push(ack(1, self.next).sack(rig, &blocks)));
        }
        more
    }

    /// Lets the application write `len` bytes, and waits until the peer has all of them. Returns
    /// all segments of the engine.
    fn carry(&mut self, rig: &mut Rig, len: u32) -> Vec<Out> {
        let end = self.next + len;
        let mut flight = rig.write(len);
        let mut all = flight.clone();
        for _ in 0..10_000 {
            let waited = rig.wait_ms(10);
            flight.extend(waited.iter().copied());
            all.extend(waited);
            flight = self.take(rig, &std::mem::take(&mut flight));
            all.extend(flight.iter().copied());
            if self.next == end {
                return all;
            }
        }
        panic!("{} of {end} arrived", self.next);
    }
}

#[test]
fn section_7_7_timeouts_bring_the_size_down() {
    let mut rig = established(MtuProbing::BlackHole, false);
    rig.write(14_600);
    let sent = rig.wait_ms(4_000);
    // After the fourth consecutive timeout, the engine assumes a black hole and retransmits a
    // segment of the base size (1024 bytes).
    assert_eq!(spans(&sent), [(1, 1460), (1, 1460), (1, 1460), (1, 1024)]);
    assert_eq!(rig.engine.counters().mtu_black_holes, 1);
    // Even the base size may be too large, so the next timeout retransmits a segment of the least
    // size (512 bytes).
    assert_eq!(spans(&rig.wait_ms(4_000)), [(1, 512)]);
    let least = rig.wait_ms(60_000);
    assert!(least.iter().all(|out| out.len == 512), "{least:?}");
}

#[test]
fn section_7_7_a_short_connection_that_answers_is_no_black_hole() {
    let mut rig = established(MtuProbing::BlackHole, false);
    for n in 0..8 {
        rig.write(1460);
        // The backoff of the RTO stays, because these ACKs give no RTT sample (Karn).
        rig.wait_ms(250 << n);
        rig.push(ack(1, 1 + (n + 1) * 1460));
    }
    assert!(rig.engine.counters().timeouts >= 8);
    assert_eq!(rig.info().mss, 1460);
}

#[test]
fn with_probing_off_the_size_stays() {
    let mut rig = established(MtuProbing::Off, false);
    rig.write(14_600);
    let sent = rig.wait_ms(60_000);
    assert!(sent.len() > 6 && sent.iter().all(|out| out.len == 1460));
}

#[test]
fn section_7_3_the_largest_size_that_arrives_is_found() {
    for (sack, limit) in [(true, 1240), (true, 1460), (false, 1240), (true, 700)] {
        let mut rig = established(MtuProbing::BlackHole, sack);
        let mut peer = Peer::new(limit);
        for _ in 0..40 {
            peer.carry(&mut rig, 50_000);
        }
        let found = rig.info().mss;
        // The search stops less than 8 bytes below `limit`, the largest size that arrives.
        assert!(found <= limit && limit < found + 8, "{found} of {limit}");
        let counters = rig.engine.counters();
        assert!(counters.mtu_probes > counters.mtu_raised || limit == 1460);
        // After the search, no probes are sent.
        let probes = counters.mtu_probes;
        peer.carry(&mut rig, 200_000);
        assert_eq!(rig.engine.counters().mtu_probes, probes);
    }
}

#[test]
fn section_7_6_a_lost_probe_is_no_sign_of_congestion() {
    let mut rig = established(MtuProbing::BlackHole, true);
    let mut peer = Peer::new(1240);
    peer.carry(&mut rig, 30_000);
    let before = rig.engine.counters();
    let ssthresh = rig.info().ssthresh;
    for _ in 0..40 {
        peer.carry(&mut rig, 50_000);
    }
    let after = rig.engine.counters();
    let lost = |counters: &tidelane_engine::Counters| counters.mtu_probes - counters.mtu_raised;
    assert!(lost(&after) > lost(&before), "no probe was lost");
    assert_eq!(rig.info().ssthresh, ssthresh);
    assert_eq!(
        (after.timeouts, after.fast_retrans),
        (before.timeouts, before.fast_retrans)
    );
}

#[test]
fn section_7_2_always_begins_with_a_size_that_nearly_every_path_carries() {
    let mut rig = established(MtuProbing::Always, true);
    let mut peer = Peer::new(1460);
    let first = peer.carry(&mut rig, 5_000);
    assert_eq!(first[0].len, 1024);
    for _ in 0..20 {
        peer.carry(&mut rig, 50_000);
    }
    assert!(rig.info().mss > 1452, "{}", rig.info().mss);
    assert_eq!(rig.engine.counters().timeouts, 0);
}

#[test]
fn section_5_2_the_next_connection_starts_with_the_found_size() {
    let mut rig = established(MtuProbing::BlackHole, true);
    let mut peer = Peer::new(1240);
    for _ in 0..40 {
        peer.carry(&mut rig, 50_000);
    }
    let found = rig.info().mss;
    let probes = rig.engine.counters().mtu_probes;
    let flow = rig.flow_id().expect("a flow");
    rig.engine.abort(rig.now, flow, &mut rig.driver);
    rig.batch_end();
    rig.key.peer.port += 1;
    (rig.iss, rig.written) = (SeqNumber(0), 0);
    let options = TcpOptions {
        mss: Some(1460),
        sack_permitted: true,
        ..TcpOptions::NONE
    };
    rig.push(syn(options));
    rig.push(ack(1, 1));
    let mut peer = Peer::new(1240);
    let sent = peer.carry(&mut rig, 100_000);
    assert!(sent.iter().all(|out| out.len <= found) && sent[0].len == found);
    assert_eq!(rig.engine.counters().mtu_probes, probes, "a new search");
    // After the found size has expired, the first segments still have this size. Probes then find
    // the larger size.
    rig.wait_ms(601_000);
    peer.limit = 1460;
    let lens: Vec<u32> = spans(&peer.carry(&mut rig, 50_000))
        .iter()
        .map(|s| s.1)
        .collect();
    assert!(lens[..10].iter().all(|len| *len == found), "{lens:?}");
    for _ in 0..10 {
        peer.carry(&mut rig, 50_000);
    }
    assert!(rig.info().mss > 1440, "{}", rig.info().mss);
}

/// RFC 1191 §6.3: larger sizes are tried after ten minutes at the earliest.
#[test]
fn larger_sizes_are_tried_again_after_ten_minutes() {
    let mut rig = established(MtuProbing::BlackHole, true);
    let mut peer = Peer::new(1240);
    for _ in 0..40 {
        peer.carry(&mut rig, 50_000);
    }
    let found = rig.info().mss;
    peer.limit = 1460;
    peer.carry(&mut rig, 200_000);
    assert_eq!(rig.info().mss, found);
    rig.wait_ms(601_000);
    for _ in 0..40 {
        peer.carry(&mut rig, 50_000);
    }
    assert!(rig.info().mss > 1452, "{}", rig.info().mss);
}
