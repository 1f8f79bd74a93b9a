//! Isolation of bytes between users, and attacks that delay others by memory.

use serde_json::Value;
use tidelane_tests::{Outcome, Running, Service, Side, Stop, Wire, ensure, tools, wire::SERVER};

use super::{Origin, attacker, lines, readable_copy};
use crate::support::{SHORT, check_load, echo_client, echo_server};

/// Data that the other user's clients send.
const SECRET: &str = "TIDELANE-SECRET";
/// Number of these clients.
const CLIENTS: u64 = 100;

/// Root's connections that wait for accept leave their data in buffers of the service. A connection
/// of another user that waits later does not transfer any of it.
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
    // The secret is behind the positions to which the other user's clients send.
    let text = format!("{}{SECRET}", ".".repeat(100));
    let senders = send(&wire, &service, 7000, CLIENTS, &text)?;
    let owned = staged(owner)?;
    // The premise: data received before accept is in the memory of the accepting program.
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

/// The kernel refuses a program that tries to punch holes into its own region. No core of the
/// service waits for such a hole, and requests of other users are answered.
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

/// Starts kernel clients that send `text` to the server's `port` and stay connected.
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

/// Returns the attack's result.
fn staged(program: Running) -> Result<Value, Stop> {
    let finished = program.wait(SHORT)?.success()?;
    Ok(lines(&finished)?.pop().unwrap_or_default())
}
