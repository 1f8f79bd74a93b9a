//! Access to a service's sockets.

use tidelane_tests::{Outcome, Side, Wire, ensure, tools};

use super::{Origin, as_attacker, attacker, hear, lines};
use crate::support::SHORT;

/// Tests the premises of all other cases: the attacker's container has no interface, and the
/// attacker can open a connection with its own frames where nothing forbids it.
pub fn what_the_attacker_can_do() -> Outcome {
    let wire = Wire::new()?;
    let shell = as_attacker(&wire, Side::Server, Origin::Container).arg("cat");
    let interfaces = shell.arg("/proc/self/net/dev").run(SHORT)?.stdout;
    ensure!(interfaces.contains("lo:"), "no loopback: {interfaces}");
    ensure!(!interfaces.contains("eth1:"), "the wire: {interfaces}");

    let service = wire.service()?;
    let attack = attacker(&wire, Side::Server, Origin::User, &service)?
        .args("listen --bind 0.0.0.0:7000 --seconds 2 --banner served");
    let attack = attack.spawn()?;
    tools::wait_until(SHORT, "the attacker's own listener", || {
        service.has_listener(7000)
    })?;
    let heard = hear(&wire, Side::Client, 7000)?;
    ensure!(heard == "served", "the client read {heard:?}");
    let finished = attack.wait(SHORT)?.success()?;
    let lines = lines(&finished)?;
    let clients = lines.last().map(|line| &line["clients"]);
    ensure!(clients == Some(&1.into()), "{finished}");
    Ok(())
}

/// Another user of the service's own namespace gets an answer.
pub fn another_user_is_answered() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let probe = attacker(&wire, Side::Server, Origin::User, &service)?.arg("probe");
    let line = probe.run(SHORT)?.json()?;
    ensure!(line["probe"] == "obtained", "{line}");
    Ok(())
}
