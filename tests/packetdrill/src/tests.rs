//! Tests of the whole stack in virtual time. The tests inject the peer's segments, and check the
//! sent packets and the results of socket calls. Some tests make blocking calls from a second
//! thread. The thread that creates the stack is the clock thread: only its calls advance the clock
//! to a timer or by a sleep.

use std::{sync::Arc, thread};

use tidelane_engine::{
    Duration, Ecn, Endpoint, FlowKey, IpAddress, IpFields, Origin, SegmentOut, SeqNumber, TcpFlags,
    TcpOptions,
};
use tidelane_wire::{SackBlocks, Timestamps};

use crate::{
    calls::Polled,
    errno::Errno,
    inbound::{Inbound, LINK},
    packet,
    settings::{Reading, Settings},
    shared::Shared,
    stack::{Fd, Stack},
    wire::Sent,
};

const LISTENER: Fd = 1000;
const ACCEPTED: Fd = 1001;
const CLIENT: Fd = 1002;
const LOCAL: Endpoint = Endpoint::v4([192, 168, 0, 1], 8080);
const PEER: Endpoint = Endpoint::v4([192, 0, 2, 1], 4242);

/// The fields of a sent packet that the tests compare.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    /// Time of sending, in microseconds since the Unix epoch.
    at_us: u64,
    flags: TcpFlags,
    seq: u32,
    ack: u32,
    options: TcpOptions,
    /// Length of the payload in bytes.
    payload: usize,
}

fn shared() -> Shared {
    let settings = Settings::new("").unwrap();
    Shared::new(Stack::new(settings, Reading::now()))
}

/// Returns a segment that the peer sends to `to`. A SYN has the options MSS (1000), window scale
/// (7) and SACK-permitted. Other segments have no options.
fn segment(to: Endpoint, flags: TcpFlags, seq: u32, ack: u32, len: usize) -> SegmentOut {
    let options = match flags.contains(TcpFlags::SYN) {
        true => TcpOptions {
            mss: Some(1000),
            wscale: Some(7),
            sack_permitted: true,
            timestamps: None,
            sack: SackBlocks::EMPTY,
        },
        false => TcpOptions::NONE,
    };
    SegmentOut {
        origin: Origin::NoFlow(IpFields::default()),
        key: FlowKey {
            local: PEER,
            peer: to,
        },
        link: LINK,
        seq: SeqNumber(seq),
        ack: SeqNumber(ack),
        flags,
        wnd: 1000,
        urgent: 0,
        options,
        payload_pos: 0,
        payload_len: len as u32,
        segment_size: 1460,
        ecn: Ecn::NotEct,
    }
}

/// Returns a packet that the peer sends to `to`.
fn packet(to: Endpoint, flags: TcpFlags, seq: u32, ack: u32, payload: &[u8]) -> Vec<u8> {
    let out = segment(to, flags, seq, ack, payload.len());
    packet::emit(&out, payload, 1).unwrap()
}

/// Returns the stack's next packet. Advances the clock from timer to timer until there is a packet.
/// Returns `None` if no timer is left.
fn next(shared: &Shared) -> Option<Seen> {
    shared.next_sent().map(|sent| seen(&sent))
}

fn seen(sent: &Sent) -> Seen {
    let Ok(Inbound::Segment(_, segment)) = packet::parse(&sent.bytes) else {
        panic!("not a segment of ours");
    };
    Seen {
        at_us: Stack::stamp_us(sent),
        flags: segment.flags,
        seq: segment.seq.0,
        ack: segment.ack.0,
        options: segment.options,
        payload: segment.payload.len(),
    }
}

fn listen(shared: &Shared) {
    shared
        .call(|stack| {
            let kind = libc::SOCK_STREAM;
            stack.socket_call(LISTENER, libc::AF_INET, kind, libc::IPPROTO_TCP)?;
            stack.bind(LISTENER, LOCAL)?;
            stack.listen(LISTENER, 1)
        })
        .unwrap();
}

