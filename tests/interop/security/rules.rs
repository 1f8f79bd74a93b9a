//! The rules in the configuration of the service (`tidelaned`). Each rule accepts, refuses or drops
//! connections. If no rule matches a connection, the default decides.

use std::time::{Duration, Instant};

use serde_json::Value;
use tidelane_tests::{
    Nginx, Outcome, Service, Side, Stop, Wire, ensure, fail,
    nginx::NginxOptions,
    tools,
    wire::{CLIENT, SERVER},
};

use crate::support::{SHORT, check_load, echo_client, echo_server};

/// Returns a configuration that has the rules `rules` and admits all users.
pub fn config(rules: &str) -> String {
    format!("{rules}\n[access]\nusers = ['*']\n")
}

/// Makes the service reload its configuration, with the rules `rules`. Fails if the service rejects
/// the rules.
pub fn reload(service: &Service, rules: &str) -> Outcome {
    match service.reload(&config(rules))? {
        Ok(()) => Ok(()),
        Err(error) => fail!("{rules}: {error}"),
    }
}

/// Gets `url` with curl. Returns curl's exit status: 0 for success, 7 if the connection is refused,
/// 28 if curl has no complete answer after a second.
pub fn curl_status(wire: &Wire, url: &str) -> Result<Option<i32>, Stop> {
    let curl = wire
        .program(Side::Client, "curl")
        .args("-sS --max-time 1 -o /dev/null");
    Ok(curl.arg(url).finish(SHORT)?.status.code())
}

/// Gets a file from nginx with curl. Returns curl's exit status ([`curl_status`]).
fn curl(wire: &Wire) -> Result<Option<i32>, Stop> {
    curl_status(wire, &format!("http://{SERVER}/64"))
}

/// Returns the number of connections that each rule has decided, and at the end of the list the
/// number that the default has decided.
fn hits(service: &Service) -> Result<Vec<u64>, Stop> {
    let rules = service.ask("rules")?["rules"].take();
    let rules = rules.as_array().cloned().unwrap_or_default();
    Ok(rules
        .iter()
        .filter_map(|rule| rule["hits"].as_u64())
        .collect())
}

/// Rules accept, refuse or drop arriving connections by the local port, the peer's prefix and the
/// user of the server. A rule with direction `out` does not affect arriving connections.
pub fn clients_are_accepted_refused_and_dropped() -> Outcome {
    let wire = Wire::new()?;
    let refused = "[[rule]]\naction = 'refuse'\ndirection = 'in'\nlocal_port = 80\n";
    let service = wire.configured_service(&config(refused), &[])?;
    let _nginx = Nginx::start(&wire, Some(&service), &NginxOptions::default())?;
    ensure!(curl(&wire)? == Some(7), "local_port: {:?}", curl(&wire)?);
    ensure!(hits(&service)? == [1, 0], "hits: {:?}", hits(&service)?);
    for (rules, expected) in [
        ("default = 'accept'".to_owned(), 0),
        (format!("[[rule]]\naction = 'drop'\npeer = '{CLIENT}'"), 28),
        (
            "[[rule]]\naction = 'drop'\npeer = '192.0.2.0/24'".to_owned(),
            0,
        ),
        ("[[rule]]\naction = 'refuse'\nuser = 'root'".to_owned(), 7),
        ("[[rule]]\naction = 'refuse'\nuser = 65534".to_owned(), 0),
        (
            "[[rule]]\naction = 'refuse'\ndirection = 'out'".to_owned(),
            0,
        ),
        (
            "default = 'refuse'\n[[rule]]\naction = 'accept'\nlocal_port = '79-81'".to_owned(),
            0,
        ),
        ("default = 'refuse'".to_owned(), 7),
    ] {
        reload(&service, &rules)?;
        let status = curl(&wire)?;
        ensure!(
            status == Some(expected),
            "{rules}: curl ended with {status:?}"
        );
    }
    let tidelane = tools::binary("tidelane")?;
    let shown = wire.program(Side::Server, &tidelane.to_string_lossy());
    let shown = shown
        .args(&format!("rules --name {}", service.name()))
        .run(SHORT)?;
    ensure!(shown.stdout.contains("1  default: refuse"), "{shown}");
    Ok(())
}

