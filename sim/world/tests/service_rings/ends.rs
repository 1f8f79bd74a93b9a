//! Tests of the ring API (`tidelane-rings`) over a service: the end of a connection, of a context,
//! and of the service. A *received buffer* is a part of a connection's receive buffer that the
//! program holds, and an *allocated buffer* is a part of the send buffer.

use std::io::ErrorKind;

use tidelane_rings::{Buffer, Cause, Context, Events, SendRefusal, Wait};
use tidelane_service_rings::ServiceOptions;

use crate::rig_unsafe::{Thread, World, connect, pattern, run_until};

/// If the program closes a connection while buffers wait because the send buffer is full, the peer
/// still gets all queued data before the FIN.
#[test]
fn a_close_sends_the_queued_data() {
    let (mut world, mut client, mut server, _) = World::new(&ServiceOptions::default());
    let pairs = connect(&mut world, &mut client, &mut server, 1);
    let (own, peer) = pairs[0];
    let data = pattern(3_000_000, 5);
    let mut sent = 0;
    client.context.pause(own);
    for chunk in data.chunks(4096) {
        let mut buffer = match server.context.pool().allocate() {
            Some(buffer) => buffer,
            None => break,
        };
        buffer.append(chunk);
        let Ok(()) = server.context.send(peer, buffer) else {
            break;
        };
        sent += chunk.len();
    }
    server.context.close(peer);
    assert!(!server.context.is_open(peer));
    let buffer = server.context.pool().allocate().expect("free");
    let refused = server.context.send(peer, buffer).expect_err("closed");
    assert_eq!(refused.refusal, SendRefusal::NotConnected);
    drop(refused);
    client.context.resume(own).expect("a service");
    run_until(&mut world, &mut client, &mut server, |_, client, _| {
        client.seen[&own].events.intersects(Events::END)
    });
    assert!(client.seen[&own].bytes == data[..sent], "{sent} bytes");
    client.context.close(own);
    run_until(&mut world, &mut client, &mut server, |world, _, server| {
        let free = server.context.pool().free_count();
        free == server.context.pool().count() && !world.has_flows()
    });
}

/// After a shutdown, the peer gets the event END, and can still send.
#[test]
fn a_shutdown_ends_one_direction() {
    let (mut world, mut client, mut server, _) = World::new(&ServiceOptions::default());
    let pairs = connect(&mut world, &mut client, &mut server, 1);
    let (own, peer) = pairs[0];
    assert_eq!(client.write(own, b"last"), 4);
    client.context.shutdown(own);
    assert!(client.context.allocate(own).is_none());
    run_until(&mut world, &mut client, &mut server, |_, _, server| {
        server.seen[&peer].events.intersects(Events::END)
    });
    assert_eq!(server.seen[&peer].bytes, b"last");
    assert_eq!(server.write(peer, b"answer"), 6);
    server.context.close(peer);
    run_until(&mut world, &mut client, &mut server, |_, client, _| {
        client.seen[&own].events.intersects(Events::END)
    });
    assert_eq!(client.seen[&own].bytes, b"answer");
    assert_eq!(client.seen[&own].cause, None, "an orderly end has a cause");
}

/// The event CLOSED has the cause of the end, and comes once.
#[test]
fn ends_have_their_causes() {
    let (mut world, mut client, mut server, _) = World::new(&ServiceOptions::default());
    let pairs = connect(&mut world, &mut client, &mut server, 2);
    let (own, peer) = pairs[0];
    server.context.abort(peer);
    let no_listener = std::net::SocketAddr::from(([10, 0, 0, 2], 81));
    let refused = client.context.connect(no_listener).expect("a route");
    run_until(&mut world, &mut client, &mut server, |_, client, _| {
        [own, refused].iter().all(|one| {
            let seen = client.seen.get(one);
            seen.is_some_and(|seen| seen.events.intersects(Events::CLOSED))
        })
    });
    assert_eq!(client.seen[&own].cause, Some(Cause::Reset));
    assert_eq!(client.seen[&refused].cause, Some(Cause::Refused));
    let buffer = client.context.pool().allocate().expect("free");
    let error = client.context.send(own, buffer).expect_err("over");
    assert_eq!(error.refusal, SendRefusal::NotConnected);
    client.seen.clear();
    for _ in 0..100 {
        client.sync();
        server.sync();
        world.step();
    }
    assert!(client.seen.is_empty(), "reported twice: {:?}", client.seen);
    client.context.close(own);
    client.context.close(refused);
    let (other, _) = pairs[1];
    assert_eq!(client.write(other, b"works"), 5);
}

