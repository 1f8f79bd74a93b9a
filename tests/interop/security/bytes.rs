//! The memory that programs share with the service (`tidelaned`): no user gets the bytes of another
//! user, and no user can block the service by punching holes into the memory (freeing its pages).
//!
//! An accelerated program runs under `tidelane run`: the service carries its TCP connections
//! instead of the kernel.

use serde_json::Value;
use tidelane_tests::{Outcome, Running, Service, Side, Stop, Wire, ensure, tools, wire::SERVER};

use super::{Origin, attacker, lines, readable_copy};
use crate::support::{SHORT, check_load, echo_client, echo_server};

/// Text that the clients of root's server send, and that the attacker searches for.
const SECRET: &str = "TIDELANE-SECRET";
/// Number of clients of root's server.
const CLIENTS: u64 = 100;

/// The service buffers the data of connections that wait in an accept queue. After the attacker has
/// accepted connections of its own, the memory that the attacker shares with the service contains
/// no data of root's connections.
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
    // The secret begins at byte 100 of a buffer. If the attacker got such a buffer, the single byte
    // that each of the attacker's clients sends would not overwrite the secret.
    let text = format!("{}{SECRET}", ".".repeat(100));
    let senders = send(&wire, &service, 7000, CLIENTS, &text)?;
    let owned = staged(owner)?;
    // The memory of root's server contains the secret of each client, which proves that the search
    // works.
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

/// The attacker makes calls that would free pages of the memory that it shares with the service.
/// The kernel refuses each call. Requests of another user are answered meanwhile.
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

/// Waits for an accelerated listener on `port`. Then starts a program that opens `clients`
/// connections to the listener over the kernel's stack, sends `text` on each connection, and keeps
/// the connections open.
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

/// Waits for the end of the attack `staged` and returns the last line of its output.
fn staged(program: Running) -> Result<Value, Stop> {
    let finished = program.wait(SHORT)?.success()?;
    Ok(lines(&finished)?.pop().unwrap_or_default())
}
