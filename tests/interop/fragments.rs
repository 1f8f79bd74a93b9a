//! TCP segments in fragmented IP packets, from a kernel client to an accelerated program and to a
//! program on the kernel.
//!
//! A wire is two network namespaces, the server's and the client's, joined by a veth pair. An
//! accelerated program runs under `tidelane run`: the service (`tidelaned`), not the kernel,
//! carries the program's TCP connections.

use std::net::{IpAddr, SocketAddr};

use rustix::process::Signal;
use serde_json::Value;
use tidelane_tests::{
    Outcome, Program, Running, Service, Side, Stop, Wire, WireOptions, command, command_in, ensure,
    tools::{self, require_tools, wait_until},
    wire::{CLIENT, INTERFACE, MIDDLE, SERVER, SERVER_V6},
};

use crate::support::{SHORT, check_load};

/// MTU of the path to the server, in bytes.
const PATH_MTU: &str = "600";
/// Port of the accelerated server.
const ACCELERATED_PORT: u16 = 7000;
/// Port of the server on the kernel.
const KERNEL_PORT: u16 = 7001;

/// Returns a wire with a third namespace, the middle namespace, between server and client.
fn wire() -> Result<Wire, Stop> {
    Wire::with(&WireOptions {
        middle: true,
        ..WireOptions::default()
    })
}

/// Starts an echo server for IPv4 and IPv6 on `port`, on `service` if given or else on the kernel.
fn server(wire: &Wire, service: Option<&Service>, port: u16) -> Result<Running, Stop> {
    let server = wire.load_tool(Side::Server, "echo-server")?;
    let server = server.args("--address ::").arg("--port").arg(port);
    wire.start_server(server, service, port)
}

/// Returns a client on the kernel that sends 300 requests of 20,000 bytes over four connections.
fn client(wire: &Wire, address: IpAddr, port: u16) -> Result<Program, Stop> {
    let client = wire.load_tool(Side::Client, "echo-client")?;
    let client = client.arg("--connect").arg(SocketAddr::new(address, port));
    Ok(client.args("--connections 4 --bytes 20000 --warmup 0 --seconds 60 --total 300"))
}

/// Returns the counter `name` of the service, or 0 if there is none.
fn counter(counters: &Value, name: &str) -> u64 {
    counters[name].as_u64().unwrap_or(0)
}

/// Returns the kernel's IP counter `name` in the server's namespace. `file` is `snmp` for IPv4 or
/// `snmp6` for IPv6.
fn of_kernel(wire: &Wire, file: &str, name: &str) -> Result<u64, Stop> {
    let space = wire.namespace(Side::Server);
    let path = format!("/proc/net/{file}");
    let text = command_in(&space, &["cat", &path])?;
    if file == "snmp6" {
        let mut lines = text
            .lines()
            .filter_map(|line| line.split_once(char::is_whitespace));
        let found = lines.find(|(known, _)| *known == name);
        return Ok(found.map_or("", |(_, value)| value).trim().parse()?);
    }
    let mut lines = text.lines().filter(|line| line.starts_with("Ip: "));
    let (names, values) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""));
    let mut pairs = names.split(' ').zip(values.split(' '));
    let found = pairs.find(|(known, _)| *known == name);
    Ok(found.map_or("", |(_, value)| value).parse()?)
}

/// Makes the middle namespace a router between client and server. The router's route to the server
/// has an MTU of [`PATH_MTU`]. The client sends packets without the flag DF (RFC 791 §3.1), so that
/// the router may fragment the packets.
fn route(wire: &Wire) -> Outcome {
    let space = wire.namespace(Side::Middle);
    wire.sysctl(Side::Middle, "net.ipv4.ip_forward", "1")?;
    for (interface, end, mtu) in [(MIDDLE.0, SERVER, Some(PATH_MTU)), (MIDDLE.1, CLIENT, None)] {
        wire.sysctl(
            Side::Middle,
            &format!("net.ipv4.conf.{interface}.proxy_arp"),
            "1",
        )?;
        let delay = format!("net.ipv4.neigh.{interface}.proxy_delay");
        wire.sysctl(Side::Middle, &delay, "0")?;
        let (add, end) = (["ip", "-n", &space, "route", "add"], end.to_string());
        let mtu = mtu.map_or(vec![], |mtu| vec!["mtu", mtu]);
        command(&[&add[..], &[&end, "dev", interface], &mtu].concat())?;
    }
    let address = ["address", "add", "10.77.1.1/32", "dev", MIDDLE.0];
    command(&[&["ip", "-n", &space][..], &address].concat())?;
    wire.sysctl(Side::Client, "net.ipv4.ip_no_pmtu_disc", "1")
}

