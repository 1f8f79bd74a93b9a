//! Behaviour of direct contexts: the requirements of the ring API on every back end, and the
//! options of a direct context.

use std::{cell::Cell, rc::Rc};

use tidelane_direct::{DirectContext, DirectOptions};
use tidelane_engine::{Duration, Instant};
use tidelane_packet_io::{MemConfig, MemPort};
use tidelane_rings::{Cause, Context, Events, ListenOptions, SendRefusal, Wait};

use crate::{
    kit::{Clients, Echo, End, Pair, VirtualClock, options, pattern, server},
    nic_unsafe::{Clock, Quality},
};

/// Runs `count` clients and an echo server. Each client sends `len` bytes in messages of
/// `message_len` bytes, and receives them back.
fn echo(pair: &mut Pair, count: usize, len: usize, message_len: usize) -> Clients {
    let (mut echo, mut clients) = (Echo::default(), Clients::default());
    pair.server
        .context
        .listen(server(80), &ListenOptions::default())
        .expect("a free port");
    for seed in 0..count {
        clients.open(&mut pair.client.context, seed as u32, len, message_len);
    }
    pair.run_until("the echo", |pair| {
        clients.cycle(&mut pair.client.context, &mut pair.client.list);
        echo.serve(&mut pair.server.context, &mut pair.server.list);
        clients.open_count() == 0 && echo.connections == 0
    });
    assert_eq!((clients.finished, clients.causes.len()), (count, 0));
    assert!(echo.causes.is_empty(), "{:?}", echo.causes);
    clients
}

#[test]
fn many_connections_get_their_own_bytes() {
    for (count, len, message_len) in [(1, 1, 1), (1, 100_000, 4000), (200, 20_000, 1000)] {
        let mut pair = Pair::new(Quality::default());
        echo(&mut pair, count, len, message_len);
        pair.assert_clean();
    }
}

/// If a context has too few buffers, connections wait for buffers, and no data is lost.
#[test]
fn a_lack_of_buffers_delays_and_loses_nothing() {
    let few = |end| DirectOptions {
        buffers: 32,
        send_queue_max: 1,
        ..options(end)
    };
    let quality = Quality {
        is_shared: false,
        ..Quality::default()
    };
    let mut pair = Pair::with_options(quality, &[few(0), few(1)]);
    echo(&mut pair, 10, 20_000, 1000);
    pair.assert_clean();
}

/// The contexts have few buffers, and the wire loses packets. All transfers still end, because
/// out-of-order data leaves buffers for the data that fills the gap.
#[test]
fn a_lack_of_buffers_and_loss_end_well() {
    for seed in 0..40 {
        let few = |end| DirectOptions {
            buffers: 16 + seed as u32,
            send_queue_max: 1 + seed as usize % 3,
            ..options(end)
        };
        let quality = Quality {
            seed,
            loss: 100,
            reorder: 200,
            is_shared: false,
            ..Quality::default()
        };
        let mut pair = Pair::with_options(quality, &[few(0), few(1)]);
        echo(&mut pair, 6, 20_000, 1000);
        pair.wire.borrow_mut().quality.loss = 0;
        pair.assert_clean();
    }
}

/// A payload that is longer than a buffer takes several buffers.
#[test]
fn a_jumbo_payload_takes_several_buffers() {
    let clock: Clock = Rc::new(Cell::new(Instant::from_secs(1)));
    let (near, far) = MemPort::pair(MemConfig {
        frame_len_max: 9014,
        ..MemConfig::default()
    });
    let small = |end| DirectOptions {
        buffer_len: 1000,
        ..options(end)
    };
    let mut near = End::new(&small(0), near, &clock);
    let mut far = End::new(&small(1), far, &clock);
    let listened = far.context.listen(server(80), &ListenOptions::default());
    listened.expect("a free port");
    let client = near.context.connect(server(80)).expect("a port");
    let data = pattern(2, 200_000);
    near.queue(client, &data);
    let (mut got, mut peer) = (Vec::new(), None);
    for _ in 0..1000 {
        near.sync();
        far.sync();
        peer = peer.or(far.accepted());
        got.extend(peer.map(|peer| far.data(peer)).unwrap_or_default());
        clock.set(clock.get() + Duration::from_millis(1));
    }
    assert!(got == data, "{} bytes", got.len());
    // On average, the payload of a segment was copied in more than four parts.
    let segments = far.context.tcp_counters().in_segs;
    assert!(far.context.counters().rx_copies > segments * 4);
    assert_eq!(far.owned(8192), 0);
}

