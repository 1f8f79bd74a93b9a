//! While a service (`tidelaned`) runs on an interface, the kernel's stack continues to work on the
//! interface and its addresses.
//!
//! An accelerated program runs under `tidelane run`: the service, not the kernel, carries the
//! program's TCP connections.

use std::{thread, time::Duration};

use tidelane_tests::{Outcome, Side, Wire, ensure, tools::wait_until, wire::SERVER};

use crate::support::{SHORT, check_load, echo_client, echo_server};

/// The kernel answers ICMP echo requests while accelerated connections are under load.
pub fn ping_under_load() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    let client = echo_client(&wire, Side::Client, 7000)?.args("--connections 16 --seconds 2");
    let client = client.spawn()?;
    let ping = wire
        .load_tool(Side::Client, "ping")?
        .arg("--to")
        .arg(SERVER);
    ping.args("--count 50 --interval-ms 20").run(SHORT)?;
    check_load(&client.wait(SHORT)?.success()?.json()?)
}

/// A server on the kernel and an accelerated server on another port serve their clients at the same
/// time.
pub fn an_unaccelerated_server_on_another_port() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _accelerated = echo_server(&wire, Some(&service), 7000)?;
    let _kernel = echo_server(&wire, None, 7001)?;
    let start = |port| {
        echo_client(&wire, Side::Client, port)?
            .args("--connections 8 --seconds 5")
            .spawn()
    };
    let (accelerated, kernel) = (start(7000)?, start(7001)?);
    wait_until(SHORT, "the kernel's 8 connections", || {
        Ok(wire.kernel_connections(Side::Server, 7001)? == 8)
    })?;
    check_load(&accelerated.wait(SHORT)?.success()?.json()?)?;
    check_load(&kernel.wait(SHORT)?.success()?.json()?)
}

/// An accelerated listener at 0.0.0.0 also accepts the connections of a kernel client over
/// loopback.
pub fn loopback_client_of_an_accelerated_listener() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    let local = wire.load_tool(Side::Server, "echo-client")?;
    let local = local
        .args("--connect 127.0.0.1:7000 --connections 4 --seconds 1.5")
        .spawn()?;
    let remote = echo_client(&wire, Side::Client, 7000)?.args("--connections 4 --seconds 1.5");
    let remote = remote.spawn()?;
    check_load(&local.wait(SHORT)?.success()?.json()?)?;
    check_load(&remote.wait(SHORT)?.success()?.json()?)
}

/// A port in use on one stack cannot be bound on either stack (EADDRINUSE).
pub fn address_in_use_both_ways() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _accelerated = echo_server(&wire, Some(&service), 7000)?;
    let _kernel = echo_server(&wire, None, 7001)?;
    for (port, accelerated) in [(7000, true), (7000, false), (7001, true), (7001, false)] {
        let second = wire
            .load_tool(Side::Server, "echo-server")?
            .arg("--port")
            .arg(port);
        let second = if accelerated {
            second.accelerated(&service)
        } else {
            second
        };
        let finished = second.finish(SHORT)?;
        let refused = !finished.status.success() && finished.stderr.contains("in use");
        ensure!(
            refused,
            "port {port}, accelerated {accelerated}: {finished}"
        );
    }
    for port in [7000, 7001] {
        let client = echo_client(&wire, Side::Client, port)?.args("--seconds 0.3");
        check_load(&client.run(SHORT)?.json()?)?;
    }
    Ok(())
}

/// A service with an idle server uses less than 1 % of a CPU.
pub fn idle_service_sleeps() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    let client = echo_client(&wire, Side::Client, 7000)?.args("--seconds 0.5");
    check_load(&client.run(SHORT)?.json()?)?;
    thread::sleep(Duration::from_secs(2));
    let before = service.cpu_time()?;
    thread::sleep(Duration::from_secs(10));
    let used = service.cpu_time()?.saturating_sub(before);
    ensure!(
        used < Duration::from_millis(100),
        "an idle service used {used:?} in 10 s"
    );
    Ok(())
}
