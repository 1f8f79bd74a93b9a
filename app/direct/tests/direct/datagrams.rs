//! UDP sockets of two contexts: delivery, damaged packets, limits and buffers.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use tidelane_embedded::{DropReason, MacAddress};
use tidelane_engine::{Duration, IpAddress};
use tidelane_packet_io::PacketIo;
use tidelane_rings::{Cause, Context, Descriptor, Events, SendRefusal};

use crate::{
    kit::{ADDRESSES, End, Pair, options, pattern, server},
    nic_unsafe::Quality,
};

/// A received datagram: sender and payload.
type Received = (SocketAddr, Vec<u8>);

fn send<P: PacketIo>(end: &mut End<P>, from: Descriptor, payload: &[u8], to: SocketAddr) {
    let mut buffer = end.context.pool().allocate().expect("free");
    assert_eq!(buffer.append(payload), payload.len());
    end.context.send_to(from, buffer, to).expect("room");
}

/// Takes the datagrams from the present ready list.
fn take<P: PacketIo>(end: &mut End<P>) -> Vec<Received> {
    let mut received = Vec::new();
    for at in 0..end.list.len() {
        while let Some((sender, buffer)) = end.list.take_datagram(at) {
            received.push((sender, buffer.payload().to_vec()));
        }
    }
    received
}

fn bind<P: PacketIo>(end: &mut End<P>, local: SocketAddr) -> Descriptor {
    end.context.bind(local).expect("a free port")
}

fn any(port: u16) -> SocketAddr {
    ([0; 4], port).into()
}

/// Runs until the NICs have returned the sent buffers, and asserts that all buffers are free.
fn assert_no_owners(pair: &mut Pair) {
    pair.run_for(Duration::from_millis(10));
    pair.step();
    let owned = [&mut pair.client, &mut pair.server].map(|end| end.owned(pair.buffers));
    assert_eq!(owned, [0, 0], "buffers with owners");
}

/// Datagrams are delivered in both directions. A context copies payloads only if the NICs do not
/// share their frames.
#[test]
fn datagrams_are_answered() {
    for is_shared in [true, false] {
        let mut pair = Pair::new(Quality {
            is_shared,
            ..Quality::default()
        });
        let server_socket = bind(&mut pair.server, any(53));
        let client_socket = bind(&mut pair.client, any(0));
        let payloads = [b"one".to_vec(), Vec::new(), pattern(3, 1472)];
        for payload in &payloads {
            send(&mut pair.client, client_socket, payload, server(53));
        }
        let mut answers = Vec::new();
        let mut clients = Vec::new();
        pair.run_until("all answers", |pair| {
            for at in 0..pair.server.list.len() {
                while let Some((sender, buffer)) = pair.server.list.take_datagram(at) {
                    clients.push(sender);
                    let sent = pair.server.context.send_to(server_socket, buffer, sender);
                    sent.expect("room");
                }
            }
            answers.extend(take(&mut pair.client));
            answers.len() == payloads.len()
        });
        for (answer, payload) in answers.iter().zip(&payloads) {
            assert_eq!(*answer, (server(53), payload.clone()));
        }
        let client_ip = SocketAddr::from((ADDRESSES[0], clients[0].port()));
        assert!(clients.iter().all(|sender| *sender == client_ip));
        assert_no_owners(&mut pair);
        for end in [&pair.client, &pair.server] {
            let counters = end.context.counters();
            let copies = counters.rx_copies + counters.tx_copies;
            assert_eq!(copies == 0, is_shared, "{counters:?}");
        }
    }
}

