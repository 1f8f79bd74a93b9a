//! Claims of ports. A program that claims a port makes the service (`tidelaned`) take the packets
//! of this port. The program must pass a socket that the kernel has bound to the port. A claim must
//! not harm other users.
//!
//! An accelerated program runs under `tidelane run`: the service carries its TCP connections
//! instead of the kernel.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tidelane_tests::{
    Nginx, Outcome, Running, Service, Side, Stop, Wire, ensure,
    nginx::NginxOptions,
    running, tools,
    wire::{CLIENT, SERVER},
};

use super::{ATTACKER_ID, Origin, attacker, lines};
use crate::support::{SHORT, check_load, check_not_in_kernel, echo_client, echo_server};

/// A port that only root may bind.
const PRIVILEGED: u16 = 22;
/// Maximum number of ports that one user may reserve, as the test configures.
const PORTS_PER_USER: u64 = 2000;
/// Number of reservations that the attacker requests.
const TIMES: u64 = 8000;
/// Time limit of the attack. The attack lasts long, because the service also limits the rate of a
/// user's messages.
const LONG: Duration = Duration::from_secs(60);
/// Time limit for an answer of the admin socket on a busy machine.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Waits for the end of an attack. Returns the value of `key` in the first line of its output.
fn said(attack: Running, key: &str) -> Result<Value, Stop> {
    let finished = attack.wait(SHORT)?.success()?;
    let first = lines(&finished)?.into_iter().next().unwrap_or_default();
    Ok(first[key].clone())
}

/// Returns the number of claims of the service.
fn claims(service: &Service) -> Result<u64, Stop> {
    Ok(service.counters()?["claims"].as_u64().unwrap_or(0))
}

/// Fails unless root's echo server on `port` serves a client with four connections. The client
/// verifies the echo, and therefore fails if it reaches the attacker's server.
fn check_server_of_root(wire: &Wire, port: u16) -> Outcome {
    let client = echo_client(wire, Side::Client, port)?.args("--connections 4 --seconds 0.3");
    check_load(&client.run(SHORT)?.json()?)
}

/// The attacker makes a network namespace, in which the attacker may bind any port. The service
/// refuses to claim a port for a socket of that namespace.
pub fn a_socket_of_another_namespace_gives_no_claim() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _server = echo_server(&wire, None, PRIVILEGED)?;
    for kind in ["listen", "reserve"] {
        let attack = attacker(&wire, Side::Server, Origin::Container, &service)?
            .args(&format!("{kind} --bind 0.0.0.0:{PRIVILEGED} --seconds 3"))
            .spawn()?;
        check_server_of_root(&wire, PRIVILEGED)?;
        let finished = attack.wait(SHORT)?;
        ensure!(!finished.stdout.contains(":\"obtained\""), "{finished}");
    }
    ensure!(claims(&service)? == 0, "the service has claims");
    Ok(())
}

/// The service refuses to claim a port for a socket that is bound to another interface.
pub fn a_socket_of_another_interface_gives_no_claim() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let attack = attacker(&wire, Side::Server, Origin::User, &service)?
        .args("listen --bind 0.0.0.0:7000 --device lo")
        .spawn()?;
    let said = said(attack, "listen")?;
    ensure!(said == "refused: not entitled", "{said}");
    Ok(())
}

/// The attacker reserves a port (claims the port for a socket that does not listen). The socket has
/// SO_REUSEADDR, and root's server then listens on the same port. Clients reach root's server in
/// spite of the reservation.
pub fn a_reservation_takes_nothing_from_a_listener() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let attack = attacker(&wire, Side::Server, Origin::User, &service)?
        .args("reserve --bind 0.0.0.0:7000 --reuse-address --seconds 60")
        .spawn()?;
    tools::wait_until(SHORT, "the reservation", || Ok(claims(&service)? > 0))?;
    let _server = echo_server(&wire, None, 7000)?;
    check_server_of_root(&wire, 7000)?;
    ensure!(claims(&service)? > 0, "the premise: the port is reserved");
    attack.signal_and_wait(Signal::TERM, SHORT)?;
    check_server_of_root(&wire, 7000)
}

