//! The buffers of a context: how many each kind of data may take, and when each buffer is freed.
//! The *port* of a context is its simulated NIC (`nic_unsafe.rs`).

use tidelane_engine::Duration;
use tidelane_rings::{Buffer, Context, Descriptor, Events};
use tidelane_wire::DropReason;

use crate::{
    kit::{Pair, pattern},
    nic_unsafe::{PACKET_LEN_MAX, Quality},
};

/// A program may keep received buffers for any time, even after the end of the connection. The port
/// does not change the bytes of the kept buffers.
#[test]
fn held_buffers_keep_their_contents() {
    let mut pair = Pair::new(Quality::default());
    let (_, client, peer) = pair.connected(80);
    let mut held: Vec<(u32, Buffer)> = Vec::new();
    for round in 0..1000 {
        pair.client.queue(client, &pattern(round, 700));
        pair.run_until("the data", |pair| {
            let taken = pair.server.list.take_next(0);
            held.extend(taken.map(|buffer| (round, buffer)));
            held.len() as u32 > round
        });
    }
    assert_eq!(pair.server.owned(pair.buffers), 1000);
    pair.client.context.close(client);
    pair.server.context.close(peer);
    pair.run_for(Duration::from_millis(10));
    for (round, buffer) in &held {
        assert!(buffer.payload() == pattern(*round, 700), "round {round}");
    }
    drop(held);
    pair.assert_clean();
}

/// A sent buffer is held until the peer has acknowledged the data and the port has sent the frame,
/// in either order.
#[test]
fn sent_buffers_are_held_until_the_port_returns_them() {
    // The port completes a transmission long after the ACK has arrived.
    let mut pair = Pair::new(Quality {
        completion: Duration::from_millis(30),
        ..Quality::default()
    });
    let (_, client, peer) = pair.connected(80);
    pair.run_for(Duration::from_millis(100));
    pair.client.queue(client, b"held");
    pair.run_until("the data", |pair| pair.server.data(peer) == b"held");
    pair.server.queue(peer, b"answer");
    pair.run_until("the answer", |pair| pair.client.data(client) == b"answer");
    assert_eq!(
        pair.client.owned(pair.buffers),
        1,
        "a buffer that the port reads is not held"
    );
    // An abort of the connection does not free a buffer that the port reads.
    pair.client.context.abort(client);
    pair.client.sync();
    assert_eq!(pair.client.owned(pair.buffers), 1);
    pair.run_for(Duration::from_millis(100));
    pair.server.context.close(peer);
    pair.assert_clean();
    // The peer acknowledges long after the port has completed the transmission.
    let mut pair = Pair::new(Quality::default());
    let (_, client, peer) = pair.connected(80);
    pair.wire.borrow_mut().quality.loss = 1000;
    pair.client.queue(client, b"lost");
    for _ in 0..10 {
        pair.step();
    }
    assert_eq!(pair.client.owned(pair.buffers), 1, "not acknowledged");
    pair.wire.borrow_mut().quality.loss = 0;
    pair.run_until("the data", |pair| pair.server.data(peer) == b"lost");
    pair.client.context.close(client);
    pair.server.context.close(peer);
    pair.assert_clean();
}

/// A retransmission never writes to a frame that the port still reads: the context copies the
/// segment to another frame. The simulated NIC verifies each frame at the end of its transmission.
#[test]
fn a_retransmission_during_a_transmission_is_copied() {
    let mut pair = Pair::new(Quality {
        completion: Duration::from_secs(2),
        ..Quality::default()
    });
    let (_, client, peer) = pair.connected(80);
    pair.wire.borrow_mut().quality.loss = 1000;
    pair.client.queue(client, b"again");
    pair.run_for(Duration::from_millis(900));
    let counters = pair.client.context.counters();
    assert_eq!(counters.tx_lent, 1);
    assert!(counters.tx_copies >= 1, "{counters:?}");
    pair.wire.borrow_mut().quality.loss = 0;
    pair.run_until("the data", |pair| pair.server.data(peer) == b"again");
    pair.client.context.close(client);
    pair.server.context.close(peer);
    pair.assert_clean();
}

/// The first segment of a message is sent from its buffer. The headers of a later segment would
/// overwrite unacknowledged data, so later segments are copied.
#[test]
fn later_segments_of_a_buffer_are_copied() {
    let mut pair = Pair::new(Quality::default());
    let (_, client, peer) = pair.connected(80);
    let data = pattern(5, 1800);
    pair.client.queue(client, &data);
    let mut got = Vec::new();
    pair.run_until("the data", |pair| {
        got.extend(pair.server.data(peer));
        got.len() == data.len()
    });
    assert!(got == data);
    let counters = pair.client.context.counters();
    assert_eq!((counters.tx_lent, counters.tx_copies), (1, 1));
    pair.client.context.close(client);
    pair.server.context.close(peer);
    pair.assert_clean();
}