/// Opens a connection from the peer to the listener. Returns the stack's ISS + 1.
fn shake_hands(shared: &Shared) -> u32 {
    let syn = packet(LOCAL, TcpFlags::SYN, 0, 0, &[]);
    shared.call(|stack| stack.inject(&syn));
    let syn_ack = next(shared).unwrap();
    assert_eq!(syn_ack.flags, TcpFlags::SYN | TcpFlags::ACK);
    let first = syn_ack.seq.wrapping_add(1);
    let ack = packet(LOCAL, TcpFlags::ACK, 1, first, &[]);
    shared.call(|stack| stack.inject(&ack));
    first
}

fn connected() -> (Shared, u32) {
    let shared = shared();
    listen(&shared);
    let first = shake_hands(&shared);
    let (fd, peer) = shared.accept(LISTENER, 0, || Ok(ACCEPTED)).unwrap();
    assert_eq!((fd, peer), (ACCEPTED, PEER));
    (shared, first)
}

#[test]
fn bytes_go_both_ways() {
    let (shared, first) = connected();
    assert_eq!(shared.send(ACCEPTED, &[7; 1500], 0), Ok(1500));
    // Segmentation offload joins the two segments into one packet.
    let data = next(&shared).unwrap();
    assert_eq!((data.seq, data.payload), (first, 1500));
    assert!(data.flags.contains(TcpFlags::PSH));

    let data = packet(LOCAL, TcpFlags::ACK, 1, first + 1500, b"hello");
    shared.call(|stack| stack.inject(&data));
    let received = shared.recv(ACCEPTED, 100, 0).unwrap();
    assert_eq!(received.bytes, b"hello");
}

#[test]
fn close_sends_fin_and_close_of_a_listener_resets_its_accept_queue() {
    let (shared, first) = connected();
    shared.call(|stack| stack.close(ACCEPTED)).unwrap();
    let fin = next(&shared).unwrap();
    assert_eq!((fin.flags, fin.seq), (TcpFlags::FIN | TcpFlags::ACK, first));

    let shared = self::shared();
    listen(&shared);
    let first = shake_hands(&shared);
    shared.call(|stack| stack.close(LISTENER)).unwrap();
    let reset = next(&shared).unwrap();
    assert!(reset.flags.contains(TcpFlags::RST));
    assert_eq!(reset.seq, first);
}

#[test]
fn a_syn_without_answer_is_sent_again_at_its_time_and_not_before() {
    let shared = shared();
    let begin = shared.call(|stack| {
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
        stack.socket_call(CLIENT, libc::AF_INET, kind, 0).unwrap();
        stack.now()
    });
    assert_eq!(shared.connect(CLIENT, PEER), Err(Errno(libc::EINPROGRESS)));
    shared.sleep(Duration::from_millis(7500));
    // The times are in units of 10 ms, because the engine's timers have a granularity of 1 ms. The
    // first timeouts do not back off (sysctl `tcp_syn_linear_timeouts`).
    let times: Vec<u64> = std::iter::from_fn(|| shared.call(Stack::pop_sent))
        .map(|sent| sent.at.since(begin).0 / 10_000_000)
        .collect();
    assert_eq!(times, [0, 100, 200, 300, 400, 500, 700]);
    let slept = shared.call(|stack| stack.now().since(begin));
    assert_eq!(slept, Duration::from_millis(7500));
}

#[test]
fn a_syn_has_linux_options() {
    let shared = shared();
    shared.call(|stack| {
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
        stack.socket_call(CLIENT, libc::AF_INET, kind, 0).unwrap();
    });
    let _ = shared.connect(CLIENT, PEER);
    let syn = next(&shared).unwrap();
    let Some(Timestamps { tsecr: 0, .. }) = syn.options.timestamps else {
        panic!("no timestamps: {syn:?}");
    };
    assert_eq!((syn.options.mss, syn.options.wscale), (Some(1460), Some(8)));
    assert!(syn.options.sack_permitted);
}

#[test]
fn a_syn_over_ipv6_announces_an_mss_for_the_longer_header() {
    let shared = shared();
    shared.call(|stack| {
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
        stack.socket_call(CLIENT, libc::AF_INET6, kind, 0).unwrap();
    });
    let mut address = [0xfd; 16];
    address[15] = 1;
    let peer = Endpoint::new(IpAddress(address), 4242);
    let _ = shared.connect(CLIENT, peer);
    let syn = next(&shared).unwrap();
    assert_eq!(syn.options.mss, Some(1500 - 60));
}

