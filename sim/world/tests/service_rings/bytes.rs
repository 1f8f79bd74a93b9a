//! Tests of the ring API (`tidelane-rings`) over a service: the bytes of many connections, with and
//! without loss, and the number of times that a context copies payload.

use std::collections::HashSet;

use tidelane_rings::{Buffer, Context, Descriptor, Events, SendRefusal};
use tidelane_service_rings::ServiceOptions;

use crate::rig_unsafe::{Thread, World, connect, pattern, run_until};

/// Answers each received byte with its complement, in buffers that the server allocates for the
/// connection. `owed` has the answers, oldest first, that wait for room in a send buffer.
fn answer(server: &mut Thread, owed: &mut Vec<(Descriptor, Vec<u8>)>) {
    for at in 0..server.list.len() {
        let descriptor = server.list.entry(at).descriptor;
        let answer: Vec<u8> = server
            .list
            .payloads(at)
            .flatten()
            .map(|byte| byte ^ 0xff)
            .collect();
        owed.push((descriptor, answer));
    }
    let mut blocked = HashSet::new();
    owed.retain_mut(|(descriptor, answer)| {
        if !blocked.contains(descriptor) {
            let sent = server.write(*descriptor, answer);
            answer.drain(..sent);
        }
        let is_blocked = !answer.is_empty();
        if is_blocked {
            blocked.insert(*descriptor);
        }
        is_blocked
    });
}

/// Sends `len` bytes on each of `count` connections, and checks the answers. On average, the
/// network loses one in `lose_one_in` frames. Zero means no loss.
fn exchange(count: usize, len: usize, lose_one_in: u64) {
    exchange_in(
        World::new(&ServiceOptions::default()),
        count,
        len,
        lose_one_in,
    );
}

/// Exchanges bytes as [`exchange`] does. `made` is a result of [`World::with_memory`].
fn exchange_in(
    made: (World, Thread, Thread, Descriptor),
    count: usize,
    len: usize,
    lose_one_in: u64,
) {
    let (mut world, mut client, mut server, _) = made;
    let pairs = connect(&mut world, &mut client, &mut server, count);
    (world.lose_one_in, server.seen) = (lose_one_in, Default::default());
    let copies = (client.context.copies(), server.context.copies());
    let data: Vec<Vec<u8>> = (0..count).map(|seed| pattern(len, seed)).collect();
    let mut sent = vec![0; count];
    let mut owed = Vec::new();
    run_until(&mut world, &mut client, &mut server, |_, client, server| {
        answer(server, &mut owed);
        for (seed, (own, _)) in pairs.iter().enumerate() {
            sent[seed] += client.write(*own, &data[seed][sent[seed]..]);
        }
        pairs
            .iter()
            .all(|(own, _)| client.seen[own].bytes.len() >= len)
    });
    for (seed, (own, peer)) in pairs.iter().enumerate() {
        assert!(server.seen[peer].bytes == data[seed], "request {seed}");
        let wanted: Vec<u8> = data[seed].iter().map(|byte| byte ^ 0xff).collect();
        assert!(client.seen[own].bytes == wanted, "answer {seed}");
    }
    // Both ends write to buffers that they have allocated for the connection, so no payload is
    // copied.
    let after = (client.context.copies(), server.context.copies());
    assert_eq!(after, copies, "copies of payload");
    assert_eq!(server.context.system_calls(), 0);
}

#[test]
fn connections_get_their_own_bytes_without_copies() {
    exchange(1, 1, 0);
    exchange(1, 3_000_000, 0);
    exchange(400, 5_000, 0);
}

#[test]
fn lost_frames_change_no_byte() {
    for lose_one_in in [5, 20] {
        exchange(20, 50_000, lose_one_in);
    }
}

/// With little memory for send buffers, connections wait for memory, and no byte is lost.
#[test]
fn a_lack_of_memory_delays_bytes_but_loses_none() {
    let made = World::with_memory(&ServiceOptions::default(), 32 << 10);
    exchange_in(made, 40, 20_000, 0);
}

/// An echo server sends received buffers as they are. The context copies each byte once. The
/// server keeps a refused buffer and sends it again later.
#[test]
fn an_echo_is_one_copy_of_each_buffer() {
    let [buffers, copies] = echo(64 << 20, 200_000);
    // A buffer that does not fit into the free room is copied in two parts.
    assert!(
        (buffers..2 * buffers).contains(&copies),
        "{copies} copies of {buffers} buffers"
    );
}

/// With little memory for send buffers, refused and queued buffers wait, and no byte is lost.
#[test]
fn an_echo_waits_for_memory() {
    echo(32 << 10, 20_000);
}

