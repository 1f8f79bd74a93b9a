//! The rules in the configuration of the service (`tidelaned`), applied to mux ports. A mux port is
//! a pair of packet rings through which a program with a TCP/IP stack of its own shares the NIC.

use rustix::process::Signal;
use tidelane_tests::{
    Outcome, Running, Service, Side, Stop, Wire, ensure, tools,
    wire::{CLIENT, INTERFACE, SERVER},
};

use crate::{
    ports::{HTTP, http, ports},
    security::rules::{config, curl_status, reload},
    support::SHORT,
};

/// Gets a page of the HTTP server on the mux port with curl. Returns curl's exit status.
fn curl(wire: &Wire) -> Result<Option<i32>, Stop> {
    curl_status(wire, &format!("http://{SERVER}:{HTTP}/3000"))
}

/// Returns the counter `name` of the only mux port.
fn counter(service: &Service, name: &str) -> Result<u64, Stop> {
    let listed = ports(service)?;
    let count = listed.first().map(|port| port[name].as_u64());
    count
        .flatten()
        .ok_or_else(|| Stop::Fail(format!("no port with the counter {name}")))
}

/// Returns the number of packets of the only mux port that the service did not send because of a
/// rule.
fn refused(service: &Service) -> Result<u64, Stop> {
    let listed = ports(service)?;
    let count = listed.first().map(|port| port["refused"]["rule"].as_u64());
    Ok(count.flatten().unwrap_or(0))
}

/// Returns the numbers of packets that the only mux port has sent and received.
fn passed(service: &Service) -> Result<[u64; 2], Stop> {
    Ok([counter(service, "sent")?, counter(service, "received")?])
}

/// Reloads the service with rules that refuse the connections of the only mux port. Checks that the
/// mux port sends and receives no packet until two more of its packets are refused.
fn check_that_rules_stop_the_port(service: &Service, rules: &str) -> Outcome {
    reload(service, rules)?;
    let (before, refused_before) = (passed(service)?, refused(service)?);
    tools::wait_until(SHORT, "two refused packets", || {
        Ok(refused(service)? > refused_before + 1)
    })?;
    let after = passed(service)?;
    ensure!(
        after == before,
        "{before:?} packets passed before, {after:?} after"
    );
    Ok(())
}

