//! The served interface changes while connections are open.

use std::{fs, thread, time::Duration};

use tidelane_tests::{Outcome, Running, Service, Side, Stop, Wire, ensure, tools::wait_until};

use crate::{
    commands::{check_refusal, tidelane},
    support::{SHORT, check_load, check_not_in_kernel, echo_client, echo_server},
};

/// How long traffic runs before and after a change.
const WHILE: Duration = Duration::from_millis(700);

/// Runs `ip` with these arguments at one side.
fn ip(wire: &Wire, side: Side, arguments: &str) -> Outcome {
    let ip = wire.program(side, "ip").args(arguments);
    ip.run(SHORT).map(drop)
}

/// Verified echoes, each a full segment, for some seconds.
fn begin_traffic(wire: &Wire) -> Result<Running, Stop> {
    let client = echo_client(wire, Side::Client, 7000)?;
    let client = client.args("--connections 4 --bytes 1400 --warmup 0 --seconds 4");
    let running = client.spawn()?;
    thread::sleep(WHILE);
    check_not_in_kernel(wire, 7000)?;
    Ok(running)
}

/// Demands that the traffic goes on until its end, without failures, over the same connections.
fn check_traffic(running: Running, service: &Service) -> Outcome {
    let segments = || Ok::<_, Stop>(service.counters()?["in_segs"].as_u64().unwrap_or(0));
    let before = segments()?;
    wait_until(SHORT, "traffic after the change", || {
        Ok(segments()? > before + 1000)
    })?;
    check_load(&running.wait(SHORT)?.success()?.json()?)
}

/// A machine may start the service before its NIC has found a link.
pub fn a_service_starts_without_a_carrier() -> Outcome {
    let wire = Wire::new()?;
    ip(&wire, Side::Client, "link set eth1 down")?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    ip(&wire, Side::Client, "link set eth1 up")?;
    check_traffic(begin_traffic(&wire)?, &service)
}

/// An interface that is down for a moment costs time, and no connection.
pub fn down_and_up_again() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    let running = begin_traffic(&wire)?;
    ip(&wire, Side::Server, "link set eth1 down")?;
    thread::sleep(Duration::from_millis(300));
    ip(&wire, Side::Server, "link set eth1 up")?;
    check_traffic(running, &service)
}

/// Segments of open connections follow the interface's MTU: a larger one would not leave it.
pub fn the_mtu_changes() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    let running = begin_traffic(&wire)?;
    for side in [Side::Client, Side::Server] {
        ip(&wire, side, "link set eth1 mtu 1300")?;
    }
    check_traffic(running, &service)?;
    let lost = service.counters()?["mtu_black_holes"].take();
    ensure!(lost == 0, "{lost} connections found the MTU by losses");
    let running = begin_traffic(&wire)?;
    for side in [Side::Server, Side::Client] {
        ip(&wire, side, "link set eth1 mtu 1500")?;
    }
    check_traffic(running, &service)
}

/// An interface is the same one under another name.
pub fn renamed() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    let running = begin_traffic(&wire)?;
    // Linux before 6.2 renames no interface that is up.
    for change in ["eth1 down", "eth1 name eth7", "eth7 up"] {
        ip(&wire, Side::Server, &format!("link set {change}"))?;
    }
    check_traffic(running, &service)?;
    check_traffic(begin_traffic(&wire)?, &service)
}

/// Without its interface a service ends, and says so; its programs are the kernel's then.
pub fn gone() -> Outcome {
    for change in ["link del eth1", "link set eth1 netns"] {
        let wire = Wire::new()?;
        let service = wire.service()?;
        let _server = echo_server(&wire, Some(&service), 7000)?;
        let running = begin_traffic(&wire)?;
        let line = match change.ends_with("netns") {
            true => format!("{change} {} name moved", wire.namespace(Side::Client)),
            false => change.to_owned(),
        };
        ip(&wire, Side::Server, &line)?;
        wait_until(SHORT, "the end of the service", || Ok(!service.alive()))?;
        let log = fs::read_to_string(format!("/var/log/tidelane/{}.log", service.name()))?;
        ensure!(log.contains("the interface eth1 is gone"), "{line}: {log}");
        running.end(rustix::process::Signal::KILL, SHORT)?;
        let local = echo_client(&wire, Side::Server, 7000)?;
        let local = local.args("--seconds 0.3").finish(SHORT)?;
        ensure!(!local.status.success(), "10.77.0.1 went with its interface");
    }
    Ok(())
}

/// Two services cannot share an interface: the second is told of the first one's program.
pub fn another_xdp_program_is_named() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let second = tidelane(&wire, "up eth1 --name second")?.finish(SHORT)?;
    check_refusal(&second, "XDP program, tidelane_demux")?;
    ensure!(service.alive(), "the refused service ended the other one");
    Ok(())
}
