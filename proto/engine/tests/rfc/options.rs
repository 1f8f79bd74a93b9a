//! Tests of socket options that are visible on the wire: IP fields, SYN retransmissions, deferred
//! accept, windows, timeouts and pacing. A rig is one TCP engine, with the test as its peer and its
//! application.

use tidelane_engine::{
    CloseCause, Duration, EngineConfig, Event, FinWait2, IpFields, IpOptions, SocketOptions,
    TcpFlags, TcpOptions, WindowOptions,
};

use crate::rig::{ACK, In, RST, Rig, SYN, ack, data, syn, times};

const FIN: TcpFlags = TcpFlags::FIN;
/// IP fields that the application sets.
const FIELDS: IpFields = IpFields {
    traffic_class: 0xb8,
    hop_limit: 5,
};

fn marked() -> SocketOptions {
    SocketOptions {
        ip: IpOptions {
            v4: FIELDS,
            v6: IpFields::default(),
        },
        ..SocketOptions::default()
    }
}

/// Returns a SYN with the window scale option.
fn scaled_syn() -> In {
    syn(TcpOptions {
        mss: Some(1000),
        wscale: Some(0),
        ..TcpOptions::NONE
    })
}

#[test]
fn must_48_must_49_the_first_syn_has_the_programs_headers() {
    let (rig, _) = Rig::opening(EngineConfig::default(), marked());
    assert_eq!(rig.driver.headers, [(0, FIELDS)]);
}

#[test]
fn must_48_accepted_connections_have_their_listeners_headers_from_the_syn_ack_on() {
    let mut rig = Rig::listening(EngineConfig::default(), marked());
    assert_eq!(rig.push(scaled_syn()).len(), 1);
    assert_eq!(rig.driver.headers, [(0, FIELDS)]);
}

#[test]
fn shld_21_headers_of_a_live_connection_change() {
    let mut rig = Rig::established(SocketOptions::default());
    assert_eq!(rig.driver.headers, []);
    assert_eq!(rig.set_options(marked()), []);
    assert_eq!(rig.driver.headers, [(0, FIELDS)]);
    // If the application sets the present value again, the engine does not report the value again
    // to its driver (here the rig).
    rig.set_options(marked());
    assert_eq!(rig.driver.headers.len(), 1);
}

#[test]
fn must_23_tcp_syncnt_sets_the_retransmissions_of_syn() {
    let options = |syn_retries| SocketOptions {
        syn_retries,
        ..SocketOptions::default()
    };
    let config = || EngineConfig {
        syn_linear_timeouts: 0,
        ..EngineConfig::default()
    };
    let (mut rig, _) = Rig::opening(config(), options(2));
    assert_eq!(times(&rig.wait_ms(6_900), 0), [1_001, 3_002]);
    assert_eq!(rig.events(), []);
    assert_eq!(rig.wait_ms(200), []);
    assert_eq!(rig.events(), [Event::Closed(CloseCause::TimedOut)]);
    // With seven retransmissions, the SYN does not time out within the three minutes of RFC 9293.
    let (mut rig, _) = Rig::opening(config(), options(7));
    assert_eq!(rig.wait_ms(180_000).len(), 7);
    assert_eq!(rig.events(), []);
    // Retransmissions without backoff (`tcp_syn_linear_timeouts`) do not extend the total time.
    let (mut rig, _) = Rig::opening(EngineConfig::default(), options(2));
    assert_eq!(times(&rig.wait_ms(6_900), 0).len(), 5);
    assert_eq!(rig.events(), []);
    assert_eq!(rig.wait_ms(200), []);
    assert_eq!(rig.events(), [Event::Closed(CloseCause::TimedOut)]);
}

#[test]
fn must_23_tcp_syncnt_sets_the_retransmissions_of_syn_ack() {
    let mut rig = Rig::listening(
        EngineConfig::default(),
        SocketOptions {
            syn_retries: 1,
            ..SocketOptions::default()
        },
    );
    rig.push(scaled_syn());
    assert_eq!(rig.wait_ms(60_000).len(), 1);
    assert_eq!(rig.flow_id(), None);
}