/// A peer that does not read blocks only its own connection. Other connections stay prompt, and the
/// data arrives when the peer reads again.
#[test]
fn a_blocked_receiver_delays_nobody_else() {
    let mut pair = Pair::new(Quality::default());
    let (_, blocked, blocked_peer) = pair.connected(80);
    let (other, other_peer) = pair.connect(80);
    pair.client.context.pause(blocked);
    let data = pattern(3, 2_000_000);
    let (mut sent, mut refused) = (0, 0);
    while refused < 50 {
        let mut buffer = pair.server.context.pool().allocate().expect("free");
        let len = buffer.append(&data[sent..]);
        match pair.server.context.send(blocked_peer, buffer) {
            Ok(()) => sent += len,
            Err(error) => {
                assert_eq!(error.refusal, SendRefusal::Full);
                refused += 1;
            }
        }
        pair.step();
        assert!(!pair.client.events(blocked).intersects(Events::READABLE));
    }
    assert!(sent < data.len());
    for round in 0..50 {
        pair.client.queue(other, b"ping");
        let start = pair.clock.get();
        pair.run_until("the request", |pair| {
            pair.server.data(other_peer) == b"ping"
        });
        pair.server.queue(other_peer, b"pong");
        pair.run_until("the answer", |pair| pair.client.data(other) == b"pong");
        let took = pair.clock.get() - start;
        assert!(took < Duration::from_millis(1), "round {round}: {took:?}");
    }
    pair.client.context.resume(blocked).expect("the NIC works");
    let mut got = Vec::new();
    pair.run_until("the data", |pair| {
        got.extend(pair.client.data(blocked));
        if pair
            .server
            .events(blocked_peer)
            .intersects(Events::WRITABLE)
        {
            while sent < data.len()
                && let Some(mut buffer) = pair.server.context.pool().allocate()
            {
                let len = buffer.append(&data[sent..]);
                if pair.server.context.send(blocked_peer, buffer).is_err() {
                    break;
                }
                sent += len;
            }
        }
        got.len() == data.len()
    });
    assert!(got == data);
}

#[test]
fn ends_have_their_causes() {
    let mut pair = Pair::new(Quality::default());
    let (_, client, peer) = pair.connected(80);
    pair.client.context.abort(client);
    pair.run_until("the reset", |pair| {
        pair.server.events(peer).intersects(Events::CLOSED)
    });
    assert_eq!(pair.server.list.entry(0).cause, Some(Cause::Reset));
    let buffer = pair.server.context.pool().allocate().expect("free");
    let error = pair.server.context.send(peer, buffer).expect_err("over");
    assert_eq!(error.refusal, SendRefusal::NotConnected);
    pair.server.context.close(peer);
    // No listener has this port.
    let refused = pair.client.context.connect(server(81)).expect("a port");
    pair.run_until("the refusal", |pair| {
        pair.client.events(refused).intersects(Events::CLOSED)
    });
    assert_eq!(pair.client.list.entry(0).cause, Some(Cause::Refused));
    pair.client.sync();
    assert!(pair.client.list.is_empty(), "the end is reported twice");
    pair.client.context.close(refused);
    // The wire loses all packets.
    pair.wire.borrow_mut().quality.loss = 1000;
    let lost = pair.client.context.connect(server(80)).expect("a port");
    pair.run_until("the timeout", |pair| {
        pair.client.events(lost).intersects(Events::CLOSED)
    });
    assert_eq!(pair.client.list.entry(0).cause, Some(Cause::TimedOut));
    pair.client.context.close(lost);
    pair.wire.borrow_mut().quality.loss = 0;
    drop(error);
    pair.assert_clean();
}

