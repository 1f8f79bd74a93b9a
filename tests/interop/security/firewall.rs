//! Firewall rules of the kernel. Accelerated connections would bypass these rules. By default, the
//! service (`tidelaned`) therefore does not start on an interface to which a firewall rule applies.
//!
//! An accelerated program runs under `tidelane run`: the service carries its TCP connections
//! instead of the kernel.

use tidelane_tests::{Outcome, Side, Stop, Wire, ensure, tools};

use crate::support::{SHORT, check_load, echo_client, echo_server};

/// Runs `command` in the server's namespace.
fn in_server(wire: &Wire, command: &str) -> Result<(), Stop> {
    let (name, arguments) = command.split_once(' ').unwrap_or((command, ""));
    wire.program(Side::Server, name)
        .args(arguments)
        .run(SHORT)
        .map(drop)
}

/// Runs `tidelane up` with an empty configuration, and returns its error. Fails if the service
/// starts.
fn refusal(wire: &Wire) -> Result<String, Stop> {
    match wire.configured_service("", &[]) {
        Ok(_) => Err(Stop::Fail("the service started".to_owned())),
        Err(Stop::Fail(text)) => Ok(text),
        Err(skip) => Err(skip),
    }
}

/// If the interface has a tc filter, or if there is an nftables chain with a hook, `tidelane up`
/// names the filter or the chain and does not start the service. With the option
/// `--firewall bypass`, or with the mode `bypass` in the configuration, the service starts.
pub fn up_names_the_rules_that_would_be_bypassed() -> Outcome {
    tools::require_tools(&["tc", "nft"])?;
    let wire = Wire::new()?;
    in_server(&wire, "tc qdisc add dev eth1 clsact")?;
    // A qdisc `clsact` without a filter and a table without a hooked chain handle no packets.
    in_server(&wire, "nft add table ip idle")?;
    drop(wire.configured_service("", &[])?);
    in_server(
        &wire,
        "tc filter add dev eth1 egress pref 7 u32 match u32 0 0 flowid 1:1",
    )?;
    let said = refusal(&wire)?;
    for part in [
        "tc filter on eth1 egress (u32, pref 7)",
        "tidelane up --firewall bypass",
        "docs/operating.md",
    ] {
        ensure!(said.contains(part), "{part:?} is not in: {said}");
    }
    in_server(
        &wire,
        "nft add chain ip idle guard { type filter hook input priority 0 ; }",
    )?;
    let said = refusal(&wire)?;
    let chain = "nftables chain \"guard\" of table ip idle (hook input)";
    ensure!(said.contains(chain), "{chain:?} is not in: {said}");

    let service = wire.configured_service("", &["--firewall", "bypass"])?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    let client = echo_client(&wire, Side::Client, 7000)?.args("--seconds 0.3");
    check_load(&client.run(SHORT)?.json()?)?;
    drop(service);
    let service = wire.configured_service("[firewall]\nmode = 'bypass'\n", &[])?;
    let tidelane = tools::binary("tidelane")?;
    for command in ["ss", "stat"] {
        let shown = wire.program(Side::Server, &tidelane.to_string_lossy());
        let line = format!("{command} --name {}", service.name());
        let shown = shown.args(&line).run(SHORT)?;
        ensure!(
            shown.stderr.contains(chain),
            "{command} does not name the chain: {shown}"
        );
    }
    Ok(())
}

/// A running service writes new firewall rules to its log, and names them in its status as long as
/// they exist.
pub fn rules_that_appear_later_are_named() -> Outcome {
    tools::require_tools(&["nft"])?;
    let wire = Wire::new()?;
    let service = wire.configured_service("", &[])?;
    let bypassed = || -> Result<String, Stop> {
        Ok(service.ask("status")?["firewall"]["bypassed"].to_string())
    };
    ensure!(
        bypassed()? == "[]",
        "the status has rules at first: {}",
        bypassed()?
    );
    in_server(&wire, "nft add table inet late")?;
    in_server(
        &wire,
        "nft add chain inet late out { type filter hook output priority 0 ; }",
    )?;
    tools::wait_until(SHORT, "the service to see the chain", || {
        Ok(bypassed()?.contains("table inet late (hook output)"))
    })?;
    let log = format!("/var/log/tidelane/{}.log", service.name());
    let log = std::fs::read_to_string(log)?;
    ensure!(
        log.contains("WARNING: new rules: nftables chain"),
        "the log: {log}"
    );
    in_server(&wire, "nft delete table inet late")?;
    tools::wait_until(SHORT, "the service to see it gone", || {
        Ok(bypassed()? == "[]")
    })
}
