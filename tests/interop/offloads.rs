//! Offloads of the NIC that join packets, or remove VLAN tags, before the demux sees the packets.
//! The demux is the XDP program that selects packets for the service (`tidelaned`). The service
//! switches these offloads off, and restores them at its end. If the service is killed, another
//! process restores them.
//!
//! A wire is two network namespaces, the server's and the client's, joined by a veth pair or by two
//! NICs that TIDELANE_WIRE_NICS names.

use std::fs;

use tidelane_tests::{
    Outcome, Service, Side, Stop, Wire, ensure,
    tools::{require_tools, wait_until},
    wire::SERVER,
};

use crate::{
    links::exchange,
    support::{SHORT, check_load, echo_client, echo_server, ip},
};

/// Runs `ethtool` with the arguments `words` in the namespace of `side`. Returns the output.
fn ethtool(wire: &Wire, side: Side, words: &str) -> Result<String, Stop> {
    let program = wire.program(side, "ethtool").args(words);
    Ok(program.run(SHORT)?.stdout)
}

/// Returns the output of `ethtool -k` for an interface in the server's namespace, without the first
/// line.
fn features(wire: &Wire, interface: &str) -> Result<String, Stop> {
    let text = ethtool(wire, Side::Server, &format!("-k {interface}"))?;
    // The first line has the name of the interface, which `settings_are_as_before` changes.
    Ok(text.lines().skip(1).collect::<Vec<_>>().join("\n"))
}

/// Fails unless all offloads of the NIC that join packets or remove VLAN tags are off.
fn check_off(wire: &Wire, interface: &str) -> Outcome {
    let now = features(wire, interface)?;
    for name in [
        "rx-vlan-offload",
        "rx-vlan-stag-hw-parse",
        "large-receive-offload",
        "rx-gro-hw",
    ] {
        ensure!(!now.contains(&format!("{name}: on")), "{name} is on: {now}");
    }
    Ok(())
}

/// Returns the text of the service's log.
fn log_of(service: &Service) -> Result<String, Stop> {
    let path = format!("/var/log/tidelane/{}.log", service.name());
    Ok(fs::read_to_string(path)?)
}

/// Returns the XDP modes in which a service starts on the NIC of the wire.
fn modes(wire: &Wire) -> Result<Vec<&'static str>, Stop> {
    let mut modes = Vec::new();
    for mode in ["native", "generic"] {
        match wire.service_with(Side::Server, &["--xdp", mode]) {
            Ok(service) => {
                service.down()?;
                modes.push(mode);
            }
            Err(Stop::Fail(_)) => {}
            Err(skip) => return Err(skip),
        }
    }
    ensure!(!modes.is_empty(), "the service starts in no XDP mode");
    Ok(modes)
}

/// The NIC's settings are restored after `tidelane down`, SIGTERM and SIGKILL. They are also
/// restored after SIGKILL if the interface was renamed while the service ran.
pub fn settings_are_as_before() -> Outcome {
    require_tools(&["ethtool"])?;
    let wire = Wire::new()?;
    let before = features(&wire, "eth1")?;
    for mode in modes(&wire)? {
        for end in ["down", "TERM", "KILL", "renamed"] {
            let service = wire.service_with(Side::Server, &["--xdp", mode])?;
            check_off(&wire, "eth1")?;
            let mut name = "eth1";
            match end {
                "down" => {
                    service.down()?;
                    // `tidelane down` returns only after the settings are restored.
                    let now = features(&wire, name)?;
                    ensure!(now == before, "before up: {before}, after down: {now}");
                }
                "TERM" => tidelane_tests::running::send_signal(
                    service.pid(),
                    rustix::process::Signal::TERM,
                )?,
                "KILL" => service.kill()?,
                _ => {
                    rename(&wire, "eth1", "eth7")?;
                    name = "eth7";
                    service.kill()?;
                }
            }
            wait_until(
                SHORT,
                &format!("the restored settings (end of the service: {end})"),
                || Ok(features(&wire, name)? == before),
            )?;
            if name != "eth1" {
                rename(&wire, name, "eth1")?;
            }
        }
    }
    Ok(())
}

/// Renames an interface in the server's namespace.
fn rename(wire: &Wire, from: &str, to: &str) -> Outcome {
    // Linux before 6.2 cannot rename an interface that is up.
    for change in [
        format!("{from} down"),
        format!("{from} name {to}"),
        format!("{to} up"),
    ] {
        ip(wire, Side::Server, &format!("link set {change}"))?;
    }
    Ok(())
}

