//! Seeds whose runs once failed. The comment of each test describes the fault, which was in the
//! service (`tidelaned`), in the simulator or in the simulator's checker.
//!
//! Each seed runs twice: first as the plain scenario, then as the full scenario. The plain scenario
//! has only IPv4, and no narrow paths (paths whose MTU is below the MTU of their ends). The seeds
//! failed before scenarios had IPv6 and narrow paths, so the plain scenario has the same events as
//! the run that failed.

use tidelane_world::{Scenario, Theme, run};

/// Runs the plain and the full scenario of `seed`. Panics if a run breaks a rule.
fn holds(theme: Theme, seed: u64) {
    let drawn = Scenario::with_theme(seed, theme);
    for scenario in [drawn.clone().plain(), drawn] {
        if let Err(violation) = run(scenario.clone()) {
            panic!("{violation}\n{scenario}");
        }
    }
}

/// The service acknowledged data that arrived before accept. If the program had no memory for this
/// data, the service dropped the data. The program then read bytes that an earlier connection had
/// left in the buffer.
#[test]
fn bytes_that_wait_for_accept_survive_a_program_without_memory() {
    for seed in [126, 175, 316] {
        holds(Theme::LowMemory, seed);
    }
}

/// The service reset a connection with acknowledged data when the accepting program had no memory
/// for the data. If this reset is lost, the peer waits for ever.
#[test]
fn a_connection_that_waits_for_memory_is_not_reset() {
    for seed in [4_018_359, 4_027_024, 4_034_182] {
        holds(Theme::LowMemory, seed);
    }
}

/// A step of the service reduced ssthresh, and then sent bytes. The checker counted these bytes as
/// in flight before the reduction. When a second reduction followed a round trip later, the checker
/// wrongly placed the second reduction in the round trip of the first.
#[test]
fn a_second_reduction_may_follow_after_the_first_one_s_round_trip() {
    for seed in [5_001_599, 5_003_340] {
        holds(Theme::LowMemory, seed);
    }
}

/// smoltcp ignores window updates in LAST-ACK. The simulated smoltcp host closed a connection with
/// unsent data, which was then never sent.
#[test]
fn smoltcp_sends_all_its_data_before_last_ack() {
    holds(Theme::Smoltcp, 4_025_025);
}

/// The service could not hand a connection to a program of a listener, but counted the connection
/// as waiting for the program's accept. The count was never corrected, so the backlog shrank.
#[test]
fn undelivered_connections_do_not_fill_the_backlog() {
    for seed in 500_000..500_010 {
        holds(Theme::LowMemory, seed);
    }
}

/// A program died that had more connections than the NIC queue of its host had frames (packet
/// buffers). The resets that found no free frame were lost, and peers that had sent all their data
/// waited for ever.
#[test]
fn every_connection_of_a_program_that_dies_is_reset() {
    holds(Theme::Death, 9_005_146);
}

/// The source link address of a SYN had a bit error. All SYN-ACKs went to the wrong address, even
/// after the SYN had been retransmitted with the right address.
#[test]
fn a_syn_ack_goes_to_the_link_address_of_the_last_syn() {
    holds(Theme::Any, 11_016_887);
}

/// A program had closed a connection whose peer had no memory and took no more data. The service
/// aborted the connection after the largest number of timeouts. As in Linux, the abort sent nothing
/// to the peer. The checker wrongly expected the peer to be reset.
#[test]
fn the_peer_of_an_aborted_connection_may_wait_without_a_reset() {
    holds(Theme::LowMemory, 12_059_222);
}