/// Echoes `len` bytes on each of 50 connections, with `tx_len` bytes for send buffers. Returns the
/// number of received buffers and the number of copies.
fn echo(tx_len: u64, len: usize) -> [u64; 2] {
    let options = ServiceOptions {
        send_queue_max: 2,
        ..ServiceOptions::default()
    };
    let (mut world, mut client, mut server, _) = World::with_memory(&options, tx_len);
    let pairs = connect(&mut world, &mut client, &mut server, 50);
    let data: Vec<Vec<u8>> = (0..pairs.len()).map(|seed| pattern(len, seed)).collect();
    let mut sent = vec![0; pairs.len()];
    let (mut kept, mut buffers): (Vec<(Descriptor, Buffer)>, u64) = (Vec::new(), 0);
    run_until(&mut world, &mut client, &mut server, |_, client, server| {
        for (seed, (own, _)) in pairs.iter().enumerate() {
            sent[seed] += client.write(*own, &data[seed][sent[seed]..]);
        }
        let mut due = std::mem::take(&mut kept);
        for at in 0..server.list.len() {
            let descriptor = server.list.entry(at).descriptor;
            while let Some(buffer) = server.list.take_next(at) {
                buffers += 1;
                due.push((descriptor, buffer));
            }
        }
        for (descriptor, buffer) in due {
            let waits = kept.iter().any(|(waiting, _)| *waiting == descriptor);
            if waits {
                kept.push((descriptor, buffer));
            } else if let Err(error) = server.context.send(descriptor, buffer) {
                assert_eq!(error.refusal, SendRefusal::Full);
                kept.push((descriptor, error.buffer));
            }
        }
        pairs
            .iter()
            .all(|(own, _)| client.seen[own].bytes.len() >= len)
    });
    for (seed, (own, _)) in pairs.iter().enumerate() {
        assert!(client.seen[own].bytes == data[seed], "echo {seed}");
    }
    [buffers, server.context.copies()]
}

/// The server allocates buffers for a connection and sends them in a different order. The server
/// also shortens a buffer, drops a buffer, and sends a buffer on another connection. The bytes
/// arrive in the order of the sends. A buffer keeps its contents until the server sends the buffer.
#[test]
fn the_order_of_the_sends_is_the_order_of_the_stream() {
    let (mut world, mut client, mut server, _) = World::new(&ServiceOptions::default());
    let pairs = connect(&mut world, &mut client, &mut server, 2);
    let (peer, other) = (pairs[0].1, pairs[1].1);
    let mut wanted = Vec::new();
    let mut wanted_other = Vec::new();
    let mut copies = server.context.copies();
    for round in 0..200_u32 {
        let fill = |server: &mut Thread, number: u32| {
            let mut buffer = server.context.allocate(peer).expect("room");
            let text = format!("[{round} {number}]");
            buffer.append(text.as_bytes());
            (buffer, text)
        };
        let (first, first_text) = fill(&mut server, 1);
        let (second, second_text) = fill(&mut server, 2);
        let (third, third_text) = fill(&mut server, 3);
        let (dropped, _) = fill(&mut server, 4);
        drop(dropped);
        let mut foreign = server.context.pool().allocate().expect("free");
        foreign.append(b"pool");
        // The second buffer is sent first, although the first buffer has the earlier place in the
        // stream.
        server.context.send(peer, second).expect("room");
        server.context.send(peer, foreign).expect("room");
        assert_eq!(first.payload(), first_text.as_bytes());
        assert_eq!(third.payload(), third_text.as_bytes());
        server.context.send(peer, first).expect("room");
        server.context.send(other, third).expect("room");
        wanted.extend_from_slice(format!("{second_text}pool{first_text}").as_bytes());
        wanted_other.extend_from_slice(third_text.as_bytes());
        let (mut cut, cut_text) = fill(&mut server, 5);
        cut.advance(1);
        server.context.send(peer, cut).expect("room");
        wanted.extend_from_slice(&cut_text.as_bytes()[1..]);
        if round % 3 == 0 {
            run_until(&mut world, &mut client, &mut server, |_, client, _| {
                client.seen[&pairs[0].0].bytes.len() == wanted.len()
            });
        }
        let now = server.context.copies();
        assert!(now - copies >= 5, "fewer copies than sends");
        copies = now;
        // A buffer that is sent in the order of its allocation is not copied.
        let (plain, text) = fill(&mut server, 6);
        server.context.send(peer, plain).expect("room");
        wanted.extend_from_slice(text.as_bytes());
        assert_eq!(server.context.copies(), copies);
    }
    run_until(&mut world, &mut client, &mut server, |_, client, _| {
        let got = [pairs[0].0, pairs[1].0].map(|own| client.seen[&own].bytes.len());
        got == [wanted.len(), wanted_other.len()]
    });
    assert_eq!(client.seen[&pairs[0].0].bytes, wanted);
    assert_eq!(client.seen[&pairs[1].0].bytes, wanted_other);
}

