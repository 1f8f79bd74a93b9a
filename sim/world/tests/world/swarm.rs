//! Swarms: each test runs the scenarios of many seeds. No run may break a rule (the crate's
//! `lib.rs` lists the rules), and equal seeds give equal runs.

use tidelane_world::{Report, Scenario, Theme, run};

/// Runs the scenarios of the seeds, and returns the sum of their reports. If `theme` is `None`,
/// each seed determines its theme. Panics if a run breaks a rule.
fn swarm(theme: Option<Theme>, seeds: std::ops::Range<u64>) -> Report {
    let mut sum = Report::default();
    for seed in seeds {
        let scenario = match theme {
            Some(theme) => Scenario::with_theme(seed, theme),
            None => Scenario::from_seed(seed),
        };
        match run(scenario.clone()) {
            Ok(report) => sum.add(&report),
            Err(violation) => panic!("{violation}\n{scenario}\nseed {seed}, theme {theme:?}"),
        }
    }
    sum
}

#[test]
fn two_hundred_seeds_break_no_rule() {
    let sum = swarm(None, 0..200);
    println!("{sum}");
    assert!(sum.complete > 1000, "{sum}");
    assert!(
        sum.over_ipv6 > 300 && sum.over_ipv6 + 300 < sum.complete,
        "{sum}"
    );
    // The swarm is meaningful only if loss, reordering, TIME-WAIT and lower path MTUs occur.
    for name in [
        "retrans_segs",
        "timeouts",
        "fast_retrans",
        "ofo_queue",
        "time_waits",
        "pmtu_lowered",
    ] {
        let count = sum.counters.get(name).copied().unwrap_or(0);
        assert!(count > 0, "{name} never happened");
    }
}

/// On the local path, segments pass between programs of one host in memory, without frames.
#[test]
fn programs_of_one_host_use_the_local_path() {
    let sum = swarm(Some(Theme::LocalPath), 1000..1020);
    assert!(sum.bytes > 0 && sum.frames == 0, "{sum}");
    assert!(sum.counters["memory_segments"] > 0);
}

#[test]
fn a_plain_run_has_neither_ipv6_nor_narrow_paths() {
    for seed in 0..40 {
        let report = run(Scenario::from_seed(seed).plain()).expect("no rule is broken");
        assert_eq!((report.over_ipv6, report.too_big), (0, 0), "seed {seed}");
    }
}

#[test]
fn programs_die_and_nothing_leaks() {
    let sum = swarm(Some(Theme::Death), 2000..2030);
    assert!(sum.deaths > 20 && sum.complete > 100, "{sum}");
}

#[test]
fn services_restart_hosts_pause_and_clocks_jump() {
    let sum = swarm(Some(Theme::Faults), 4000..4040);
    assert!(sum.restarts > 20 && sum.complete > 100, "{sum}");
}

#[test]
fn connections_continue_when_memory_is_short() {
    let sum = swarm(Some(Theme::LowMemory), 5000..5020);
    assert!(sum.complete > 100, "{sum}");
}

#[test]
fn another_stack_and_tidelane_understand_each_other() {
    let sum = swarm(Some(Theme::Smoltcp), 6000..6040);
    assert!(sum.complete > 300 && sum.links.lost > 0, "{sum}");
    assert!(sum.over_ipv6 > 50, "{sum}");
    assert!(sum.counters["active_opens"] > 0 && sum.counters["passive_opens"] > 0);
}

#[test]
fn random_values_in_shared_memory_harm_nobody_else() {
    let sum = swarm(Some(Theme::Misbehaviour), 3000..3020);
    assert!(sum.fuzz_bursts > 1000 && sum.complete > 50, "{sum}");
    assert!(sum.memory_searches > 100, "{sum}");
}

/// A mux port is a packet ring through which a program with its own stack uses the NIC, beside the
/// service. Some of the programs are hostile.
#[test]
fn stacks_on_ports_stay_apart_beside_hostile_ports() {
    let sum = swarm(Some(Theme::Ports), 7000..7100);
    assert!(sum.complete > 500 && sum.over_ipv6 > 100, "{sum}");
    for name in [
        "port_frames_checked_out",
        "port_frames_checked_in",
        "port_gso_frames",
        "port_packets_refused",
        "port_overruns",
        "port_corrupt",
        "port_hand_overs",
        "port_resets",
        "port_connections_compared",
    ] {
        let count = sum.counters.get(name).copied().unwrap_or(0);
        assert!(count > 0, "{name} never happened");
    }
}

/// On a direct host, TCP runs within the program, without a service.
#[test]
fn direct_hosts_obey_the_rules() {
    let sum = swarm(Some(Theme::Direct), 8000..8200);
    assert!(sum.complete > 1000 && sum.over_ipv6 > 300, "{sum}");
    assert!(sum.restarts > 10 && sum.too_big > 0, "{sum}");
    for name in [
        "direct_accepted",
        "direct_pauses",
        "direct_rx_copies",
        "direct_rx_exchanges",
        "direct_rx_no_buffer",
        "direct_tx_copies",
        "direct_tx_lent",
        "direct_waits",
        "pmtu_lowered",
    ] {
        let count = sum.counters.get(name).copied().unwrap_or(0);
        assert!(count > 0, "{name} never happened");
    }
}

/// In this run, a received segment that is stored in two buffers repeats data that has already
/// arrived beyond a hole (a gap in the received data).
#[test]
fn parts_of_a_segment_join_data_beyond_a_hole() {
    swarm(Some(Theme::Direct), 400..401);
}

#[test]
fn equal_seeds_give_equal_runs() {
    let themes = [Theme::Cores, Theme::Smoltcp, Theme::Ports, Theme::Direct].map(Some);
    for theme in [None].into_iter().chain(themes) {
        for seed in [1, 7, 23, 40] {
            let digests = [0; 2].map(|_| swarm(theme, seed..seed + 1).digest);
            assert_eq!(digests[0], digests[1], "seed {seed}, theme {theme:?}");
        }
    }
    assert_ne!(swarm(None, 1..2).digest, swarm(None, 2..3).digest);
}