/// The program sends and closes before the connection is established. The peer gets all data, and
/// then the end of the stream.
#[test]
fn a_close_sends_what_is_queued() {
    let mut pair = Pair::new(Quality::default());
    let listened = pair
        .server
        .context
        .listen(server(80), &ListenOptions::default());
    listened.expect("a free port");
    let client = pair.client.context.connect(server(80)).expect("a port");
    let data = pattern(3, 300_000);
    pair.client.queue(client, &data);
    pair.client.context.close(client);
    assert!(!pair.client.context.is_open(client));
    let (mut got, mut peer) = (Vec::new(), None);
    pair.run_until("the end", |pair| {
        assert!(pair.client.list.is_empty(), "an event after the close");
        peer = peer.or(pair.server.accepted());
        let Some(peer) = peer else { return false };
        let is_end = pair.server.events(peer).intersects(Events::END);
        got.extend(pair.server.data(peer));
        is_end
    });
    assert!(got == data);
    pair.server.context.close(peer.expect("accepted"));
    pair.assert_clean();
}

/// Dropping a context resets the context's connections, even a connection that the context has not
/// established yet.
#[test]
fn a_dropped_context_resets_its_connections() {
    let mut pair = Pair::new(Quality::default());
    let (_, client, _) = pair.connected(80);
    let held = pair.server.context.pool().allocate().expect("free");
    let second = pair.client.context.connect(server(80)).expect("a port");
    pair.run_until("the second connection", |pair| {
        pair.client.events(second).intersects(Events::CONNECTED)
    });
    let Pair {
        clock,
        client: mut near,
        server: far,
        ..
    } = { pair };
    drop(far);
    let mut causes = Vec::new();
    for _ in 0..20 {
        clock.set(clock.get() + Duration::from_micros(50));
        near.sync();
        for at in 0..near.list.len() {
            let entry = near.list.entry(at);
            causes.push((entry.descriptor, entry.cause));
        }
    }
    assert_eq!(
        causes,
        [(client, Some(Cause::Reset)), (second, Some(Cause::Reset))]
    );
    // A buffer may outlive its context.
    assert!(held.is_empty());
}

/// `tx_sync` receives nothing, and `rx_sync` sends no data. A mix of both calls loses no event.
#[test]
fn tx_sync_and_rx_sync_together_lose_no_event() {
    let mut pair = Pair::new(Quality::default());
    let (_, client, peer) = pair.connected(80);
    for part in [b"ab", b"cd", b"ef"] {
        pair.client.queue(client, part);
        pair.client.context.tx_sync().expect("the NIC works");
    }
    let mut got = Vec::new();
    pair.run_until("the data", |pair| {
        got.extend(pair.server.data(peer));
        got == b"abcdef"
    });
    // `rx_sync` does not send the queued data.
    pair.client.queue(client, b"gh");
    pair.server.queue(peer, b"1");
    pair.server.context.tx_sync().expect("the NIC works");
    pair.clock.set(pair.clock.get() + Duration::from_millis(1));
    let client_end = &mut pair.client;
    let received = client_end.context.rx_sync(&mut client_end.list, Wait::No);
    received.expect("the NIC works");
    assert_eq!(client_end.data(client), b"1");
    pair.clock.set(pair.clock.get() + Duration::from_millis(1));
    pair.server.sync();
    assert!(pair.server.list.is_empty(), "`rx_sync` has sent the data");
    // Data and FIN arrive before two calls of `tx_sync`. The next list reports both exactly once.
    pair.client.context.shutdown(client);
    pair.client.context.tx_sync().expect("the NIC works");
    pair.clock.set(pair.clock.get() + Duration::from_millis(1));
    pair.server.context.tx_sync().expect("the NIC works");
    pair.server.context.tx_sync().expect("the NIC works");
    let server_end = &mut pair.server;
    let received = server_end.context.rx_sync(&mut server_end.list, Wait::No);
    received.expect("the NIC works");
    let entry = server_end.list.entry(0);
    let expected = Events::READABLE.union(Events::END);
    assert_eq!((entry.events, entry.bytes), (expected, 2));
    server_end.sync();
    assert!(server_end.list.is_empty());
    pair.server.context.close(peer);
    pair.client.context.close(client);
    pair.assert_clean();
}

