//! Two stacks at the ends of a wire in memory, in virtual time, with and without loss.

use std::{cell::RefCell, collections::VecDeque, rc::Rc};

use tidelane_embedded::*;
use tidelane_packet_io::{Capabilities, GsoParameters, GsoPayload, LinkFull, TxChecksum};

/// Addresses of the two ends.
const ADDRESSES: [IpAddress; 2] = [
    IpAddress::from_v4([10, 0, 0, 1]),
    IpAddress::from_v4([10, 0, 0, 2]),
];
/// The server's endpoint.
const SERVER: Endpoint = Endpoint::new(ADDRESSES[1], 80);

/// Packets in flight in one direction.
type Queue = Rc<RefCell<VecDeque<Vec<u8>>>>;
/// A stack whose port is two boxed functions.
type BoxedStack =
    Stack<FnPort<Box<dyn FnMut(&mut [u8]) -> Option<usize>>, Box<dyn FnMut(&[u8]) -> bool>>>;

/// Creates a stack at end 0 (client) or end 1 (server) of `queues`. Each `loss`-th packet that the
/// stack sends is lost. Zero means no loss.
fn stack(end: usize, queues: &[Queue; 2], loss: u32) -> BoxedStack {
    let config = StackConfig::new(ADDRESSES[end], [end as u8 + 1; 16]);
    stack_with(config, queues, end, loss)
}

/// Creates a stack with `config` at one end of `queues`. `loss` has the same meaning as in
/// [`stack`].
fn stack_with(config: StackConfig, queues: &[Queue; 2], end: usize, loss: u32) -> BoxedStack {
    let (rx, tx, mut count) = (queues[end].clone(), queues[1 - end].clone(), 0);
    let receive = move |packet: &mut [u8]| {
        let next = rx.borrow_mut().pop_front()?;
        packet[..next.len()].copy_from_slice(&next);
        Some(next.len())
    };
    let send = move |packet: &[u8]| {
        count += 1;
        if loss == 0 || count % loss > 0 {
            tx.borrow_mut().push_back(packet.to_vec());
        }
        true
    };
    let port = FnPort::new(
        1500,
        Box::new(receive) as Box<dyn FnMut(&mut [u8]) -> Option<usize>>,
        Box::new(send) as Box<dyn FnMut(&[u8]) -> bool>,
    );
    Stack::new(config, port)
}

/// Two stacks and their clock.
struct Pair {
    client: BoxedStack,
    server: BoxedStack,
    now: Instant,
    /// Packets in flight to the client, and to the server.
    queues: [Queue; 2],
}

impl Pair {
    fn new(loss: u32) -> Self {
        let queues = [Queue::default(), Queue::default()];
        let mut pair = Self {
            client: stack(0, &queues, loss),
            server: stack(1, &queues, loss),
            now: Instant::from_secs(1),
            queues,
        };
        pair.step();
        pair
    }

    /// Advances the time, and polls both ends once. If no packet is in flight and a timer runs, the
    /// time advances to the next timer. Otherwise, the time advances by 50 microseconds.
    fn step(&mut self) {
        let idle = self.queues.iter().all(|queue| queue.borrow().is_empty());
        let timers = [self.client.next_timeout(), self.server.next_timeout()];
        match timers.into_iter().flatten().min().filter(|_| idle) {
            Some(timer) => self.now = self.now.max(timer),
            None => self.now += Duration::from_micros(50),
        }
        self.client.poll(self.now);
        self.server.poll(self.now);
    }

    /// Returns the number of packets in flight in both directions.
    fn in_flight(&self) -> usize {
        self.queues.iter().map(|queue| queue.borrow().len()).sum()
    }

    /// Runs one step. Returns all events of the client and of the server.
    fn events(&mut self) -> [Vec<Event>; 2] {
        self.step();
        let client = std::iter::from_fn(|| self.client.next_event()).collect();
        let server = std::iter::from_fn(|| self.server.next_event()).collect();
        [client, server]
    }

