//! A campaign: forged packets attack one instance of Tidelane's TCP engine, the victim. Meanwhile
//! verified flows, whose programs check every byte, use the same engine.

use std::collections::BTreeSet;

use tidelane_engine::{
    CloseCause, Duration, Endpoint, EngineConfig, Event, FlowId, FlowKey, IcmpError, IcmpErrorKind,
    Instant, SeqNumber, SocketOptions, State, TcpFlags,
};
use tidelane_flow::flags;
use tidelane_netem::Rng;
use tidelane_wire::parse_tcp;
use tidelane_world::Content;

use crate::{
    forge::{Edges, forge},
    party::{Packet, Party},
};

/// Address of the victim, the engine that the campaign attacks.
const VICTIM: [u8; 4] = [10, 0, 0, 1];
/// Address of the friend, the honest peer of the verified flows.
const FRIEND: [u8; 4] = [10, 0, 0, 2];
/// First two octets of the forgers' addresses, 10.9.0.0 to 10.9.0.3.
const FORGERS: [u8; 2] = [10, 9];
/// Port of the friend's listener, for connections from the victim.
const FRIEND_PORT: u16 = 7000;
/// Port of the victim's listener for connections from the friend.
const FRIEND_LISTEN_PORT: u16 = 7001;
/// Port of the victim's listener for connections from the forgers.
const FORGER_LISTEN_PORT: u16 = 80;
/// Number of concurrent verified flows.
const VERIFIED: usize = 6;
/// Length of the stream in each direction of a verified flow, in bytes.
const VERIFIED_LEN: u32 = 40_000;
/// While the victim has this many targets or more, the campaign begins no further target. A target
/// is a flow between the victim and a forger.
const TARGETS_MAX: usize = 96;
/// Number of forging steps in a batch. A step forges at most one packet. After the steps, the
/// programs act, and victim and friend exchange packets.
const BATCH: u64 = 24;

/// Counters of a campaign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Forged segments that the parser accepted.
    pub forged: u64,
    /// Forged segments that cannot be parsed.
    pub unparsable: u64,
    /// Forged ICMP errors.
    pub icmp: u64,
    /// Connections from forgers that the victim accepted.
    pub established: u64,
    /// Verified flows that ended with all bytes transferred.
    pub verified_flows: u64,
    /// Bytes of verified flows that arrived with the expected content.
    pub verified_bytes: u64,
}

/// A flow between victim and friend. Both programs check every byte that they receive.
#[derive(Clone, Copy, Debug)]
struct Verified {
    /// The flow's key in the victim's engine.
    key: FlowKey,
    /// The flow's id in the victim's engine; `None` until open or accept, and after release.
    at_victim: Option<FlowId>,
    /// The flow's id in the friend's engine; `None` until open or accept, and after release.
    at_friend: Option<FlowId>,
    /// Number of the flow, which decides the content of its streams.
    number: u32,
}

/// One simulated attack: the victim, the friend, and the forgers' targets. A target is a flow of
/// the victim whose peer is a forger.
pub struct Campaign {
    rng: Rng,
    now: Instant,
    victim: Party,
    friend: Party,
    verified: Vec<Verified>,
    /// Number of verified flows that were opened so far.
    opened: u32,
    targets: BTreeSet<FlowId>,
    /// The segment that was forged last: TCP header and payload.
    packet: Vec<u8>,
    counts: Counts,
}

/// Returns a random configuration with small limits.
fn config(rng: &mut Rng) -> EngineConfig {
    EngineConfig {
        rx_window_max: 1 << rng.between(14, 17),
        rx_window_initial: 1 << rng.between(12, 14),
        tx_limit: 1 << rng.between(13, 17),
        flows_max: 1024,
        msl: Duration::from_millis(500),
        timestamps: rng.chance_ppm(700_000),
        sack: rng.chance_ppm(700_000),
        time_wait_max: 256,
        ..EngineConfig::default()
    }
}

/// Returns the contents of verified flow `number`: the stream from the victim, and the stream from
/// the friend.
fn contents(number: u32) -> [Content; 2] {
    [Content::of_server(1, number), Content::of_server(2, number)]
}

