//! Tests of the ring API (`tidelane-rings`) over a service. Buffers with received data reduce the
//! receive window as long as the program holds the buffers. A paused receiver blocks only its own
//! sender.

use tidelane_rings::{Buffer, Context, Events, Wait};
use tidelane_service_rings::ServiceOptions;

use crate::rig_unsafe::{World, connect, pattern, run_until};

/// A program holds received buffers and returns them in several orders. The bytes of a held buffer
/// do not change.
#[test]
fn held_buffers_keep_their_bytes() {
    let (mut world, mut client, mut server, _) = World::new(&ServiceOptions::default());
    let pairs = connect(&mut world, &mut client, &mut server, 4);
    server.seen.clear();
    const LEN: usize = 2_000_000;
    let data: Vec<Vec<u8>> = (0..4).map(|seed| pattern(LEN, seed)).collect();
    let mut sent = [0; 4];
    // The held buffers of each connection, each with the stream position of its first byte.
    let mut held: Vec<Vec<(usize, Buffer)>> = (0..4).map(|_| Vec::new()).collect();
    let (mut got, mut cycle, mut most) = ([0; 4], 0_usize, 0);
    run_until(&mut world, &mut client, &mut server, |_, client, server| {
        for (seed, (own, _)) in pairs.iter().enumerate() {
            sent[seed] += client.write(*own, &data[seed][sent[seed]..]);
        }
        for at in 0..server.list.len() {
            let descriptor = server.list.entry(at).descriptor;
            let place = pairs.iter().position(|(_, peer)| *peer == descriptor);
            let place = place.expect("a connection");
            while let Some(buffer) = server.list.take_next(at) {
                let len = buffer.len();
                held[place].push((got[place], buffer));
                got[place] += len;
            }
        }
        cycle += 1;
        for (place, buffers) in held.iter_mut().enumerate() {
            most = most.max(buffers.len());
            for (position, buffer) in buffers.iter() {
                let wanted = &data[place][*position..*position + buffer.len()];
                assert!(buffer.payload() == wanted, "bytes at {position} changed");
            }
            // Connection 0 returns its newest buffer, connection 1 its oldest buffer, and the other
            // connections any buffer.
            if cycle.is_multiple_of(3) && !buffers.is_empty() {
                let at = match place {
                    0 => buffers.len() - 1,
                    1 => 0,
                    _ => cycle % buffers.len(),
                };
                buffers.remove(at);
            }
            if buffers.len() > 40 {
                buffers.clear();
            }
        }
        got == [LEN; 4]
    });
    assert!(most > 10, "few buffers were held: {most}");
    for (seed, (_, peer)) in pairs.iter().enumerate() {
        assert!(server.seen[peer].bytes == data[seed], "connection {seed}");
    }
}

/// Held data closes the window of its connection only. When the program returns the buffers, the
/// transfer goes on, and no byte is lost.
#[test]
fn held_data_blocks_its_own_connection_only() {
    let (mut world, mut client, mut server, _) = World::new(&ServiceOptions::default());
    let pairs = connect(&mut world, &mut client, &mut server, 2);
    let [(blocked, holder), (prompt, peer)] = pairs[..] else {
        panic!("two connections");
    };
    server.seen.clear();
    let data = pattern(20_000_000, 1);
    let (mut sent, mut held, mut still) = (0, Vec::new(), 0);
    run_until(&mut world, &mut client, &mut server, |_, client, server| {
        let count = client.write(blocked, &data[sent..]);
        (sent, still) = (sent + count, if count > 0 { 0 } else { still + 1 });
        for at in 0..server.list.len() {
            if server.list.entry(at).descriptor == holder {
                held.extend(std::iter::from_fn(|| server.list.take_next(at)));
            }
        }
        still > 500
    });
    assert!(sent < data.len(), "nothing has blocked the sender");
    let before = server.seen[&holder].bytes.len();
    let text = pattern(100_000, 2);
    let mut done = 0;
    run_until(&mut world, &mut client, &mut server, |_, client, server| {
        done += client.write(prompt, &text[done..]);
        server
            .seen
            .get(&peer)
            .is_some_and(|seen| seen.bytes.len() == text.len())
    });
    assert_eq!(server.seen[&peer].bytes, text);
    assert_eq!(
        server.seen[&holder].bytes.len(),
        before,
        "data has passed a closed window"
    );
    held.clear();
    run_until(&mut world, &mut client, &mut server, |_, client, server| {
        sent += client.write(blocked, &data[sent..]);
        server.seen[&holder].bytes.len() == data.len()
    });
    assert!(server.seen[&holder].bytes == data);
}