/// An abort frees the buffers of a connection whose peer does not read.
#[test]
fn an_abort_resets_and_frees_buffers() {
    let mut pair = Pair::new(Quality::default());
    let (_, client, peer) = pair.connected(80);
    pair.server.context.pause(peer);
    pair.client.queue(client, &vec![7; 450_000]);
    pair.run_for(Duration::from_millis(10));
    let owned = pair.client.owned(pair.buffers);
    assert!(owned > 100, "{owned} buffers: the peer took all");
    pair.client.context.abort(client);
    assert!(!pair.client.context.is_open(client));
    let buffer = pair.client.context.pool().allocate().expect("free");
    let error = pair.client.context.send(client, buffer).expect_err("over");
    assert_eq!(error.refusal, SendRefusal::NotConnected);
    drop(error);
    pair.client.context.tx_sync().expect("the NIC works");
    pair.run_for(Duration::from_millis(1));
    assert_eq!(pair.client.owned(pair.buffers), 0);
    // After the resume, the paused peer gets the data and the event CLOSED.
    assert!(pair.server.list.is_empty());
    pair.server.context.resume(peer).expect("the NIC works");
    pair.server.sync();
    let events = pair.server.events(peer);
    assert!(events.intersects(Events::CLOSED) && events.intersects(Events::READABLE));
    pair.server.context.close(peer);
    // An abort while the connection is being established ends the connection attempt.
    let opening = pair.client.context.connect(server(80)).expect("a port");
    pair.client.context.abort(opening);
    pair.assert_clean();
}

/// A program waits for room on a paused connection, and the peer resets the connection. The event
/// WRITABLE then never comes, so the list reports the received data and CLOSED although the
/// connection is still paused.
#[test]
fn a_reset_ends_a_wait_for_room_in_spite_of_a_pause() {
    let mut pair = Pair::new(Quality::default());
    let (_, client, peer) = pair.connected(80);
    pair.client.context.pause(client);
    pair.server.context.pause(peer);
    pair.server.queue(peer, b"before the reset");
    // Fill the receive window of the peer, and then the send queue of the client.
    for _ in 0..100 {
        while let Some(mut buffer) = pair.client.context.pool().allocate() {
            buffer.append(&[7; 1400]);
            if let Err(error) = pair.client.context.send(client, buffer) {
                assert_eq!(error.refusal, SendRefusal::Full);
                break;
            }
        }
        pair.run_for(Duration::from_millis(1));
    }
    assert!(pair.client.list.is_empty());
    pair.server.context.abort(peer);
    let mut data = Vec::new();
    pair.run_until("the end", |pair| {
        data.extend(pair.client.data(client));
        pair.client.events(client).intersects(Events::CLOSED)
    });
    assert_eq!(data, b"before the reset");
    pair.client.context.close(client);
    pair.assert_clean();
}

