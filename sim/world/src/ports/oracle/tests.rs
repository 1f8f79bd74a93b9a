//! Tests of the oracle, which checks the rules of mux ports independently of the mux. A mux port is
//! a pair of packet rings through which a program with a TCP/IP stack of its own shares the NIC.
//! The tests pass frames of two well-behaved programs, of a hostile program, and of the engine (the
//! service's own TCP stack) to the oracle.

use tidelane_netem::Rng;
use tidelane_wire::{Endpoint, TcpFlags};

use super::*;
use crate::ports::{
    forge::Draft,
    frame::{TCP, UDP},
};

const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const PEER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const LOCAL: IpAddress = IpAddress::from_v4([10, 0, 0, 1]);
const PEER: IpAddress = IpAddress::from_v4([10, 0, 0, 2]);
const NOW: Instant = Instant::from_secs(1);
const GOOD: PortKey = PortKey(0);
const OTHER: PortKey = PortKey(1);
const HOSTILE: PortKey = PortKey(2);

fn local(port: u16) -> Endpoint {
    Endpoint::new(LOCAL, port)
}

/// Returns an oracle with the mux ports `GOOD`, `OTHER` and `HOSTILE`, which own the local TCP
/// ports 1000, 1001 and 1002 in this order.
fn oracle() -> Oracle {
    let mut oracle = Oracle::new(MAC, vec![LOCAL], PortRulesSpec::default());
    for (key, port) in [(GOOD, 1000), (OTHER, 1001), (HOSTILE, 1002)] {
        oracle.open(key, key == HOSTILE);
        assert!(oracle.owners.claim(key, TCP, local(port)));
    }
    oracle
}

/// Returns a frame from the local TCP port `port` to the peer.
fn frame(port: u16, flags: TcpFlags) -> Vec<u8> {
    let draft = Draft {
        mac: MAC,
        dst_mac: PEER_MAC,
        src: (TCP, local(port)),
        dst: Endpoint::new(PEER, 9),
        flags,
        payload_len: 20,
    };
    draft
        .frame(&mut Rng::new(u64::from(port)))
        .expect("both endpoints have one IP version")
}

/// Returns a frame from the peer to the local TCP port `port`.
fn frame_to(port: u16) -> Vec<u8> {
    let draft = Draft {
        mac: PEER_MAC,
        dst_mac: MAC,
        src: (TCP, Endpoint::new(PEER, 9)),
        dst: local(port),
        flags: TcpFlags::ACK,
        payload_len: 20,
    };
    draft
        .frame(&mut Rng::new(u64::from(port)))
        .expect("both endpoints have one IP version")
}

/// Returns the name of the rule that `result` reports as broken.
fn rule<T: std::fmt::Debug>(result: Result<T, Violation>) -> &'static str {
    result.expect_err("a rule is broken").rule
}

#[test]
fn each_frame_leaves_from_the_owner_of_its_source() {
    let mut oracle = oracle();
    let genuine = frame(1000, TcpFlags::ACK);
    assert_eq!(oracle.publishes(GOOD, &genuine, 0), 1);
    assert_eq!(oracle.leaves(NOW, &genuine), Ok(Sender::Good(GOOD)));
    // A claim makes a mux port the owner of a 3-tuple (protocol, local address, local port). After
    // the claim has moved to another mux port, the same frame may not leave.
    oracle.owners.move_all(GOOD, OTHER);
    let own = "a port sends only from its own 3-tuples";
    assert_eq!(rule(oracle.leaves(NOW, &genuine)), own);
    oracle.owners.release_all(OTHER);
    assert_eq!(rule(oracle.leaves(NOW, &genuine)), own);
    // No mux port owns the 3-tuple of port 80, so the frame counts as a frame of the engine.
    assert_eq!(
        oracle.leaves(NOW, &frame(80, TcpFlags::ACK)),
        Ok(Sender::Engine)
    );
}

#[test]
fn a_frame_of_another_port_or_of_the_engine_is_found() {
    let mut oracle = oracle();
    let forged = frame(1000, TcpFlags::ACK);
    oracle.publishes(HOSTILE, &forged, 0);
    assert_eq!(
        rule(oracle.leaves(NOW, &forged)),
        "a port sends only from its own 3-tuples"
    );
    assert_eq!(
        rule(oracle.leaves(NOW, &frame(1001, TcpFlags::RST))),
        "only a port's own stack resets its connections"
    );
    assert_eq!(
        rule(oracle.leaves(NOW, &frame(1001, TcpFlags::ACK))),
        "nobody else sends from a port's 3-tuple"
    );
    // A hostile program may change its published frames, so the oracle cannot know all of them. The
    // oracle therefore accepts an unknown frame from a 3-tuple of the hostile program.
    let own = frame(1002, TcpFlags::RST);
    assert_eq!(oracle.leaves(NOW, &own), Ok(Sender::Hostile));
}