impl Campaign {
    /// Returns the campaign of `seed` before its first packet.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut victim = Party::new(config(&mut rng), [7; 16]);
        let mut friend = Party::new(config(&mut rng), [9; 16]);
        let options = SocketOptions::default();
        let listen = |party: &mut Party, addr, port, backlog| {
            party
                .engine
                .listen(Endpoint::v4(addr, port), backlog, options)
                .expect("the port is free")
        };
        listen(&mut victim, VICTIM, FORGER_LISTEN_PORT, 64);
        listen(&mut victim, VICTIM, FRIEND_LISTEN_PORT, 64);
        listen(&mut friend, FRIEND, FRIEND_PORT, 64);
        Self {
            rng,
            now: Instant::from_secs(1),
            victim,
            friend,
            verified: Vec::new(),
            opened: 0,
            targets: BTreeSet::new(),
            packet: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Forges `count` segments or a few more, and ICMP errors in addition. Then aborts all flows,
    /// and checks that neither engine still has a flow, a connection in TIME-WAIT, or a timer.
    pub fn run(mut self, count: u64) -> Counts {
        let mut moved = 0;
        let mut next_look = 50_000;
        while self.counts.forged + self.counts.unparsable < count {
            self.batch();
            if self.counts.forged > next_look {
                next_look += 50_000;
                let verified = self.victim.verified + self.friend.verified;
                assert!(
                    verified > moved,
                    "the verified flows make no progress:\n{}",
                    self.describe()
                );
                moved = verified;
            }
        }
        self.counts.verified_bytes = self.victim.verified + self.friend.verified;
        let now = self.victim.assert_empty(self.now);
        self.friend.assert_empty(now);
        self.counts
    }

    /// Returns the state of all verified flows at both ends, for the message of a failure.
    fn describe(&self) -> String {
        let end = |party: &Party, flow: Option<FlowId>| {
            let info = flow.and_then(|flow| party.engine.info(flow));
            let binding = flow.and_then(|flow| party.driver.bindings.get(&flow));
            let positions = binding.map(|b| (b.tx_head, b.rx_read, b.closed));
            format!("  {positions:?} {info:?}\n")
        };
        let lines = self.verified.iter().map(|flow| {
            let [victim, friend] = [
                end(&self.victim, flow.at_victim),
                end(&self.friend, flow.at_friend),
            ];
            format!("{:?}\n{victim}{friend}", flow.key)
        });
        lines.collect()
    }

    /// Advances the time, takes [`BATCH`] forging steps, and lets the programs act.
    fn batch(&mut self) {
        let step = match self.rng.below(2000) {
            0 => self.rng.below(3_000_000_000),
            _ => self.rng.below(200_000),
        };
        self.now += Duration(step);
        if self.rng.chance_ppm(10_000) {
            self.victim.driver.refuse = self.rng.below(20) as u32;
        }
        for _ in 0..BATCH {
            match self.rng.below(20) {
                0 => self.begin_target(),
                1..4 => self.forge_harmless(),
                4 => self.forge_icmp(),
                5 => self.forge_stranger(),
                _ => self.forge_for_target(),
            }
        }
        self.use_verified();
        self.exchange();
        self.use_targets();
    }

    /// Sends the victim a segment that seems to come from the peer of `key`. Some fields are near
    /// `edges`, the numbers where the victim's checks change their result.
    fn send_forged(&mut self, key: FlowKey, edges: &Edges, timestamps: bool) {
        let ports = (key.peer.port, key.local.port);
        forge(&mut self.rng, edges, ports, timestamps, &mut self.packet);
        self.send_packet(key);
    }

    /// Sends the forged segment in `packet` to the victim, if it can be parsed.
    fn send_packet(&mut self, key: FlowKey) {
        match parse_tcp(&self.packet) {
            Ok(segment) => {
                self.victim.receive(self.now, key, &segment);
                self.counts.forged += 1;
            }
            Err(_) => self.counts.unparsable += 1,
        }
    }

    /// Returns the address and port of a random forger.
    fn forger(&mut self) -> Endpoint {
        let [a, b] = FORGERS;
        let addr = [a, b, 0, self.rng.below(4) as u8];
        Endpoint::v4(addr, 1024 + self.rng.below(64) as u16)
    }

    /// Begins a new target: the victim connects to a forger, or a forger sends a segment, most
    /// often a SYN. With [`TARGETS_MAX`] or more targets, attacks one of the targets instead.
    fn begin_target(&mut self) {
        if self.targets.len() >= TARGETS_MAX {
            return self.forge_for_target();
        }
        let forger = self.forger();
        let local_port = 20_000 + self.rng.below(1000) as u16;
        if self.rng.chance_ppm(300_000) {
            let local = Endpoint::v4(VICTIM, local_port);
            let _ = self.victim.open(self.now, local, forger, [None, None]);
            return;
        }
        let key = FlowKey::new(Endpoint::v4(VICTIM, FORGER_LISTEN_PORT), forger);
        let edges = Edges {
            seqs: [SeqNumber(self.rng.next_u32()); 4],
            ..Edges::default()
        };
        let (mut header, rng) = (Vec::new(), &mut self.rng);
        forge(
            rng,
            &edges,
            (forger.port, FORGER_LISTEN_PORT),
            false,
            &mut header,
        );
        // Make most segments a SYN, because only a SYN creates a flow to attack.
        if rng.chance_ppm(900_000) {
            header[13] = TcpFlags::SYN.0;
        }
        self.packet = header;
        self.send_packet(key);
    }

    /// Sends a forged segment to a random target.
    fn forge_for_target(&mut self) {
        let count = self.targets.len() as u64;
        let chosen = self.rng.below(count) as usize;
        let target = self.targets.iter().nth(chosen).copied();
        let Some(state) = target.and_then(|flow| self.victim.engine.flow(flow)) else {
            return self.forge_stranger();
        };
        let (key, edges) = (state.key(), Edges::of(state));
        let timestamps = state.has(flags::TIMESTAMPS);
        self.send_forged(key, &edges, timestamps);
    }

    /// Sends a segment from a random forger. Most often, the victim has no flow for the segment.
    fn forge_stranger(&mut self) {
        let forger = self.forger();
        let port = [FORGER_LISTEN_PORT, 0, 20_000, 9][self.rng.below(4) as usize];
        let key = FlowKey::new(Endpoint::v4(VICTIM, port), forger);
        let edges = Edges {
            seqs: [SeqNumber(self.rng.next_u32()); 4],
            acks: [SeqNumber(self.rng.next_u32()); 4],
            ts_recent: self.rng.next_u32(),
        };
        self.send_forged(key, &edges, false);
    }

    /// Sends the victim a forged ICMP error for a target or for a verified flow.
    fn forge_icmp(&mut self) {
        let of_target = self.rng.chance_ppm(700_000);
        let flow = if of_target {
            let chosen = self.rng.below(self.targets.len() as u64) as usize;
            self.targets.iter().nth(chosen).copied()
        } else {
            let chosen = self.rng.below(VERIFIED as u64) as usize;
            self.verified.get(chosen).and_then(|flow| flow.at_victim)
        };
        let Some(state) = flow.and_then(|flow| self.victim.engine.flow(flow)) else {
            return;
        };
        // Spare verified flows that are not in ESTABLISHED. An ICMP error may end a flow in
        // SYN-SENT or SYN-RECEIVED.
        if !of_target && state.state() != State::Established {
            return;
        }
        let kind = match self.rng.below(4) {
            0 => IcmpErrorKind::NetUnreachable,
            1 => IcmpErrorKind::HostUnreachable,
            2 => IcmpErrorKind::TimeExceeded,
            _ => IcmpErrorKind::FragmentationNeeded {
                mtu: [0, 68, 576, 1300, 65_535][self.rng.below(5) as usize],
            },
        };
        let key = state.key();
        let seq = SeqNumber(state.snd_una.0.wrapping_add(self.rng.below(5000) as u32));
        let error = IcmpError { key, seq, kind };
        self.victim
            .engine
            .icmp_error(self.now, &error, &mut self.victim.driver);
        self.counts.icmp += 1;
    }

    /// Sends a verified flow a forged segment that, by the RFCs, must neither end nor change the
    /// flow.
    fn forge_harmless(&mut self) {
        let chosen = self.rng.below(VERIFIED as u64) as usize;
        let flow = self.verified.get(chosen).and_then(|flow| flow.at_victim);
        let Some(state) = flow.and_then(|flow| self.victim.engine.flow(flow)) else {
            return;
        };
        if state.state() != State::Established {
            return;
        }
        let (key, edges) = (state.key(), Edges::of(state));
        let (rcv_nxt, rcv_adv, snd_nxt) = (state.rcv_nxt, state.rcv_adv, state.snd_nxt);
        let timestamps = state.has(flags::TIMESTAMPS);
        let ports = (key.peer.port, key.local.port);
        forge(&mut self.rng, &edges, ports, timestamps, &mut self.packet);
        let header_len = usize::from(self.packet[12] >> 4) * 4;
        if header_len < 20 || header_len > self.packet.len() {
            self.counts.unparsable += 1;
            return;
        }
        let len = (self.packet.len() - header_len) as u32;
        let below = |rng: &mut Rng, bound: u32| rng.below(u64::from(bound)) as u32;
        let rng = &mut self.rng;
        let (seq, ack, bits) = match rng.below(5) {
            // Right of the window (RFC 9293 §3.10.7.4, first check).
            0 => (rcv_adv.0.wrapping_add(1 + below(rng, 1 << 30)), None, None),
            // Far left of the window. Close to the window, the segment's ACK might still be used.
            1 => {
                let back = len + (1 << 18) + below(rng, 1 << 30);
                (rcv_nxt.0.wrapping_sub(back), None, None)
            }
            // RST inside the window but not at RCV.NXT (RFC 5961 §3.2).
            2 => {
                let window = rcv_adv.0.wrapping_sub(rcv_nxt.0);
                let seq = rcv_nxt.0.wrapping_add(1 + below(rng, window.max(2) - 1));
                (seq, None, Some(TcpFlags::RST))
            }
            // SYN with any sequence number (RFC 5961 §4.2).
            3 => (rng.next_u32(), None, Some(TcpFlags::SYN)),
            // ACK of data that was never sent (RFC 5961 §5.2).
            _ => {
                let ack = snd_nxt.0.wrapping_add(1 + below(rng, 1 << 30));
                (rcv_nxt.0, Some(ack), Some(TcpFlags::ACK))
            }
        };
        self.packet[4..8].copy_from_slice(&seq.to_be_bytes());
        if let Some(ack) = ack {
            self.packet[8..12].copy_from_slice(&ack.to_be_bytes());
        }
        if let Some(bits) = bits {
            self.packet[13] = bits.0;
        }
        self.send_packet(key);
    }

    /// Opens verified flows until there are [`VERIFIED`]. On each flow that both engines have,
    /// writes and reads at both ends, and ends each stream after [`VERIFIED_LEN`] bytes.
    fn use_verified(&mut self) {
        while self.verified.len() < VERIFIED {
            self.open_verified();
        }
        let count = 1 + self.rng.below(1500) as u32;
        for index in 0..self.verified.len() {
            let flow = self.verified[index];
            let (Some(here), Some(there)) = (flow.at_victim, flow.at_friend) else {
                continue;
            };
            for (party, id) in [(&mut self.victim, here), (&mut self.friend, there)] {
                let written = party.driver.bindings.get(&id).map_or(0, |b| b.tx_head);
                party.write(id, count.min(VERIFIED_LEN.saturating_sub(written)));
                party.read(id, u32::MAX);
                if written >= VERIFIED_LEN {
                    party.engine.shutdown_write(id);
                }
            }
        }
    }

    /// Opens a verified flow. The victim opens the flows with an even number, and the friend opens
    /// the flows with an odd number.
    fn open_verified(&mut self) {
        let number = self.opened;
        self.opened += 1;
        let port = 1024 + (number % 20_000) as u16;
        let [ours, theirs] = contents(number);
        let mut flow = Verified {
            key: FlowKey::default(),
            at_victim: None,
            at_friend: None,
            number,
        };
        let (here, there) = if number.is_multiple_of(2) {
            let ends = (
                Endpoint::v4(VICTIM, port),
                Endpoint::v4(FRIEND, FRIEND_PORT),
            );
            let contents = [Some(ours), Some(theirs)];
            flow.at_victim = self.victim.open(self.now, ends.0, ends.1, contents);
            assert!(
                flow.at_victim.is_some(),
                "the victim's engine refused a verified flow"
            );
            ends
        } else {
            let ends = (
                Endpoint::v4(VICTIM, FRIEND_LISTEN_PORT),
                Endpoint::v4(FRIEND, port),
            );
            let contents = [Some(theirs), Some(ours)];
            flow.at_friend = self.friend.open(self.now, ends.1, ends.0, contents);
            assert!(
                flow.at_friend.is_some(),
                "the friend's engine refused a verified flow"
            );
            ends
        };
        flow.key = FlowKey::new(here, there);
        self.verified.push(flow);
    }

    /// Ends the batch: delivers packets between victim and friend, and handles the events of both
    /// engines.
    fn exchange(&mut self) {
        for _ in 0..3 {
            self.victim.end_batch(self.now);
            if self.victim.driver.refuse > 0 && self.rng.chance_ppm(500_000) {
                self.victim.driver.refuse = 0;
                self.victim.engine.resume_transmit();
            }
            self.friend.end_batch(self.now);
            self.take_events();
            for packet in std::mem::take(&mut self.victim.driver.sent) {
                if packet.out.key.peer.addr == Endpoint::v4(FRIEND, 0).addr {
                    self.friend.receive_packet(self.now, &packet);
                }
            }
            let packets: Vec<Packet> = std::mem::take(&mut self.friend.driver.sent);
            for packet in packets {
                self.victim.receive_packet(self.now, &packet);
            }
        }
        self.victim.end_batch(self.now);
        self.friend.end_batch(self.now);
        self.take_events();
    }

    /// Handles the events of both engines as their programs do.
    fn take_events(&mut self) {
        for (flow, event) in std::mem::take(&mut self.friend.driver.events) {
            self.friend_event(flow, event);
        }
        for (flow, event) in std::mem::take(&mut self.victim.driver.events) {
            self.victim_event(flow, event);
        }
    }

    /// Handles an event of the friend's engine, all of whose flows are verified.
    fn friend_event(&mut self, flow: FlowId, event: Event) {
        match event {
            Event::Accepted(listener) => {
                self.friend.engine.accept_queue_removed(listener, 1);
                let key = self
                    .friend
                    .engine
                    .flow(flow)
                    .map(|state| state.key().reversed());
                let found = self.verified.iter_mut().find(|v| Some(v.key) == key);
                let verified = found.expect("a flow that the victim opened");
                verified.at_friend = Some(flow);
                let [ours, theirs] = contents(verified.number);
                let binding = self.friend.driver.bindings.entry(flow).or_default();
                [binding.sends, binding.expects] = [Some(theirs), Some(ours)];
            }
            Event::Closed(cause) => {
                assert_eq!(cause, CloseCause::Finished, "a verified flow ended early");
                self.friend.read(flow, u32::MAX);
                self.friend.close_or_abort(self.now, flow, false);
            }
            Event::Released => {
                if let Some(binding) = self.friend.driver.bindings.remove(&flow) {
                    assert_eq!(
                        binding.rx_read, VERIFIED_LEN,
                        "bytes of a verified flow are missing"
                    );
                }
                self.release_verified(|v| v.at_friend == Some(flow), |v| &mut v.at_friend);
            }
            _ => {}
        }
    }

    /// Handles an event of the victim's engine, for a verified flow or for a target.
    fn victim_event(&mut self, flow: FlowId, event: Event) {
        let key = self.victim.engine.flow(flow).map(|state| state.key());
        match event {
            Event::Accepted(listener) => {
                self.victim.engine.accept_queue_removed(listener, 1);
                if let Some(v) = self.verified.iter_mut().find(|v| Some(v.key) == key) {
                    v.at_victim = Some(flow);
                    let [ours, theirs] = contents(v.number);
                    let binding = self.victim.driver.bindings.entry(flow).or_default();
                    [binding.sends, binding.expects] = [Some(ours), Some(theirs)];
                } else {
                    self.counts.established += 1;
                }
            }
            Event::Closed(cause) => {
                if self.verified.iter().any(|v| v.at_victim == Some(flow)) {
                    assert_eq!(cause, CloseCause::Finished, "a verified flow ended early");
                }
                self.victim.read(flow, u32::MAX);
                let abort = cause != CloseCause::Finished;
                self.victim.close_or_abort(self.now, flow, abort);
            }
            Event::Released => {
                let binding = self
                    .victim
                    .driver
                    .bindings
                    .remove(&flow)
                    .unwrap_or_default();
                self.targets.remove(&flow);
                if self.verified.iter().any(|v| v.at_victim == Some(flow)) {
                    assert_eq!(
                        binding.rx_read, VERIFIED_LEN,
                        "bytes of a verified flow are missing"
                    );
                }
                self.release_verified(|v| v.at_victim == Some(flow), |v| &mut v.at_victim);
            }
            _ => {}
        }
    }

    /// Handles the release of one end of a verified flow. `is_flow` returns true for this flow, and
    /// `end_of` selects the released end. Counts and removes the flow when both ends are released.
    fn release_verified(
        &mut self,
        is_flow: impl Fn(&Verified) -> bool,
        end_of: impl Fn(&mut Verified) -> &mut Option<FlowId>,
    ) {
        let Some(index) = self.verified.iter().position(is_flow) else {
            return;
        };
        *end_of(&mut self.verified[index]) = None;
        let flow = self.verified[index];
        if flow.at_victim.is_none() && flow.at_friend.is_none() {
            self.verified.swap_remove(index);
            self.counts.verified_flows += 1;
        }
    }

    /// Collects the targets, and makes random calls of the victim's program on them.
    fn use_targets(&mut self) {
        let forgers = |key: &FlowKey| key.peer.addr.as_v4().is_some_and(|v4| v4[..2] == FORGERS);
        let victim = &self.victim.engine;
        self.targets = victim
            .flows()
            .filter(|flow| {
                victim
                    .flow(*flow)
                    .is_some_and(|state| forgers(&state.key()))
            })
            .collect();
        let full = self.targets.len() >= TARGETS_MAX;
        for flow in self.targets.clone() {
            let state = self.victim.engine.flow(flow).map(|state| state.state());
            let half_open = matches!(state, None | Some(State::SynReceived));
            let ended = self
                .victim
                .driver
                .bindings
                .get(&flow)
                .is_some_and(|b| b.closed);
            if half_open || ended {
                continue;
            }
            match self.rng.below(if full { 60 } else { 400 }) {
                0 => self.victim.close_or_abort(self.now, flow, true),
                1 => self.victim.close_or_abort(self.now, flow, false),
                2 => {
                    let party = &mut self.victim;
                    party.engine.shutdown_write(flow);
                }
                3 => self.change_options(flow),
                4..30 => {
                    let count = self.rng.below(4000) as u32;
                    self.victim.write(flow, count);
                }
                30..50 => {
                    let count = self.rng.below(4000) as u32;
                    self.victim.read(flow, count);
                }
                _ => {}
            }
        }
    }

    /// Sets random socket options of a flow.
    fn change_options(&mut self, flow: FlowId) {
        let options = SocketOptions {
            nodelay: self.rng.chance_ppm(500_000),
            cork: self.rng.chance_ppm(200_000),
            keepalive: self.rng.chance_ppm(500_000),
            keepalive_idle: Duration::from_millis(500),
            keepalive_interval: Duration::from_millis(200),
            quickack: self.rng.chance_ppm(500_000),
            ..SocketOptions::default()
        };
        let party = &mut self.victim;
        party
            .engine
            .set_options(self.now, flow, options, &mut party.driver);
    }
}
