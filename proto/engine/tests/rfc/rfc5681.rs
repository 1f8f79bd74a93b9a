//! Tests of congestion control (RFC 5681) in the TCP engine: idle restart, cwnd after a timeout,
//! bursts, and acknowledgments. The tests of `proto/cc` cover the growth of cwnd. A rig is one
//! engine, with the test as its peer. A batch is a group of segments that the test passes to the
//! engine before the test calls `batch_end`.

use tidelane_engine::{EngineConfig, SocketOptions, TcpFlags, TcpOptions};

use crate::rig::{ACK, In, Out, Rig, ack, data, spans, syn};

/// Returns a connection with a cwnd of at least forty segments and with no data in flight.
fn grown() -> Rig {
    let mut rig = Rig::established(SocketOptions::default());
    rig.write(70_000);
    let mut una = 1;
    // Acknowledge one segment at a time until cwnd is large enough, and then a whole flight at a
    // time until all data is acknowledged.
    while una < 70_001 {
        una = (una + 1000).min(70_001);
        if rig.info().cwnd >= 40_000 {
            una = 70_001;
            while rig.info().unsent > 0 {
                rig.push(ack(1, 70_001 - rig.info().unsent));
            }
        }
        rig.push(ack(1, una));
    }
    assert_eq!(rig.info().flight_size, 0);
    assert!(rig.info().cwnd >= 40_000);
    rig
}

#[test]
fn section_4_1_a_pause_halves_the_window_per_rto_down_to_the_initial_one() {
    let mut rig = grown();
    let (cwnd, rto) = (rig.info().cwnd, rig.info().rto.as_millis());
    rig.wait_ms(rto + 10);
    assert_eq!(rig.write(100_000).len() as u32, cwnd / 2 / 1000);
    let mut rig = grown();
    rig.wait_ms(100 * rto);
    assert_eq!(rig.write(100_000).len(), 10);
    assert_eq!(rig.engine.counters().slow_start_restarts, 1);
}

#[test]
fn section_4_1_a_pause_shorter_than_the_rto_keeps_the_window() {
    let mut rig = grown();
    let (cwnd, rto) = (rig.info().cwnd, rig.info().rto.as_millis());
    rig.wait_ms(rto - 20);
    // The peer's window is sixty segments.
    assert_eq!(rig.write(100_000).len() as u32, (cwnd / 1000).min(60));
}

#[test]
fn section_4_2_out_of_order_and_hole_filling_data_is_acknowledged_at_once() {
    let mut rig = Rig::established(SocketOptions::default());
    let sent = rig.push(data(1001, 1, 1000));
    assert_eq!((sent.len(), sent[0].ack, sent[0].flags), (1, 1, ACK));
    let sent = rig.push(data(1, 1, 500));
    assert_eq!((sent.len(), sent[0].ack), (1, 501));
    let sent = rig.push(data(501, 1, 500));
    assert_eq!((sent.len(), sent[0].ack), (1, 2001));
}

/// A batch may contain all data that the peer has in flight. With a single ACK per batch, the loss
/// of that ACK would cause a timeout.
#[test]
fn section_4_2_each_run_around_a_hole_is_acknowledged_once() {
    let mut rig = Rig::established_sack();
    let mut batch = |segments: &[In]| {
        for segment in segments {
            rig.arrive(*segment);
        }
        let sent = rig.batch_end();
        let relative = |(left, right): &(_, _)| (rig.relative(*left), rig.relative(*right));
        let blocks = |out: &Out| out.options.sack.as_slice().iter().map(relative).collect();
        let said = |out: &Out| (out.ack, blocks(out));
        sent.iter().map(said).collect::<Vec<(u32, Vec<_>)>>()
    };
    let at = |seq| data(seq, 1, 1000);
    let pushed = |seq| at(seq).with(ACK | TcpFlags::PSH);
    // A run is a sequence of consecutive segments. The first run is in order, and each of the other
    // two runs lies beyond a hole.
    assert_eq!(
        batch(&[at(1), at(1001), at(3001), at(4001), at(6001), at(7001)]),
        [
            (2001, vec![]),
            (2001, vec![(3001, 5001)]),
            (2001, vec![(6001, 8001), (3001, 5001)]),
        ]
    );
    // PSH ends a run, too, as in GRO.
    assert_eq!(
        batch(&[at(8001), pushed(9001), at(10_001), at(11_001)]),
        [
            (2001, vec![(6001, 10_001), (3001, 5001)]),
            (2001, vec![(6001, 12_001), (3001, 5001)]),
        ]
    );
    // Retransmissions fill the holes, and new data follows.
    assert_eq!(
        batch(&[at(2001), at(5001), at(12_001), at(13_001)]),
        [
            (5001, vec![(6001, 12_001)]),
            (12_001, vec![]),
            (14_001, vec![]),
        ]
    );
}