/// Data that the program sends before the connection is established arrives after the handshake.
#[test]
fn data_before_the_handshake_is_queued() {
    let (mut world, mut client, mut server, _) = World::new(&ServiceOptions::default());
    let peer = crate::rig_unsafe::server_address();
    let opened = client.context.connect(peer).expect("a route");
    let mut buffer = client.context.allocate(opened).expect("a free buffer");
    buffer.append(b"early");
    client.context.send(opened, buffer).expect("a queue");
    client.context.shutdown(opened);
    run_until(&mut world, &mut client, &mut server, |_, _, server| {
        !server.with(Events::END).is_empty()
    });
    let accepted = server.with(Events::ACCEPTED);
    assert_eq!(server.seen[&accepted[0]].bytes, b"early");
}

/// `tx_sync` sends queued data, and reports no event. `rx_sync` reports events, and sends no queued
/// data.
#[test]
fn tx_sync_and_rx_sync_do_one_half_each() {
    let (mut world, mut client, mut server, _) = World::new(&ServiceOptions::default());
    let pairs = connect(&mut world, &mut client, &mut server, 1);
    let (own, peer) = pairs[0];
    assert_eq!(server.write(peer, b"later"), 5);
    for _ in 0..50 {
        let list = &mut server.list;
        let synced = server.context.rx_sync(list, tidelane_rings::Wait::No);
        synced.expect("a service");
        world.step();
        client.sync();
    }
    assert!(client.seen[&own].bytes.is_empty(), "rx_sync has sent");
    assert_eq!(client.write(own, b"request"), 7);
    for _ in 0..50 {
        client.sync();
        server.context.tx_sync().expect("a service");
        world.step();
    }
    assert_eq!(client.seen[&own].bytes, b"later");
    assert!(server.list.is_empty(), "tx_sync has reported");
    let synced = server
        .context
        .rx_sync(&mut server.list, tidelane_rings::Wait::No);
    synced.expect("a service");
    server.record();
    assert_eq!(server.seen[&peer].bytes, b"request");
}

/// Two threads of a program have a context each, and both contexts accept connections. A buffer of
/// one context is copied when the other context sends the buffer.
#[test]
fn contexts_of_one_program_have_their_own_connections() {
    let options = ServiceOptions::default();
    let (mut world, mut client, mut first, _) = World::new(&options);
    let mut second = world.another_thread(&options);
    let peer = crate::rig_unsafe::server_address();
    let opened: Vec<Descriptor> = (0..20)
        .map(|_| client.context.connect(peer).expect("a route"))
        .collect();
    let mut sent = false;
    run_until(&mut world, &mut client, &mut first, |_, client, first| {
        second.sync();
        let connected = client.with(Events::CONNECTED).len() == opened.len();
        if connected && !std::mem::replace(&mut sent, true) {
            for (number, own) in opened.iter().enumerate() {
                assert_eq!(client.write(*own, &[number as u8; 100]), 100);
            }
        }
        let received = [&*first, &second].map(|thread| {
            let seen = thread.seen.values();
            seen.filter(|seen| seen.bytes.len() == 100).count()
        });
        received.iter().sum::<usize>() == opened.len()
    });
    let accepted = [&first, &second].map(|thread| thread.with(Events::ACCEPTED).len());
    assert!(accepted[0] > 0 && accepted[1] > 0, "{accepted:?}");
    // One thread receives a buffer, and the other thread sends this buffer.
    let from = first.with(Events::ACCEPTED)[0];
    let to = second.with(Events::ACCEPTED)[0];
    let number = |thread: &Thread, one| usize::from(thread.seen[&one].bytes[0]);
    let (source, sink) = (opened[number(&first, from)], opened[number(&second, to)]);
    assert_eq!(client.write(source, b"across"), 6);
    let mut passed = None;
    run_until(&mut world, &mut client, &mut first, |_, _, first| {
        for at in 0..first.list.len() {
            passed = passed.take().or_else(|| first.list.take_next(at));
        }
        passed.is_some()
    });
    let copies = second.context.copies();
    let buffer = passed.expect("received");
    second.context.send(to, buffer).expect("room");
    assert_eq!(second.context.copies(), copies + 1);
    run_until(&mut world, &mut client, &mut first, |_, client, _| {
        second.sync();
        client.seen[&sink].bytes == b"across"
    });
}