    /// Opens a connection. Returns the handles of the client's and the server's end.
    fn open(&mut self) -> (Connection, Connection) {
        let listener = self.server.listen(SERVER, 8).unwrap();
        let local = Endpoint::new(ADDRESSES[0], 0);
        let client = self.client.connect(local, SERVER).unwrap();
        for _ in 0..100 {
            self.step();
            if let Some(server) = self.server.accept(listener) {
                return (client, server);
            }
        }
        panic!("not accepted: {:?}", self.client.info(client));
    }
}

/// Exchanges `len` bytes over each of `count` connections with an echo server, and verifies the
/// echo. `loss` has the same meaning as in [`stack`].
fn echo(count: usize, len: usize, loss: u32) {
    let mut pair = Pair::new(loss);
    let listener = pair.server.listen(SERVER, 1024).unwrap();
    let data: Vec<u8> = (0..len).map(|n| (n * 7 % 251) as u8).collect();
    let local = Endpoint::new(ADDRESSES[0], 0);
    let mut clients: Vec<(Connection, usize, Vec<u8>)> = (0..count)
        .map(|_| (pair.client.connect(local, SERVER).unwrap(), 0, Vec::new()))
        .collect();
    let mut servers: Vec<(Connection, VecDeque<u8>)> = Vec::new();
    let mut open = count;
    for step in 0.. {
        assert!(step < 1_000_000, "{open} of {count} connections do not end");
        pair.step();
        while let Some(connection) = pair.server.accept(listener) {
            servers.push((connection, VecDeque::new()));
        }
        let mut buffer = [0; 5000];
        servers.retain_mut(|(connection, held)| {
            let count = pair.server.read(*connection, &mut buffer);
            held.extend(&buffer[..count]);
            let written = pair.server.write(*connection, held.make_contiguous());
            held.drain(..written);
            let over = held.is_empty() && pair.server.is_end(*connection);
            if over {
                pair.server.close(*connection);
            }
            !over
        });
        clients.retain_mut(|(connection, sent, got)| {
            *sent += pair.client.write(*connection, &data[*sent..]);
            if *sent == len {
                pair.client.shutdown(*connection);
            }
            let count = pair.client.read(*connection, &mut buffer);
            got.extend(&buffer[..count]);
            let over = pair.client.is_end(*connection);
            if over {
                assert!(*got == data, "{} bytes of {len}", got.len());
                pair.client.close(*connection);
                open -= 1;
            }
            !over
        });
        if open == 0 && servers.is_empty() && pair.client.is_empty() && pair.server.is_empty() {
            break;
        }
    }
    assert_eq!(pair.server.counters().passive_opens, count as u64);
    let lossy = pair.client.counters().retrans_segs + pair.server.counters().retrans_segs;
    assert_eq!(lossy > 0, loss > 0, "{lossy} retransmissions");
}

#[test]
fn one_connection_echoes() {
    echo(1, 3_000_000, 0);
}

#[test]
fn a_hundred_connections_echo() {
    echo(100, 50_000, 0);
}

#[test]
fn one_packet_in_twenty_is_lost() {
    echo(1, 1_000_000, 20);
    echo(50, 20_000, 20);
}

#[test]
fn data_and_fins_carry_the_acks_of_a_program_that_sends_after_its_events() {
    let mut pair = Pair::new(0);
    let listener = pair.server.listen(SERVER, 8).unwrap();
    let local = Endpoint::new(ADDRESSES[0], 4000);
    let client = pair.client.connect(local, SERVER).unwrap();
    pair.client.flush();
    let mut sent = pair.in_flight();
    for _ in 0..4 {
        pair.now += Duration::from_micros(50);
        pair.server.poll_input(pair.now);
        while let Some(event) = pair.server.next_event() {
            let accepted = pair.server.accept(listener);
            let connection = match (event, accepted) {
                (Event::Readable(connection), _) | (_, Some(connection)) => connection,
                other => panic!("unexpected: {other:?}"),
            };
            if pair.server.read(connection, &mut [0; 8]) > 0 {
                pair.server.write(connection, b"response");
                pair.server.close(connection);
            }
        }
        pair.server.flush();
        sent += pair.in_flight();
        pair.client.poll_input(pair.now);
        while let Some(event) = pair.client.next_event() {
            match event {
                Event::Connected(_) => assert_eq!(pair.client.write(client, b"request"), 7),
                Event::Readable(_) => {
                    let mut response = [0; 8];
                    pair.client.read(client, &mut response);
                    assert_eq!(&response, b"response");
                    pair.client.close(client);
                }
                other => panic!("unexpected: {other:?}"),
            }
        }
        pair.client.flush();
        sent += pair.in_flight();
    }
    assert!(pair.client.is_empty() && pair.server.is_empty());
    // The client sends SYN, request and FIN. The server sends SYN-ACK, response with FIN, and ACK.
    assert_eq!(sent, 6);
}

