//! The server `tidelane-kv` answers as memcached does. Most tests send the same bytes to both
//! servers and compare the answers. Two tests each run a tool of libmemcached against
//! `tidelane-kv` alone.
//!
//! `compare.rs` lists the permitted differences. The tests need Debian's `memcached` and
//! `libmemcached-tools`. A test whose tool is missing is skipped, and prints a line to standard
//! error.

mod commands;
mod compare;
mod scripts;
mod servers;

use commands::{Commands, Random};
use compare::assert_same;
use servers::{Pair, Server, find_tool, skip};

/// Number of seeds for random command sequences.
const SEEDS: u64 = 60;
/// Number of batches in one sequence.
const BATCHES: usize = 50;

#[test]
fn every_script_has_the_answers_of_memcached() {
    let Some(mut pair) = Pair::start() else {
        return;
    };
    for script in scripts::complete() {
        let answers = pair.exchange(&script);
        assert_same(&script, &answers);
    }
}

/// `tidelane-kv` gets each script shorter than 400 bytes in single bytes. memcached gets the script
/// whole.
#[test]
fn scripts_in_single_bytes_have_the_answers_of_memcached() {
    let Some(mut pair) = Pair::start() else {
        return;
    };
    for script in scripts::complete()
        .into_iter()
        .filter(|script| script.len() < 400)
    {
        let memcached = pair.memcached.exchange(&script);
        let server = pair.server.exchange_in_pieces(&script, 1);
        assert_same(&script, &(memcached, server));
    }
}

#[test]
fn connections_end_after_the_same_commands_as_in_memcached() {
    let Some(mut pair) = Pair::start() else {
        return;
    };
    for script in scripts::closing() {
        let memcached = pair.memcached.exchange_until_close(&script);
        let answers = (memcached, pair.server.exchange_until_close(&script));
        assert_same(&script, &answers);
    }
}

#[test]
fn random_commands_have_the_answers_of_memcached() {
    // The maintainer thread is off because the thread refers to items at random times. If a command
    // makes a number shorter, memcached pads the number with spaces, but not while the thread
    // refers to the item.
    let Some(mut pair) = Pair::start_with(&["-o", "no_lru_maintainer,no_lru_crawler"]) else {
        return;
    };
    let mut count = 0;
    for seed in 1..=SEEDS {
        let mut commands = Commands::new(seed);
        pair.exchange(b"flush_all\r\n");
        for _ in 0..BATCHES {
            let script = commands.batch(10);
            let answers = pair.exchange(&script);
            assert_same(&script, &answers);
            commands.learn(&answers.0);
            count += script.split(|byte| *byte == b'\n').count() - 1;
        }
    }
    assert!(count >= 20_000, "{count} lines are too few");
}

#[test]
fn random_bytes_have_the_answers_of_memcached() {
    let Some(mut pair) = Pair::start() else {
        return;
    };
    for seed in 1..=200 {
        let mut random = Random::new(seed);
        let script = commands::garbage(&mut random);
        let answers = pair.exchange(&script);
        assert_same(&script, &answers);
    }
}

/// libmemcached's `memcaslap` sends 10 % `set` and 90 % `get` commands with values of 1 KiB. The
/// tool verifies half of the values.
#[test]
fn memcaslap_reads_the_values_that_it_has_stored() {
    let Some(tool) = find_tool("memcaslap") else {
        return skip("memcaslap", "libmemcached-tools");
    };
    let server = Server::start_kv();
    let output = std::process::Command::new(tool)
        .args(["-s", &format!("127.0.0.1:{}", server.port())])
        .args(["-T", "1", "-c", "16", "-x", "20000", "-v", "0.5"])
        .output()
        .expect("memcaslap starts");
    let text = String::from_utf8_lossy(&output.stdout);
    for line in [
        "cmd_get: 18000",
        "cmd_set: 2000",
        "get_misses: 0",
        "verify_failed: 0",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "no {line} in {text}"
        );
    }
}

/// libmemcached's `memccapable`: 27 tests of the classic protocol.
#[test]
fn memccapable_finds_no_fault() {
    let Some(tool) = find_tool("memccapable") else {
        return skip("memccapable", "libmemcached-tools");
    };
    let server = Server::start_kv();
    let output = std::process::Command::new(tool)
        .args(["-a", "-h", "127.0.0.1", "-p", &server.port().to_string()])
        .output()
        .expect("memccapable starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let text = text + &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("All tests passed"), "{text}");
    assert!(!text.contains("[FAIL]"), "{text}");
    assert!(text.matches("[pass]").count() >= 27, "{text}");
}