/// Rules accept, refuse or drop the clients of a mux port. A rule with direction `out` does not
/// affect the clients. New rules apply to a mux port that is already in use.
pub fn clients_of_a_port_are_accepted_refused_and_dropped() -> Outcome {
    tools::require_tools(&["curl"])?;
    let wire = Wire::new()?;
    let no_opens = "[[rule]]\naction = 'refuse'\ndirection = 'out'\n";
    let service = wire.configured_service(&config(no_opens), &[])?;
    let mut server = http(&wire, &service, HTTP)?.spawn_ready(SHORT)?;
    ensure!(curl(&wire)? == Some(0), "the port does not answer a client");
    // The exit status of curl is 0 for success, 7 if the connection is refused, and 28 if there is
    // no complete answer within a second.
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

/// Starts an HTTP client on a mux port, with two connections to a server at [`CLIENT`]. The client
/// needs the link address of this server's interface (`--gateway`).
fn client_on_a_port(wire: &Wire, service: &Service) -> Result<Running, Stop> {
    let path = format!("/sys/class/net/{INTERFACE}/address");
    let address = wire.program(Side::Client, "cat").arg(path).run(SHORT)?;
    let gateway = address.success()?.stdout;
    let path = tools::binary("tidelane-http-client")?;
    let client = wire.program(Side::Server, &path.to_string_lossy());
    let client = client.registering_at(service);
    let client = client.args(&format!("--address {SERVER} --connect {CLIENT}:{HTTP}"));
    let client = client.arg("--gateway").arg(gateway.trim());
    client
        .args("--connections 2 --seconds 60 --bytes 64")
        .spawn()
}

/// A client on a mux port gets no answer from a server that a rule refuses. The service counts the
/// refused packets. The client gets answers after the rule is removed, and none after the rule is
/// back.
pub fn a_port_does_not_reach_a_refused_peer() -> Outcome {
    let wire = Wire::new()?;
    let rules = format!("[[rule]]\naction = 'refuse'\ndirection = 'out'\npeer_port = {HTTP}");
    let service = wire.configured_service(&config(&rules), &[])?;
    let path = tools::binary("tidelane-http")?;
    let server = wire.program(Side::Client, &path.to_string_lossy());
    let server = server.args(&format!(
        "--kernel --address {CLIENT} --port {HTTP} --seconds 100"
    ));
    let mut server = server.spawn_ready(SHORT)?;
    let client = client_on_a_port(&wire, &service)?;
    tools::wait_until(SHORT, "a refused SYN", || Ok(refused(&service)? > 0))?;
    ensure!(
        passed(&service)? == [0, 0],
        "packets passed: {:?}",
        passed(&service)?
    );
    reload(&service, "default = 'accept'")?;
    tools::wait_until(SHORT, "answers without the rule", || {
        Ok(counter(&service, "received")? > 10)
    })?;
    check_that_rules_stop_the_port(&service, &rules)?;
    client.signal_and_wait(Signal::TERM, SHORT)?;
    server.check_alive()
}

/// A reloaded rule that refuses the connection of a running download from a mux port stops the
/// download immediately.
pub fn new_rules_stop_a_download_from_a_port() -> Outcome {
    const LEN: u64 = 60_000_000;
    // The rate limit makes the download last for a minute, so that the rules change before its end.
    const RATE: &str = "[limits]\nport_bytes_per_second = 1000000";
    tools::require_tools(&["curl"])?;
    let wire = Wire::new()?;
    let service = wire.configured_service(&config(RATE), &[])?;
    let mut server = http(&wire, &service, HTTP)?.spawn_ready(SHORT)?;
    let curl = wire
        .program(Side::Client, "curl")
        .args("-sS --max-time 5 -o /dev/null -w %{size_download}");
    let url = format!("http://{SERVER}:{HTTP}/{LEN}");
    let curl = curl.arg(url).spawn()?;
    tools::wait_until(SHORT, "the download", || {
        Ok(counter(&service, "sent")? > 100)
    })?;
    let rules = format!("[[rule]]\naction = 'refuse'\nlocal_port = {HTTP}\n{RATE}");
    check_that_rules_stop_the_port(&service, &rules)?;
    let finished = curl.wait(SHORT)?;
    // Exit status 28: curl's time limit is over. Exit status 56: the service has answered a segment
    // of the client with a RST.
    let is_stopped = matches!(finished.status.code(), Some(28 | 56));
    let got: u64 = finished.stdout.trim().parse().unwrap_or(LEN);
    ensure!(is_stopped && got < LEN, "{got} bytes: {finished}");
    server.check_alive()
}

/// A reloaded rule that refuses an open connection of a mux port ends the connection: the service
/// answers the next segment of the client with a RST.
pub fn new_rules_reset_the_client_of_a_port() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.configured_service(&config(""), &[])?;
    let mut server = http(&wire, &service, HTTP)?.spawn_ready(SHORT)?;
    // Ten requests per second on one connection, until a write fails.
    let script = format!(
        "exec 3<>/dev/tcp/{SERVER}/{HTTP} || exit 3; \
         (trap '' PIPE; while printf 'GET /64 HTTP/1.1\r\nHost: t\r\n\r\n' >&3; \
         do sleep 0.1; done) & cat <&3"
    );
    let client = wire.program(Side::Client, "timeout").arg("15");
    let client = client.args("bash -c").arg(script).spawn()?;
    tools::wait_until(SHORT, "three answers", || {
        Ok(client.output().0.matches("200 OK").count() > 2)
    })?;
    reload(
        &service,
        &format!("[[rule]]\naction = 'refuse'\nlocal_port = {HTTP}"),
    )?;
    let before = passed(&service)?;
    let finished = client.wait(SHORT)?;
    let is_reset = finished.stderr.contains("cat: -: Connection reset by peer");
    ensure!(is_reset, "{finished}");
    ensure!(passed(&service)? == before, "a packet passed");
    server.check_alive()
}