/// A run is a sequence of consecutive segments. In a batch without holes, PSH ends a run. Each run
/// of full segments gets an ACK, and the last ACK of the batch covers the rest. PSH in the first
/// segment of a batch does not end a run, because the segment may be a request whose response
/// carries the ACK.
#[test]
fn section_4_2_each_run_of_a_batch_is_acknowledged() {
    for fast_path in [true, false] {
        let config = EngineConfig {
            fast_path,
            ..EngineConfig::default()
        };
        let peer = TcpOptions::NONE;
        let mut rig = Rig::established_with(config, SocketOptions::default(), peer);
        // The engine delays no ACK of a new connection (quick-ack mode) until a data segment of the
        // engine carries an ACK.
        rig.push(data(1, 1, 1));
        rig.write(1);
        rig.push(ack(2, 2));
        let acks = |rig: &mut Rig, segments: &[(u32, u32, bool)]| {
            for &(seq, len, push) in segments {
                let control = if push { ACK | TcpFlags::PSH } else { ACK };
                rig.arrive(data(seq + 1, 2, len as usize).with(control));
            }
            let sent = rig.batch_end();
            sent.iter().map(|out| out.ack - 1).collect::<Vec<_>>()
        };
        let two_and_three = [
            (1, 1000, false),
            (1001, 1000, true),
            (2001, 1000, false),
            (3001, 1000, false),
            (4001, 1000, true),
        ];
        assert_eq!(acks(&mut rig, &two_and_three), [2001, 5001]);
        let singles = [5001, 6001, 7001].map(|seq| (seq, 1000, true));
        assert_eq!(acks(&mut rig, &singles), [7001, 8001]);
        // Without PSH, there is one ACK per batch.
        let plain = [8001, 9001, 10_001, 11_001].map(|seq| (seq, 1000, false));
        assert_eq!(acks(&mut rig, &plain), [12_001]);
        // The ACK of small segments is delayed.
        assert_eq!(
            acks(&mut rig, &[(12_001, 100, true), (12_101, 100, true)]),
            []
        );
        assert_eq!(rig.wait_ms(50)[0].ack - 1, 12_201);
        // PSH in the first segment of a batch does not end a run.
        assert_eq!(acks(&mut rig, &[(12_201, 1000, true)]), []);
    }
}

#[test]
fn section_3_1_after_a_timeout_the_window_is_one_segment() {
    let mut rig = Rig::established(SocketOptions::default());
    rig.write(20_000);
    let again = rig.wait_ms(300);
    assert_eq!(spans(&again), [(1, 1000)]);
    assert_eq!(rig.info().cwnd, 1000);
}

/// On a link with segmentation offload (GSO), the engine sends large segments (bursts). A receiver
/// with GRO may acknowledge a burst by one ACK. If the burst were a whole window, the loss of this
/// ACK would stall the connection.
#[test]
fn a_window_on_a_gso_link_is_sent_in_two_bursts() {
    let mut rig = grown();
    rig.driver.burst_len = 64 << 10;
    let window = rig.info().cwnd;
    let (half, start) = (window / 2 / 1000 * 1000, rig.written + 1);
    let sent = rig.write(100_000);
    // The peer's window is 60,000 bytes.
    let expected = [(start, half), (start + half, 60_000 - half)];
    assert_eq!(spans(&sent), expected, "{window}");
    let push = TcpFlags::ACK | TcpFlags::PSH;
    assert!(sent.iter().all(|out| out.flags == push), "{sent:?}");
}

/// Creates an established connection whose handshake took `rtt_ms` ms, on a link with GSO. The peer
/// permits SACK if `sack_permitted` is true.
fn after_handshake(config: EngineConfig, sack_permitted: bool, rtt_ms: u64) -> Rig {
    let opening = syn(TcpOptions {
        mss: Some(1000),
        sack_permitted,
        ..TcpOptions::NONE
    });
    let mut rig = Rig::established_after(config, SocketOptions::default(), opening, rtt_ms);
    rig.driver.burst_len = 64 << 10;
    rig
}