/// A segment that is longer than the frames of the port is dropped, and does not count as a copy.
#[test]
fn a_dropped_segment_is_not_a_copy() {
    let mut pair = Pair::new(Quality {
        is_shared: false,
        ..Quality::default()
    });
    let (_, client, peer) = pair.connected(80);
    pair.wire.borrow_mut().quality.tx_room = 100;
    pair.client.queue(client, &pattern(3, 500));
    pair.run_for(Duration::from_millis(900));
    let too_long = |pair: &Pair| pair.client.context.drops()[DropReason::TooLong.index()];
    assert!(too_long(&pair) >= 1);
    assert_eq!(pair.client.context.counters().tx_copies, 0);
    pair.wire.borrow_mut().quality.tx_room = PACKET_LEN_MAX;
    pair.run_until("the data", |pair| pair.server.data(peer) == pattern(3, 500));
    assert!(pair.client.context.counters().tx_copies >= 1);
    pair.client.context.close(client);
    pair.server.context.close(peer);
    pair.assert_clean();
}

/// Paused connections leave half of the buffers to other connections, whose requests are answered
/// within 1 ms.
#[test]
fn paused_connections_leave_buffers_to_others() {
    let mut pair = Pair::new(Quality::default());
    let (_, client, peer) = pair.connected(80);
    let mut blocked: Vec<(Descriptor, Descriptor)> = Vec::new();
    for _ in 0..200 {
        let connection = pair.connect(80);
        pair.server.context.pause(connection.1);
        blocked.push(connection);
    }
    // Each connection has an initial receive window of 64 KiB. All windows together allow more
    // segments than the server has buffers.
    for round in 0..12 {
        for (sender, _) in &blocked {
            let pool = pair.client.context.pool();
            if pool.free_count() > pair.buffers / 2 {
                pair.client.queue(*sender, &pattern(round, 5000));
            }
        }
        pair.run_for(Duration::from_millis(20));
    }
    let owned = pair.server.owned(pair.buffers);
    assert!(owned <= pair.buffers / 2, "{owned} buffers wait");
    assert!(owned > pair.buffers / 4, "{owned} buffers: too little load");
    for round in 0..50 {
        pair.client.queue(client, b"ping");
        let start = pair.clock.get();
        pair.run_until("the request", |pair| pair.server.data(peer) == b"ping");
        pair.server.queue(peer, b"pong");
        pair.run_until("the answer", |pair| pair.client.data(client) == b"pong");
        let took = pair.clock.get() - start;
        assert!(took < Duration::from_millis(1), "round {round}: {took:?}");
    }
    // After the pause, each connection yields its data in order up to the end of the stream.
    let expected: usize = 12 * 5000;
    let mut received = vec![0; blocked.len()];
    for (sender, receiver) in &blocked {
        pair.server
            .context
            .resume(*receiver)
            .expect("packet I/O works");
        pair.client.context.shutdown(*sender);
    }
    let mut ends = 0;
    pair.run_until("all data", |pair| {
        for (at, (_, receiver)) in blocked.iter().enumerate() {
            for byte in pair.server.data(*receiver) {
                let pos: usize = received[at] % 5000;
                let round = (received[at] / 5000) as u32;
                assert_eq!(byte, crate::kit::byte(round, pos), "connection {at}");
                received[at] += 1;
            }
            ends += usize::from(pair.server.events(*receiver).intersects(Events::END));
        }
        ends == blocked.len()
    });
    assert!(received.iter().all(|len| *len <= expected));
}

/// A buffer of another pool is sent as a copy, and returns to its own pool.
#[test]
fn a_buffer_of_another_pool_is_copied() {
    let mut pair = Pair::new(Quality::default());
    let (_, client, peer) = pair.connected(80);
    let pool = tidelane_rings::Pool::new(4, 100).expect("there is memory");
    let mut buffer = pool.allocate().expect("free");
    buffer.append(b"foreign");
    pair.client.context.send(client, buffer).expect("room");
    pair.run_until("the data", |pair| pair.server.data(peer) == b"foreign");
    pair.run_for(Duration::from_millis(100));
    assert_eq!(pool.free_count(), 4);
    assert_eq!(pair.client.context.counters().tx_lent, 0);
    pair.client.context.close(client);
    pair.server.context.close(peer);
    pair.assert_clean();
}

/// A port without free frames delays segments, and all data arrives.
#[test]
fn a_full_port_delays_and_loses_nothing() {
    for is_shared in [true, false] {
        let mut pair = Pair::new(Quality {
            completion: Duration::from_millis(5),
            is_shared,
            ..Quality::default()
        });
        let mut connections = vec![pair.connected(80)];
        let listener = connections[0].0;
        for _ in 0..4 {
            let (client, peer) = pair.connect(80);
            connections.push((listener, client, peer));
        }
        let data = pattern(9, 400_000);
        for (_, client, _) in &connections {
            pair.client.queue(*client, &data);
        }
        let mut got = vec![Vec::new(); connections.len()];
        pair.run_until("the data", |pair| {
            for (at, (_, _, peer)) in connections.iter().enumerate() {
                got[at].extend(pair.server.data(*peer));
            }
            got.iter().all(|got| got.len() == data.len())
        });
        assert!(got.iter().all(|got| *got == data));
        let full = pair.client.context.tcp_counters().tx_full;
        assert!(full > 0, "the port was never full");
        for (_, client, peer) in connections {
            pair.client.context.close(client);
            pair.server.context.close(peer);
        }
        pair.assert_clean();
    }
}
