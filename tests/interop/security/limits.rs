//! Limits: one user requests as many resources of the service (`tidelaned`) as possible. Other
//! users are served meanwhile.
//!
//! An accelerated program runs under `tidelane run`: the service carries its TCP connections
//! instead of the kernel.

use std::{thread, time::Duration};

use serde_json::Value;
use tidelane_tests::{Outcome, Running, Service, Side, Stop, Wire, ensure, tools, wire::SERVER};

use super::{Origin, attacker, lines};
use crate::support::{SHORT, check_load, echo_client, echo_server};

/// Maximum growth of the service's resident memory, in KiB, while one program repeats a request.
const GROWTH_KIB_MAX: u64 = 64 << 10;

/// Programs of root, which must be served during an attack.
struct Others {
    _server: Running,
    client: Running,
}

impl Others {
    /// Starts an accelerated echo server, and a client on the kernel with eight connections to it.
    fn start(wire: &Wire, service: &Service) -> Result<Self, Stop> {
        let _server = echo_server(wire, Some(service), 7000)?;
        let client = echo_client(wire, Side::Client, 7000)?.args("--connections 8 --seconds 60");
        let client = client.spawn()?;
        thread::sleep(Duration::from_millis(300));
        Ok(Self { _server, client })
    }

    /// Starts a new server of root on `port` and a new client under `tidelane run`. Fails unless
    /// the server is accelerated and serves the client.
    fn check_newcomer(&self, wire: &Wire, service: &Service, port: u16) -> Outcome {
        let _server = echo_server(wire, Some(service), port)?;
        ensure!(
            service.has_listener(port)?,
            "root's listener is the kernel's"
        );
        let client = echo_client(wire, Side::Server, port)?.args("--seconds 0.3");
        check_load(&client.accelerated(service).run(SHORT)?.json()?)
    }

    /// Ends the client. Fails if one of its connections failed, or if no request succeeded.
    fn check(self) -> Outcome {
        let ended = self
            .client
            .signal_and_wait(rustix::process::Signal::TERM, SHORT)?;
        check_load(&ended.success()?.json()?)
    }
}

/// Returns the amount of `resource` that the user `uid` has, and the number of the user's refused
/// requests for this resource.
fn usage_and_refusals(service: &Service, uid: u64, resource: &str) -> Result<(u64, u64), Stop> {
    let answer = service.ask("users")?;
    let users = answer["users"].as_array().cloned().unwrap_or_default();
    let user = users.into_iter().find(|user| user["uid"] == uid);
    let line = user.map_or(Value::Null, |user| user["resources"][resource].clone());
    let number = |name: &str| line[name].as_u64().unwrap_or(0);
    Ok((number("used"), number("refused")))
}

/// User id of the attacker.
const NOBODY: u64 = 65_534;

/// The attacker makes idle registrations (sessions of programs with the service) up to its limit. A
/// new program of root can still register.
pub fn idle_registrations_shut_nobody_out() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let others = Others::start(&wire, &service)?;
    let attack = attacker(&wire, Side::Server, Origin::User, &service)?;
    let attack = attack
        .args("idle-registrations 5000 --seconds 20")
        .spawn()?;
    tools::wait_until(SHORT, "the attacker to be refused", || {
        Ok(usage_and_refusals(&service, NOBODY, "registrations")?.1 > 0)
    })?;
    others.check_newcomer(&wire, &service, 7001)?;
    let (used, _) = usage_and_refusals(&service, NOBODY, "registrations")?;
    ensure!((1000..=1024).contains(&used), "{used} registrations");
    attack.kill_group();
    drop(attack);
    tools::wait_until(SHORT, "the attacker's end", || {
        Ok(usage_and_refusals(&service, NOBODY, "programs")?.0 == 0)
    })?;
    others.check()
}

/// The service closes connections to the registration socket on which no message arrives.
pub fn silent_registrations_end() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let before = service.descriptors()?;
    let attack = attacker(&wire, Side::Server, Origin::User, &service)?;
    let attack = attack
        .args("idle-registrations 500 --silent --seconds 30")
        .spawn()?;
    tools::wait_until(SHORT, "the attacker's registrations", || {
        Ok(usage_and_refusals(&service, NOBODY, "registrations")?.0 == 500)
    })?;
    tools::wait_until(SHORT, "the end of registrations without a program", || {
        Ok(usage_and_refusals(&service, NOBODY, "registrations")?.0 == 0)
    })?;
    ensure!(service.descriptors()? <= before + 8, "descriptors stay");
    attack.kill_group();
    Ok(())
}