/// The wire loses, repeats, reorders and corrupts packets. Each received datagram equals a sent
/// datagram, and no buffer is lost.
#[test]
fn damaged_datagrams_are_not_received() {
    const COUNT: u32 = 3000;
    for seed in 1..6 {
        let mut pair = Pair::new(Quality {
            seed,
            loss: 50,
            duplicate: 50,
            reorder: 100,
            corrupt: 100,
            is_shared: seed % 2 == 0,
            ..Quality::default()
        });
        let from = bind(&mut pair.client, any(7));
        bind(&mut pair.server, any(53));
        let mut times: HashMap<u32, u32> = HashMap::new();
        for number in 0..COUNT {
            let payload = pattern(number, 4 + number as usize % 1400);
            let payload = [&number.to_be_bytes(), &payload[..]].concat();
            send(&mut pair.client, from, &payload, server(53));
            pair.step();
            for (sender, payload) in take(&mut pair.server) {
                assert_eq!(sender, SocketAddr::from((ADDRESSES[0], 7)));
                let (number, rest) = payload.split_first_chunk().expect("a number");
                let number = u32::from_be_bytes(*number);
                assert_eq!(rest, pattern(number, 4 + number as usize % 1400));
                *times.entry(number).or_default() += 1;
            }
        }
        pair.run_for(Duration::from_millis(50));
        let least = COUNT * 7 / 10;
        assert!(times.len() as u32 >= least, "{} arrived", times.len());
        assert!(times.values().all(|times| *times <= 2));
        let drops = pair.server.context.drops();
        assert!(drops[DropReason::BadChecksum.index()] > 0, "{drops:?}");
        pair.server.list.clear();
        assert_no_owners(&mut pair);
    }
}

/// A paused socket keeps a limited number of datagrams, and leaves buffers to other sockets.
#[test]
fn a_paused_socket_is_bounded() {
    let mut pair = Pair::new(Quality::default());
    let from = bind(&mut pair.client, any(7));
    let paused = bind(&mut pair.server, any(53));
    bind(&mut pair.server, any(54));
    pair.server.context.pause(paused);
    for number in 0..2000_u32 {
        send(&mut pair.client, from, &number.to_be_bytes(), server(53));
        pair.step();
        assert!(take(&mut pair.server).is_empty());
    }
    pair.run_for(Duration::from_millis(5));
    let held = pair.server.owned(pair.buffers);
    assert!((1..=512).contains(&held), "{held} buffers");
    let drops = pair.server.context.drops()[DropReason::RxBufferFull.index()];
    assert_eq!(drops, u64::from(2000 - held));
    send(&mut pair.client, from, b"other", server(54));
    let mut received = Vec::new();
    pair.run_until("the other socket's datagram", |pair| {
        received.extend(take(&mut pair.server));
        !received.is_empty()
    });
    assert_eq!(received[0].1, b"other");
    pair.server.context.resume(paused).expect("open");
    let mut first = Vec::new();
    pair.run_until("the oldest datagrams", |pair| {
        first.extend(take(&mut pair.server));
        first.len() == held as usize
    });
    for (number, (_, payload)) in first.iter().enumerate() {
        assert_eq!(payload, &(number as u32).to_be_bytes());
    }
    assert_no_owners(&mut pair);
}

#[test]
fn impossible_sends_are_reported() {
    let link = [
        MacAddress([2, 0, 0, 0, 0, 1]),
        MacAddress([2, 0, 0, 0, 0, 2]),
    ];
    let options = [0, 1].map(|end| {
        let mut options = options(end);
        options.stack.mac = link[end];
        let ipv6: IpAddr = "2001:db8::2".parse().expect("valid");
        options.stack.addresses.push(ipv6.into());
        options.mtu = 1000;
        options
    });
    let mut pair = Pair::with_options(Quality::default(), &options);
    let from = bind(&mut pair.client, any(7));
    let at_server = bind(&mut pair.server, any(53));
    let failure = |pair: &mut Pair, payload: &[u8], to: SocketAddr| {
        send(&mut pair.client, from, payload, to);
        pair.client.sync();
        let entries = (0..pair.client.list.len()).map(|at| pair.client.list.entry(at));
        let failed = entries.filter(|entry| entry.events.intersects(Events::SEND_FAILED));
        failed.map(|entry| entry.cause).next().flatten()
    };
    // The link address of the server is unknown.
    assert_eq!(
        failure(&mut pair, b"x", server(53)),
        Some(Cause::Unreachable)
    );
    assert_eq!(pair.wire.borrow().sent, 0);
    let peer = IpAddress::from_v4(ADDRESSES[1]);
    pair.client.context.set_neighbour(peer, link[1]);
    // An IPv4 packet of 1000 bytes carries a UDP payload of 972 bytes.
    assert_eq!(
        failure(&mut pair, &[1; 973], server(53)),
        Some(Cause::TooLong)
    );
    assert_eq!(failure(&mut pair, &[1; 972], server(53)), None);
    // A socket at the unspecified IPv4 address sends nothing to IPv6 peers.
    let other_version: SocketAddr = "[2001:db8::1]:53".parse().expect("valid");
    let peer = other_version.ip().into();
    pair.client.context.set_neighbour(peer, link[1]);
    let sent = pair.wire.borrow().sent;
    let cause = failure(&mut pair, b"x", other_version);
    assert_eq!(cause, Some(Cause::Unreachable));
    assert_eq!(pair.wire.borrow().sent, sent);
    // The server knows the client's link address only from the client's frame.
    let mut answered = false;
    pair.run_until("the answer", |pair| {
        for (sender, payload) in take(&mut pair.server) {
            assert_eq!(payload.len(), 972);
            send(&mut pair.server, at_server, b"answer", sender);
        }
        answered |= !take(&mut pair.client).is_empty();
        answered
    });
    assert_no_owners(&mut pair);
}