/// The attacker closes its listening socket, while its claim in the service continues. The service
/// holds the port in the kernel, so that no other program can bind the port and then lose its
/// clients to the attacker. The port is free when the attacker has ended.
pub fn a_claim_holds_the_port_after_its_socket_is_closed() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let attack = attacker(&wire, Side::Server, Origin::User, &service)?
        .args("listen --bind 0.0.0.0:7000 --reuse-address --close --seconds 60")
        .spawn()?;
    tools::wait_until(SHORT, "the listener", || service.has_listener(7000))?;
    tools::wait_until(SHORT, "the end of the kernel's listener", || {
        let ss = wire.program(Side::Server, "ss").args("-Hltn sport = :7000");
        Ok(ss.run(SHORT)?.stdout.trim().is_empty())
    })?;
    let second = wire.load_tool(Side::Server, "echo-server")?;
    let finished = second.args("--port 7000").finish(SHORT)?;
    let refused = !finished.status.success() && finished.stderr.contains("in use");
    ensure!(refused, "another user got the port: {finished}");
    attack.signal_and_wait(Signal::TERM, SHORT)?;
    tools::wait_until(SHORT, "the claim's end", || Ok(claims(&service)? == 0))?;
    let _server = echo_server(&wire, None, 7000)?;
    check_server_of_root(&wire, 7000)
}

/// The attacker repeatedly binds a socket, reserves its port in the service by a RESERVE message,
/// and closes the socket. The attacker gets no more ports than [`PORTS_PER_USER`], the service's
/// admin socket answers in time, and the kernel still has ephemeral ports for other connections.
/// All claims end with the attacker.
pub fn a_loop_of_reservations_ends_at_the_users_share() -> Outcome {
    let wire = Wire::new()?;
    let everybody = "[access]\nnamespaces = ['*']\nusers = ['*']\n";
    let limits = format!("{everybody}[limits]\nports = {PORTS_PER_USER}\n");
    let service = wire.configured_service(&limits, &[])?;
    let _far = echo_server_of_the_client(&wire)?;
    let attack = attacker(&wire, Side::Server, Origin::User, &service)?
        .args(&format!(
            "reserve --bind 0.0.0.0:0 --times {TIMES} --close --seconds 1"
        ))
        .spawn()?;
    let (mut worst, mut most) = (Duration::ZERO, 0);
    let mut ask = || -> Result<u64, Stop> {
        let asked = Instant::now();
        let claims = claims(&service)?;
        worst = worst.max(asked.elapsed());
        most = most.max(claims);
        Ok(claims)
    };
    let share = "the user's share";
    tools::wait_until(LONG, share, || Ok(ask()? >= PORTS_PER_USER))?;
    let local = wire.load_tool(Side::Server, "echo-client")?;
    let local = local.args(&format!("--connect {CLIENT}:7001 --seconds 0.3"));
    check_load(&local.run(SHORT)?.json()?)?;
    let finished = attack.wait(LONG)?.success()?;
    tools::wait_until(SHORT, "the end of all claims", || Ok(ask()? == 0))?;
    ensure!(most == PORTS_PER_USER, "{most} claims at the same time");
    let line = lines(&finished)?.into_iter().next().unwrap_or_default();
    let obtained = line["obtained"].as_u64();
    ensure!(
        obtained.is_some_and(|obtained| (PORTS_PER_USER..TIMES).contains(&obtained)),
        "{line}"
    );
    ensure!(worst < ANSWER_MAX, "an answer took {worst:?}");
    Ok(())
}

/// Starts an echo server on the kernel in the client's namespace, and waits until it serves.
fn echo_server_of_the_client(wire: &Wire) -> Result<Running, Stop> {
    let server = wire.load_tool(Side::Client, "echo-server")?;
    let server = server.args("--port 7001").spawn()?;
    let probe = || {
        let client = wire.load_tool(Side::Server, "echo-client")?;
        let client = client.args(&format!("--connect {CLIENT}:7001 --seconds 0.1"));
        Ok(client.finish(SHORT)?.status.success())
    };
    tools::wait_until(SHORT, "the client's server", probe)?;
    Ok(server)
}