#[test]
fn must_20_shld_10_the_third_retransmission_gives_negative_advice() {
    let mut rig = Rig::established(SocketOptions::default());
    rig.write(100);
    while rig.wait_ms(10).is_empty() {}
    while rig.wait_ms(10).is_empty() {}
    assert_eq!(rig.driver.negative_advice, 0);
    while rig.wait_ms(10).is_empty() {}
    assert_eq!(rig.driver.negative_advice, 1);
    while rig.wait_ms(10).is_empty() {}
    assert_eq!(rig.driver.negative_advice, 1);
}

/// Returns a connection whose peer has completed the handshake. The connection waits for data
/// during `defer_accept` SYN,ACK timeouts (TCP_DEFER_ACCEPT).
fn deferring(defer_accept: u8) -> Rig {
    let options = SocketOptions {
        defer_accept,
        ..SocketOptions::default()
    };
    let mut rig = Rig::listening(EngineConfig::default(), options);
    assert_eq!(rig.push(scaled_syn()).len(), 1);
    assert_eq!(rig.push(ack(1, 1)), []);
    assert_eq!(rig.events(), []);
    rig
}

fn is_accepted(rig: &mut Rig) -> bool {
    let events = rig.events();
    events
        .iter()
        .any(|event| matches!(event, Event::Accepted(_)))
}

#[test]
fn a_deferred_connection_is_accepted_with_its_first_data() {
    let mut rig = deferring(3);
    assert_eq!(rig.wait_ms(2_500), [], "the SYN,ACK was sent again");
    rig.push(data(1, 1, 10));
    assert!(is_accepted(&mut rig));
    assert_eq!(rig.driver.placed, [(0, 10)]);
}

#[test]
fn a_deferred_connection_is_accepted_with_its_end() {
    let mut rig = deferring(3);
    rig.push(ack(1, 1).with(ACK | FIN));
    assert!(is_accepted(&mut rig));
}

#[test]
fn a_deferred_connection_is_accepted_without_data_after_its_timeout() {
    let mut rig = deferring(3);
    // The third RTO expires after 1 + 2 + 4 s. Only this RTO retransmits the SYN,ACK.
    let again = rig.wait_ms(7_100);
    assert_eq!(times(&again, 0), [7_003]);
    assert!(again[0].flags.contains(SYN | ACK));
    rig.push(ack(1, 1));
    assert!(is_accepted(&mut rig));
}

/// Returns a connection whose application has closed the socket and whose FIN is acknowledged. With
/// [`FinWait2::Never`], the connection has ended; otherwise, the connection is in FIN-WAIT-2. Also
/// returns the engine's answer to the ACK of the FIN.
fn closed(options: SocketOptions) -> (Rig, Vec<crate::rig::Out>) {
    let mut rig = Rig::established(options);
    assert!(rig.close()[0].flags.contains(FIN));
    let answer = rig.push(ack(1, 2));
    (rig, answer)
}

fn lingering(fin_wait_2: FinWait2) -> SocketOptions {
    SocketOptions {
        fin_wait_2,
        ..SocketOptions::default()
    }
}

#[test]
fn fin_wait_2_lasts_as_long_as_tcp_linger2_sets() {
    let (mut rig, answer) = closed(lingering(FinWait2::For(Duration::from_secs(5))));
    assert_eq!(answer, []);
    rig.wait_ms(4_900);
    assert!(rig.flow_id().is_some());
    rig.wait_ms(200);
    assert_eq!(rig.flow_id(), None);
}

#[test]
fn without_fin_wait_2_the_acknowledged_fin_is_followed_by_a_reset() {
    let (rig, answer) = closed(lingering(FinWait2::Never));
    assert!(answer[0].flags.contains(RST));
    assert_eq!(rig.flow_id(), None);
}