#[test]
fn events_name_each_change_once() {
    let mut pair = Pair::new(0);
    let listener = pair.server.listen(SERVER, 8).unwrap();
    let local = Endpoint::new(ADDRESSES[0], 4000);
    let connection = pair.client.connect(local, SERVER).unwrap();
    let mut seen = [Vec::new(), Vec::new()];
    for _ in 0..10 {
        let [client, server] = pair.events();
        seen[0].extend(client);
        seen[1].extend(server);
    }
    assert_eq!(seen[0], [Event::Connected(connection)]);
    assert_eq!(seen[1], [Event::Incoming(listener)]);
    let accepted = pair.server.accept(listener).unwrap();
    assert_eq!(pair.server.accept(listener), None);
    assert_eq!(pair.client.write(connection, b"one"), 3);
    pair.client.flush();
    assert_eq!(pair.client.write(connection, b"two"), 3);
    // Nagle's algorithm delays the data of the second write until the first write is acknowledged.
    let mut events = Vec::new();
    for _ in 0..10 {
        events.extend(pair.events()[1].clone());
    }
    assert_eq!(events, [Event::Readable(accepted)]);
    assert_eq!(pair.server.received(accepted).concat(), b"onetwo");
    pair.server.consume(accepted, 3);
    assert_eq!(pair.server.received(accepted).concat(), b"two");
    // `consume` with a number larger than 3 marks the 3 unread bytes as read.
    pair.server.consume(accepted, 1000);
    assert_eq!(pair.server.received(accepted).concat(), b"");
    pair.client.close(connection);
    let [_, server] = pair.events();
    assert_eq!(server, [Event::Readable(accepted)]);
    assert!(pair.server.is_end(accepted));
}

#[test]
fn events_before_accept_come_once_after_accept() {
    let mut pair = Pair::new(0);
    let listener = pair.server.listen(SERVER, 8).unwrap();
    let local = Endpoint::new(ADDRESSES[0], 0);
    let client = pair.client.connect(local, SERVER).unwrap();
    for _ in 0..10 {
        pair.step();
    }
    assert_eq!(pair.client.write(client, b"early"), 5);
    pair.step();
    pair.step();
    pair.client.abort(client);
    for _ in 0..10 {
        pair.step();
    }
    let server = pair.server.accept(listener).unwrap();
    let [_, events] = pair.events();
    let expected = [
        Event::Incoming(listener),
        Event::Readable(server),
        Event::Closed(server, CloseCause::Reset),
    ];
    assert_eq!(events, expected);
    assert_eq!(pair.server.received(server).concat(), b"early");
}

