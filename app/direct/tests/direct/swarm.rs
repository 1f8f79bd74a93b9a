//! Random traffic over a wire with loss, reordering, duplication and corruption, from many seeds.

use tidelane_engine::Duration;
use tidelane_rings::{Context, Events, ListenOptions};

use crate::{
    kit::{Clients, Echo, Pair, pattern, server},
    nic_unsafe::{PACKET_LEN_MAX, Quality},
};

/// Number of seeds.
const SEEDS: u64 = 300;

/// Returns the impairments of a seed. One seed in four has no loss. The other seeds lose 5, 10 or
/// 15 % of the packets.
fn quality(seed: u64) -> Quality {
    Quality {
        seed,
        loss: seed % 4 * 50,
        duplicate: seed / 4 % 3 * 40,
        reorder: seed / 12 % 3 * 150,
        corrupt: seed / 36 % 2 * 60,
        delay: Duration::from_micros(20 + seed % 7 * 300),
        completion: Duration::from_micros(seed % 5 * 400),
        is_shared: !seed.is_multiple_of(3),
        tx_room: PACKET_LEN_MAX,
    }
}

/// Runs clients with streams and messages of different lengths, and verifies each byte. Returns the
/// digest of the events and bytes at the clients.
fn run(seed: u64) -> u64 {
    let mut pair = Pair::new(quality(seed));
    let (mut echo, mut clients) = (Echo::default(), Clients::default());
    pair.server
        .context
        .listen(server(80), &ListenOptions::default())
        .expect("a free port");
    let count = 1 + seed % 8;
    for client in 0..count {
        let len = [1, 700, 5000, 40_000, 100_000][((seed + client) % 5) as usize];
        let message_len = [1, 100, 1448, 1500, 4000][((seed / 5 + client) % 5) as usize];
        let message_len = message_len.max(len / 2000);
        let context = &mut pair.client.context;
        clients.open(context, (seed * 10 + client) as u32, len, message_len);
    }
    for _ in 0..200_000 {
        pair.step();
        clients.cycle(&mut pair.client.context, &mut pair.client.list);
        echo.serve(&mut pair.server.context, &mut pair.server.list);
        if clients.open_count() == 0 && echo.connections == 0 {
            break;
        }
    }
    assert_eq!(clients.finished as u64, count, "seed {seed}");
    assert!(
        clients.causes.is_empty() && echo.causes.is_empty(),
        "{seed}"
    );
    let quality = Quality {
        loss: 0,
        corrupt: 0,
        ..quality(seed)
    };
    pair.wire.borrow_mut().quality = quality;
    pair.assert_clean();
    clients.digest
}

#[test]
fn each_connection_gets_its_own_bytes_over_a_bad_wire() {
    for seed in 0..SEEDS {
        run(seed);
    }
}

#[test]
fn a_seed_repeats() {
    for seed in [1, 14, 27] {
        assert_eq!(run(seed), run(seed));
    }
}

/// Neither a connection with packet loss (`lossy`) nor a connection that the client has paused
/// (`blocked`) delays a third connection (`prompt`). Each request of `prompt` is answered within
/// 2 ms. After each answer, at most 300 of the client's buffers are in use.
#[test]
fn lossy_and_blocked_peers_delay_nobody_else() {
    let mut pair = Pair::new(Quality::default());
    let (_, blocked, blocked_peer) = pair.connected(80);
    let (lossy, lossy_peer) = pair.connect(80);
    let (prompt, prompt_peer) = pair.connect(80);
    pair.client.context.pause(blocked);
    pair.server.queue(blocked_peer, &pattern(1, 450_000));
    let data = pattern(2, 300_000);
    pair.server.queue(lossy_peer, &data);
    let mut got = Vec::new();
    for round in 0..200 {
        // The wire loses packets only between the exchanges of `prompt`, so `prompt` loses no
        // request and no answer.
        pair.wire.borrow_mut().quality.loss = 300;
        for _ in 0..20 {
            pair.step();
            got.extend(pair.client.data(lossy));
        }
        pair.wire.borrow_mut().quality.loss = 0;
        pair.client.queue(prompt, b"ping");
        let start = pair.clock.get();
        let mut answered = false;
        while !answered {
            pair.step();
            got.extend(pair.client.data(lossy));
            if !pair.server.data(prompt_peer).is_empty() {
                pair.server.queue(prompt_peer, b"pong");
            }
            answered = pair.client.events(prompt).intersects(Events::READABLE);
            let took = pair.clock.get() - start;
            assert!(took < Duration::from_millis(2), "round {round}: {took:?}");
        }
        assert!(pair.client.owned(pair.buffers) <= 300, "round {round}");
    }
    pair.run_until("the data of the lossy peer", |pair| {
        got.extend(pair.client.data(lossy));
        got.len() >= data.len()
    });
    assert!(got == data);
}