#[test]
fn looking_for_a_packet_jumps_to_the_next_timer() {
    let (shared, first) = connected();
    let before = shared.call(|stack| stack.now());
    assert_eq!(shared.send(ACCEPTED, &[7; 100], 0), Ok(100));
    let sent = next(&shared).unwrap();
    let again = next(&shared).unwrap();
    assert_eq!((sent.seq, again.seq), (first, first));
    let waited = shared.call(|stack| stack.now().since(before));
    assert!(waited >= Duration::from_millis(200), "{waited:?}");
}

#[test]
fn without_pending_work_the_wait_for_a_packet_ends_at_once() {
    let shared = shared();
    listen(&shared);
    assert_eq!(next(&shared), None);
}

/// Makes a call in a second thread as packetdrill does.
///
/// Returns once the second thread is blocked or has finished. The second thread reads the clock
/// after its call. `join` of the returned handle gives the result of the call, and the time of this
/// reading in microseconds.
fn in_second<R: Send + 'static>(
    shared: &Arc<Shared>,
    call: impl FnOnce(&Shared) -> R + Send + 'static,
) -> thread::JoinHandle<(R, u64)> {
    let other = Arc::clone(shared);
    let thread = thread::spawn(move || {
        let result = call(&other);
        (result, other.read_clock_us())
    });
    while !thread.is_finished() && shared.waiting() == 0 {
        thread::yield_now();
    }
    thread
}

#[test]
fn a_blocking_accept_ends_when_the_handshake_does() {
    let shared = Arc::new(shared());
    listen(&shared);
    let thread = in_second(&shared, |shared| {
        shared.accept(LISTENER, 0, || Ok(ACCEPTED)).unwrap().0
    });
    shared.sleep(Duration::from_millis(100));
    shake_hands(&shared);
    let end = shared.read_clock_us();
    shared.sleep(Duration::from_secs(5));
    let (fd, at) = thread.join().unwrap();
    assert_eq!(fd, ACCEPTED);
    assert!(at <= end, "the call ended at {at}, the handshake at {end}");
}

#[test]
fn a_blocking_read_gives_up_at_its_timeout() {
    let (shared, _) = connected();
    let shared = Arc::new(shared);
    let timeout = [0u64, 300_000].map(u64::to_ne_bytes).concat();
    shared
        .call(|stack| stack.set_option(ACCEPTED, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &timeout))
        .unwrap();
    let begin = shared.read_clock_us();
    let thread = in_second(&shared, |shared| shared.recv(ACCEPTED, 10, 0));
    shared.sleep(Duration::from_secs(2));
    let (result, at) = thread.join().unwrap();
    assert_eq!(result, Err(Errno::AGAIN));
    let waited = at - begin;
    assert!((300_000..300_100).contains(&waited), "{waited}");
}

#[test]
fn a_blocking_write_ends_when_there_is_room() {
    let (shared, first) = connected();
    let shared = Arc::new(shared);
    let value = 21_000u32.to_ne_bytes();
    shared
        .call(|stack| stack.set_option(ACCEPTED, libc::SOL_SOCKET, libc::SO_SNDBUF, &value))
        .unwrap();
    let thread = in_second(&shared, |shared| shared.send(ACCEPTED, &[1; 150_000], 0));
    for acked in (0..150_000).step_by(5000) {
        let ack = packet(LOCAL, TcpFlags::ACK, 1, first + acked, &[]);
        shared.call(|stack| stack.inject(&ack));
        while shared.call(Stack::pop_sent).is_some() {}
    }
    assert_eq!(thread.join().unwrap().0, Ok(150_000));
}

#[test]
fn a_wait_in_the_clock_thread_moves_the_clock() {
    let (shared, _) = connected();
    let before = shared.read_clock_us();
    let entry = Polled {
        fd: ACCEPTED,
        events: libc::POLLIN as u32,
    };
    assert_eq!(shared.poll(&[entry], 250, |_| 0), [0]);
    let waited = shared.read_clock_us() - before;
    assert!((250_000..250_100).contains(&waited), "{waited}");
}

