//! The C interface (`app/rings-c`) of the ring API, in which one call sends and receives on all
//! connections of a thread. The example programs of the interface run on a back end: the service
//! (`tidelaned`), a queue of a NIC, or the kernel's io_uring. The peers are on the kernel's stack,
//! at the other end of a wire (two network namespaces joined by a veth pair). The wire's interface
//! at the side of the example program stands for the NIC.

use std::time::Duration;

use rustix::process::Signal;
use tidelane_tests::{
    Outcome, Program, Running, Side, Stop, Wire, ensure, tools,
    wire::{CLIENT, INTERFACE, SERVER},
};

use crate::{
    direct,
    support::{SHORT, check_load},
};

/// Port of the servers.
const PORT: u16 = 7430;
/// An address of the wire's network that no host has.
const NOBODY: &str = "10.77.0.99";
/// An address to which there is no route.
const NOWHERE: &str = "203.0.113.1";
/// Time limit for the start of a server.
const START_MAX: Duration = Duration::from_secs(10);

/// Returns the example server `name`, which listens on [`PORT`] and uses the back end `back_end`.
fn example(wire: &Wire, name: &str, back_end: &str) -> Result<Program, Stop> {
    let program = compiled(wire, name, Side::Server)?;
    Ok(program.args(&format!("{SERVER} {PORT} {back_end}")))
}

/// Returns the example client, which opens 50 connections to [`PORT`] at `peer` and sends 200
/// messages on each.
fn client(wire: &Wire, peer: &str, back_end: &str) -> Result<Program, Stop> {
    let program = compiled(wire, "ring_client", Side::Server)?;
    Ok(program.args(&format!("{peer} {PORT} 50 200 {back_end}")))
}

/// Compiles the example `name`, and returns the program for the namespace of `side`.
fn compiled(wire: &Wire, name: &str, side: Side) -> Result<Program, Stop> {
    let program = wire.scratch().join(name);
    let source = tools::source_root().join(format!("app/rings-c/examples/{name}.c"));
    let library = tools::binary("libtidelane_rings_c.a")?;
    let libraries = ["-ldl", "-lm"].map(Into::into);
    let mut sources = vec![source, library];
    sources.extend(libraries);
    tools::compile(&program, &sources)?;
    Ok(wire.program(side, &program.to_string_lossy()))
}

/// Returns the name of the back end that uses the queue of the wire's interface.
fn queue() -> String {
    format!("direct:{INTERFACE}")
}

/// Runs an echo client with 32 connections, and then ends the echo server `server`. Fails if the
/// server reports at its end that clients are still present, or that it still holds buffers.
fn echo(wire: &Wire, mut server: Running) -> Outcome {
    let load = wire.load_tool(Side::Client, "echo-client")?;
    let load = load.arg("--connect").arg(format!("{SERVER}:{PORT}"));
    let load = load.args("--connections 32 --seconds 2").run(SHORT)?;
    check_load(&load.success()?.json()?)?;
    server.check_alive()?;
    let finished = server.signal_and_wait(Signal::TERM, SHORT)?.success()?;
    let report = &finished.stdout;
    ensure!(
        report.contains("present 0 held 0"),
        "the server still has clients or buffers: {report}"
    );
    Ok(())
}

/// The HTTP server on the service answers curl and wrk.
pub fn http_on_the_service() -> Outcome {
    tools::require_tools(&["curl", "wrk"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let server = example(&wire, "ring_http", "service")?;
    let mut server = server.registering_at(&service).spawn_ready(START_MAX)?;
    let before = service.counters()?["in_segs"].as_u64();
    direct::check(&wire, &format!("{SERVER}:{PORT}"))?;
    let segments = service.counters()?["in_segs"].as_u64();
    ensure!(
        segments > before.map(|before| before + 1000),
        "{segments:?} segments through the service"
    );
    server.check_alive()
}

/// The HTTP server on a queue of a NIC answers curl and wrk.
pub fn http_on_a_nic_queue() -> Outcome {
    tools::require_tools(&["curl", "wrk"])?;
    let wire = Wire::new()?;
    let mut server = example(&wire, "ring_http", &queue())?.spawn_ready(START_MAX)?;
    direct::check(&wire, &format!("{SERVER}:{PORT}"))?;
    server.check_alive()
}

/// The echo server on the service returns each byte.
pub fn echo_on_the_service() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let server = example(&wire, "ring_echo", "service")?;
    let server = server.registering_at(&service).spawn_ready(START_MAX)?;
    echo(&wire, server)
}

/// The echo server on a queue of a NIC returns each byte. While the echo server has the queue, a
/// second server fails with an error about an XDP program.
pub fn echo_on_a_nic_queue() -> Outcome {
    let wire = Wire::new()?;
    let server = example(&wire, "ring_echo", &queue())?.spawn_ready(START_MAX)?;
    let second = example(&wire, "ring_http", &queue())?.finish(SHORT)?;
    ensure!(
        !second.status.success() && second.stderr.contains("XDP program"),
        "a second server on the queue: {second}"
    );
    echo(&wire, server)
}

/// Starts an echo server on the kernel's stack, at the other end of the wire.
fn kernel_echo(wire: &Wire) -> Result<Running, Stop> {
    let server = wire.load_tool(Side::Client, "echo-server")?;
    let server = server.arg("--port").arg(PORT).spawn()?;
    tools::wait_until(SHORT, "the echo server", || {
        wire.listens(Side::Client, PORT)
    })?;
    Ok(server)
}

/// Returns the example client for UDP, in the namespace of `side`. The client sends 2000 datagrams
/// to [`PORT`] at `peer`.
fn datagrams(wire: &Wire, side: Side, peer: &str, back_end: &str) -> Result<Program, Stop> {
    let program = compiled(wire, "ring_datagrams", side)?;
    Ok(program.args(&format!("{peer} {PORT} 2000 {back_end}")))
}

/// The echo server on the service returns the bytes of connections and datagrams at the same time.
/// The datagrams use the kernel's UDP.
pub fn datagrams_beside_the_service() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let server = example(&wire, "ring_echo", "service")?;
    let server = server.registering_at(&service).spawn_ready(START_MAX)?;
    let client = datagrams(&wire, Side::Client, &SERVER.to_string(), "io-uring")?;
    let load = wire.load_tool(Side::Client, "echo-client")?;
    let load = load.arg("--connect").arg(format!("{SERVER}:{PORT}"));
    let load = load.args("--connections 4 --seconds 2").spawn()?;
    let finished = client.run(SHORT)?.success()?;
    ensure!(finished.stdout.contains("echoes 2000"), "{finished}");
    check_load(&load.wait(SHORT)?.success()?.json()?)?;
    echo(&wire, server)
}

