//! Seeds that found something, by what they found. Those below were found when all was IPv4 and
//! paths were as wide as their ends: each runs as it did then, to the last frame, and as it is
//! drawn now.

use tidelane_world::{Scenario, Theme, run};

fn holds(theme: Theme, seed: u64) {
    let drawn = Scenario::with_theme(seed, theme);
    for scenario in [drawn.clone().plain(), drawn] {
        if let Err(violation) = run(scenario.clone()) {
            panic!("{violation}\n{scenario}");
        }
    }
}

/// What had arrived before accept was acknowledged and then dropped when the program had no memory
/// for it: the program read what an earlier connection had left there.
#[test]
fn bytes_that_wait_for_accept_survive_a_program_without_memory() {
    for seed in [126, 175, 316] {
        holds(Theme::Memory, seed);
    }
}

/// A connection whose bytes were acknowledged was reset when the program that was to accept it had
/// no memory for them, and the peer of a reset that is lost waits for ever.
#[test]
fn a_connection_that_waits_for_memory_is_not_reset() {
    for seed in [4_018_359, 4_027_024, 4_034_182] {
        holds(Theme::Memory, seed);
    }
}

/// The checker took what a step sent over the memory wire after a reduction for what had been in
/// flight before.
#[test]
fn a_second_reduction_may_follow_when_the_first_one_s_window_is_over() {
    for seed in [5_001_599, 5_003_340] {
        holds(Theme::Memory, seed);
    }
}

/// smoltcp, in LAST-ACK with bytes to send, does not see that a window opened.
#[test]
fn the_foreign_stack_says_its_last_word_once_it_has_said_all() {
    holds(Theme::Foreign, 4_025_025);
}

/// A member of a listener whose connection could not be handed out counted it for ever as one that
/// its program had yet to take, and the backlog shrank.
#[test]
fn connections_that_were_never_handed_out_do_not_fill_the_backlog() {
    for seed in 500_000..500_010 {
        holds(Theme::Memory, seed);
    }
}

/// A program that ended left more connections than its host's port had frames: the resets that
/// found none were lost, and peers that had said all they had waited for ever.
#[test]
fn every_connection_of_a_program_that_dies_is_reset() {
    holds(Theme::Death, 9_005_146);
}

/// A bit flipped in the link address that a SYN came from: all SYN,ACK went there, also after the
/// SYN had come again from where its sender is.
#[test]
fn a_handshake_follows_a_syn_that_comes_from_elsewhere() {
    holds(Theme::Any, 11_016_887);
}

/// A peer without memory refuses what is left of a connection that its program has closed, until
/// the last timeout: that is the end of it, of which nobody tells the peer (as in Linux).
#[test]
fn who_is_given_up_waits_for_as_long_as_its_program_wishes() {
    holds(Theme::Memory, 12_059_222);
}
