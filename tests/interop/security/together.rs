//! All attacks at the same time, while another user carries traffic.

use std::env;

use serde_json::Value;
use tidelane_tests::{Outcome, Program, Running, Side, Stop, Wire, ensure, tools, wire::SERVER};

use super::{Origin, attacker, lines};
use crate::support::{SHORT, check_load, echo_client, echo_server};

/// Tolerance for the service's descriptors afterwards, for those of the echo server.
const KEPT_MAX: usize = 8;
/// The attacks of one run.
const ATTACKS: [&str; 6] = [
    "claims",
    "registrations",
    "descriptors",
    "messages",
    "holes",
    "scribbling",
];

/// Returns the duration of attacks and traffic in seconds. `TIDELANE_BARRAGE` sets a longer one.
fn seconds() -> u64 {
    tools::env_number("TIDELANE_BARRAGE", 4)
}

/// Claims, registrations, descriptors, messages, holes and random values of uid 65534, and
/// descriptors that take long to close of uid 65533, all at once. The traffic of another user loses
/// nothing.
///
/// The output compares the traffic's latency with that of undisturbed traffic, and with that beside
/// as many threads that only use the CPU. The service has CPU 1. The attacks run on CPU 0 in
/// SCHED_IDLE, as the traffic's two ends have precedence. The comparison therefore measures the
/// service and not the share of the CPU: threads that only use the CPU change nothing then.
/// `TIDELANE_BARRAGE_ORDINARY=1` gives the attacks the usual priority.
pub fn attacks_at_once_take_nothing_from_others() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service_on(Side::Server, "1", &[])?;
    let before = service.descriptors_beside_claims()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    let hostile =
        |origin| Ok::<_, Stop>(in_the_way(attacker(&wire, Side::Server, origin, &service)?));
    let length = |program: Program| program.arg("--seconds").arg(seconds() + 1);

    traffic(&wire, seconds() as f64, "alone:   ")?;
    let spin = hostile(Origin::User)?
        .args("spin --threads")
        .arg(ATTACKS.len());
    let spin = length(spin).spawn()?;
    begun(&spin)?;
    traffic(&wire, seconds() as f64, "spinning:")?;
    spin.wait(SHORT)?.success()?;

    let lingering = length(hostile(Origin::Accomplice)?.args("linger --linger 2 --times 3"));
    let lingering = lingering.spawn()?;
    let barrage = hostile(Origin::User)?.args("barrage --connect");
    let barrage = length(barrage.arg(format!("{SERVER}:7000"))).spawn()?;
    begun(&barrage)?;
    traffic(&wire, seconds() as f64, "attacked:")?;
    check_tolls(&lines(&barrage.wait(SHORT)?.success()?)?)?;
    let sent = lines(&lingering.wait(SHORT)?.success()?)?;
    ensure!(sent[0]["sent"] == 3, "descriptors were not sent: {sent:?}");

    ensure!(service.alive(), "the service ended");
    traffic(&wire, 0.3, "after:   ")?;
    tools::wait_until(SHORT, "what the attacks left behind to go", || {
        Ok(service.descriptors_beside_claims()? <= before + KEPT_MAX)
    })?;
    Ok(())
}

/// Puts an attacker on the CPU of the traffic.
fn in_the_way(attacker: Program) -> Program {
    let attacker = attacker.cpus("0");
    match env::var_os("TIDELANE_BARRAGE_ORDINARY") {
        Some(_) => attacker,
        None => attacker.yielding(),
    }
}

fn begun(attacker: &Running) -> Outcome {
    tools::wait_until(SHORT, "the attacks to begin", || {
        Ok(attacker.written().0.contains("began"))
    })
}

/// Runs verified echoes for some time and prints their latency.
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

/// Demands that each attack was carried out.
fn check_tolls(lines: &[Value]) -> Outcome {
    let tolls = lines.last().cloned().unwrap_or_default();
    println!("{tolls}");
    for attack in ATTACKS {
        let tries = tolls["tolls"][attack]["tries"].as_u64();
        ensure!(tries > Some(10), "{attack} was hardly tried: {tolls}");
    }
    Ok(())
}