/// Opens a connection, of which the server holds a received buffer and an allocated buffer. Returns
/// the descriptors of the client and of the server, and the two buffers.
fn hold(
    world: &mut World,
    client: &mut Thread,
    server: &mut Thread,
) -> (
    tidelane_rings::Descriptor,
    tidelane_rings::Descriptor,
    [Buffer; 2],
) {
    let pairs = connect(world, client, server, 1);
    let (own, peer) = pairs[0];
    let data = pattern(3000, 6);
    assert_eq!(client.write(own, &data), 3000);
    let mut received = None;
    run_until(world, client, server, |_, _, server| {
        for at in 0..server.list.len() {
            received = received.take().or_else(|| server.list.take_next(at));
        }
        received.is_some()
    });
    let mut room = server.context.allocate(peer).expect("room");
    room.append(b"never sent");
    (own, peer, [received.expect("received"), room])
}

/// Exchanges data on many new connections, so that freed memory gets other contents.
fn churn(world: &mut World, client: &mut Thread, server: &mut Thread) {
    for _ in 0..3 {
        let pairs = connect(world, client, server, 30);
        for (own, peer) in &pairs {
            assert_eq!(client.write(*own, &[0xee; 4000]), 4000);
            assert_eq!(server.write(*peer, &[0xdd; 4000]), 4000);
        }
        run_until(world, client, server, |_, client, server| {
            pairs.iter().all(|(own, peer)| {
                client.seen[own].bytes.len() == 4000 && server.seen[peer].bytes.len() == 4000
            })
        });
        for (own, peer) in pairs {
            client.context.close(own);
            server.context.close(peer);
            client.seen.remove(&own);
            server.seen.remove(&peer);
        }
    }
}

/// The buffers of a closed or reset connection keep their bytes as long as the program holds them.
/// The peer sees the end while the program still holds the buffers. The slot, which is the record
/// of the connection in shared memory, is free after the program has returned the buffers.
#[test]
fn buffers_outlive_their_connection() {
    for abort in [false, true] {
        for kept in [[true, true], [true, false], [false, true]] {
            outlive(abort, kept);
        }
    }
}

/// Closes a connection, or aborts the connection if `abort` is true. `kept` tells whether the
/// program keeps the received buffer, and whether the program keeps the allocated buffer.
fn outlive(abort: bool, kept: [bool; 2]) {
    let case = format!("abort {abort}, kept {kept:?}");
    let (mut world, mut client, mut server, _) = World::new(&ServiceOptions::default());
    let (own, peer, held) = hold(&mut world, &mut client, &mut server);
    let received = pattern(3000, 6);
    assert_eq!(held[0].payload(), &received[..held[0].len()]);
    let mut kept = kept.into_iter();
    let kept: Vec<Buffer> = held
        .into_iter()
        .filter(|_| kept.next() == Some(true))
        .collect();
    let before: Vec<Vec<u8>> = kept.iter().map(|held| held.payload().to_vec()).collect();
    match abort {
        true => server.context.abort(peer),
        false => server.context.close(peer),
    }
    run_until(&mut world, &mut client, &mut server, |_, client, _| {
        let ends = Events::END.union(Events::CLOSED);
        client.seen[&own].events.intersects(ends)
    });
    let cause = client.seen[&own].cause;
    assert_eq!(cause, abort.then_some(Cause::Reset), "{case}");
    client.context.close(own);
    client.seen.remove(&own);
    server.seen.remove(&peer);
    churn(&mut world, &mut client, &mut server);
    for (held, before) in kept.iter().zip(&before) {
        assert!(held.payload() == before, "{case}");
    }
    drop(kept);
    run_until(&mut world, &mut client, &mut server, |world, _, _| {
        !world.has_flows() && world.used_slots() == 0
    });
}

