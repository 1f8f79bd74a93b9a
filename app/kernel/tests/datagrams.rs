//! UDP sockets of a context (the sockets of one thread, through io_uring) exchange datagrams with
//! UDP sockets of the standard library.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use rustix::net::getsockname;
use tidelane_kernel::{KernelContext, KernelOptions};
use tidelane_rings::{Cause, Context, Descriptor, Events, ReadyList, SendRefusal, Wait};

mod open;
use open::open;

/// Time limit of each wait of a test.
const PATIENCE: Duration = Duration::from_secs(20);

/// A received datagram: sender and payload.
type Received = (SocketAddr, Vec<u8>);

/// Returns the address of a UDP socket of the context.
fn address(context: &KernelContext, descriptor: Descriptor) -> SocketAddr {
    let socket = context.socket(descriptor).expect("an open socket");
    let name = getsockname(socket).expect("a bound socket");
    SocketAddr::try_from(name).expect("an IP address")
}

/// Opens a UDP socket of the context at a free port. Returns its descriptor and address.
fn bind(context: &mut KernelContext, ip: &str) -> (Descriptor, SocketAddr) {
    let local = SocketAddr::new(ip.parse().expect("an address"), 0);
    let descriptor = context.bind(local).expect("a free port");
    (descriptor, address(context, descriptor))
}

/// Returns a UDP socket of the standard library. A receive on the socket fails after [`PATIENCE`].
fn peer(ip: &str) -> UdpSocket {
    let socket = UdpSocket::bind((ip, 0)).expect("a free port");
    socket
        .set_read_timeout(Some(PATIENCE))
        .expect("a time limit");
    socket
}

/// Calls sync until the descriptor has received `count` datagrams.
fn receive(context: &mut KernelContext, descriptor: Descriptor, count: usize) -> Vec<Received> {
    let mut list = ReadyList::new();
    let mut received = Vec::new();
    let start = Instant::now();
    while received.len() < count {
        assert!(
            start.elapsed() < PATIENCE,
            "only {} datagrams",
            received.len()
        );
        context
            .sync(&mut list, Wait::For(Duration::from_millis(100)))
            .expect("the context works");
        for at in 0..list.len() {
            assert_eq!(list.entry(at).descriptor, descriptor);
            while let Some((sender, buffer)) = list.take_datagram(at) {
                received.push((sender, buffer.payload().to_vec()));
            }
            assert!(list.take_next(at).is_none(), "a slot is no datagram");
        }
    }
    received
}

fn send(context: &mut KernelContext, descriptor: Descriptor, payload: &[u8], to: SocketAddr) {
    let mut buffer = context.pool().allocate().expect("a free buffer");
    assert_eq!(buffer.append(payload), payload.len());
    context
        .send_to(descriptor, buffer, to)
        .expect("the socket takes a datagram");
}

/// Calls sync without waiting. Returns the events of the descriptor, and the cause of a failure.
fn poll(context: &mut KernelContext, descriptor: Descriptor) -> (Events, Option<Cause>) {
    let mut list = ReadyList::new();
    context
        .sync(&mut list, Wait::No)
        .expect("the context works");
    let entries = (0..list.len()).map(|at| list.entry(at));
    let mut entries = entries.filter(|entry| entry.descriptor == descriptor);
    entries.next().map_or((Events::default(), None), |entry| {
        (entry.events, entry.cause)
    })
}

/// Receives a datagram with a socket of the standard library.
fn receive_at(peer: &UdpSocket) -> io::Result<Received> {
    let mut bytes = vec![0; 65_536];
    let (len, sender) = peer.recv_from(&mut bytes)?;
    Ok((sender, bytes[..len].to_vec()))
}