#[test]
fn invalid_frames_of_ports_are_found() {
    let mut oracle = oracle();
    let valid = "a port sends only valid packets";
    let mut wrong_mac = frame(1000, TcpFlags::ACK);
    wrong_mac[6] ^= 4;
    let mut wrong_sum = frame(1000, TcpFlags::ACK);
    wrong_sum[50] ^= 1;
    for frame in [wrong_mac, wrong_sum] {
        oracle.publishes(GOOD, &frame, 0);
        assert_eq!(rule(oracle.leaves(NOW, &frame)), valid);
    }
    let garbage = vec![7; 60];
    oracle.publishes(HOSTILE, &garbage, 0);
    assert_eq!(
        rule(oracle.leaves(NOW, &garbage)),
        "only whole packets leave a port"
    );
}

#[test]
fn the_host_may_repeat_a_reset_of_a_closed_port() {
    let mut oracle = oracle();
    let reset = frame(1000, TcpFlags::RST);
    oracle.publishes(GOOD, &reset, 0);
    assert_eq!(oracle.leaves(NOW, &reset), Ok(Sender::Good(GOOD)));
    assert_eq!(oracle.resets, 1);
    // The engine resets the connections of a closed mux port. The engine's RST may equal an earlier
    // RST of the program.
    oracle.close(GOOD);
    assert_eq!(oracle.leaves(NOW, &reset), Ok(Sender::Engine));
}

#[test]
fn each_frame_reaches_the_owner_of_its_destination() {
    let mut oracle = oracle();
    let frame = frame_to(1000);
    assert_eq!(oracle.reaches(NOW, GOOD, &frame), Ok(()));
    let only = "a packet reaches only the owner of its 3-tuple";
    assert_eq!(rule(oracle.reaches(NOW, OTHER, &frame)), only);
    oracle.owners.move_one(GOOD, OTHER, TCP, local(1000));
    assert_eq!(rule(oracle.reaches(NOW, GOOD, &frame)), only);
    assert_eq!(oracle.reaches(NOW, OTHER, &frame), Ok(()));
    assert_eq!(oracle.checked_in, 2);
}

/// A frame between two mux ports of the host never leaves through the NIC, so the oracle checks the
/// sender when the frame reaches the receiving mux port.
#[test]
fn a_forged_frame_to_a_port_of_the_host_is_found() {
    let mut oracle = oracle();
    let draft = Draft {
        mac: MAC,
        dst_mac: MAC,
        src: (UDP, local(1000)),
        dst: local(1001),
        flags: TcpFlags::NONE,
        payload_len: 20,
    };
    assert!(oracle.owners.claim(GOOD, UDP, local(1000)));
    assert!(oracle.owners.claim(OTHER, UDP, local(1001)));
    let frame = draft
        .frame(&mut Rng::new(1))
        .expect("both endpoints have one IP version");
    oracle.publishes(HOSTILE, &frame, 0);
    assert_eq!(
        rule(oracle.reaches(NOW, OTHER, &frame)),
        "a port sends only from its own 3-tuples"
    );
    oracle.publishes(GOOD, &frame, 0);
    assert_eq!(oracle.reaches(NOW, OTHER, &frame), Ok(()));
}

#[test]
fn a_frame_that_does_not_reach_its_port_is_found() {
    let mut oracle = oracle();
    let late = NOW + WAY_TIME_MAX + WAY_TIME_MAX;
    let frames = [1000, 1001].map(frame_to);
    frames.iter().for_each(|frame| oracle.arrives(NOW, frame));
    assert_eq!(oracle.check_arrivals(NOW, GOOD, 0), Ok(()));
    assert_eq!(oracle.reaches(NOW, GOOD, &frames[0]), Ok(()));
    assert_eq!(oracle.check_arrivals(late, GOOD, 0), Ok(()));
    // The last argument is the number of frames that found the ring of the mux port full. One frame
    // may be missing for this reason.
    assert_eq!(oracle.check_arrivals(late, OTHER, 1), Ok(()));
    let missing = oracle.check_arrivals(late, OTHER, 0);
    assert_eq!(rule(missing), "the mux loses no packet for a port");
}