#[test]
fn the_status_follows_data_and_close() {
    let mut pair = Pair::new(0);
    let (client, server) = pair.open();
    let limit = EngineConfig::default().tx_limit;
    assert_eq!(pair.client.write(client, b"0123456789"), 10);
    let status = pair.client.status(client).unwrap();
    assert_eq!(
        (status.unacknowledged, status.writable),
        (10, Some(limit - 10))
    );
    pair.client.shutdown(client);
    for _ in 0..10 {
        pair.step();
    }
    let status = pair.client.status(client).unwrap();
    assert_eq!((status.unacknowledged, status.writable), (0, None));
    assert_eq!(pair.client.write(client, b"late"), 0);
    let status = pair.server.status(server).unwrap();
    assert_eq!((status.readable, status.peer_closed), (10, true));
    assert_eq!((status.cause, status.writable), (None, Some(limit)));
    pair.client.abort(client);
    assert_eq!(pair.client.status(client), None);
    for _ in 0..10 {
        pair.step();
    }
    let status = pair.server.status(server).unwrap();
    assert_eq!(status.cause, Some(CloseCause::Reset));
    assert_eq!((status.readable, status.writable), (10, None));
}

#[test]
fn urgent_data_stays_in_the_stream_and_is_announced() {
    let mut pair = Pair::new(0);
    let (client, server) = pair.open();
    assert_eq!(pair.client.write_urgent(client, b"stop!"), 5);
    let events: Vec<Event> = (0..10).flat_map(|_| pair.events()[1].clone()).collect();
    assert!(events.contains(&Event::Urgent(server)), "{events:?}");
    let byte = Some(b'!');
    let urgent = |pair: &Pair| pair.server.status(server).unwrap().urgent;
    assert_eq!(urgent(&pair), Some(Urgent { ahead: 4, byte }));
    pair.server.consume(server, 4);
    assert_eq!(urgent(&pair), Some(Urgent { ahead: 0, byte }));
    pair.server.consume(server, 1);
    assert_eq!(urgent(&pair), None);
}

/// Returns an ICMP error "host unreachable" about `packet`, which has an IPv4 header.
fn host_unreachable(packet: &[u8]) -> Vec<u8> {
    let fill_checksum = |bytes: &mut [u8], at: usize| {
        let words = bytes
            .chunks(2)
            .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
        let sum = words.sum::<u32>();
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    };
    let mut icmp = [&[3, 1, 0, 0, 0, 0, 0, 0], &packet[..28]].concat();
    fill_checksum(&mut icmp, 2);
    let len = 20 + icmp.len() as u8;
    let mut header = vec![0x45, 0, 0, len, 0, 0, 0, 0, 64, 1, 0, 0];
    header.extend([&packet[16..20], &packet[12..16]].concat());
    fill_checksum(&mut header, 10);
    [header, icmp].concat()
}

#[test]
fn a_path_error_is_in_the_status_and_ends_no_connection() {
    let mut pair = Pair::new(0);
    let (client, server) = pair.open();
    assert_eq!(pair.client.write(client, b"data"), 4);
    pair.client.flush();
    let sent = pair.queues[1].borrow().back().cloned().unwrap();
    pair.client.input_packet(&host_unreachable(&sent));
    let status = pair.client.status(client).unwrap();
    assert_eq!(status.path_error, Some(CloseCause::HostUnreachable));
    assert_eq!(status.cause, None);
    for _ in 0..10 {
        pair.step();
    }
    assert_eq!(pair.server.received(server).concat(), b"data");
}

#[test]
fn a_connection_has_the_options_of_its_listener_or_open() {
    let mut pair = Pair::new(0);
    let options = |mss_max| SocketOptions {
        mss_max,
        ..SocketOptions::default()
    };
    let listener = pair.server.listen_with(SERVER, 8, options(700)).unwrap();
    let local = Endpoint::new(ADDRESSES[0], 0);
    let opened = [options(0), options(600), options(0)].map(|options| {
        let client = pair.client.connect_with(local, SERVER, options).unwrap();
        for _ in 0..10 {
            pair.step();
        }
        pair.server.set_listener_options(listener, options);
        (client, pair.server.accept(listener).unwrap())
    });
    let sizes = opened.map(|(client, server)| {
        let accepted = pair.server.options(server).unwrap().mss_max;
        (pair.client.info(client).unwrap().mss, accepted)
    });
    // Timestamps take 12 bytes of each segment.
    assert_eq!(sizes, [(688, 700), (588, 0), (588, 600)]);
}