/// The attacker cannot bind a port below 1024, because the kernel checks the privilege. Root's
/// accelerated server on this port continues to serve.
pub fn each_user_has_the_ports_that_the_kernel_gives() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _root = echo_server(&wire, Some(&service), PRIVILEGED)?;
    let attack = attacker(&wire, Side::Server, Origin::User, &service)?
        .args(&format!("listen --bind {SERVER}:{PRIVILEGED} --reuse-port"))
        .finish(SHORT)?;
    ensure!(
        !attack.status.success(),
        "user {ATTACKER_ID} bound the port: {attack}"
    );
    check_server_of_root(&wire, PRIVILEGED)?;
    check_not_in_kernel(&wire, PRIVILEGED)
}

/// A socket of another user cannot join the SO_REUSEPORT group of an accelerated server, because
/// the kernel checks the user. The port is free when the last socket of the group is closed.
pub fn a_group_of_listeners_belongs_to_its_user() -> Outcome {
    const PORT: u16 = 8000;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let group = format!("server {{ listen {PORT} reuseport; location / {{ return 200 ok; }} }}");
    let options = NginxOptions {
        extra: group,
        ..NginxOptions::default()
    };
    let nginx = Nginx::start(&wire, Some(&service), &options)?;
    let listeners = || -> Result<usize, Stop> {
        let end = format!(":{PORT}");
        let mut sockets = service.sockets()?;
        sockets.retain(|socket| {
            let local = socket["local"].as_str().unwrap_or_default();
            socket["state"] == "LISTEN" && socket["accelerated"] == true && local.ends_with(&end)
        });
        Ok(sockets.len())
    };
    ensure!(listeners()? > 0, "no listener is accelerated");
    let url = format!("http://{SERVER}:{PORT}/");
    let curl = || {
        let curl = wire.program(Side::Client, "curl").args("-sS --max-time 5");
        curl.arg(&url).finish(SHORT)
    };
    for _ in 0..20 {
        let answer = curl()?;
        ensure!(answer.stdout == "ok", "{answer}");
    }
    check_not_in_kernel(&wire, PORT)?;
    let join = || {
        let attack = attacker(&wire, Side::Server, Origin::User, &service)?;
        let attack = attack.args(&format!("listen --bind {SERVER}:{PORT} --reuse-port"));
        attack.finish(SHORT)
    };
    let joined = join()?;
    ensure!(
        !joined.status.success(),
        "user {ATTACKER_ID} joined: {joined}"
    );
    // The workers outlive the killed master.
    let workers = nginx.workers()?;
    drop(nginx);
    for worker in workers {
        running::send_signal(worker, Signal::TERM)?;
    }
    tools::wait_until(SHORT, "the port", || Ok(join()?.status.success()))
}

/// The attacker sends the service descriptors whose `close` blocks for a minute. Meanwhile, the
/// service serves other users.
pub fn a_lingering_descriptor_holds_up_nobody() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let attack = attacker(&wire, Side::Server, Origin::User, &service)?
        .args("linger --linger 60 --times 8 --seconds 60")
        .spawn()?;
    tools::wait_until(SHORT, "eight descriptors sent", || {
        Ok(attack.output().0.ends_with('\n'))
    })?;
    let asked = Instant::now();
    let _server = echo_server(&wire, Some(&service), 7000)?;
    check_server_of_root(&wire, 7000)?;
    check_not_in_kernel(&wire, 7000)?;
    service.ask("stat")?;
    ensure!(
        asked.elapsed() < SHORT,
        "the other users waited for {:?}",
        asked.elapsed()
    );
    let finished = attack.signal_and_wait(Signal::TERM, SHORT)?;
    let line = lines(&finished)?.into_iter().next().unwrap_or_default();
    ensure!(line["sent"] == 8, "the premise: {finished}");
    service.ask("stat").map(drop)
}
