//! Whose bytes are in whose memory, and who may delay whom with memory.

use serde_json::Value;
use tidelane_tests::{Outcome, Running, Service, Side, Stop, Wire, ensure, tools, wire::SERVER};

use super::{Origin, attacker, lines, readable_copy};
use crate::support::{SHORT, check_load, echo_client, echo_server};

/// Bytes that the other user's clients send.
const SECRET: &str = "TIDELANE-SECRET";
/// How many of them there are.
const CLIENTS: u64 = 100;

/// Connections of root's that waited for accept leave their bytes in the service. A connection of
/// another user's that waited brings none of them along.
pub fn bytes_that_waited_stay_with_their_user() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let owner = readable_copy(&wire, "tidelane-attacker")?;
    let owner = wire
        .program(Side::Server, &owner.to_string_lossy())
        .arg("--service")
        .arg(service.name())
        .args(&format!("staged --bind 0.0.0.0:7000 {SECRET} --wait 2"))
        .spawn()?;
    // Behind what the other user's clients will send to the same places.
    let text = format!("{}{SECRET}", ".".repeat(100));
    let senders = send(&wire, &service, 7000, CLIENTS, &text)?;
    let owned = staged(owner)?;
    // The premise: what was received before accept is in the memory of the program that accepts.
    ensure!(owned["clients"] == CLIENTS, "{owned}");
    ensure!(owned["found"] == CLIENTS, "{owned}");
    drop(senders);

    let thief = attacker(&wire, Side::Server, Origin::User, &service)?
        .args(&format!("staged --bind 0.0.0.0:7001 {SECRET} --wait 1"))
        .spawn()?;
    let _sender = send(&wire, &service, 7001, 10, "?")?;
    let stolen = staged(thief)?;
    ensure!(stolen["clients"] == 10, "{stolen}");
    ensure!(stolen["found"] == 0, "another user's bytes: {stolen}");
    Ok(())
}

/// A program that takes pages away from its own region has the kernel refuse that: no core of the
/// service ever waits in a hole that is being punched, and others' requests are answered.
pub fn a_program_cannot_punch_holes_under_the_service() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    let client = echo_client(&wire, Side::Client, 7000)?.args("--connections 1 --seconds 8");
    let client = client.spawn()?;
    let attack = attacker(&wire, Side::Server, Origin::User, &service)?
        .args("punch --threads 2 --mib 256 --seconds 3");
    let line = attack.run(SHORT)?.json()?;
    let load = client.wait(SHORT)?.success()?.json()?;
    check_load(&load)?;
    for kind in ["punched", "removed", "shrunk"] {
        ensure!(line[kind] == 0, "{line}");
    }
    ensure!(line["refused"].as_u64() > Some(0), "{line}");
    Ok(())
}

/// Kernel clients that send `text` to the server's `port` and stay.
fn send(
    wire: &Wire,
    service: &Service,
    port: u16,
    clients: u64,
    text: &str,
) -> Result<Running, Stop> {
    tools::wait_until(SHORT, "the listener", || service.has_listener(port))?;
    let script = format!(
        "for _ in $(seq {clients}); do exec {{s}}<>/dev/tcp/{SERVER}/{port} \
         && printf '%s' '{text}' >&$s; done; sleep 60"
    );
    wire.program(Side::Client, "bash")
        .arg("-c")
        .arg(script)
        .spawn()
}

/// The attack's result.
fn staged(program: Running) -> Result<Value, Stop> {
    let finished = program.wait(SHORT)?.success()?;
    Ok(lines(&finished)?.pop().unwrap_or_default())
}