#[test]
fn a_reset_is_an_error_once_and_then_the_end() {
    let (shared, first) = connected();
    let reset = packet(LOCAL, TcpFlags::RST, 1, first, &[]);
    shared.call(|stack| stack.inject(&reset));
    assert_eq!(shared.recv(ACCEPTED, 10, 0), Err(Errno(libc::ECONNRESET)));
    assert_eq!(shared.recv(ACCEPTED, 10, 0).unwrap().bytes, b"");
    assert_eq!(shared.send(ACCEPTED, b"x", 0), Err(Errno(libc::EPIPE)));
    assert_eq!(shared.call(|stack| stack.close(ACCEPTED)), Ok(()));
    assert_eq!(shared.call(|stack| stack.close(ACCEPTED)), Err(Errno::BADF));
}

/// Of the buffer sizes, the test checks only SO_SNDBUF. The test also reads the state in TCP_INFO.
#[test]
fn buffer_sizes_are_doubled_and_unknown_options_refused() {
    let (shared, _) = connected();
    shared.call(|stack| {
        let level = libc::SOL_SOCKET;
        let value = 21_000u32.to_ne_bytes();
        stack
            .set_option(ACCEPTED, level, libc::SO_SNDBUF, &value)
            .unwrap();
        let got = stack.option(ACCEPTED, level, libc::SO_SNDBUF).unwrap();
        assert_eq!(got, 42_000u32.to_ne_bytes());
        let refused = stack.set_option(ACCEPTED, level, 12_345, &value);
        assert_eq!(refused, Err(Errno(libc::ENOPROTOOPT)));
        let info = stack
            .option(ACCEPTED, libc::IPPROTO_TCP, libc::TCP_INFO)
            .unwrap();
        assert_eq!(info[0], 1, "ESTABLISHED");
    });
}

/// Returns all queued packets without waiting for more.
fn queued(shared: &Shared) -> Vec<Seen> {
    let mut all = Vec::new();
    while let Some(sent) = shared.call(Stack::pop_sent) {
        all.push(seen(&sent));
    }
    all
}

#[test]
fn the_first_small_segments_and_a_fin_are_acknowledged_at_once() {
    let (shared, first) = connected();
    for (at, flags) in [(1, TcpFlags::PSH), (4, TcpFlags::PSH), (7, TcpFlags::FIN)] {
        let data = packet(LOCAL, TcpFlags::ACK | flags, at, first, b"abc");
        shared.call(|stack| stack.inject(&data));
        let acks = queued(&shared);
        let fin = u32::from(flags == TcpFlags::FIN);
        assert_eq!(acks.len(), 1);
        assert_eq!(acks[0].ack, at + 3 + fin);
    }
}

#[test]
fn a_lost_tail_of_one_segment_is_probed_for_before_it_times_out() {
    let shared = shared();
    listen(&shared);
    let syn = packet(LOCAL, TcpFlags::SYN, 0, 0, &[]);
    shared.call(|stack| stack.inject(&syn));
    let first = next(&shared).unwrap().seq.wrapping_add(1);
    shared.sleep(Duration::from_millis(100));
    let ack = packet(LOCAL, TcpFlags::ACK, 1, first, &[]);
    shared.call(|stack| stack.inject(&ack));
    shared.accept(LISTENER, 0, || Ok(ACCEPTED)).unwrap();
    shared.send(ACCEPTED, &[7; 1000], 0).unwrap();
    let times: Vec<u64> = (0..3)
        .map(|_| next(&shared).unwrap().at_us / 10_000)
        .collect();
    // The times are in units of 10 ms. The SRTT is 100 ms. The PTO (delay of a tail loss probe) for
    // one segment is 2 SRTT + 200 ms. The PTO exceeds the RTO of SRTT + 200 ms, so the probe leaves
    // when the RTO has elapsed. The probe does not back off the RTO: the retransmission follows
    // after another 300 ms.
    assert_eq!((times[1] - times[0], times[2] - times[1]), (30, 30));
    let info = shared.call(|stack| stack.flow_info(stack.flow_of(ACCEPTED).unwrap().unwrap()));
    assert_eq!(info.unwrap().backoff, 1);
}