/// The echo server on a queue of a NIC returns the datagrams of a client on the kernel. The client
/// on a queue of a NIC gets its datagrams back from a server on the kernel. Before this client
/// starts, the test empties the kernel's neighbour table, so that the kernel must resolve the MAC
/// address of the client's server. The client fails if no host has the server's address.
pub fn datagrams_on_a_nic_queue() -> Outcome {
    let wire = Wire::new()?;
    let mut server = example(&wire, "ring_echo", &queue())?.spawn_ready(START_MAX)?;
    let client = datagrams(&wire, Side::Client, &SERVER.to_string(), "io-uring")?;
    let finished = client.run(SHORT)?.success()?;
    ensure!(finished.stdout.contains("echoes 2000"), "{finished}");
    server.check_alive()?;
    server.signal_and_wait(Signal::TERM, SHORT)?.success()?;
    let server = compiled(&wire, "ring_echo", Side::Client)?;
    let server = server.args(&format!("{CLIENT} {PORT} io-uring"));
    let mut server = server.spawn_ready(START_MAX)?;
    let flush = wire.program(Side::Server, "ip");
    let flush = flush.args(&format!("neigh flush dev {INTERFACE}"));
    flush.run(SHORT)?.success()?;
    let client = datagrams(&wire, Side::Server, &CLIENT.to_string(), &queue())?;
    let finished = client.run(SHORT)?.success()?;
    ensure!(finished.stdout.contains("echoes 2000"), "{finished}");
    let refused = datagrams(&wire, Side::Server, NOBODY, &queue())?.finish(SHORT)?;
    ensure!(
        !refused.status.success() && refused.stderr.contains("No route to host"),
        "{refused}"
    );
    server.check_alive()
}

/// The example client on the service gets its bytes back from an echo server on the kernel.
pub fn connections_on_the_service() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let mut server = kernel_echo(&wire)?;
    let client = client(&wire, &CLIENT.to_string(), "service")?;
    let finished = client.registering_at(&service).run(SHORT)?.success()?;
    ensure!(finished.stdout.contains("finished 50"), "{finished}");
    server.check_alive()
}

/// The example client on a queue of a NIC gets its bytes back from an echo server on the kernel.
/// The test first empties the kernel's neighbour table, so that the kernel must resolve the
/// server's MAC address. If no host has the server's address, or if there is no route to it, the
/// client prints this reason and fails.
pub fn connections_on_a_nic_queue() -> Outcome {
    let wire = Wire::new()?;
    let mut server = kernel_echo(&wire)?;
    let ip = wire.program(Side::Server, "ip");
    let flush = ip.args(&format!("neigh flush dev {INTERFACE}"));
    flush.run(SHORT)?.success()?;
    for _ in 0..2 {
        let client = client(&wire, &CLIENT.to_string(), &queue())?;
        let finished = client.run(SHORT)?.success()?;
        ensure!(finished.stdout.contains("finished 50"), "{finished}");
    }
    for (peer, reason) in [(NOBODY, "does not answer"), (NOWHERE, "no route to")] {
        let refused = client(&wire, peer, &queue())?.finish(SHORT)?;
        ensure!(
            !refused.status.success() && refused.stderr.contains(reason),
            "{peer}: {refused}"
        );
    }
    server.check_alive()
}
