//! Several attacks on the service (`tidelaned`) at the same time, while another user has
//! connections.

use std::env;

use serde_json::Value;
use tidelane_tests::{Outcome, Program, Running, Side, Wire, ensure, tools, wire::SERVER};

use super::{Origin, attacker, lines};
use crate::support::{SHORT, check_load, echo_client, echo_server};

/// Maximum difference between the numbers of the service's descriptors at the end and at the start
/// of the test. At the end, the service still needs descriptors for the echo server.
const KEPT_MAX: usize = 8;
/// The attacks that `tidelane-attacker barrage` runs at the same time.
const ATTACKS: [&str; 6] = [
    "claims",
    "registrations",
    "descriptors",
    "messages",
    "holes",
    "scribbling",
];

/// Returns the duration in seconds of each measurement except the last one, which follows the
/// attacks. The duration is TIDELANE_BARRAGE, or 4 if this variable is not set.
fn seconds() -> u64 {
    tools::env_number("TIDELANE_BARRAGE", 4)
}

/// One attacker runs `barrage`, and another runs `linger` at the same time. The connections of
/// another user have no error, and the service frees the attackers' descriptors.
///
/// The output has the latencies of the other user's requests: without an attack, beside threads
/// that only use CPU time, during the attacks, and after the attacks. The service has CPU 1. The
/// attackers share CPU 0 with the other user's client, but run in SCHED_IDLE, so that they take no
/// CPU time from the client. A difference in latency is therefore an effect of the service. If the
/// environment variable `TIDELANE_BARRAGE_ORDINARY` is set, the attackers have the usual priority.
pub fn attacks_at_once_take_nothing_from_others() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service_on_cores(Side::Server, "1", &[])?;
    let before = service.descriptors_without_claims()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    let idle_attacker = |origin| attacker(&wire, Side::Server, origin, &service).map(on_cpu0_idle);
    let length = |program: Program| program.arg("--seconds").arg(seconds() + 1);

    traffic(&wire, seconds() as f64, "alone:   ")?;
    let spin = idle_attacker(Origin::User)?
        .args("spin --threads")
        .arg(ATTACKS.len());
    let spin = length(spin).spawn()?;
    begun(&spin)?;
    traffic(&wire, seconds() as f64, "spinning:")?;
    spin.wait(SHORT)?.success()?;

    let lingering = length(idle_attacker(Origin::SecondUser)?.args("linger --linger 2 --times 3"));
    let lingering = lingering.spawn()?;
    let barrage = idle_attacker(Origin::User)?.args("barrage --connect");
    let barrage = length(barrage.arg(format!("{SERVER}:7000"))).spawn()?;
    begun(&barrage)?;
    traffic(&wire, seconds() as f64, "attacked:")?;
    check_counts(&lines(&barrage.wait(SHORT)?.success()?)?)?;
    let sent = lines(&lingering.wait(SHORT)?.success()?)?;
    ensure!(sent[0]["sent"] == 3, "descriptors were not sent: {sent:?}");

    ensure!(service.alive(), "the service ended");
    traffic(&wire, 0.3, "after:   ")?;
    tools::wait_until(SHORT, "what the attacks left behind to go", || {
        Ok(service.descriptors_without_claims()? <= before + KEPT_MAX)
    })?;
    Ok(())
}

/// Binds an attacker to CPU 0, the CPU of the other user's client. Puts the attacker into
/// SCHED_IDLE unless TIDELANE_BARRAGE_ORDINARY is set.
fn on_cpu0_idle(attacker: Program) -> Program {
    let attacker = attacker.cpus("0");
    match env::var_os("TIDELANE_BARRAGE_ORDINARY") {
        Some(_) => attacker,
        None => attacker.sched_idle(),
    }
}

/// Waits until an attacker has printed that its attack began.
fn begun(attacker: &Running) -> Outcome {
    tools::wait_until(SHORT, "the attacks to begin", || {
        Ok(attacker.output().0.contains("began"))
    })
}

/// Runs an echo client for `seconds` and prints its latency in a line that begins with `when`.
/// Fails if the client has an error.
fn traffic(wire: &Wire, seconds: f64, when: &str) -> Outcome {
    let client = echo_client(wire, Side::Client, 7000)?;
    let client = client.args("--connections 1 --bytes 1000 --warmup 0.2");
    let client = client.cpus("0").arg("--seconds").arg(seconds);
    let line = client.run(SHORT)?.json()?;
    check_load(&line)?;
    let latency = &line["latency_us"];
    println!(
        "{when} {} requests, p50 {} us, p99 {} us, longest {} us",
        line["requests"], latency["p50"], latency["p99"], latency["max"]
    );
    Ok(())
}

/// Fails unless each attack of `barrage` made more than ten requests.
fn check_counts(lines: &[Value]) -> Outcome {
    let counts = lines.last().cloned().unwrap_or_default();
    println!("{counts}");
    for attack in ATTACKS {
        let tries = counts["counts"][attack]["tries"].as_u64();
        ensure!(tries > Some(10), "{attack} was hardly tried: {counts}");
    }
    Ok(())
}