#[test]
fn datagrams_keep_their_bounds_and_senders() -> io::Result<()> {
    let Some(mut context) = open(&KernelOptions::default()) else {
        return Ok(());
    };
    for ip in ["127.0.0.1", "::1"] {
        let (descriptor, local) = bind(&mut context, ip);
        let peers = [peer(ip), peer(ip)];
        let payloads: [&[u8]; 4] = [b"one", b"", b"three", &[7; 4000]];
        for (number, payload) in payloads.iter().enumerate() {
            peers[number % 2].send_to(payload, local)?;
        }
        let received = receive(&mut context, descriptor, payloads.len());
        for (number, (sender, payload)) in received.iter().enumerate() {
            assert_eq!(*sender, peers[number % 2].local_addr()?);
            assert_eq!(payload, payloads[number]);
            send(&mut context, descriptor, payload, *sender);
        }
        context.tx_sync()?;
        for (number, payload) in payloads.iter().enumerate() {
            assert_eq!(receive_at(&peers[number % 2])?, (local, payload.to_vec()));
        }
        context.close(descriptor);
        context.tx_sync()?;
        assert!(!context.is_open(descriptor));
        UdpSocket::bind(local)?;
    }
    Ok(())
}

/// 200 datagrams in each direction take at most 8 system calls of the context.
#[test]
fn one_call_moves_many_datagrams() -> io::Result<()> {
    const COUNT: usize = 200;
    let Some(mut context) = open(&KernelOptions::default()) else {
        return Ok(());
    };
    let (descriptor, local) = bind(&mut context, "127.0.0.1");
    let peer = peer("127.0.0.1");
    // The first sync submits the request that receives.
    assert!(poll(&mut context, descriptor).0.is_empty());
    for number in 0..COUNT as u32 {
        peer.send_to(&number.to_be_bytes(), local)?;
    }
    let before = context.system_calls();
    let received = receive(&mut context, descriptor, COUNT);
    for (number, (sender, payload)) in received.iter().enumerate() {
        assert_eq!(payload, &(number as u32).to_be_bytes());
        send(&mut context, descriptor, payload, *sender);
    }
    context.tx_sync()?;
    let calls = context.system_calls() - before;
    assert!(calls <= 8, "{calls} calls");
    for number in 0..COUNT as u32 {
        assert_eq!(receive_at(&peer)?.1, number.to_be_bytes());
    }
    Ok(())
}

#[test]
fn a_datagram_longer_than_a_buffer_is_dropped() -> io::Result<()> {
    let Some(mut context) = open(&KernelOptions {
        buffer_len: 1024,
        ..KernelOptions::default()
    }) else {
        return Ok(());
    };
    let (descriptor, local) = bind(&mut context, "127.0.0.1");
    let peer = peer("127.0.0.1");
    let free = context.pool().free_count();
    for len in [10, 1025, 3000, 900] {
        peer.send_to(&vec![len as u8; len], local)?;
    }
    let received = receive(&mut context, descriptor, 2);
    let lengths: Vec<usize> = received.iter().map(|(_, payload)| payload.len()).collect();
    assert_eq!(lengths, [10, 900]);
    context.close(descriptor);
    context.tx_sync()?;
    // The kernel holds at most half of the 8,192 buffers. The dropped datagrams keep no others.
    assert!(context.pool().free_count() >= free - 4096);
    Ok(())
}

#[test]
fn a_payload_longer_than_a_datagram_is_refused() -> io::Result<()> {
    let Some(mut context) = open(&KernelOptions {
        buffers: 64,
        buffer_len: 65_536,
        ..KernelOptions::default()
    }) else {
        return Ok(());
    };
    let (descriptor, _) = bind(&mut context, "127.0.0.1");
    let peer = peer("127.0.0.1");
    for (len, fits) in [(65_507, true), (65_508, false)] {
        let mut buffer = context.pool().allocate().expect("a free buffer");
        buffer.append(&vec![9; len]);
        let sent = context.send_to(descriptor, buffer, peer.local_addr()?);
        let refusal = sent.err().map(|error| (error.refusal, error.buffer.len()));
        assert_eq!(refusal, (!fits).then_some((SendRefusal::TooLong, len)));
    }
    context.tx_sync()?;
    assert_eq!(receive_at(&peer)?.1.len(), 65_507);
    Ok(())
}

