//! The premises of the attacks in the other modules: the rights that an attacker has.
//!
//! A wire is two network namespaces, the server's and the client's, joined by a veth pair. The
//! service is the process `tidelaned`, which runs Tidelane's TCP/IP stack.

use tidelane_tests::{Outcome, Side, Wire, ensure, tools};

use super::{Origin, as_attacker, attacker, lines, read_all};
use crate::support::SHORT;

/// An attacker in a container has no interface of the wire. An attacker in the service's namespace
/// can make the service listen on a free port, and can then serve a client.
pub fn attackers_have_the_rights_that_the_tests_assume() -> Outcome {
    let wire = Wire::new()?;
    let shell = as_attacker(&wire, Side::Server, Origin::Container).arg("cat");
    let interfaces = shell.arg("/proc/self/net/dev").run(SHORT)?.stdout;
    ensure!(interfaces.contains("lo:"), "no loopback: {interfaces}");
    ensure!(
        !interfaces.contains("eth1:"),
        "an interface of the wire: {interfaces}"
    );

    let service = wire.service()?;
    let attack = attacker(&wire, Side::Server, Origin::User, &service)?
        .args("listen --bind 0.0.0.0:7000 --seconds 2 --banner served");
    let attack = attack.spawn()?;
    tools::wait_until(SHORT, "the attacker's own listener", || {
        service.has_listener(7000)
    })?;
    let answer = read_all(&wire, Side::Client, 7000)?;
    ensure!(answer == "served", "the client read {answer:?}");
    let finished = attack.wait(SHORT)?.success()?;
    let lines = lines(&finished)?;
    let clients = lines.last().map(|line| &line["clients"]);
    ensure!(clients == Some(&1.into()), "{finished}");
    Ok(())
}

/// The service answers the PROBE message of another user in the service's namespace. A program
/// sends PROBE to learn whether the service would admit it.
pub fn another_user_is_answered() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let probe = attacker(&wire, Side::Server, Origin::User, &service)?.arg("probe");
    let line = probe.run(SHORT)?.json()?;
    ensure!(line["probe"] == "obtained", "{line}");
    Ok(())
}