#[test]
fn an_ack_for_a_whole_window_doubles_cwnd_in_slow_start() {
    let (shared, first) = connected();
    shared.send(ACCEPTED, &[7; 30_000], 0).unwrap();
    let len = |all: &[Seen]| all.iter().map(|seen| seen.payload).sum::<usize>();
    assert_eq!(len(&queued(&shared)), 10_000);
    let ack = packet(LOCAL, TcpFlags::ACK, 1, first + 10_000, &[]);
    shared.call(|stack| stack.inject(&ack));
    assert_eq!(len(&queued(&shared)), 20_000);
}

/// The congestion window (cwnd) grows with each ACK while the largest flight of the round trip,
/// 9000 bytes, exceeds half of cwnd. At 18,000 bytes cwnd therefore stops growing, and the last ACK
/// of the round trip has no effect on cwnd.
#[test]
fn a_window_that_is_half_in_use_grows_in_slow_start_until_the_round_trip_is_over() {
    let (shared, first) = connected();
    shared.send(ACCEPTED, &[7; 9000], 0).unwrap();
    let mut windows = Vec::new();
    for acked in (2000..=10_000)
        .step_by(2000)
        .map(|acked: u32| acked.min(9000))
    {
        let ack = packet(LOCAL, TcpFlags::ACK, 1, first + acked, &[]);
        shared.call(|stack| stack.inject(&ack));
        let info = shared.call(|stack| stack.flow_info(stack.flow_of(ACCEPTED).unwrap().unwrap()));
        windows.push(info.unwrap().cwnd / 1000);
    }
    assert_eq!(windows, [12, 14, 16, 18, 18]);
}

/// A record is the data up to the end of a write with MSG_EOR. The first flight, of 10,000 bytes,
/// ends inside the first record, which has 10,800 bytes.
#[test]
fn records_do_not_share_packets_and_do_not_wait_for_each_other() {
    let (shared, first) = connected();
    shared.send(ACCEPTED, &[7; 10_400], 0).unwrap();
    shared.send(ACCEPTED, &[7; 400], libc::MSG_EOR).unwrap();
    shared.send(ACCEPTED, &[7; 400], libc::MSG_EOR).unwrap();
    shared.send(ACCEPTED, &[7; 2000], 0).unwrap();
    queued(&shared);
    let ack = packet(LOCAL, TcpFlags::ACK, 1, first + 10_000, &[]);
    shared.call(|stack| stack.inject(&ack));
    let lens: Vec<usize> = queued(&shared).iter().map(|seen| seen.payload).collect();
    assert_eq!(lens, [800, 400, 2000]);
    assert_eq!(
        shared.call(|stack| stack.unacknowledged(ACCEPTED)),
        Ok(3200)
    );
}

/// The test sets TCP_MAXSEG, and reads the value from the SYN,ACK of the new connection.
#[test]
fn a_listener_hands_down_options_that_are_set_while_it_listens() {
    let shared = shared();
    listen(&shared);
    let value = 900u32.to_ne_bytes();
    let level = libc::IPPROTO_TCP;
    shared
        .call(|stack| stack.set_option(LISTENER, level, libc::TCP_MAXSEG, &value))
        .unwrap();
    let syn = packet(LOCAL, TcpFlags::SYN, 0, 0, &[]);
    shared.call(|stack| stack.inject(&syn));
    assert_eq!(next(&shared).unwrap().options.mss, Some(900));
}

#[test]
fn a_single_segment_is_pushed_at_the_end_of_a_write_only() {
    let (shared, _) = connected();
    shared.send(ACCEPTED, &[7; 100], libc::MSG_MORE).unwrap();
    assert_eq!(queued(&shared), []);
    let value = 1u32.to_ne_bytes();
    let level = libc::IPPROTO_TCP;
    shared
        .call(|stack| stack.set_option(ACCEPTED, level, libc::TCP_NODELAY, &value))
        .unwrap();
    shared.send(ACCEPTED, &[7; 100], 0).unwrap();
    let flags: Vec<TcpFlags> = queued(&shared).iter().map(|seen| seen.flags).collect();
    assert_eq!(flags, [TcpFlags::ACK, TcpFlags::ACK | TcpFlags::PSH]);
}

#[test]
fn a_fin_sent_without_data_is_probed_without_data() {
    let (shared, first) = connected();
    shared.send(ACCEPTED, &[7; 1000], 0).unwrap();
    shared.call(|stack| stack.close(ACCEPTED)).unwrap();
    let sent = queued(&shared);
    assert_eq!(sent.len(), 2);
    let probe = next(&shared).unwrap();
    assert_eq!((probe.seq, probe.payload), (first + 1000, 0));
    assert_eq!(probe.flags, TcpFlags::FIN | TcpFlags::ACK);
}