#[test]
fn the_second_open_has_data_in_its_syn() {
    let mut pair = Pair::new(0);
    let engine = EngineConfig {
        // A value of Linux's `tcp_fastopen`: active opens and every listener may use Fast Open.
        fast_open: FastOpenPolicy::from_bits(0x403),
        ..EngineConfig::default()
    };
    let config = StackConfig::new(ADDRESSES[1], [2; 16]);
    pair.server = stack_with(StackConfig { engine, ..config }, &pair.queues, 1, 0);
    let listener = pair.server.listen(SERVER, 8).unwrap();
    let local = Endpoint::new(ADDRESSES[0], 0);
    let options = SocketOptions::default();
    let mut sent = Vec::new();
    for _ in 0..2 {
        let opened = pair.client.connect_fast(local, SERVER, options, b"hello");
        let (_, in_syn) = opened.unwrap();
        for _ in 0..10 {
            pair.step();
        }
        let server = pair.server.accept(listener).unwrap();
        sent.push((in_syn, pair.server.received(server).concat().len()));
    }
    assert_eq!(sent, [(0, 0), (5, 5)]);
    assert_eq!(pair.server.counters().fast_open_passive, 1);
}

#[test]
fn a_handle_of_a_closed_connection_does_nothing() {
    let mut pair = Pair::new(0);
    let (client, server) = pair.open();
    pair.client.abort(client);
    let [_, events] = pair.events();
    assert_eq!(
        events.last(),
        Some(&Event::Closed(server, CloseCause::Reset))
    );
    assert!(pair.client.is_end(client));
    assert_eq!(pair.client.write(client, b"late"), 0);
    assert_eq!(pair.client.read(client, &mut [0; 8]), 0);
    assert!(pair.client.info(client).is_none());
    // The old handle is invalid, even if the new connection has the same flow id.
    let next = pair
        .client
        .connect(Endpoint::new(ADDRESSES[0], 0), SERVER)
        .unwrap();
    assert_ne!(next, client);
    assert_eq!(pair.client.write(client, b"late"), 0);
    pair.client.close(client);
    for _ in 0..10 {
        pair.step();
    }
    assert!(pair.client.info(next).is_some());
}

#[test]
fn a_reader_that_stops_bounds_the_sender_and_room_is_reported() {
    let mut pair = Pair::new(0);
    let (client, server) = pair.open();
    let data = vec![5; 64 << 10];
    let mut written = 0;
    for _ in 0..20_000 {
        written += pair.client.write(client, &data);
        pair.events();
    }
    let config = EngineConfig::default();
    let most = config.tx_limit + config.rx_window_max;
    assert!(
        written <= most as usize,
        "{written} bytes for a reader that does not read"
    );
    assert_eq!(pair.client.write(client, &data), 0);
    let mut read = 0;
    let mut writable = false;
    for _ in 0..20_000 {
        let mut buffer = [0; 4096];
        read += pair.server.read(server, &mut buffer);
        let [events, _] = pair.events();
        writable |= events.contains(&Event::Writable(client));
    }
    assert_eq!(read, written);
    assert!(writable);
}

#[test]
fn a_vectored_write_writes_the_parts_in_order_until_the_buffer_is_full() {
    let mut pair = Pair::new(0);
    let (client, server) = pair.open();
    let parts: [&[u8]; 5] = [b"", b"one ", b"", b"two ", b"three"];
    assert_eq!(pair.client.write_vectored(client, &parts), 13);
    for _ in 0..10 {
        pair.step();
    }
    assert_eq!(pair.server.received(server).concat(), b"one two three");
    assert_eq!(pair.client.write_vectored(client, &[]), 0);
    // The second part is longer than the room.
    let limit = EngineConfig::default().tx_limit as usize;
    let (head, body) = (vec![1; 1000], vec![2; limit]);
    assert_eq!(pair.client.write_vectored(client, &[&head, &body]), limit);
    assert_eq!(pair.client.write_vectored(client, &[&head]), 0);
    let mut read = vec![0; 13];
    assert_eq!(pair.server.read(server, &mut read), 13);
    let mut got: Vec<u8> = Vec::new();
    for _ in 0..100_000 {
        let mut buffer = [0; 4096];
        let len = pair.server.read(server, &mut buffer);
        got.extend(&buffer[..len]);
        pair.step();
    }
    let expected: Vec<u8> = head.into_iter().chain(body).take(limit).collect();
    assert!(got == expected, "{} bytes of {limit}", got.len());
}

