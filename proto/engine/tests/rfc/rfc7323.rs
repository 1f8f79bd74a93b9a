//! Tests of window scaling and timestamps (RFC 7323), for the requirements that no script of
//! `tests/conformance` covers. A rig is one TCP engine, with the test as its peer.

use tidelane_engine::{EngineConfig, SocketOptions, TcpOptions};

use crate::rig::{ACK, In, RST, Rig, SYN, ack, data, syn};

fn scaled(wscale: u8) -> TcpOptions {
    TcpOptions {
        wscale: Some(wscale),
        ..TcpOptions::NONE
    }
}

fn windows(initial: u32, max: u32) -> EngineConfig {
    EngineConfig {
        rx_window_initial: initial,
        rx_window_max: max,
        ..EngineConfig::default()
    }
}

#[test]
fn section_2_2_the_option_means_nothing_outside_of_syn() {
    let (config, options) = (EngineConfig::default(), SocketOptions::default());
    let mut rig = Rig::established_with(config, options, scaled(3));
    let mut late = ack(1, 1).wnd(1000);
    late.options.wscale = Some(9);
    rig.push(late);
    rig.push(data(1, 1, 10).wnd(2000));
    let info = rig.info();
    assert_eq!((info.snd_wscale, info.snd_wnd), (3, 2000 << 3));
}

#[test]
fn section_2_2_the_windows_of_both_syns_are_not_scaled() {
    let config = windows(1 << 20, 4 << 20);
    let (mut rig, first) = Rig::opening(config, SocketOptions::default());
    assert_eq!((first.wnd, first.options.wscale), (0xffff, Some(7)));
    let answer = syn(scaled(5)).wnd(900);
    rig.push(In { ack: 1, ..answer }.with(SYN | ACK));
    let info = rig.info();
    assert_eq!((info.snd_wscale, info.snd_wnd), (5, 900));
    // The window of the next segment is scaled.
    rig.push(ack(1, 1).wnd(900));
    assert_eq!(rig.info().snd_wnd, 900 << 5);
    // In a passive open, the window of our SYN,ACK is not scaled either.
    let mut rig = Rig::listening(windows(1 << 20, 4 << 20), SocketOptions::default());
    let answer = rig.push(syn(scaled(5)));
    assert_eq!(answer[0].wnd, 0xffff);
}

#[test]
fn section_2_3_our_window_is_sent_scaled() {
    let config = windows(1 << 20, 4 << 20);
    let mut rig = Rig::established_with(config, SocketOptions::default(), scaled(0));
    let sent = rig.write(10);
    assert_eq!(sent[0].wnd, (1 << 20 >> 7) as u16);
    assert_eq!(rig.info().rcv_wnd, 1 << 20);
}

#[test]
fn section_2_3_our_own_shift_is_at_most_fourteen() {
    for (max, shift) in [(0xffff, 0), (0x1_0000, 1), (4 << 20, 7), (1 << 30, 14)] {
        let config = windows(1 << 14, max);
        let (_, first) = Rig::opening(config, SocketOptions::default());
        assert_eq!(first.options.wscale, Some(shift), "{max}");
        // The largest window that the scaled field can represent is `max`, or at most one unit (`1
        // << shift` bytes) less.
        assert!(u64::from(max) <= 0x1_0000 << shift);
    }
}

/// The first scaled window is rounded down, and therefore smaller than the exact window of our
/// SYN,ACK.
#[test]
fn section_2_4_data_within_an_earlier_window_is_accepted() {
    let config = windows(1 << 16, 1 << 30);
    let mut rig = Rig::established_with(config, SocketOptions::default(), scaled(0));
    let edge = 1 + 0xffff;
    let sent_ack = rig.write(10)[0];
    assert_eq!(sent_ack.ack + (u32::from(sent_ack.wnd) << 14), 1 + 0xc000);
    assert_eq!(rig.info().rcv_wnd, 0xffff);
    // The engine accepts data up to the right edge that the SYN,ACK announced, and no data beyond
    // this edge.
    rig.arrive(data(1, 11, 1000));
    rig.arrive(data(1001, 11, (edge - 1001) as usize + 500));
    rig.batch_end();
    let placed: usize = rig.driver.placed.iter().map(|(_, len)| len).sum();
    assert_eq!((placed, rig.info().bytes_received), (0xffff, 0xffff));
}