/// Without SO_BROADCAST, a datagram to a broadcast address fails. The next datagram is still sent.
#[test]
fn a_failed_send_is_reported() -> io::Result<()> {
    let Some(mut context) = open(&KernelOptions::default()) else {
        return Ok(());
    };
    let (descriptor, _) = bind(&mut context, "127.0.0.1");
    let peer = peer("127.0.0.1");
    for (to, through_tx) in [(Ipv4Addr::BROADCAST, false), (Ipv4Addr::BROADCAST, true)] {
        send(&mut context, descriptor, b"lost", (to, 9).into());
        send(&mut context, descriptor, b"next", peer.local_addr()?);
        if through_tx {
            context.tx_sync()?;
        }
        let (events, cause) = poll(&mut context, descriptor);
        assert_eq!((events, cause), (Events::SEND_FAILED, Some(Cause::Other)));
        assert_eq!(receive_at(&peer)?.1, b"next");
        assert!(poll(&mut context, descriptor).0.is_empty());
    }
    assert!(context.is_open(descriptor));
    Ok(())
}

#[test]
fn a_full_queue_reports_room() -> io::Result<()> {
    let Some(mut context) = open(&KernelOptions {
        send_queue_max: 3,
        ..KernelOptions::default()
    }) else {
        return Ok(());
    };
    let (descriptor, _) = bind(&mut context, "127.0.0.1");
    let peer = peer("127.0.0.1");
    let to = peer.local_addr()?;
    for payload in [b"1", b"2", b"3"] {
        send(&mut context, descriptor, payload, to);
    }
    let buffer = context.pool().allocate().expect("a free buffer");
    let refused = context.send_to(descriptor, buffer, to).expect_err("full");
    assert_eq!(refused.refusal, SendRefusal::Full);
    let (events, _) = poll(&mut context, descriptor);
    assert_eq!(events, Events::WRITABLE);
    context
        .send_to(descriptor, refused.buffer, to)
        .expect("room");
    context.close(descriptor);
    context.tx_sync()?;
    // A close sends the queued datagrams first.
    for payload in [&b"1"[..], b"2", b"3", b""] {
        assert_eq!(receive_at(&peer)?.1, payload);
    }
    Ok(())
}

#[test]
fn a_paused_socket_leaves_datagrams_to_the_kernel() -> io::Result<()> {
    let Some(mut context) = open(&KernelOptions::default()) else {
        return Ok(());
    };
    let (descriptor, local) = bind(&mut context, "127.0.0.1");
    let peer = peer("127.0.0.1");
    assert!(poll(&mut context, descriptor).0.is_empty());
    context.pause(descriptor);
    assert!(poll(&mut context, descriptor).0.is_empty());
    peer.send_to(b"later", local)?;
    for _ in 0..10 {
        assert!(poll(&mut context, descriptor).0.is_empty());
    }
    context.resume(descriptor)?;
    assert_eq!(receive(&mut context, descriptor, 1)[0].1, b"later");
    Ok(())
}

#[test]
fn sockets_of_different_kinds_are_told_apart() -> io::Result<()> {
    let Some(mut context) = open(&KernelOptions::default()) else {
        return Ok(());
    };
    let (descriptor, local) = bind(&mut context, "127.0.0.1");
    let listener = context.listen("127.0.0.1:0".parse().expect("valid"), &Default::default())?;
    let buffer = context.pool().allocate().expect("a free buffer");
    let refused = context.send(descriptor, buffer).expect_err("no connection");
    assert_eq!(refused.refusal, SendRefusal::NotConnected);
    let refused = context
        .send_to(listener, refused.buffer, local)
        .expect_err("no UDP socket");
    assert_eq!(refused.refusal, SendRefusal::NotConnected);
    let taken = context.bind(local).expect_err("the address is in use");
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    // The shutdown of a UDP socket has no effect.
    context.shutdown(descriptor);
    send(&mut context, descriptor, b"to itself", local);
    assert_eq!(
        receive(&mut context, descriptor, 1),
        [(local, b"to itself".to_vec())]
    );
    context.abort(descriptor);
    context.abort(listener);
    context.tx_sync()?;
    UdpSocket::bind(local)?;
    Ok(())
}