/// A paused connection delivers no data to its program, so its receive window fills and blocks the
/// peer. No data is lost or repeated.
#[test]
fn a_pause_blocks_the_peer() {
    let mut pair = Pair::new(Quality::default());
    let (_, client, peer) = pair.connected(80);
    pair.client.context.pause(client);
    pair.client.context.pause(client);
    let data = pattern(1, 450_000);
    pair.server.queue(peer, &data);
    pair.server.context.shutdown(peer);
    pair.run_for(Duration::from_millis(50));
    assert!(pair.client.list.is_empty(), "received while paused");
    let waiting = pair.client.owned(pair.buffers);
    assert!((1..=64).contains(&waiting), "{waiting} buffers wait");
    assert!(pair.server.owned(pair.buffers) > 100, "not blocked");
    let (mut got, mut ends, mut cycle) = (Vec::new(), 0, 0);
    while ends == 0 {
        cycle += 1;
        pair.client.context.resume(client).expect("the NIC works");
        if cycle % 3 == 0 {
            pair.client.context.pause(client);
            pair.client.context.resume(client).expect("the NIC works");
        }
        pair.step();
        if cycle % 2 == 0 {
            pair.client.context.pause(client);
        }
        ends += usize::from(pair.client.events(client).intersects(Events::END));
        got.extend(pair.client.data(client));
        assert!(cycle < 20_000, "{} bytes", got.len());
    }
    assert!(got == data, "{} of {} bytes", got.len(), data.len());
    pair.client.context.resume(client).expect("the NIC works");
    pair.client.sync();
    assert!(pair.client.list.is_empty(), "the end is reported twice");
    pair.client.context.pause(client);
    pair.client.context.close(client);
    pair.server.context.close(peer);
    pair.assert_clean();
}

/// A paused listener accepts no connection. The connections and their data wait in the accept
/// queue.
#[test]
fn a_paused_listener_accepts_later() {
    let mut pair = Pair::new(Quality::default());
    let options = ListenOptions { backlog: 2 };
    let listener = pair.server.context.listen(server(80), &options);
    let listener = listener.expect("a free port");
    let error = pair.server.context.listen(server(80), &options);
    assert_eq!(
        error.expect_err("in use").kind(),
        std::io::ErrorKind::AddrInUse
    );
    pair.server.context.pause(listener);
    let client = pair.client.context.connect(server(80)).expect("a port");
    pair.client.queue(client, b"early");
    pair.run_for(Duration::from_millis(50));
    assert!(pair.server.list.is_empty());
    pair.server.context.resume(listener).expect("the NIC works");
    pair.server.sync();
    let entry = pair.server.list.entry(0);
    assert!(entry.events.intersects(Events::ACCEPTED));
    assert_eq!((entry.listener, entry.bytes), (Some(listener), 5));
    // The close of a listener resets the connections in its accept queue.
    pair.server.context.pause(listener);
    let second = pair.client.context.connect(server(80)).expect("a port");
    pair.run_for(Duration::from_millis(5));
    pair.server.context.close(listener);
    pair.run_until("the reset", |pair| {
        pair.client.events(second).intersects(Events::CLOSED)
    });
    pair.client.context.close(second);
    pair.server.context.close(entry.descriptor);
    pair.client.context.close(client);
    pair.assert_clean();
}

/// A refused buffer returns unchanged, and WRITABLE reports room exactly once.
#[test]
fn backpressure_returns_the_buffer() {
    let few = |end| DirectOptions {
        send_queue_max: 3,
        ..options(end)
    };
    let mut pair = Pair::with_options(Quality::default(), &[few(0), few(1)]);
    let (_, client, peer) = pair.connected(80);
    for text in [b"1", b"2", b"3"] {
        pair.client.queue(client, text);
    }
    let mut buffer = pair.client.context.pool().allocate().expect("free");
    buffer.append(b"4");
    let error = pair.client.context.send(client, buffer).expect_err("full");
    assert_eq!(error.refusal, SendRefusal::Full);
    assert_eq!(error.buffer.payload(), b"4");
    let (mut writable, mut got) = (0, Vec::new());
    for _ in 0..1000 {
        pair.step();
        writable += usize::from(pair.client.events(client).intersects(Events::WRITABLE));
        got.extend(pair.server.data(peer));
    }
    assert_eq!((writable, &got[..]), (1, &b"123"[..]));
    pair.client
        .context
        .send(client, error.buffer)
        .expect("room");
    pair.run_until("the rest", |pair| pair.server.data(peer) == b"4");
    // An empty buffer is accepted, and is freed.
    let empty = pair.client.context.pool().allocate().expect("free");
    pair.client.context.send(client, empty).expect("room");
    pair.client.context.close(client);
    pair.server.context.close(peer);
    pair.assert_clean();
}

