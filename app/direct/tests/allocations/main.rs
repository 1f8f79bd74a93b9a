//! Copies and allocations for each message.

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

/// Connections of a test.
const CONNECTIONS: usize = 20;
/// Messages in each direction on each connection.
const ROUNDS: u64 = 200;

/// Runs request and answer on all connections. The server sends the received buffer back: the
/// payload of the answer stays where the NIC has put the request. Returns the allocations.
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

/// On a port that shares its memory, a message is neither copied nor does it cost an allocation,
/// from the buffer of one program to the buffer of the other program.
#[test]
fn a_message_costs_no_copy_and_no_allocation() {
    for len in [1, 100, 1400] {
        let (mut pair, connections) = connected(true);
        let message = pattern(1, len);
        // The lists grow in the first rounds.
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

/// On another port, a message is copied once in each direction.
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