#[test]
fn section_3_2_our_reset_has_timestamps() {
    let peer = TcpOptions::timestamps(77, 0);
    let (config, options) = (EngineConfig::default(), SocketOptions::default());
    let mut rig = Rig::established_with(config, options, peer);
    let flow = rig.flow_id().unwrap();
    rig.engine.abort(rig.now, flow, &mut rig.driver);
    let sent = rig.batch_end();
    assert!(sent[0].flags.contains(RST));
    let stamps = sent[0].options.timestamps.unwrap();
    assert_eq!(stamps.tsecr, 77);
}

#[test]
fn section_5_4_the_timestamp_clock_ticks_in_milliseconds() {
    let peer = TcpOptions::timestamps(1, 0);
    let (config, options) = (EngineConfig::default(), SocketOptions::default());
    let mut rig = Rig::established_with(config, options, peer);
    for ms in [1, 10, 1000, 3_600_000] {
        let before = stamp(&mut rig);
        rig.wait_ms(ms);
        assert_eq!(u64::from(stamp(&mut rig).wrapping_sub(before)), ms);
    }
}

#[test]
fn section_2_3_an_impossible_shift_is_counted_and_taken_for_fourteen() {
    for (shift, count) in [(14, 0), (15, 1), (255, 1)] {
        let (config, options) = (EngineConfig::default(), SocketOptions::default());
        let rig = Rig::established_with(config.clone(), options, scaled(shift));
        assert_eq!(rig.info().snd_wscale, 14);
        assert_eq!(rig.engine.counters().impossible_wscales, count);
        let (mut rig, _) = Rig::opening(config, options);
        rig.push(
            In {
                ack: 1,
                ..syn(scaled(shift))
            }
            .with(SYN | ACK),
        );
        assert_eq!(rig.info().snd_wscale, 14);
        assert_eq!(rig.engine.counters().impossible_wscales, count);
    }
}

/// The peer is silent for days, while its timestamp clock of 1 ms continues.
#[test]
fn section_5_5_after_24_silent_days_ts_recent_has_expired() {
    let day = 86_400_000;
    let base = 0x7000_0000_u32;
    for (days, taken) in [(20, false), (25, true), (40, true), (49, true)] {
        let peer = TcpOptions::timestamps(base, 0);
        let (config, options) = (EngineConfig::default(), SocketOptions::default());
        let mut rig = Rig::established_with(config, options, peer);
        rig.push(data(1, 1, 10).ts(base, 0));
        rig.wait_ms(days * day);
        // After more than 24.8 days, the peer's clock seems to have gone back. Before that, only an
        // old segment has a timestamp before TS.Recent.
        let tsval = if taken {
            base.wrapping_add((days * day) as u32)
        } else {
            base - 2
        };
        assert!((tsval.wrapping_sub(base) as i32) < 0);
        rig.push(data(11, 1, 10).ts(tsval, 0));
        let received = if taken { 20 } else { 10 };
        assert_eq!(rig.info().bytes_received, received, "{days} days");
        // PAWS applies again afterwards.
        rig.push(data(received as u32 + 1, 1, 10).ts(tsval.wrapping_sub(5), 0));
        assert_eq!(rig.info().bytes_received, received);
    }
}

/// Returns the present TSval of the engine, from the ACK that an old byte elicits.
fn stamp(rig: &mut Rig) -> u32 {
    let sent = rig.push(data(0, 1, 1).ts(1, 0));
    sent.last().unwrap().options.timestamps.unwrap().tsval
}