/// The context has no kernel sockets, and invalid calls fail.
#[test]
fn impossible_requests_fail() {
    let mut pair = Pair::new(Quality::default());
    let (listener, client, _) = pair.connected(80);
    assert!(pair.client.context.socket(client).is_none());
    assert!(pair.server.context.socket(listener).is_none());
    let kind = |error: std::io::Error| error.kind();
    let context = &mut pair.client.context;
    let options = ListenOptions::default();
    let refused = context.listen("192.0.2.1:80".parse().expect("an address"), &options);
    assert_eq!(
        refused.map_err(kind),
        Err(std::io::ErrorKind::AddrNotAvailable)
    );
    let refused = context.connect("[::1]:80".parse().expect("an address"));
    assert_eq!(
        refused.map_err(kind),
        Err(std::io::ErrorKind::AddrNotAvailable)
    );
    let refused = context.connect(server(0));
    assert_eq!(refused.map_err(kind), Err(std::io::ErrorKind::InvalidInput));
}

/// Segments obey the MTU of the link, although the frames of the port are longer.
#[test]
fn segments_fit_into_the_mtu() {
    let small = |end| DirectOptions {
        mtu: 1000,
        ..options(end)
    };
    let mut pair = Pair::with_options(Quality::default(), &[small(0), small(1)]);
    let (_, client, peer) = pair.connected(80);
    let data = pattern(4, 50_000);
    pair.client.queue(client, &data);
    let mut got = Vec::new();
    pair.run_until("the data", |pair| {
        got.extend(pair.server.data(peer));
        got.len() == data.len()
    });
    assert!(got == data);
    assert_eq!(pair.wire.borrow().longest, 1000 + 14);
}

#[test]
fn connections_over_ipv6() {
    let address = |end: u16| std::net::Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, end + 1);
    let both = |end: u16| {
        let mut options = options(end.into());
        let v6 = tidelane_engine::IpAddress(address(end).octets());
        options.stack.addresses.push(v6);
        options
    };
    let mut pair = Pair::with_options(Quality::default(), &[both(0), both(1)]);
    let at = std::net::SocketAddr::from((address(1), 80));
    let listened = pair.server.context.listen(at, &ListenOptions::default());
    listened.expect("a free port");
    let client = pair.client.context.connect(at).expect("a port");
    let data = pattern(6, 100_000);
    pair.client.queue(client, &data);
    pair.client.context.close(client);
    let (mut got, mut peer) = (Vec::new(), None);
    pair.run_until("the data", |pair| {
        peer = peer.or(pair.server.accepted());
        got.extend(peer.map(|peer| pair.server.data(peer)).unwrap_or_default());
        got.len() == data.len()
    });
    assert!(got == data);
    assert!(pair.client.context.counters().tx_lent > 0);
    pair.server.context.close(peer.expect("accepted"));
    pair.assert_clean();
}

/// Impossible options are zero buffers, a buffer without room for data, a buffer that exceeds the
/// limit of a connection's unacknowledged data (`tx_limit`), and zero flows.
#[test]
fn impossible_options_are_refused() {
    let open = |change: fn(&mut DirectOptions)| {
        let mut options = options(0);
        change(&mut options);
        let port = MemPort::loopback(MemConfig::default());
        let clock = Rc::new(Cell::new(Instant(1)));
        DirectContext::open(&options, port, VirtualClock(clock)).map(drop)
    };
    let kind = |error: std::io::Error| error.kind();
    let invalid = Err(std::io::ErrorKind::InvalidInput);
    assert_eq!(open(|_| {}).map_err(kind), Ok(()));
    assert_eq!(open(|options| options.buffers = 0).map_err(kind), invalid);
    assert_eq!(
        open(|options| options.buffer_len = 50).map_err(kind),
        invalid
    );
    let small = |options: &mut DirectOptions| options.stack.engine.tx_limit = 4000;
    assert_eq!(open(small).map_err(kind), invalid);
    let none = |options: &mut DirectOptions| options.stack.engine.flows_max = 0;
    assert_eq!(open(none).map_err(kind), invalid);
}