/// RFC 1122 §3.3.2: a router fragments packets. The service reassembles the packets of accelerated
/// connections. The kernel reassembles ICMP echo requests and the packets of its own TCP
/// connections.
pub fn a_router_cuts_segments() -> Outcome {
    let wire = wire()?;
    route(&wire)?;
    let service = wire.service()?;
    let _accelerated = server(&wire, Some(&service), ACCELERATED_PORT)?;
    let _kernel = server(&wire, None, KERNEL_PORT)?;
    // Ping before the load starts, because a load delays the answers beyond the timeout.
    let ping = wire.load_tool(Side::Client, "ping")?;
    let ping = ping.arg("--to").arg(SERVER).args("--count 20 --bytes 4000");
    ping.run(SHORT)?;
    let before = of_kernel(&wire, "snmp", "ReasmOKs")?;
    ensure!(before >= 20, "the kernel reassembled {before} packets");
    let accelerated = client(&wire, SERVER.into(), ACCELERATED_PORT)?.spawn()?;
    let kernel = client(&wire, SERVER.into(), KERNEL_PORT)?.spawn()?;
    // Each client sends more than 3000 packets that are fragmented. Neither client has ended when
    // the first of them has sent half of these packets.
    wait_until(SHORT * 5, "half of the packets", || {
        let kernels = of_kernel(&wire, "snmp", "ReasmOKs")? - before;
        Ok(kernels > 1500 || counter(&service.counters()?, "reasm_oks") > 1500)
    })?;
    let resets = of_kernel_tcp_resets(&wire)?;
    ensure!(resets == 0, "the kernel sent {resets} RSTs");
    check_load(&kernel.wait(SHORT * 5)?.success()?.json()?)?;
    check_load(&accelerated.wait(SHORT * 5)?.success()?.json()?)?;

    // Each of the 300 requests has more than ten full segments.
    let counters = service.counters()?;
    let (oks, reqds) = (
        counter(&counters, "reasm_oks"),
        counter(&counters, "reasm_reqds"),
    );
    ensure!(oks > 3000 && reqds >= 2 * oks, "{counters}");
    let kernels = of_kernel(&wire, "snmp", "ReasmOKs")? - before;
    ensure!(kernels > 3000, "the kernel reassembled {kernels} packets");
    Ok(())
}

/// Returns the number of RSTs that the kernel has sent in the server's namespace. Call the function
/// before a client ends: a client that ends resets its connections, and the kernel rightly answers
/// later packets of these connections with RSTs.
fn of_kernel_tcp_resets(wire: &Wire) -> Result<u64, Stop> {
    let space = wire.namespace(Side::Server);
    let text = command_in(&space, &["cat", "/proc/net/snmp"])?;
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp: "));
    let (names, values) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""));
    let mut pairs = names.split(' ').zip(values.split(' '));
    let found = pairs.find(|(known, _)| *known == "OutRsts");
    Ok(found.map_or("", |(_, value)| value).parse()?)
}

/// Starts the bridge `fragmenter.c` in the middle namespace. The bridge forwards all frames, and
/// fragments packets to the server. Switches segmentation offload off at the client, so that frames
/// are single packets.
fn fragmenter(wire: &Wire) -> Result<Running, Stop> {
    require_tools(&["cc", "ethtool"])?;
    let binary = wire.scratch().join("fragmenter");
    let source = tools::source_root().join("tests/interop/fragmenter.c");
    tools::compile(&binary, &[source])?;
    let offload = wire
        .program(Side::Client, "ethtool")
        .arg("-K")
        .arg(INTERFACE);
    offload.args("tx off tso off gso off").run(SHORT)?;
    let fragmenter = wire.program(Side::Middle, &binary.to_string_lossy());
    let fragmenter = fragmenter.arg(MIDDLE.0).arg(MIDDLE.1).arg(PATH_MTU);
    fragmenter.spawn_ready(SHORT)
}

/// Fragments of IPv4 and IPv6 packets arrive in order, in reverse order and duplicated, and some
/// are lost. Accelerated connections and connections of the kernel transfer all bytes.
pub fn segments_arrive_in_pieces_in_any_order() -> Outcome {
    let wire = wire()?;
    let fragmenter = fragmenter(&wire)?;
    let service = wire.service()?;
    let _accelerated = server(&wire, Some(&service), ACCELERATED_PORT)?;
    let _kernel = server(&wire, None, KERNEL_PORT)?;
    for (address, file, name) in [
        (SERVER.into(), "snmp", "ReasmOKs"),
        (SERVER_V6.into(), "snmp6", "Ip6ReasmOKs"),
    ] {
        let before = service.counters()?;
        let accelerated = client(&wire, address, ACCELERATED_PORT)?.run(SHORT * 5)?;
        check_load(&accelerated.json()?)?;
        let after = service.counters()?;
        let grown = |name| counter(&after, name) - counter(&before, name);
        ensure!(grown("reasm_oks") > 3000, "{address}: {before} {after}");
        ensure!(grown("drop_fragment_duplicate") > 0, "{address}: {after}");
        ensure!(grown("drop_fragment_overlap") == 0, "{address}: {after}");
        let before = of_kernel(&wire, file, name)?;
        let kernel = client(&wire, address, KERNEL_PORT)?.run(SHORT * 5)?;
        check_load(&kernel.json()?)?;
        let kernels = of_kernel(&wire, file, name)? - before;
        ensure!(
            kernels > 3000,
            "{address}: the kernel reassembled {kernels}"
        );
    }
    let finished = fragmenter.signal_and_wait(Signal::TERM, SHORT)?.success()?;
    ensure!(
        !finished.stdout.contains("v4=0") && !finished.stdout.contains("v6=0"),
        "{finished}"
    );
    Ok(())
}
