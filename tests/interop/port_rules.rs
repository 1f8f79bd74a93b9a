//! The rules of the service's configuration, for programs with a stack of their own.

use rustix::process::Signal;
use tidelane_tests::{
    Outcome, Service, Side, Stop, Wire, ensure, fail,
    service::run_dir,
    tools,
    wire::{CLIENT, SERVER},
};

use crate::{
    ports::{HTTP, http, ports, start},
    support::SHORT,
};

/// Returns a configuration with these rules that admits all users.
fn config(rules: &str) -> String {
    format!("{rules}\n[access]\nusers = ['*']\n")
}

/// Reloads the service with these rules. Fails if the service rejects them.
fn reload(service: &Service, rules: &str) -> Outcome {
    match service.reload(&config(rules))? {
        Ok(()) => Ok(()),
        Err(error) => fail!("{rules}: {error}"),
    }
}

/// Gets a page of the server with curl. Returns curl's exit status: 0 for success, 7 if the
/// connection is refused, 28 if there is no answer for a second.
fn curl(wire: &Wire) -> Result<Option<i32>, Stop> {
    let url = format!("http://{SERVER}:{HTTP}/3000");
    let curl = wire
        .program(Side::Client, "curl")
        .args("-sS --max-time 1 -o /dev/null");
    Ok(curl.arg(url).finish(SHORT)?.status.code())
}

/// Returns a counter of the only port.
fn counter(service: &Service, name: &str) -> Result<u64, Stop> {
    let listed = ports(service)?;
    let count = listed.first().map(|port| port[name].as_u64());
    count
        .flatten()
        .ok_or_else(|| Stop::Fail(format!("no port with the counter {name}")))
}

/// Returns the number of packets that the rules did not let port 0 send.
fn refused(service: &Service) -> Result<u64, Stop> {
    let listed = ports(service)?;
    let count = listed.first().map(|port| port["refused"]["rule"].as_u64());
    Ok(count.flatten().unwrap_or(0))
}

/// A rule with direction `in` accepts, refuses or drops the clients of a port, while the port may
/// open no connections. A service with rules opens ports, and new rules apply to an open port.
pub fn clients_of_a_port_are_accepted_refused_and_dropped() -> Outcome {
    tools::require_tools(&["curl"])?;
    let wire = Wire::new()?;
    let no_opens = "[[rule]]\naction = 'refuse'\ndirection = 'out'\n";
    let service = wire.configured_service(&config(no_opens), &[])?;
    let mut server = start(http(&wire, &service, HTTP)?)?;
    ensure!(curl(&wire)? == Some(0), "the port may answer");
    for (rules, expected) in [
        ("default = 'accept'".to_owned(), 0),
        (format!("[[rule]]\naction = 'drop'\npeer = '{CLIENT}'"), 28),
        ("[[rule]]\naction = 'refuse'\nuser = 'root'".to_owned(), 7),
        ("[[rule]]\naction = 'refuse'\nuser = 65534".to_owned(), 0),
        (
            format!("default = 'refuse'\n[[rule]]\naction = 'accept'\nlocal_port = {HTTP}"),
            0,
        ),
        ("default = 'refuse'".to_owned(), 7),
        ("default = 'drop'".to_owned(), 28),
    ] {
        reload(&service, &rules)?;
        let status = curl(&wire)?;
        ensure!(
            status == Some(expected),
            "{rules}: curl ended with {status:?}"
        );
    }
    let hits = service.ask("rules")?["rules"][0]["hits"].as_u64();
    ensure!(hits > Some(0), "no decision is counted: {hits:?}");
    server.check_alive()
}

/// A client on a port gets no answer of a server that the rules refuse, and its packets are
/// counted.
pub fn a_port_does_not_reach_a_refused_peer() -> Outcome {
    let wire = Wire::new()?;
    let rules = format!("[[rule]]\naction = 'refuse'\ndirection = 'out'\npeer_port = {HTTP}");
    let service = wire.configured_service(&config(&rules), &[])?;
    let path = tools::binary("tidelane-http")?;
    let server = wire.program(Side::Client, &path.to_string_lossy());
    let server = server.args(&format!(
        "--kernel --address {CLIENT} --port {HTTP} --seconds 50"
    ));
    let mut server = start(server)?;
    let path = tools::binary("tidelane-http-client")?;
    let client = wire.program(Side::Server, &path.to_string_lossy());
    let socket = run_dir(service.name()).join("control.sock");
    let client = client.env("TIDELANE_SOCKET", &socket.to_string_lossy());
    let client = client.args(&format!("--address {SERVER} --connect {CLIENT}:{HTTP}"));
    let client = client
        .args("--connections 2 --seconds 20 --bytes 64")
        .spawn()?;
    tools::wait_until(SHORT, "a refused SYN", || Ok(refused(&service)? > 0))?;
    let received = counter(&service, "received")?;
    ensure!(received == 0, "the server has answered: {received}");
    reload(&service, "default = 'accept'")?;
    tools::wait_until(SHORT, "answers without the rule", || {
        Ok(counter(&service, "received")? > 10)
    })?;
    client.end(Signal::TERM, SHORT)?;
    server.check_alive()
}

/// Rules that change end an open connection of a port: its client gets a RST.
pub fn new_rules_end_a_download_from_a_port() -> Outcome {
    tools::require_tools(&["curl"])?;
    let wire = Wire::new()?;
    let service = wire.configured_service(&config(""), &[])?;
    let mut server = start(http(&wire, &service, HTTP)?)?;
    let url = format!("http://{SERVER}:{HTTP}/60000000");
    let curl = wire
        .program(Side::Client, "curl")
        .args("-sS --limit-rate 2M --max-time 30 -o /dev/null");
    let curl = curl.arg(url).spawn()?;
    tools::wait_until(SHORT, "the download", || {
        Ok(counter(&service, "sent")? > 100)
    })?;
    reload(
        &service,
        &format!("[[rule]]\naction = 'refuse'\nlocal_port = {HTTP}"),
    )?;
    let finished = curl.wait(SHORT)?;
    // 56: the connection was reset.
    ensure!(finished.status.code() == Some(56), "{finished}");
    server.check_alive()
}
