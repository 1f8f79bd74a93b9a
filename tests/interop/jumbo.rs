//! Interfaces with a jumbo MTU. A packet can occupy several AF_XDP frames.
//!
//! A wire is two network namespaces, the server's and the client's, joined by a veth pair. The
//! service is the process `tidelaned`, which runs Tidelane's TCP/IP stack.

use std::{thread, time::Duration};

use tidelane_tests::{
    Outcome, Service, Side, Stop, Wire, ensure,
    tools::{env_number, wait_until},
    wire::WireOptions,
    wire::write_random_file,
};

use crate::{
    servers::{check_bodies, nginx},
    support::{
        SHORT, check_load, check_not_in_kernel, echo_client, echo_server, ip, stop_and_check_load,
    },
};

/// The common jumbo MTU, and the largest MTU that the service supports, in bytes.
const MTUS: [u32; 2] = [9000, 9216];
/// Length of the IPv4 and TCP headers with timestamps, in bytes.
const HEADERS_LEN: u32 = 52;

/// Returns a wire whose interfaces have the MTU `mtu`, and a service on the wire. Skips the test if
/// the interfaces do not support `mtu`, or if the kernel's AF_XDP does not support packets of
/// several frames (multi-buffer).
fn wire(mtu: u32) -> Result<(Wire, Service), Stop> {
    let wire = Wire::with(&WireOptions {
        mtu: Some(mtu),
        ..WireOptions::default()
    })?;
    let service = wire.service().map_err(|failed| match failed {
        Stop::Fail(text) if text.contains("Linux 6.6") => Stop::Skip(text),
        other => other,
    })?;
    Ok((wire, service))
}

/// Fails unless the client has a connection to `port` whose MSS is the largest that `mtu` allows.
fn check_segments(wire: &Wire, port: u16, mtu: u32) -> Outcome {
    let filter = format!("-Htin dport = :{port}");
    let ss = wire.program(Side::Client, "ss").args(&filter).run(SHORT)?;
    let wanted = format!(" mss:{} ", mtu - HEADERS_LEN);
    ensure!(ss.stdout.contains(&wanted), "no{wanted}in {}", ss.stdout);
    Ok(())
}

/// Waits until the client's kernel has connections to the port 7000.
fn wait_for_clients(wire: &Wire) -> Outcome {
    wait_until(SHORT, "connections of the client", || {
        Ok(wire.kernel_connections(Side::Client, 7000)? > 0)
    })
}

/// curl gets files of several sizes unchanged from nginx, at each of [`MTUS`] that the driver
/// supports.
pub fn nginx_bodies() -> Outcome {
    for mtu in MTUS {
        let (wire, service) = match wire(mtu) {
            // Some drivers support a few bytes less than the largest MTU.
            Err(Stop::Skip(_)) if mtu > MTUS[0] => return Ok(()),
            made => made?,
        };
        let nginx = nginx(&wire, &service)?;
        let mib = env_number("TIDELANE_BULK_MIB", 64);
        write_random_file(&nginx.file("bulk"), mib << 20, 99)?;
        check_bodies(&wire, &nginx, &["bulk"])?;
        let lost = service.counters()?["drop_too_long"].as_u64();
        ensure!(lost == Some(0), "{lost:?} segments were too long");
    }
    Ok(())
}

/// Echo clients send messages of several lengths: shorter than a segment, exactly one segment (8948
/// bytes), one byte longer than a segment, and many segments long.
pub fn echoes_both_ways() -> Outcome {
    let (wire, service) = wire(MTUS[0])?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    for load in [
        "--connections 16",
        "--connections 8 --bytes 8948",
        "--connections 8 --bytes 8949",
        "--connections 4 --bytes 100000",
        "--connections 2 --bytes 1000000 --pipeline 2",
    ] {
        let client = echo_client(&wire, Side::Client, 7000)?.args(load);
        let client = client.args("--warmup 0 --seconds 60").spawn()?;
        wait_for_clients(&wire)?;
        check_not_in_kernel(&wire, 7000)?;
        check_segments(&wire, 7000, MTUS[0])?;
        thread::sleep(Duration::from_millis(500));
        stop_and_check_load(client)?;
    }
    Ok(())
}

/// A peer with a smaller MTU sends segments that are as long as its own MTU allows, and receives
/// all bytes of the echoes.
pub fn a_peer_of_a_smaller_mtu() -> Outcome {
    let (wire, service) = wire(MTUS[0])?;
    ip(&wire, Side::Client, "link set eth1 mtu 1500")?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    let client = echo_client(&wire, Side::Client, 7000)?;
    let client = client.args("--connections 4 --bytes 100000 --warmup 0 --seconds 60");
    let client = client.spawn()?;
    wait_for_clients(&wire)?;
    check_segments(&wire, 7000, 1500)?;
    thread::sleep(Duration::from_millis(500));
    stop_and_check_load(client)
}

/// After the MTU of both interfaces has grown beyond its value at the start of the service, new
/// connections work.
pub fn a_larger_mtu_than_at_the_start() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    for side in [Side::Server, Side::Client] {
        ip(&wire, side, "link set eth1 mtu 3000")?;
    }
    let client = echo_client(&wire, Side::Client, 7000)?;
    let client = client.args("--connections 4 --bytes 100000 --seconds 1");
    check_load(&client.run(SHORT)?.json()?)
}
