//! An HTTP server that uses the ring API (an interface that sends and receives on many sockets in
//! one call) with the direct back end, which runs Tidelane's TCP engine within the program. The
//! server's packets pass through a TUN device, through a mux port, or through a queue of a NIC
//! (AF_XDP). A mux port is a pair of packet rings by which the service (`tidelaned`) shares its NIC
//! with the program. The clients are on the kernel's stack.
//!
//! A wire is two network namespaces, the server's and the client's, joined by a veth pair.

use std::{thread, time::Duration};

use rustix::process::Signal;
use tidelane_tests::{
    Outcome, Program, Running, Side, Stop, Wire, WireOptions, ensure,
    impair::{Impairment, impaired_wire},
    tools,
    wire::{INTERFACE, SERVER},
};

use crate::{
    embedded::{ADDRESSES, DEVICE, fetch, load, wire_with_device},
    support::SHORT,
};

/// Port of the server.
const PORT: u16 = 7410;
/// Time limit for the start of the server.
const START_MAX: Duration = Duration::from_secs(10);
/// Lengths of the pages in bytes.
const LENGTHS: [usize; 6] = [0, 1, 1460, 4096, 100_000, 1_000_000];

/// Returns the example program `name` with `arguments`. The program ends after 110 seconds.
fn example(wire: &Wire, side: Side, name: &str, arguments: &str) -> Result<Program, Stop> {
    let path = tools::binary(name)?;
    let program = wire.program(side, &path.to_string_lossy());
    Ok(program.args(arguments).args("--seconds 110"))
}

/// Starts the server on the queue of the interface at the server's end of the wire. The interface
/// stands for a NIC.
fn on_nic(wire: &Wire) -> Result<Running, Stop> {
    let arguments = format!("--back-end direct --interface {INTERFACE} --listen {SERVER}:{PORT}");
    example(wire, Side::Server, "ring-http", &arguments)?.spawn_ready(START_MAX)
}

/// Fetches a page of each length in [`LENGTHS`] from the server at `address`, and runs wrk with
/// keep-alive and without.
pub fn check(wire: &Wire, address: &str) -> Outcome {
    for len in LENGTHS {
        fetch(wire, address, len)?;
    }
    load(wire, address, "64", "Connection: keep-alive")?;
    load(wire, address, "64", "Connection: close")?;
    load(wire, address, "100000", "Connection: keep-alive")
}

/// The server uses a TUN device in the client's namespace.
pub fn http_behind_a_device() -> Outcome {
    let wire = wire_with_device()?;
    let address = format!("{}:{PORT}", ADDRESSES.1);
    let arguments = format!("--back-end direct --device {DEVICE} --listen {address}");
    let server = example(&wire, Side::Client, "ring-http", &arguments)?;
    let mut server = server.spawn_ready(START_MAX)?;
    check(&wire, &address)?;
    server.check_alive()
}

/// The server sends and receives its packets through a mux port of the service.
pub fn http_on_a_port() -> Outcome {
    tools::require_tools(&["curl", "wrk"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let address = format!("{SERVER}:{PORT}");
    let arguments = format!("--back-end direct --listen {address}");
    let server = example(&wire, Side::Server, "ring-http", &arguments)?;
    let mut server = server.registering_at(&service).spawn_ready(START_MAX)?;
    check(&wire, &address)?;
    server.check_alive()
}

/// The server owns the queue of a NIC.
pub fn http_on_a_nic_queue() -> Outcome {
    tools::require_tools(&["curl", "wrk"])?;
    let wire = Wire::new()?;
    let mut server = on_nic(&wire)?;
    check(&wire, &format!("{SERVER}:{PORT}"))?;
    server.check_alive()
}

/// The server owns the queue of a NIC, and 5 % of the IPv4 packets are lost in each direction.
pub fn http_on_a_nic_queue_with_loss() -> Outcome {
    tools::require_tools(&["curl"])?;
    let impairment = Impairment {
        loss_ppm: 50_000,
        reorder_ppm: 0,
    };
    let (wire, _impair) = impaired_wire(&WireOptions::default(), &impairment, 110)?;
    let mut server = on_nic(&wire)?;
    let address = format!("{SERVER}:{PORT}");
    for len in LENGTHS {
        fetch(&wire, &address, len)?;
    }
    server.check_alive()
}

/// The server on the queue is killed under load. The packets then reach the kernel, which resets
/// the connections. A second server serves on the same queue.
pub fn a_killed_owner_of_a_queue() -> Outcome {
    tools::require_tools(&["curl", "wrk"])?;
    let wire = Wire::new()?;
    let first = on_nic(&wire)?;
    let url = format!("http://{SERVER}:{PORT}/64");
    let wrk = wire.program(Side::Client, "wrk");
    let wrk = wrk.args("-t 1 -c 20 -d 4s --timeout 10s").arg(url);
    let wrk = wrk.spawn()?;
    thread::sleep(Duration::from_secs(1));
    first.signal_and_wait(Signal::KILL, SHORT)?;
    let output = wrk.wait(SHORT)?.success()?.stdout;
    ensure!(
        output.contains("Socket errors"),
        "no connection was reset: {output}"
    );
    let mut second = on_nic(&wire)?;
    check(&wire, &format!("{SERVER}:{PORT}"))?;
    second.check_alive()
}
