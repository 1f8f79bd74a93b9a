//! Tests of waits: calls of `sync` that wait for events. A wait runs the timers, and ends with an
//! event or at its time limit. If the port (the packet interface, `PacketIo`) had no free frame for
//! a segment, the wait sends the segment when a frame is free again.

use std::{rc::Rc, time};

use tidelane_engine::Duration;
use tidelane_rings::{Context, Events, ListenOptions, ReadyList, Wait};

use crate::{
    kit::{Pair, options, server},
    nic_unsafe::Quality,
};

/// A wait runs the timers, and ends at its time limit. One call sends the SYN and its
/// retransmissions.
#[test]
fn a_wait_runs_timers_and_ends_at_its_limit() {
    let mut pair = Pair::new(Quality {
        loss: 1000,
        ..Quality::default()
    });
    pair.client.context.connect(server(80)).expect("a port");
    let start = pair.clock.get();
    let calls = pair.client.context.system_calls();
    let (context, list) = (&mut pair.client.context, &mut pair.client.list);
    let wait = Wait::For(time::Duration::from_millis(3500));
    context.sync(list, wait).expect("packet I/O works");
    assert!(list.is_empty());
    assert_eq!(pair.clock.get() - start, Duration::from_millis(3500));
    // The first SYN, and a retransmission after each second.
    assert_eq!(pair.wire.borrow().sent, 4);
    let waits = context.system_calls() - calls;
    assert!((4..=12).contains(&waits), "{waits} waits");
}

/// A wait without a time limit ends with an event of the connection. The wire loses all packets, so
/// the event is the failure of the active open.
#[test]
fn a_wait_ends_with_an_event() {
    let mut pair = Pair::new(Quality {
        loss: 1000,
        ..Quality::default()
    });
    let opened = pair.client.context.connect(server(80)).expect("a port");
    let (context, list) = (&mut pair.client.context, &mut pair.client.list);
    context.sync(list, Wait::Forever).expect("packet I/O works");
    assert!(pair.client.events(opened).intersects(Events::CLOSED));
}

/// If the port has no free frame for a segment, the wait sends the segment when a frame is free
/// again, before the retransmission timer expires. One call sends the SYNs of more connections than
/// the port has frames.
#[test]
fn a_wait_sends_when_the_port_has_frames_again() {
    let mut pair = Pair::new(Quality {
        loss: 1000,
        completion: Duration::from_millis(5),
        ..Quality::default()
    });
    for _ in 0..300 {
        pair.client.context.connect(server(80)).expect("a port");
    }
    let (context, list) = (&mut pair.client.context, &mut pair.client.list);
    let wait = Wait::For(time::Duration::from_millis(20));
    context.sync(list, wait).expect("packet I/O works");
    assert_eq!(pair.wire.borrow().sent, 300);
    assert!(pair.client.context.tcp_counters().tx_full > 0);
}

/// A wait on the packet port's descriptor ends when another thread sends a packet.
#[test]
fn a_wait_for_a_descriptor_ends_with_a_packet() {
    use std::os::unix::net::UnixDatagram;
    use tidelane_direct::{DirectContext, FnTime, poll_descriptor};
    use tidelane_embedded::FnPort;

    let open = |end: usize, socket: UnixDatagram| {
        socket.set_nonblocking(true).expect("a socket");
        let socket = Rc::new(socket);
        let (rx, tx) = (Rc::clone(&socket), Rc::clone(&socket));
        let port = FnPort::new(
            1500,
            move |packet: &mut [u8]| rx.recv(packet).ok(),
            move |packet: &[u8]| tx.send(packet).is_ok(),
        );
        let wait = FnTime::new(move |_: &mut _, limit| poll_descriptor(&socket, limit));
        DirectContext::open(&options(end), port, wait).expect("possible")
    };
    let (near, far) = UnixDatagram::pair().expect("sockets");
    let peer = std::thread::spawn(move || {
        let mut context = open(1, far);
        let mut list = ReadyList::new();
        let options = ListenOptions::default();
        context.listen(server(80), &options).expect("a free port");
        loop {
            context
                .sync(&mut list, Wait::Forever)
                .expect("packet I/O works");
            for at in 0..list.len() {
                let entry = list.entry(at);
                while let Some(buffer) = list.take_next(at) {
                    context.send(entry.descriptor, buffer).expect("room");
                }
                if entry.events.intersects(Events::END) {
                    context.close(entry.descriptor);
                    return context.tx_sync().expect("packet I/O works");
                }
            }
        }
    });
    let mut context = open(0, near);
    let mut list = ReadyList::new();
    let client = context.connect(server(80)).expect("a port");
    let mut got = Vec::new();
    while got.len() < 5 {
        context
            .sync(&mut list, Wait::Forever)
            .expect("packet I/O works");
        for at in 0..list.len() {
            if list.entry(at).events.intersects(Events::CONNECTED) {
                let mut buffer = context.pool().allocate().expect("free");
                buffer.append(b"hello");
                context.send(client, buffer).expect("room");
            }
            while let Some(buffer) = list.take_next(at) {
                got.extend_from_slice(buffer.payload());
            }
        }
    }
    assert_eq!(got, b"hello");
    assert!(context.counters().waits > 0);
    context.close(client);
    context.tx_sync().expect("packet I/O works");
    peer.join().expect("the peer succeeds");
}