/// On a path with an SRTT of less than 1 ms, an additional burst and its ACK cost the hosts more
/// time than the path takes.
#[test]
fn a_short_path_gets_the_initial_window_in_one_burst() {
    let mut rig = after_handshake(EngineConfig::default(), true, 0);
    assert_eq!(spans(&rig.write(30_000)), [(1, 10_000)]);
    let mut rig = after_handshake(EngineConfig::default(), true, 1);
    assert_eq!(spans(&rig.write(30_000)), [(1, 5000), (5001, 5000)]);
}

/// Without SACK, the engine has no tail loss probe, so that a lost ACK costs an RTO.
#[test]
fn a_short_path_without_sack_gets_two_bursts_per_window() {
    let mut rig = after_handshake(EngineConfig::default(), false, 0);
    assert_eq!(spans(&rig.write(30_000)), [(1, 5000), (5001, 5000)]);
}

/// No data waits for the ACK of the last burst.
#[test]
fn a_short_path_gets_all_unsent_data_in_one_burst() {
    for (rtt_ms, expected) in [
        (0, &[(10_001, 14_500)][..]),
        (10, &[(10_001, 10_000), (20_001, 4500)]),
    ] {
        let mut rig = after_handshake(EngineConfig::default(), true, rtt_ms);
        rig.write(24_500);
        rig.wait_ms(rtt_ms);
        assert_eq!(spans(&rig.push(ack(1, 10_001))), expected, "{rtt_ms} ms");
    }
}

/// A window of more than twice the initial window is sent in two bursts on a short path, too,
/// unless the window has room for all unsent data.
#[test]
fn a_large_window_on_a_short_path_is_sent_in_two_bursts() {
    let mut rig = after_handshake(EngineConfig::default(), true, 0);
    rig.write(200_000);
    rig.push(ack(1, 10_001));
    let sent = spans(&rig.push(ack(1, 30_001)));
    assert_eq!(sent, [(30_001, 20_000), (50_001, 20_000)]);
}

/// After losses, cwnd may be below the ten segments of an initial window. Here, the configuration
/// sets a smaller initial window.
#[test]
fn a_small_window_on_a_short_path_is_sent_in_two_bursts() {
    let config = EngineConfig {
        initial_window: 8,
        ..EngineConfig::default()
    };
    let mut rig = after_handshake(config, true, 0);
    assert_eq!(spans(&rig.write(30_000)), [(1, 4000), (4001, 4000)]);
}

/// Nagle's algorithm, in Minshall's variant, permits one small segment in flight.
#[test]
fn a_burst_ends_with_a_small_segment_if_nagle_permits_it() {
    let mut rig = grown();
    rig.driver.burst_len = 64 << 10;
    let start = rig.written + 1;
    assert_eq!(spans(&rig.write(3500)), [(start, 3500)]);
    assert_eq!(spans(&rig.write(2600)), [(start + 3500, 2000)]);
    let sent = rig.push(ack(1, start + 5500));
    assert_eq!(spans(&sent), [(start + 5500, 600)]);
}

#[test]
fn a_burst_with_all_unsent_data_carries_the_fin() {
    let mut rig = grown();
    rig.driver.burst_len = 64 << 10;
    let start = rig.written + 1;
    // The peer's window is 60,000 bytes. A small segment is in flight.
    rig.write(500);
    rig.write(62_000);
    assert_eq!(spans(&rig.close()), []);
    let sent = rig.push(ack(1, rig.written + 1 - rig.info().unsent));
    assert_eq!(spans(&sent), [(start + 59_500, 3000)]);
    assert!(sent[0].flags.contains(TcpFlags::FIN), "{sent:?}");
}

/// On a link without segmentation offload, the last segment of the first half of a window carries
/// PSH. Receivers with GRO join segments only up to a PSH.
#[test]
fn the_first_half_of_a_window_ends_with_push() {
    let mut rig = grown();
    let window = rig.info().cwnd;
    let (half, start) = (window / 2 / 1000 * 1000, rig.written + 1);
    let sent = rig.write(100_000);
    let pushed = sent.iter().filter(|out| out.flags.contains(TcpFlags::PSH));
    let ends: Vec<u32> = pushed.map(|out| out.seq + 1000).collect();
    assert_eq!(ends, [start + half], "{window}");
    assert_eq!(sent.len(), 60);
}