#[test]
fn bytes_reported_by_sack_do_not_grow_the_window_again() {
    let (shared, first) = connected();
    shared.send(ACCEPTED, &[7; 15_000], 0).unwrap();
    let at = SeqNumber(first);
    let mut out = segment(LOCAL, TcpFlags::ACK, 1, first, 0);
    out.options.sack.push(at.add(1000), at.add(3000));
    let report = packet::emit(&out, &[], 1).unwrap();
    shared.call(|stack| stack.inject(&report));
    let ack = packet(LOCAL, TcpFlags::ACK, 1, first + 3000, &[]);
    shared.call(|stack| stack.inject(&ack));
    let info = shared.call(|stack| stack.flow_info(stack.flow_of(ACCEPTED).unwrap().unwrap()));
    assert_eq!(
        info.unwrap().cwnd,
        11_000,
        "cwnd did not grow by one segment, the only one that SACK had not reported"
    );
}

/// The test checks the growth. The test does not set SO_SNDBUF, which would end the growth.
#[test]
fn a_send_buffer_grows_with_the_window_unless_it_was_set() {
    let (shared, first) = connected();
    let kind = libc::SOL_SOCKET;
    let sndbuf = |stack: &mut Stack| stack.option(ACCEPTED, kind, libc::SO_SNDBUF).unwrap();
    let before = shared.call(sndbuf);
    shared
        .call(|stack| stack.control(ACCEPTED, libc::F_SETFL, libc::O_NONBLOCK))
        .unwrap()
        .unwrap();
    let done = shared.send(ACCEPTED, &vec![7; 1 << 20], 0).unwrap();
    assert!(done < 1 << 20);
    let mut acked = 0;
    while acked < 150_000 {
        acked += queued(&shared)
            .iter()
            .map(|seen| seen.payload)
            .sum::<usize>() as u32;
        let ack = packet(LOCAL, TcpFlags::ACK, 1, first + acked, &[]);
        shared.call(|stack| stack.inject(&ack));
    }
    let after = shared.call(sndbuf);
    assert!(
        u32::from_ne_bytes(after.try_into().unwrap())
            > u32::from_ne_bytes(before.try_into().unwrap())
    );
}

#[test]
fn options_of_a_listener_show_in_its_syn_ack() {
    let shared = shared();
    listen(&shared);
    let set = |level, name, value: i32| {
        let value = value.to_ne_bytes();
        shared.call(|stack| stack.set_option(LISTENER, level, name, &value))
    };
    assert_eq!(set(libc::IPPROTO_IP, libc::IP_TOS, 0xbb), Ok(()));
    assert_eq!(set(libc::IPPROTO_IP, libc::IP_TTL, 9), Ok(()));
    let refused = set(libc::IPPROTO_IP, libc::IP_TTL, 256);
    assert_eq!(refused, Err(Errno(libc::EINVAL)));
    assert_eq!(set(libc::SOL_SOCKET, libc::SO_RCVBUF, 20_000), Ok(()));
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT);
    assert_eq!(set(level, name, 4), Ok(()));
    // The 4 s are rounded up to a sum of whole SYN,ACK timeouts: 1 s + 2 s + 4 s.
    let defer = shared.call(|stack| stack.option(LISTENER, level, name));
    assert_eq!(defer, Ok(7i32.to_ne_bytes().to_vec()));
    let syn = packet(LOCAL, TcpFlags::SYN, 0, 0, &[]);
    shared.call(|stack| stack.inject(&syn));
    let sent = shared.next_sent().unwrap();
    // Byte 1 of the IPv4 header is the DiffServ field, without the ECN bits of IP_TOS. Byte 8 is
    // the TTL.
    assert_eq!((sent.bytes[1], sent.bytes[8]), (0xb8, 9));
    let Ok(Inbound::Segment(_, segment)) = packet::parse(&sent.bytes) else {
        panic!("not a segment of ours");
    };
    assert_eq!(segment.options.wscale, Some(0));
    assert_eq!(segment.wnd, 13 * 1460);
}
