//! Tests of the congestion-control rules with a fictitious sender.

use tidelane_engine::{LinkId, State, Traffic};
use tidelane_time::Duration;
use tidelane_wire::{Endpoint, IpAddress};

use super::*;

const MSS: u32 = 1000;

fn key() -> FlowKey {
    let end = |last, port| Endpoint::new(IpAddress::from_v4([10, 0, 0, last]), port);
    FlowKey::new(end(1, 5000), end(2, 80))
}

/// Returns the state of a sender with `acked` acknowledged bytes and `flight` bytes in flight.
fn info(acked: u64, flight: u32, cwnd: u32, ssthresh: u32) -> FlowInfo {
    FlowInfo {
        key: key(),
        state: State::Established,
        ca_state: CaState::Open,
        congestion: "cubic",
        cc_info: tidelane_engine::CcInfo::None,
        srtt: Duration::ZERO,
        rttvar: Duration::ZERO,
        rtt_min: Duration::ZERO,
        rto: Duration::ZERO,
        cwnd,
        pacing_rate: 0,
        pacing_rate_max: u64::MAX,
        ssthresh,
        mss: MSS,
        rcv_mss: MSS,
        snd_wnd: 1 << 20,
        snd_wnd_max: 1 << 20,
        rcv_wnd: 1 << 20,
        snd_wscale: 0,
        rcv_wscale: 0,
        timestamps: false,
        sack: true,
        ecn: false,
        syn_data: false,
        fast_open_pending: false,
        flight_size: flight,
        sacked: 0,
        lost: 0,
        retrans_out: 0,
        reordering: 3,
        reorder_seen: 0,
        unsent: 0,
        unread: 0,
        ooo_segs_in: 0,
        ooo_ranges: 0,
        bytes_acked: acked,
        bytes_received: 0,
        retrans: 0,
        retrans_bytes: 0,
        traffic: Traffic::default(),
        delivered: 0,
        delivered_ce: 0,
        delivery_rate: 0,
        app_limited: true,
        probes: 0,
        dsacks: 0,
        path_mss: 1460,
        timeouts: 0,
        backoff: 0,
        link: LinkId(1),
        listener: None,
    }
}

/// The unchanging state of a host with one connection.
struct FixedFigures(FlowInfo);

impl SenderFigures for FixedFigures {
    fn flows(&self) -> Vec<FlowInfo> {
        vec![self.0]
    }

    fn spurious_signals(&self) -> u64 {
        0
    }
}

/// Checks a step that has sent three full segments. `info` is the state of the sender after the
/// step. Returns the name of the broken rule, if any.
fn check(rules: &mut CwndRules, info: FlowInfo) -> Result<(), &'static str> {
    let advance = Advance {
        key: key(),
        bytes: 3 * MSS,
    };
    let checked = rules.check(Instant::ZERO, 0, &[advance], &FixedFigures(info));
    checked.map_err(|violation| violation.rule)
}

#[test]
fn a_flight_above_cwnd_is_reported() {
    let mut rules = CwndRules::default();
    let full = 10 * MSS;
    assert_eq!(check(&mut rules, info(0, full, full, u32::MAX)), Ok(()));
    let above = full + ABOVE_CWND_MAX * MSS + 1;
    let rule = "no more is in flight than cwnd allows";
    assert_eq!(check(&mut rules, info(0, above, full, u32::MAX)), Err(rule));
}

#[test]
fn two_reductions_in_one_round_trip_are_reported() {
    let flight = 10 * MSS;
    let start = || {
        let mut rules = CwndRules::default();
        for ssthresh in [u32::MAX, 7 * MSS] {
            let _ = check(&mut rules, info(0, flight, flight, ssthresh));
        }
        rules
    };
    // All data that was sent before the step of the first reduction is acknowledged, so one RTT has
    // passed.
    let before = flight - 3 * MSS;
    let later = info(u64::from(before), flight, flight, 5 * MSS);
    assert_eq!(check(&mut start(), later), Ok(()));
    let early = info(u64::from(before) - 2, flight, flight, 5 * MSS);
    let rule = "cwnd is lowered once per round trip";
    assert_eq!(check(&mut start(), early), Err(rule));
    // A timeout may reduce cwnd again in the same round trip.
    let timed_out = FlowInfo {
        ca_state: CaState::Loss,
        ..info(0, flight, MSS, 5 * MSS)
    };
    assert_eq!(check(&mut start(), timed_out), Ok(()));
}

/// A step reduces ssthresh, and sends three segments over the local path. The round trip of the
/// reduction ends at SND.NXT before the step, so the three segments do not prolong the round trip.
#[test]
fn bytes_of_the_reducing_step_over_the_local_path_do_not_count() {
    let (flight, before) = (10 * MSS, 7 * MSS);
    let check = |rules: &mut CwndRules, info: FlowInfo| {
        let link = LOCAL_PATH;
        check(rules, FlowInfo { link, ..info })
    };
    let start = || {
        let mut rules = CwndRules::default();
        let _ = check(&mut rules, info(0, before, flight, u32::MAX));
        let _ = check(&mut rules, info(0, flight, flight, 7 * MSS));
        rules
    };
    let later = info(u64::from(before), flight, flight, 5 * MSS);
    assert_eq!(check(&mut start(), later), Ok(()));
    let early = info(u64::from(before) - 2, flight, flight, 5 * MSS);
    let rule = "cwnd is lowered once per round trip";
    assert_eq!(check(&mut start(), early), Err(rule));
}

#[test]
fn an_ssthresh_equal_to_cwnd_is_no_reduction() {
    let flight = 20 * MSS;
    let mut rules = CwndRules::default();
    for ssthresh in [u32::MAX, flight] {
        assert_eq!(check(&mut rules, info(0, flight, flight, ssthresh)), Ok(()));
    }
    // The first loss may reduce cwnd immediately after slow start. A second loss in the same round
    // trip may not.
    let lost = info(0, flight, 14 * MSS, 14 * MSS);
    assert_eq!(check(&mut rules, lost), Ok(()));
    let again = info(0, flight, 9 * MSS, 9 * MSS);
    let rule = "cwnd is lowered once per round trip";
    assert_eq!(check(&mut rules, again), Err(rule));
}