/// The attacker repeats one kind of request after another for three seconds each, as fast as it
/// can. For each of the five kinds, the service's memory grows by at most [`GROWTH_KIB_MAX`], and
/// the service serves a new program of root meanwhile. After the attacker's end, the attacker's
/// resources of six kinds are freed.
pub fn one_program_does_not_grow_the_service() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let others = Others::start(&wire, &service)?;
    let ways = ["inherit", "contexts", "listeners", "notes", "answers"];
    for (port, way) in (7100..).zip(ways) {
        let before = service.resident_kib()?;
        let attack = attacker(&wire, Side::Server, Origin::User, &service)?;
        let attack = attack.arg("grow").arg(way).args("--seconds 3 --address");
        let attack = attack.arg(SERVER).spawn()?;
        thread::sleep(Duration::from_secs(1));
        others.check_newcomer(&wire, &service, port)?;
        thread::sleep(Duration::from_secs(1));
        let grown = service.resident_kib()?.saturating_sub(before);
        let finished = attack.wait(SHORT)?.success()?;
        println!("{way}: {grown} KiB; {}", finished.stdout.trim());
        ensure!(grown <= GROWTH_KIB_MAX, "{way}: grown by {grown} KiB");
        ensure!(lines(&finished)?[0]["obtained"] != 0, "{way}: {finished}");
    }
    tools::wait_until(SHORT, "the attacker's end", || {
        Ok(usage_and_refusals(&service, NOBODY, "programs")?.0 == 0)
    })?;
    for what in [
        "registrations",
        "contexts",
        "listeners",
        "descriptors",
        "holds",
    ] {
        let (used, _) = usage_and_refusals(&service, NOBODY, what)?;
        ensure!(used == 0, "{used} {what} stay");
    }
    others.check()
}

/// A limit in the configuration applies: root may have one accelerated listener. `tidelane ss`
/// shows this limit as the reason why a second listener is not accelerated.
pub fn limits_are_as_configured() -> Outcome {
    let wire = Wire::new()?;
    let limits = "[limits.user.root]\nlisteners = 1\n";
    let service = wire.configured_service(limits, &[])?;
    let _first = echo_server(&wire, Some(&service), 7000)?;
    let second = wire.load_tool(Side::Server, "echo-server")?;
    let second = second.args("--port 7001").accelerated(&service);
    let _second = wire.start_server(second, None, 7001)?;
    ensure!(
        service.has_listener(7000)?,
        "the first listener is the kernel's"
    );
    // Without a service argument, `start_server` waits only for the kernel's socket. The service
    // may answer later.
    let expected = Value::from("limit: listeners of user 0 (1)");
    tools::wait_until(SHORT, "the second listener's reason", || {
        let sockets = service.sockets()?;
        let of_port = |socket: &&Value| {
            let local = socket["local"].as_str().unwrap_or_default();
            local.ends_with(":7001")
        };
        let reason = sockets.iter().find(of_port).map(|socket| &socket["reason"]);
        Ok(reason == Some(&expected))
    })?;
    ensure!(
        !service.has_listener(7001)?,
        "the second listener is accelerated, too"
    );
    // The kernel serves the clients of the refused listener.
    let client = echo_client(&wire, Side::Client, 7001)?.args("--seconds 0.3");
    check_load(&client.run(SHORT)?.json()?)
}

/// A program sends requests, and does not read the service's answers. The service ends the session
/// of this program before the program has sent 250 requests.
pub fn unread_answers_end_a_session() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let attack = attacker(&wire, Side::Server, Origin::User, &service)?;
    let line = attack.args("grow unread --seconds 5").run(SHORT)?.json()?;
    ensure!(line["refused"] == 1, "the session did not end: {line}");
    let sent = line["obtained"].as_u64().unwrap_or(u64::MAX);
    ensure!((4..250).contains(&sent), "{sent} requests were sent");
    Ok(())
}

/// `net.core.somaxconn` limits the backlog of an accelerated listener, as on the kernel. The accept
/// queue has room for one connection more than the backlog.
pub fn a_backlog_is_no_longer_than_somaxconn() -> Outcome {
    let wire = Wire::new()?;
    wire.sysctl(Side::Server, "net.core.somaxconn", "3")?;
    let service = wire.service()?;
    let attack = attacker(&wire, Side::Server, Origin::User, &service)?;
    let attack = attack.args("listen --no-accept --bind 0.0.0.0:7000 --backlog 100 --seconds 8");
    let _attack = attack.spawn()?;
    tools::wait_until(SHORT, "the attacker's listener", || {
        service.has_listener(7000)
    })?;
    let script = format!(
        "for n in $(seq 12); do exec {{fd}}<>/dev/tcp/{SERVER}/7000 & done; sleep 1.5; \
         kill $(jobs -p)"
    );
    wire.program(Side::Client, "bash")
        .arg("-c")
        .arg(script)
        .finish(SHORT)?;
    let counters = service.counters()?;
    ensure!(
        counters["passive_opens"] == 4,
        "passive_opens is not somaxconn + 1: {counters}"
    );
    Ok(())
}