#[test]
fn addresses_in_use_are_refused() {
    let mut pair = Pair::new(Quality::default());
    let context = &mut pair.server.context;
    let wildcard = context.bind(any(53)).expect("a free port");
    for taken in [any(53), server(53)] {
        let error = context.bind(taken).expect_err("in use");
        assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    }
    let foreign = ([192, 0, 2, 1], 53).into();
    let error = context.bind(foreign).expect_err("not an own address");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrNotAvailable);
    context.close(wildcard);
    let exact = context.bind(server(53)).expect("free again");
    assert_eq!(exact, wildcard, "the descriptor is used again");
    assert!(context.bind(any(53)).is_err());
    context.abort(exact);
    assert!(!context.is_open(exact));
    context.bind(any(53)).expect("free again");
}

/// A full send queue refuses a datagram and later reports room. A close sends the queued datagrams,
/// and an abort drops them.
#[test]
fn a_queue_is_bounded_and_ends_with_its_socket() {
    let options = [0, 1].map(|end| {
        let mut options = options(end);
        options.send_queue_max = 3;
        options
    });
    let mut pair = Pair::with_options(Quality::default(), &options);
    bind(&mut pair.server, any(53));
    for ends_by_abort in [false, true] {
        let from = bind(&mut pair.client, any(7));
        for payload in [b"1", b"2", b"3"] {
            send(&mut pair.client, from, payload, server(53));
        }
        let buffer = pair.client.context.pool().allocate().expect("free");
        let refused = pair.client.context.send_to(from, buffer, server(53));
        let error = refused.expect_err("the queue is full");
        assert_eq!(error.refusal, SendRefusal::Full);
        drop(error);
        let expected = match ends_by_abort {
            true => {
                pair.client.context.abort(from);
                0
            }
            false => {
                pair.client.sync();
                assert_eq!(pair.client.events(from), Events::WRITABLE);
                send(&mut pair.client, from, b"4", server(53));
                pair.client.context.close(from);
                4
            }
        };
        assert!(!pair.client.context.is_open(from));
        let mut received = Vec::new();
        for _ in 0..200 {
            pair.step();
            received.extend(take(&mut pair.server));
        }
        assert_eq!(received.len(), expected);
    }
    assert_no_owners(&mut pair);
}

/// Calls for TCP refuse a UDP socket, and calls for UDP refuse a TCP socket.
#[test]
fn sockets_of_different_kinds_are_told_apart() {
    let mut pair = Pair::new(Quality::default());
    let socket = bind(&mut pair.client, any(7));
    let buffer = pair.client.context.pool().allocate().expect("free");
    let error = pair.client.context.send(socket, buffer).expect_err("UDP");
    assert_eq!(error.refusal, SendRefusal::NotConnected);
    let (_, connection, _) = pair.connected(80);
    let refused = pair
        .client
        .context
        .send_to(connection, error.buffer, server(53));
    let error = refused.expect_err("TCP");
    assert_eq!(error.refusal, SendRefusal::NotConnected);
    pair.client.context.shutdown(socket);
    pair.client.context.close(connection);
    pair.client.context.close(socket);
    // A datagram to a port without a socket is dropped and counted.
    let from = bind(&mut pair.client, any(7));
    send(&mut pair.client, from, b"nobody", server(99));
    let dropped = |pair: &Pair| pair.server.context.drops()[DropReason::NoListener.index()];
    pair.run_until("the drop", |pair| dropped(pair) > 0);
}