/// A client does not receive, so that the server's send buffer and send queue become full. A
/// refused send returns the buffer to the server. Meanwhile, the server sends data on another
/// connection. After the client has received data, the event WRITABLE reports room.
#[test]
fn a_blocked_receiver_delays_nobody_else() {
    let options = ServiceOptions {
        send_queue_max: 8,
        ..ServiceOptions::default()
    };
    let (mut world, mut client, mut server, _) = World::new(&options);
    let pairs = connect(&mut world, &mut client, &mut server, 2);
    let [(blocked, sender), (prompt, peer)] = pairs[..] else {
        panic!("two connections");
    };
    client.context.pause(blocked);
    let data = pattern(30_000_000, 3);
    let (mut sent, mut still) = (0, 0);
    run_until(&mut world, &mut client, &mut server, |_, _, server| {
        let count = server.write(sender, &data[sent..]);
        (sent, still) = (sent + count, if count > 0 { 0 } else { still + 1 });
        still > 500
    });
    assert!(sent < data.len(), "the receiver is not blocked");
    let mut queued = 0;
    let refused = loop {
        let mut buffer = server.context.pool().allocate().expect("free");
        sent += buffer.append(&data[sent..]);
        match server.context.send(sender, buffer) {
            Ok(()) => queued += 1,
            Err(error) => break error.buffer,
        }
    };
    assert_eq!(queued, 8, "buffers in the queue");
    sent -= refused.len();
    drop(refused);
    server.seen.remove(&sender);
    let text = pattern(100_000, 4);
    let mut done = 0;
    run_until(&mut world, &mut client, &mut server, |_, client, server| {
        done += server.write(peer, &text[done..]);
        client
            .seen
            .get(&prompt)
            .is_some_and(|seen| seen.bytes.len() >= text.len())
    });
    assert!(
        client.seen[&blocked].bytes.is_empty(),
        "received while paused"
    );
    assert!(!server.seen.contains_key(&sender), "an event without room");
    client.context.resume(blocked).expect("a service");
    run_until(&mut world, &mut client, &mut server, |_, client, server| {
        if server.with(Events::WRITABLE).contains(&sender) {
            sent += server.write(sender, &data[sent..]);
        }
        client.seen[&blocked].bytes.len() == data.len()
    });
    assert!(client.seen[&blocked].bytes == data);
    assert!(client.seen[&prompt].bytes == text);
}

/// A paused listener accepts nothing. A new connection waits in the listener's accept queue until
/// the listener is resumed.
#[test]
fn a_paused_listener_accepts_later() {
    let (mut world, mut client, mut server, listener) = World::new(&ServiceOptions::default());
    server.context.pause(listener);
    server.sync();
    world.step();
    let peer = crate::rig_unsafe::server_address();
    let opened = client.context.connect(peer).expect("a route");
    run_until(&mut world, &mut client, &mut server, |_, client, _| {
        !client.with(Events::CONNECTED).is_empty()
    });
    for _ in 0..100 {
        server.sync();
        world.step();
    }
    assert!(server.seen.is_empty(), "accepted while paused");
    server.context.resume(listener).expect("a service");
    run_until(&mut world, &mut client, &mut server, |_, _, server| {
        !server.with(Events::ACCEPTED).is_empty()
    });
    let accepted = server.with(Events::ACCEPTED)[0];
    assert_eq!(server.seen[&accepted].listener, Some(listener));
    assert_eq!(server.write(accepted, b"hello"), 5);
    run_until(&mut world, &mut client, &mut server, |_, client, _| {
        client.seen[&opened].bytes == b"hello"
    });
}

/// The send buffer of an idle connection is freed, except while the program holds a buffer that is
/// a part of the send buffer.
#[test]
fn idle_connections_have_no_send_buffer() {
    let (mut world, mut client, mut server, _) = World::new(&ServiceOptions::default());
    let pairs = connect(&mut world, &mut client, &mut server, 10);
    for (_, peer) in &pairs {
        assert_eq!(server.write(*peer, b"some bytes"), 10);
    }
    let idle = |world: &mut World, client: &mut _, server: &mut _| {
        let mut cycles = 0;
        run_until(world, client, server, |_, _, _| {
            cycles += 1;
            cycles > 1000
        });
    };
    idle(&mut world, &mut client, &mut server);
    assert_eq!(world.send_buffer_bytes(), 0);
    let mut held = server.context.allocate(pairs[0].1).expect("room");
    held.append(b"held");
    idle(&mut world, &mut client, &mut server);
    assert_eq!(world.send_buffer_bytes(), 4096, "the held buffer");
    assert_eq!(held.payload(), b"held");
    server.context.send(pairs[0].1, held).expect("room");
    idle(&mut world, &mut client, &mut server);
    assert_eq!(client.seen[&pairs[0].0].bytes, b"some bytesheld");
    assert_eq!(world.send_buffer_bytes(), 0);
    // This context cannot sleep, so `sync` returns an empty list without a wait.
    server
        .context
        .sync(&mut server.list, Wait::Forever)
        .expect("a service");
    assert!(server.list.is_empty());
}