/// A received buffer keeps its bytes after the service has replaced the receive buffer by a larger
/// receive buffer. The transfer goes on after the program has returned the received buffer.
#[test]
fn received_buffers_outlive_a_larger_receive_buffer() {
    let (mut world, mut client, mut server, _) = World::new(&ServiceOptions::default());
    let (own, peer, [held, room]) = hold(&mut world, &mut client, &mut server);
    drop(room);
    let before = held.payload().to_vec();
    let more = pattern(200_000, 9);
    let mut sent = 0;
    let mut taken = Vec::new();
    run_until(&mut world, &mut client, &mut server, |_, client, server| {
        sent += client.write(own, &more[sent..]);
        for at in 0..server.list.len() {
            taken.extend(std::iter::from_fn(|| server.list.take_next(at)));
        }
        let len: usize = taken.iter().map(Buffer::len).sum();
        len >= 20_000
    });
    taken.clear();
    // The write makes the service read the connection's slot. The slot tells the service which
    // receive buffer the program uses.
    assert_eq!(server.write(peer, b"answer"), 6);
    churn(&mut world, &mut client, &mut server);
    assert!(
        held.payload() == before,
        "the old receive buffer was used again"
    );
    drop(held);
    run_until(&mut world, &mut client, &mut server, |_, client, server| {
        sent += client.write(own, &more[sent..]);
        server.seen[&peer].bytes.len() == 3000 + more.len()
    });
    assert!(server.seen[&peer].bytes[3000..] == more);
}

/// An allocated buffer keeps its bytes after the send buffer was replaced by a larger send buffer.
/// The program can still send the allocated buffer.
#[test]
fn allocated_buffers_outlive_a_larger_send_buffer() {
    let (mut world, mut client, mut server, _) = World::new(&ServiceOptions::default());
    let (own, peer, [received, mut held]) = hold(&mut world, &mut client, &mut server);
    drop(received);
    let len = held.bytes_mut().len();
    held.bytes_mut().copy_from_slice(&pattern(len, 8));
    held.set_payload(0..len as u32);
    let data = pattern(100_000, 9);
    let mut sent = 0;
    run_until(&mut world, &mut client, &mut server, |_, client, server| {
        if sent < data.len() {
            let mut buffer = server.context.pool().allocate().expect("free");
            sent += buffer.append(&data[sent..]);
            server.context.send(peer, buffer).expect("a queue");
        }
        client.seen[&own].bytes.len() == data.len()
    });
    churn(&mut world, &mut client, &mut server);
    assert!(
        held.payload() == pattern(len, 8),
        "the old send buffer was used again"
    );
    server.context.send(peer, held).expect("room");
    run_until(&mut world, &mut client, &mut server, |_, client, _| {
        client.seen[&own].bytes.len() == data.len() + len
    });
    assert!(client.seen[&own].bytes[..data.len()] == data);
    assert!(client.seen[&own].bytes[data.len()..] == pattern(len, 8));
}

/// Buffers keep their bytes after the end of their context and of the service.
#[test]
fn buffers_outlive_their_context() {
    let (mut world, mut client, mut server, _) = World::new(&ServiceOptions::default());
    let (_, _, held) = hold(&mut world, &mut client, &mut server);
    let first = held[0].payload().to_vec();
    drop(server);
    for _ in 0..200 {
        client.sync();
        world.step();
    }
    drop(world);
    drop(client);
    assert_eq!(held[0].payload(), first);
    assert_eq!(held[1].payload(), b"never sent");
}