/// A rule with direction `out` applies to connections that programs open. With the action `refuse`,
/// the connect of a program fails within three seconds. With the action `drop`, the connect gets no
/// answer. A rule for another user has no effect.
pub fn programs_are_refused_and_left_waiting() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.configured_service(&config(""), &[])?;
    let listener = wire
        .load_tool(Side::Client, "echo-server")?
        .args("--port 7000");
    let mut listener = listener.spawn()?;
    tools::wait_until(SHORT, "the kernel's server", || {
        listener.check_alive()?;
        wire.listens(Side::Client, 7000)
    })?;
    let connect = |limit: &str| {
        let script = format!("exec 3<>/dev/tcp/{CLIENT}/7000");
        let client = wire
            .program(Side::Server, "timeout")
            .arg(limit)
            .args("bash -c");
        client.arg(script).accelerated(&service).finish(SHORT)
    };
    ensure!(connect("5")?.status.success(), "failed without rules");
    let out =
        |action| format!("[[rule]]\naction = '{action}'\ndirection = 'out'\npeer_port = 7000");
    reload(&service, &out("refuse"))?;
    let started = Instant::now();
    let refused = connect("5")?;
    ensure!(
        refused.stderr.contains("Connection refused"),
        "refuse: {refused}"
    );
    ensure!(
        started.elapsed() < Duration::from_secs(3),
        "it took {:?}",
        started.elapsed()
    );
    reload(&service, &out("drop"))?;
    let dropped = connect("2")?;
    ensure!(dropped.status.code() == Some(124), "drop: {dropped}");
    reload(
        &service,
        "[[rule]]\naction = 'refuse'\ndirection = 'out'\nuser = 65534",
    )?;
    ensure!(connect("5")?.status.success(), "another user's rule acted");
    Ok(())
}

/// New rules apply to existing connections, also to a connection between two programs that use the
/// service. The service resets a connection that the new rules refuse. Other connections continue.
/// Invalid rules have no effect.
pub fn new_rules_look_at_connections_that_are_open() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.configured_service(&config(""), &[])?;
    let _one = echo_server(&wire, Some(&service), 7000)?;
    let _other = echo_server(&wire, Some(&service), 7001)?;
    let local = wire.load_tool(Side::Server, "echo-client")?;
    let local = local.arg("--connect").arg(format!("{SERVER}:7000"));
    let local = local
        .args("--seconds 20 --allow-errors")
        .accelerated(&service)
        .spawn()?;
    let refused = echo_client(&wire, Side::Client, 7000)?.args("--seconds 20 --allow-errors");
    let refused = refused.spawn()?;
    let allowed = echo_client(&wire, Side::Client, 7001)?
        .args("--seconds 4")
        .spawn()?;
    let connections = |port: u16| -> Result<usize, Stop> {
        let end = format!(":{port}");
        let local = |socket: &Value| socket["local"].as_str().unwrap_or_default().ends_with(&end);
        let mut sockets = service.sockets()?;
        sockets.retain(|socket| socket["state"] == "ESTABLISHED" && local(socket));
        Ok(sockets.len())
    };
    tools::wait_until(SHORT, "the connections", || {
        Ok(connections(7000)? == 2 && connections(7001)? == 1)
    })?;
    let Err(error) = service.reload("default = 'accept'\n[[rule]]\naction = 'refuze'\n")? else {
        fail!("invalid rules were accepted");
    };
    ensure!(error.contains("line 3"), "no line in: {error}");
    ensure!(connections(7000)? == 2, "invalid rules had an effect");
    reload(
        &service,
        "[[rule]]\naction = 'refuse'\nlocal_port = 7000\ndirection = 'in'",
    )?;
    tools::wait_until(SHORT, "the refused connections to go", || {
        Ok(connections(7000)? == 0 && connections(7001)? == 1)
    })?;
    check_load(&allowed.wait(SHORT)?.success()?.json()?)?;
    for client in [local, refused] {
        let finished = client.signal_and_wait(rustix::process::Signal::TERM, SHORT)?;
        let errors = finished.json()?["errors"].as_u64();
        ensure!(errors > Some(0), "no reset: {finished}");
    }
    let again = echo_client(&wire, Side::Client, 7000)?.args("--seconds 0.3");
    ensure!(
        !again.finish(SHORT)?.status.success(),
        "a refused connection was opened again"
    );
    Ok(())
}

/// SIGHUP makes the service read its configuration again, as `tidelane reload` does.
pub fn a_hang_up_reads_the_rules_again() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.configured_service(&config(""), &[])?;
    let _nginx = Nginx::start(&wire, Some(&service), &NginxOptions::default())?;
    ensure!(curl(&wire)? == Some(0), "without rules: {:?}", curl(&wire)?);
    service.hang_up(&config("default = 'refuse'"))?;
    tools::wait_until(SHORT, "the rules", || Ok(curl(&wire)? == Some(7)))?;
    service.hang_up(&config("default = 'accept'"))?;
    tools::wait_until(SHORT, "the rules to go", || Ok(curl(&wire)? == Some(0)))
}