/// The process `tdl-restorer`, which restores the NIC's settings after the service is killed, has
/// only the capability CAP_NET_ADMIN, and ends after the service is killed.
pub fn the_restorer_has_one_capability() -> Outcome {
    const NET_ADMIN: &str = "0000000000001000";
    let wire = Wire::new()?;
    let service = wire.service()?;
    let pid = service.pid();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let status = format!("/proc/{}/status", children.trim());
    // The process limits itself after its start, and sets the seccomp filter last.
    wait_until(SHORT, "the seccomp filter of tdl-restorer", || {
        Ok(fs::read_to_string(&status)?.contains("\nSeccomp:\t2\n"))
    })?;
    let text = fs::read_to_string(&status)?;
    for (name, value) in [
        ("Name", "tdl-restorer"),
        ("CapEff", NET_ADMIN),
        ("CapPrm", NET_ADMIN),
        ("CapBnd", "0000000000000000"),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
    ] {
        let line = format!("\n{name}:\t{value}\n");
        ensure!(format!("\n{text}").contains(&line), "no {line:?} in {text}");
    }
    // The process has open the three standard streams, a socket and a pidfd with which it watches
    // the service, and up to four others: two raw sockets (IPv4 and IPv6), and sockets for the
    // settings that the service has changed.
    let files = fs::read_dir(format!("/proc/{}/fd", children.trim()))?.count();
    ensure!(files <= 3 + 2 + 4, "tdl-restorer has {files} descriptors");
    service.kill()?;
    wait_until(SHORT, "the end of tdl-restorer", || {
        let status = fs::read_to_string(&status).unwrap_or_default();
        // The ended process is a zombie until its new parent waits for it.
        Ok(status.is_empty() || status.contains("\nState:\tZ"))
    })
}

/// An offload that is off before the start of the service is also off after the service's end. If
/// the operator switches an offload on while the service runs, the service logs the change and
/// switches the offload off again. Then this offload is on after `tidelane down` or SIGKILL.
pub fn the_operator_changes_an_offload() -> Outcome {
    require_tools(&["ethtool"])?;
    let wire = Wire::new()?;
    if !features(&wire, "eth1")?.contains("\nrx-vlan-offload: on\n") {
        let text = "the NIC has no rx-vlan-offload that could be switched";
        return Err(Stop::Skip(text.to_owned()));
    }
    ethtool(&wire, Side::Server, "-K eth1 rxvlan off")?;
    let off = features(&wire, "eth1")?;
    wire.service()?.down()?;
    ensure!(
        features(&wire, "eth1")? == off,
        "rx-vlan-offload was off before the service, and the features differ after it"
    );
    for killed in [false, true] {
        ethtool(&wire, Side::Server, "-K eth1 rxvlan off")?;
        let service = wire.service()?;
        ethtool(&wire, Side::Server, "-K eth1 rxvlan on")?;
        wait_until(SHORT, "the feature to be off again", || {
            Ok(features(&wire, "eth1")?.contains("\nrx-vlan-offload: off\n"))
        })?;
        wait_until(
            SHORT,
            "the log line about the offload that was switched on",
            || Ok(log_of(&service)?.contains("switched on while")),
        )?;
        if killed {
            service.kill()?;
        } else {
            service.down()?;
        }
        wait_until(
            SHORT,
            "rx-vlan-offload to be on after the end of the service",
            || Ok(features(&wire, "eth1")?.contains("\nrx-vlan-offload: on\n")),
        )?;
    }
    Ok(())
}

/// Bytes are right in both directions, in each XDP mode in which the service starts. Each mode is
/// tested four times: with all offloads of the list `OFFLOADS` on or off at the server, and on or
/// off at the client.
pub fn bytes_are_right_with_offloads_on_and_off() -> Outcome {
    require_tools(&["ethtool", "curl", "nginx"])?;
    let wire = Wire::new()?;
    const OFFLOADS: [&str; 9] = [
        "tso",
        "gso",
        "gro",
        "lro",
        "rx",
        "tx",
        "sg",
        "rxvlan",
        "rx-gro-hw",
    ];
    let modes = modes(&wire)?;
    for mode in &modes {
        for (server, client) in [("on", "on"), ("on", "off"), ("off", "on"), ("off", "off")] {
            for (side, state) in [(Side::Server, server), (Side::Client, client)] {
                for offload in OFFLOADS {
                    // A driver may not support an offload: a failure of ethtool is no error.
                    let line = format!("-K eth1 {offload} {state}");
                    wire.program(side, "ethtool").args(&line).finish(SHORT)?;
                }
            }
            let service = wire.service_with(Side::Server, &["--xdp", mode])?;
            exchange(&wire, &service, &SERVER.to_string()).map_err(|stop| match stop {
                Stop::Fail(text) => Stop::Fail(format!(
                    "{mode}, offloads {server} at the server, {client} at the client: {text}"
                )),
                skip => skip,
            })?;
            let _server = echo_server(&wire, Some(&service), 7000)?;
            let client = echo_client(&wire, Side::Client, 7000)?;
            check_load(
                &client
                    .args("--bytes 3000 --seconds 0.3")
                    .run(SHORT)?
                    .json()?,
            )?;
            service.down()?;
        }
    }
    println!("NOTE: {}", modes.join(", "));
    Ok(())
}