#[test]
fn a_closed_listener_resets_the_connections_in_its_accept_queue() {
    let mut pair = Pair::new(0);
    let listener = pair.server.listen(SERVER, 8).unwrap();
    let local = Endpoint::new(ADDRESSES[0], 0);
    let client = pair.client.connect(local, SERVER).unwrap();
    for _ in 0..10 {
        pair.step();
    }
    pair.server.unlisten(listener);
    let mut events = Vec::new();
    for _ in 0..10 {
        events.extend(pair.events()[0].clone());
    }
    assert!(
        events.contains(&Event::Closed(client, CloseCause::Reset)),
        "{events:?}"
    );
    assert!(pair.server.is_empty());
    assert!(
        pair.server.listen(SERVER, 8).is_ok(),
        "the closed listener still has its TCP port"
    );
}

#[test]
fn garbage_and_packets_for_others_are_counted_and_dropped() {
    let mut pair = Pair::new(0);
    let (client, server) = pair.open();
    let mut frames: Vec<Vec<u8>> = vec![Vec::new(), vec![0; 10], vec![0xff; 60], vec![0x45; 2000]];
    // In each copy of a valid packet, a different byte is changed.
    pair.client.write(client, b"payload");
    pair.client.flush();
    let packet = pair.queues[1].borrow_mut().pop_front().unwrap();
    let genuine = [&[0; 12][..], &[0x08, 0x00], &packet].concat();
    for at in 12..genuine.len() {
        let mut frame = genuine.clone();
        frame[at] ^= 0x55;
        frames.push(frame);
    }
    for frame in &frames {
        pair.server.input(frame);
    }
    let dropped: u64 = pair.server.drops().iter().sum();
    assert!(
        dropped as usize >= frames.len() - 20,
        "{dropped} of {}",
        frames.len()
    );
    assert_eq!(pair.server.received(server).concat(), b"");
    pair.server.input(&genuine);
    assert_eq!(pair.server.received(server).concat(), b"payload");
}

#[test]
fn impossible_sources_get_no_answer() {
    let sources = [
        [127, 0, 0, 1],
        [0, 0, 0, 7],
        [224, 0, 0, 1],
        [255; 4],
        [10, 0, 0, 2],
    ];
    for source in sources {
        let mut pair = Pair::new(0);
        pair.server.listen(SERVER, 8).unwrap();
        // The source address of a client's packet is forged.
        let local = Endpoint::new(ADDRESSES[0], 0);
        pair.client.connect(local, SERVER).unwrap();
        pair.client.flush();
        let mut packet = pair.queues[1].borrow_mut().pop_front().unwrap();
        packet[12..16].copy_from_slice(&source);
        packet[10..12].copy_from_slice(&[0, 0]);
        let sum: u32 = packet[..20]
            .chunks(2)
            .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
            .sum();
        let fold = |sum: u32| (sum >> 16) + (sum & 0xffff);
        let checksum = !fold(fold(sum)) as u16;
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        pair.server.input_packet(&packet);
        pair.server.flush();
        let martians = pair.server.drops()[DropReason::MartianSource.index()];
        assert_eq!(martians, 1, "{source:?}");
        assert!(pair.queues[0].borrow().is_empty(), "{source:?}");
    }
}