/// The service dies while a program uses the service. Each connection ends with the event CLOSED.
/// Later calls of `sync`, `connect` and `send` return an error, and no call hangs. A received
/// buffer keeps its bytes.
#[test]
fn the_end_of_the_service_ends_all() {
    let (mut world, mut client, mut server, listener) = World::new(&ServiceOptions::default());
    let (_, _, held) = hold(&mut world, &mut client, &mut server);
    let pairs = connect(&mut world, &mut client, &mut server, 20);
    let no_answer = server.context.connect(crate::rig_unsafe::server_address());
    let opened = no_answer.expect("a route");
    let data = [7; 5000];
    for (_, peer) in &pairs {
        server.write(*peer, &data);
    }
    server.seen.clear();
    world.kill_service();
    // The first ready list may contain only the connections with pending events.
    while server.context.sync(&mut server.list, Wait::No).is_ok() {
        assert!(!server.list.is_empty(), "an empty list of a dead service");
        server.record();
    }
    let closed = server.with(Events::CLOSED);
    assert_eq!(
        closed.len(),
        22,
        "ends of 21 connections and of one active open"
    );
    assert!(closed.contains(&opened));
    assert!(
        closed
            .iter()
            .all(|one| server.seen[one].cause == Some(Cause::Other))
    );
    let first = held[0].payload().to_vec();
    for wait in [Wait::No, Wait::Forever] {
        let error = server.context.sync(&mut server.list, wait);
        let error = error.expect_err("the service is gone");
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        assert!(server.list.is_empty());
    }
    for descriptor in &closed {
        let buffer = server.context.pool().allocate().expect("free");
        let error = server.context.send(*descriptor, buffer);
        assert!(error.is_err() && server.context.allocate(*descriptor).is_none());
        server.context.close(*descriptor);
    }
    server.context.close(listener);
    assert!(
        server
            .context
            .connect(crate::rig_unsafe::server_address())
            .is_err()
    );
    let _ = server.context.sync(&mut server.list, Wait::Forever);
    assert!(closed.iter().all(|one| !server.context.is_open(*one)));
    drop(server);
    assert_eq!(held[0].payload(), first);
}

/// Slots, descriptors and send buffers are free after many connections.
#[test]
fn nothing_leaks() {
    let (mut world, mut client, mut server, _) = World::new(&ServiceOptions::default());
    for _ in 0..10 {
        churn(&mut world, &mut client, &mut server);
    }
    run_until(&mut world, &mut client, &mut server, |world, _, _| {
        !world.has_flows() && world.used_slots() == 0
    });
    let mut cycles = 0;
    run_until(&mut world, &mut client, &mut server, |_, _, _| {
        cycles += 1;
        cycles > 1000
    });
    assert_eq!(world.send_buffer_bytes(), 0);
    let next = client.context.connect(crate::rig_unsafe::server_address());
    assert!(next.expect("a route").0 < 100, "descriptors leak");
}

/// A program waits for room on a connection for which it has paused receiving. If the peer resets
/// this connection, the program gets the received data and the event CLOSED. Without the event, the
/// program would wait for ever, because a reset connection never has room.
#[test]
fn a_reset_ends_a_wait_for_room_in_spite_of_a_pause() {
    let (mut world, mut client, mut server, _) = World::new(&ServiceOptions::default());
    let pairs = connect(&mut world, &mut client, &mut server, 1);
    let (own, peer) = pairs[0];
    client.context.pause(own);
    server.context.pause(peer);
    assert_eq!(client.write(own, b"before the reset"), 16);
    let data = pattern(30_000_000, 3);
    let (mut sent, mut still) = (0, 0);
    run_until(&mut world, &mut client, &mut server, |_, _, server| {
        let count = server.write(peer, &data[sent..]);
        (sent, still) = (sent + count, if count > 0 { 0 } else { still + 1 });
        still > 500
    });
    server.seen.remove(&peer);
    client.context.abort(own);
    run_until(&mut world, &mut client, &mut server, |_, _, server| {
        let seen = server.seen.get(&peer);
        seen.is_some_and(|seen| seen.events.intersects(Events::CLOSED))
    });
    assert_eq!(server.seen[&peer].cause, Some(Cause::Reset));
    assert_eq!(server.seen[&peer].bytes, b"before the reset");
    server.context.close(peer);
    run_until(&mut world, &mut client, &mut server, |world, _, _| {
        !world.has_flows() && world.used_slots() == 0
    });
}