#[test]
fn a_receive_buffer_that_was_set_is_the_window_and_does_not_grow() {
    let window = WindowOptions {
        buffer: 100_000,
        ..WindowOptions::default()
    };
    let mut rig = Rig::listening(
        EngineConfig::default(),
        SocketOptions {
            window,
            ..SocketOptions::default()
        },
    );
    let reply = rig.push(scaled_syn());
    // A window of 100,000 bytes needs 17 bits, and the window field has 16, so the shift is 1.
    assert_eq!((reply[0].wnd, reply[0].options.wscale), (0xffff, Some(1)));
    rig.push(ack(1, 1));
    for round in 0..200 {
        rig.push(data(1 + round * 1000, 1, 1000));
        rig.read((round + 1) * 1000);
        assert!(rig.info().rcv_wnd <= 100_000);
    }
    assert!(rig.info().rcv_wnd > 98_000);
}

#[test]
fn a_clamp_limits_the_window_of_a_live_connection_until_removed() {
    let mut rig = Rig::established_by(
        EngineConfig::default(),
        SocketOptions::default(),
        scaled_syn(),
    );
    let clamped = |clamp| SocketOptions {
        window: WindowOptions {
            clamp,
            ..WindowOptions::default()
        },
        ..SocketOptions::default()
    };
    let before = rig.info().rcv_wnd;
    assert_eq!(rig.set_options(clamped(4_000)), []);
    // The advertised window does not shrink (RFC 9293 SHLD-14).
    assert_eq!(rig.info().rcv_wnd, before);
    let count = before / 1000;
    for at in 0..count {
        rig.push(data(1 + at * 1000, 1, 1000));
        rig.read((at + 1) * 1000);
    }
    assert!(rig.info().rcv_wnd <= 4_000, "{}", rig.info().rcv_wnd);
    let larger = SocketOptions {
        window: WindowOptions {
            buffer: 50_000,
            ..WindowOptions::default()
        },
        ..SocketOptions::default()
    };
    assert_eq!(rig.set_options(larger).len(), 1, "window updates");
    assert!(rig.info().rcv_wnd > 49_000);
}

#[test]
fn the_window_is_at_least_twice_so_rcvlowat() {
    let mut rig = Rig::established_by(
        EngineConfig::default(),
        SocketOptions {
            window: WindowOptions {
                low: 500_000,
                ..WindowOptions::default()
            },
            ..SocketOptions::default()
        },
        scaled_syn(),
    );
    rig.push(data(1, 1, 1000));
    rig.wait_ms(100);
    // The least expected window is below 1,000,000 bytes, because unread data reduces the window.
    assert!(rig.info().rcv_wnd > 900_000, "{}", rig.info().rcv_wnd);
}

/// SO_MAX_PACING_RATE also limits a connection whose ACKs the fast path (the engine's code for
/// in-order segments and their ACKs) handles.
#[test]
fn so_max_pacing_rate_holds_with_acks_on_the_fast_path() {
    /// Pacing rate in bytes per second.
    const RATE: u32 = 1_000_000;
    let mut rig = Rig::established(SocketOptions {
        pacing_rate_max: RATE.into(),
        ..SocketOptions::default()
    });
    let mss = rig.info().mss;
    let mut sent: u32 = rig.write(1_000_000).iter().map(|out| out.len).sum();
    for _ in 0..100 {
        let answered = rig.push(ack(1, 1 + sent));
        let later = rig.wait_ms(1);
        sent += answered
            .iter()
            .chain(&later)
            .map(|out| out.len)
            .sum::<u32>();
    }
    // The test lasts 100 ms. The first ten segments are not paced, and the test may end before or
    // after a burst.
    let (least, most) = (RATE / 10, RATE / 10 + 14 * mss);
    assert!(
        (least..=most).contains(&sent),
        "{sent} of {least} to {most}"
    );
}