#[test]
fn the_memory_port_carries_the_stack_too() {
    let (near, far) = MemPort::pair(MemConfig::default());
    let mut client = Stack::new(StackConfig::new(ADDRESSES[0], [1; 16]), near);
    let mut server = Stack::new(StackConfig::new(ADDRESSES[1], [2; 16]), far);
    let listener = server.listen(SERVER, 8).unwrap();
    let connection = client
        .connect(Endpoint::new(ADDRESSES[0], 0), SERVER)
        .unwrap();
    let mut now = Instant::from_secs(1);
    let data: Vec<u8> = (0..1_000_000).map(|n| (n % 253) as u8).collect();
    let (mut sent, mut got, mut accepted) = (0, Vec::new(), None);
    for _ in 0..100_000 {
        now += Duration::from_micros(10);
        client.poll(now);
        server.poll(now);
        sent += client.write(connection, &data[sent..]);
        accepted = accepted.or_else(|| server.accept(listener));
        if let Some(accepted) = accepted {
            let parts = server.received(accepted).concat();
            server.consume(accepted, parts.len());
            got.extend(parts);
        }
        if got.len() == data.len() {
            break;
        }
    }
    assert!(got == data, "{} bytes", got.len());
}

/// On a link with link addresses, a connection to a peer with an unknown link address is refused
/// and leaves no state. The same call succeeds once the address is known.
#[test]
fn an_unknown_neighbour_is_refused() {
    let (near, far) = MemPort::pair(MemConfig::default());
    let mut config = StackConfig::new(ADDRESSES[0], [1; 16]);
    config.mac = MacAddress([2, 0, 0, 0, 0, 1]);
    let mut client = Stack::new(config, near);
    let local = Endpoint::new(ADDRESSES[0], 0);
    let refused = client.connect(local, SERVER);
    assert_eq!(refused, Err(OpenError::BadEndpoint));
    client.poll(Instant::from_secs(1));
    assert_eq!((client.next_timeout(), far.rx_queued()), (None, 0));
    client.set_neighbour(ADDRESSES[1], MacAddress([2, 0, 0, 0, 0, 2]));
    client.connect(local, SERVER).expect("a known neighbour");
    client.poll(Instant::from_secs(1));
    assert_eq!(far.rx_queued(), 1);
}

/// A handler that adds an option with a running number to each segment (RFC 6994: experimental kind
/// 253, and an identifier).
struct Numbering {
    /// Number of the segments to which the handler has added the option.
    sent: u32,
    /// Numbers in the peer's segments, in order of arrival.
    seen: Rc<RefCell<Vec<u32>>>,
}

/// Kind of the option.
const KIND: u8 = 253;
/// Experiment identifier (ExID) of the option.
const ID: [u8; 2] = [0x7d, 0x1e];

impl OptionHandler for Numbering {
    fn len_max(&self) -> u8 {
        8
    }

    fn write(&mut self, _: &FlowKey, _: TcpFlags, room: &mut [u8]) {
        self.sent += 1;
        room[..4].copy_from_slice(&[KIND, 8, ID[0], ID[1]]);
        room[4..].copy_from_slice(&self.sent.to_be_bytes());
    }

    fn read(&mut self, _: &FlowKey, _: TcpFlags, options: &[u8]) {
        if let Some([a, b, number @ ..]) = find_option(options, KIND)
            && [*a, *b] == ID
            && let Some(number) = number.first_chunk()
        {
            self.seen.borrow_mut().push(u32::from_be_bytes(*number));
        }
    }
}

/// Creates the option handler, and the list of numbers that it fills.
fn numbering() -> (Box<Numbering>, Rc<RefCell<Vec<u32>>>) {
    let seen = Rc::default();
    let handler = Numbering {
        sent: 0,
        seen: Rc::clone(&seen),
    };
    (Box::new(handler), seen)
}

#[test]
fn a_program_adds_a_tcp_option() {
    let mut pair = Pair::new(0);
    let (client_option, seen_by_client) = numbering();
    let (server_option, seen_by_server) = numbering();
    pair.client.set_option_handler(client_option);
    pair.server.set_option_handler(server_option);
    let (client, server) = pair.open();
    let data = vec![3; 200_000];
    let (mut written, mut read) = (0, 0);
    while read < data.len() {
        written += pair.client.write(client, &data[written..]);
        pair.step();
        read += pair.server.read(server, &mut [0; 65_536]);
    }
    // The numbers that each end has received are consecutive from 1.
    for seen in [seen_by_client, seen_by_server] {
        let seen = seen.borrow();
        assert!(seen.len() > 8, "{} segments", seen.len());
        assert!(
            seen.iter().zip(1..).all(|(number, at)| *number == at),
            "{seen:?}"
        );
    }
    // The option reduces the payload of a segment.
    let mss = pair.client.info(client).unwrap().mss;
    assert_eq!(mss, 1500 - 40 - 12 - 8);
}

