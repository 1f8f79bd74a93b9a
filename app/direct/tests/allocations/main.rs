//! The number of copies and allocations that a message costs on a direct context
//! (`tidelane-direct`). A direct context provides the ring API with TCP in the program's process. A
//! port is the packet interface of a context, here a simulated NIC.

mod counting_unsafe;
#[allow(dead_code)]
#[path = "../direct/kit.rs"]
mod kit;
#[allow(dead_code)]
#[path = "../direct/nic_unsafe.rs"]
mod nic_unsafe;

use tidelane_rings::{Context, Descriptor};

use crate::{
    counting_unsafe::allocations,
    kit::{Pair, pattern},
    nic_unsafe::Quality,
};

/// Number of connections of a test.
const CONNECTIONS: usize = 20;
/// Number of messages in each direction on each connection, or of datagrams in each direction.
const ROUNDS: u64 = 200;

/// Exchanges requests and answers on all connections. The server sends each received buffer as the
/// answer. If the NICs share their memory, the payload of the answer therefore stays in the frame
/// of the request. Returns the number of allocations.
fn exchange(pair: &mut Pair, connections: &[Descriptor], message: &[u8], rounds: u64) -> u64 {
    let before = allocations();
    for _ in 0..rounds {
        for client in connections {
            let mut buffer = pair.client.context.pool().allocate().expect("free");
            assert_eq!(buffer.append(message), message.len());
            pair.client.context.send(*client, buffer).expect("room");
        }
        let mut answers = 0;
        while answers < connections.len() {
            pair.step();
            for at in 0..pair.server.list.len() {
                let descriptor = pair.server.list.entry(at).descriptor;
                while let Some(buffer) = pair.server.list.take_next(at) {
                    pair.server.context.send(descriptor, buffer).expect("room");
                }
            }
            for at in 0..pair.client.list.len() {
                for payload in pair.client.list.payloads(at) {
                    assert!(payload == message);
                    answers += 1;
                }
            }
        }
    }
    allocations() - before
}

/// Opens the connections. `is_shared` is true if the NICs share their memory with the contexts.
/// Returns the two contexts, and the client's descriptors.
fn connected(is_shared: bool) -> (Pair, Vec<Descriptor>) {
    let mut pair = Pair::new(Quality {
        is_shared,
        ..Quality::default()
    });
    let mut connections = vec![pair.connected(80).1];
    while connections.len() < CONNECTIONS {
        connections.push(pair.connect(80).0);
    }
    (pair, connections)
}

/// On ports that share their memory, a message needs neither a copy nor an allocation, from the
/// buffer of the sending program to the buffer of the receiving program.
#[test]
fn a_message_costs_no_copy_and_no_allocation() {
    for len in [1, 100, 1400] {
        let (mut pair, connections) = connected(true);
        let message = pattern(1, len);
        // The first rounds allocate, because the lists grow.
        exchange(&mut pair, &connections, &message, 20);
        let before = [
            pair.client.context.counters(),
            pair.server.context.counters(),
        ];
        let count = exchange(&mut pair, &connections, &message, ROUNDS);
        assert_eq!(count, 0, "allocations, {len} bytes");
        let after = [
            pair.client.context.counters(),
            pair.server.context.counters(),
        ];
        let messages = ROUNDS * CONNECTIONS as u64;
        for (before, after) in before.iter().zip(&after) {
            assert_eq!(after.rx_copies - before.rx_copies, 0, "{len} bytes");
            assert_eq!(after.tx_copies - before.tx_copies, 0, "{len} bytes");
            assert_eq!(after.rx_exchanges - before.rx_exchanges, messages);
            assert_eq!(after.tx_lent - before.tx_lent, messages);
        }
    }
}

/// A datagram costs no allocation. If the ports share their memory, a datagram costs no copy.
#[test]
fn a_datagram_costs_no_copy_and_no_allocation() {
    for is_shared in [true, false] {
        let mut pair = Pair::new(Quality {
            is_shared,
            ..Quality::default()
        });
        let bound = pair.server.context.bind(kit::server(53)).expect("free");
        let socket = pair.client.context.bind(([0; 4], 0).into()).expect("free");
        let payload = pattern(1, 500);
        let mut run = |rounds: u64| {
            let before = allocations();
            for _ in 0..rounds {
                let mut buffer = pair.client.context.pool().allocate().expect("free");
                assert_eq!(buffer.append(&payload), payload.len());
                let sent = pair.client.context.send_to(socket, buffer, kit::server(53));
                sent.expect("room");
                let mut is_answered = false;
                while !is_answered {
                    pair.step();
                    while let Some((sender, buffer)) = pair.server.list.take_datagram(0) {
                        let sent = pair.server.context.send_to(bound, buffer, sender);
                        sent.expect("room");
                    }
                    while let Some((_, buffer)) = pair.client.list.take_datagram(0) {
                        assert!(buffer.payload() == payload);
                        is_answered = true;
                    }
                }
            }
            let ends = [&pair.client, &pair.server];
            let copies = ends.map(|end| end.context.counters());
            let copies: u64 = copies.iter().map(|c| c.rx_copies + c.tx_copies).sum();
            (allocations() - before, copies)
        };
        let (_, before) = run(20);
        let (count, after) = run(ROUNDS);
        assert_eq!(count, 0, "allocations");
        // Without shared memory, each of the two datagrams of a round is copied by its sender and
        // by its receiver.
        let copies = if is_shared { 0 } else { 4 * ROUNDS };
        assert_eq!(after - before, copies);
    }
}

/// On a port that does not share its memory, the server copies each request and each answer once.
/// The messages cost no allocation.
#[test]
fn another_port_costs_one_copy_and_no_allocation() {
    let (mut pair, connections) = connected(false);
    let message = pattern(1, 500);
    exchange(&mut pair, &connections, &message, 20);
    let before = pair.server.context.counters();
    let count = exchange(&mut pair, &connections, &message, ROUNDS);
    assert_eq!(count, 0, "allocations");
    let after = pair.server.context.counters();
    let messages = ROUNDS * CONNECTIONS as u64;
    assert_eq!(after.rx_copies - before.rx_copies, messages);
    assert_eq!(after.tx_copies - before.tx_copies, messages);
    assert_eq!((after.rx_exchanges, after.tx_lent), (0, 0));
}
