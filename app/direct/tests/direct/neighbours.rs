//! The destination link addresses of sent frames. The link address of a neighbour is set by the
//! program, is unknown, or is learned from a received frame. A context neither sends nor answers
//! ARP.

use std::io::ErrorKind;

use tidelane_embedded::{DropReason, MacAddress};
use tidelane_engine::{Duration, IpAddress};
use tidelane_rings::{Context, Events, ListenOptions};

use crate::{
    kit::{ADDRESSES, Pair, options, pattern, server},
    nic_unsafe::Quality,
};

/// Link addresses of the client and of the server.
const LINK_ADDRESSES: [MacAddress; 2] = [
    MacAddress([2, 0, 0, 0, 0, 1]),
    MacAddress([2, 0, 0, 0, 0, 2]),
];
/// Link address of the router.
const ROUTER: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);

/// Returns two contexts on an Ethernet link. Neither end knows the other's link address.
fn strangers() -> Pair {
    let options = [0, 1].map(|end| {
        let mut options = options(end);
        options.stack.mac = LINK_ADDRESSES[end];
        options
    });
    Pair::with_options(Quality::default(), &options)
}

/// Returns the address fields of an Ethernet header.
fn link(destination: MacAddress, source: MacAddress) -> Vec<u8> {
    [destination.0, source.0].concat()
}

/// If the link address of a neighbour is unknown, a call that connects to the neighbour fails
/// immediately and sends no packet. The same call succeeds once the link address is known.
#[test]
fn an_open_to_an_unknown_neighbour_is_refused() {
    let mut pair = strangers();
    let listened = pair
        .server
        .context
        .listen(server(80), &ListenOptions::default());
    listened.expect("a free port");
    let peer = IpAddress::from_v4(ADDRESSES[1]);
    assert!(!pair.client.context.is_reachable(peer));
    for _ in 0..100_000 {
        let refused = pair.client.context.connect(server(80));
        let error = refused.expect_err("nobody can be reached");
        assert_eq!(error.kind(), ErrorKind::HostUnreachable);
        let text = error.to_string();
        assert!(text.contains("10.0.0.2 is unknown"), "{text}");
    }
    pair.run_for(Duration::from_secs(5));
    assert_eq!(pair.wire.borrow().sent, 0);
    assert!(pair.client.context.has_no_connections());
    assert_eq!(pair.client.context.next_timeout(), None);

    pair.client.context.set_neighbour(peer, LINK_ADDRESSES[1]);
    assert!(pair.client.context.is_reachable(peer));
    let (client, accepted) = pair.connect(80);
    // The server knows the client's link address from the client's frame.
    pair.server.queue(accepted, &pattern(1, 5000));
    let mut got = Vec::new();
    pair.run_until("the data", |pair| {
        let last = pair.wire.borrow().last_link.to_vec();
        assert!(
            last == link(LINK_ADDRESSES[0], LINK_ADDRESSES[1])
                || last == link(LINK_ADDRESSES[1], LINK_ADDRESSES[0]),
            "{last:x?}"
        );
        got.extend(pair.client.data(client));
        got.len() >= 5000
    });
    assert!(got == pattern(1, 5000));
    pair.client.context.close(client);
    pair.server.context.close(accepted);
    pair.assert_clean();
}

/// If a router is set, segments to a peer with an unknown link address go to the router.
#[test]
fn a_router_reaches_unknown_peers() {
    let mut options = [options(0), options(1)];
    options[0].stack.mac = LINK_ADDRESSES[0];
    options[0].stack.gateway = ROUTER;
    let mut pair = Pair::with_options(Quality::default(), &options);
    pair.client.context.connect(server(80)).expect("a router");
    pair.client.sync();
    assert_eq!(pair.wire.borrow().sent, 1);
    assert_eq!(
        pair.wire.borrow().last_link.to_vec(),
        link(ROUTER, LINK_ADDRESSES[0])
    );
}

/// A reset that answers a segment without a connection goes to the source link address of this
/// segment.
#[test]
fn a_reset_goes_to_the_sender() {
    let mut pair = strangers();
    let peer = IpAddress::from_v4(ADDRESSES[1]);
    pair.client.context.set_neighbour(peer, LINK_ADDRESSES[1]);
    let client = pair.client.context.connect(server(81)).expect("known");
    pair.run_until("the refusal", |pair| {
        pair.client.events(client).intersects(Events::CLOSED)
    });
    assert_eq!(pair.wire.borrow().sent, 2);
    assert_eq!(
        pair.wire.borrow().last_link.to_vec(),
        link(LINK_ADDRESSES[0], LINK_ADDRESSES[1])
    );
}

/// A context answers neither ARP requests nor neighbour solicitations, and counts them as dropped.
#[test]
fn arp_and_neighbour_solicitations_are_not_answered() {
    let mut pair = strangers();
    let mut arp = link(MacAddress([0xff; 6]), LINK_ADDRESSES[0]);
    // ARP request (Ethernet, IPv4) for the server's address.
    arp.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    arp.extend(
        [
            LINK_ADDRESSES[0].0.as_slice(),
            &ADDRESSES[0],
            &[0; 6],
            &ADDRESSES[1],
        ]
        .concat(),
    );
    arp.resize(60, 0);
    let mut solicitation = link(MacAddress([0x33, 0x33, 0xff, 0, 0, 2]), LINK_ADDRESSES[0]);
    solicitation.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 58, 255]);
    let mut source = [0; 16];
    (source[0], source[1], source[15]) = (0xfe, 0x80, 1);
    let mut group = [0; 16];
    (group[0], group[1], group[11], group[12], group[15]) = (0xff, 2, 1, 0xff, 2);
    solicitation.extend([source, group].concat());
    solicitation.extend([135, 0, 0, 0, 0, 0, 0, 0]);
    solicitation.extend(group);
    for (round, frame) in [arp, solicitation].into_iter().enumerate() {
        pair.wire.borrow_mut().send(1, &frame);
        pair.run_for(Duration::from_millis(1));
        let dropped: u64 = pair.server.context.drops().iter().sum();
        assert_eq!(dropped, round as u64 + 1);
    }
    assert_eq!(pair.wire.borrow().sent, 2, "a request was answered");
    let drops = pair.server.context.drops();
    assert_eq!(drops[DropReason::UnsupportedEthertype.index()], 1);
}