#[test]
fn a_peer_without_the_option_ignores_it() {
    let mut pair = Pair::new(0);
    let (option, seen) = numbering();
    pair.client.set_option_handler(option);
    let (client, server) = pair.open();
    pair.client.write(client, b"hello");
    for _ in 0..5 {
        pair.step();
    }
    assert_eq!(pair.server.received(server).concat(), b"hello");
    assert!(seen.borrow().is_empty());
}

/// A memory port with GSO frames, which the link takes only while `takes` is true.
struct GsoPort {
    inner: MemPort,
    headers: [u8; 256],
    takes: Rc<RefCell<bool>>,
    /// Payload bytes of the GSO frames that the link has taken.
    sent: Rc<RefCell<usize>>,
}

impl PacketIo for GsoPort {
    type Burst = <MemPort as PacketIo>::Burst;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            tx_gso_len_max: 65_535,
            ..self.inner.capabilities()
        }
    }

    fn new_burst(&self) -> Self::Burst {
        self.inner.new_burst()
    }

    fn rx_burst(&mut self, burst: &mut Self::Burst, max: usize) -> usize {
        self.inner.rx_burst(burst, max)
    }

    fn rx_release(&mut self, burst: &mut Self::Burst) {
        self.inner.rx_release(burst);
    }

    fn tx_frame(&mut self) -> Option<&mut [u8]> {
        self.inner.tx_frame()
    }

    fn tx_commit(&mut self, len: usize, checksum: TxChecksum) {
        self.inner.tx_commit(len, checksum);
    }

    fn tx_gso_headers(&mut self) -> &mut [u8] {
        &mut self.headers
    }

    fn tx_gso_send(&mut self, payload: GsoPayload<'_>, _: GsoParameters) -> Result<(), LinkFull> {
        if !*self.takes.borrow() {
            return Err(LinkFull);
        }
        *self.sent.borrow_mut() += payload.len();
        Ok(())
    }

    fn tx_flush(&mut self) {
        self.inner.tx_flush();
    }
}

/// If the port refuses data, `next_timeout` returns a time within 10 ms. A poll at this time tries
/// again to send the data.
#[test]
fn a_refused_gso_frame_is_sent_at_the_next_timeout() {
    let (near, far) = MemPort::pair(MemConfig::default());
    let (takes, sent) = <(Rc<RefCell<bool>>, Rc<RefCell<usize>>)>::default();
    let port = GsoPort {
        inner: near,
        headers: [0; 256],
        takes: takes.clone(),
        sent: sent.clone(),
    };
    let mut client = Stack::new(StackConfig::new(ADDRESSES[0], [1; 16]), port);
    let mut server = Stack::new(StackConfig::new(ADDRESSES[1], [2; 16]), far);
    server.listen(SERVER, 8).unwrap();
    let local = Endpoint::new(ADDRESSES[0], 0);
    let connection = client.connect(local, SERVER).unwrap();
    let mut now = Instant::from_secs(1);
    for _ in 0..5 {
        now += Duration::from_millis(1);
        client.poll(now);
        server.poll(now);
    }
    client.write(connection, &[7; 10_000]);
    client.flush();
    let next = client.next_timeout().expect("a refused frame waits");
    assert!(next > now && next <= now + Duration::from_millis(10));
    client.poll(next);
    assert_eq!(*sent.borrow(), 0);
    *takes.borrow_mut() = true;
    client.poll(client.next_timeout().expect("the frame still waits"));
    assert!(*sent.borrow() > 0);
}
