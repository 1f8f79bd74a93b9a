//! The key-value server of Tidelane (`app/kv`) on the service (`tidelaned`), on a mux port of the
//! service, and on a queue of a NIC. A mux port is a pair of packet rings through which a program
//! with a TCP/IP stack of its own shares the NIC. The server uses the ring API instead of sockets.
//! In three tests, the clients are memcached's test programs (memccapable and memcaslap) on the
//! kernel's stack. In the other tests, the client is `tidelane-load kv-client` on the service.

use tidelane_tests::{
    Outcome, Program, Side, Stop, Wire, ensure, tools,
    wire::{INTERFACE, SERVER},
};

use crate::support::SHORT;

/// TCP port of the server.
const PORT: u16 = 7420;

/// Returns the server with `arguments`.
fn server(wire: &Wire, arguments: &str) -> Result<Program, Stop> {
    let path = tools::binary("tidelane-kv")?;
    let program = wire.program(Side::Server, &path.to_string_lossy());
    Ok(program.args(arguments).args("--memory 64"))
}

/// Fails if memccapable finds a fault in the server's protocol, or if memcaslap does not read back
/// the values that it has written.
fn check(wire: &Wire) -> Outcome {
    let capable = wire.program(Side::Client, "memccapable");
    let line = format!("-h {SERVER} -p {PORT} -a");
    let finished = capable.args(&line).finish(SHORT)?;
    let output = finished.stdout + &finished.stderr;
    ensure!(
        output.contains("All tests passed") && !output.contains("[FAIL]"),
        "{output}"
    );
    let slap = wire.program(Side::Client, "memcaslap");
    let line = format!("-s {SERVER}:{PORT} -T 1 -c 16 -x 40000 -v 0.5");
    let output = slap.args(&line).run(SHORT)?.success()?.stdout;
    for word in ["cmd_get: 36000", "get_misses: 0", "verify_failed: 0"] {
        ensure!(output.contains(word), "no {word:?} in {output}");
    }
    Ok(())
}

/// The server is on the service, which receives the clients' segments.
pub fn memcached_clients_on_the_service() -> Outcome {
    tools::require_tools(&["memccapable", "memcaslap"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let server = server(&wire, &format!("--backend service --listen 0.0.0.0:{PORT}"))?;
    let mut server = server.registering_at(&service).spawn_ready(SHORT)?;
    let before = service.counters()?["in_segs"].as_u64();
    check(&wire)?;
    let segments = service.counters()?["in_segs"].as_u64();
    ensure!(
        segments > before.map(|before| before + 1000),
        "{segments:?} segments through the service"
    );
    server.check_alive()
}

/// The server owns the queue of a NIC and uses no service. The kernel has neither the listener nor
/// a connection.
pub fn memcached_clients_on_a_nic_queue() -> Outcome {
    tools::require_tools(&["memccapable", "memcaslap"])?;
    let wire = Wire::new()?;
    let line = format!("--backend direct --interface {INTERFACE} --listen {SERVER}:{PORT}");
    let mut server = server(&wire, &line)?.spawn_ready(SHORT)?;
    check(&wire)?;
    let sockets = wire.program(Side::Server, "ss").args("-Htan");
    let sockets = sockets.arg(format!("sport = :{PORT}")).run(SHORT)?;
    let sockets = sockets.success()?.stdout;
    ensure!(
        !sockets.contains("ESTAB") && !sockets.contains("LISTEN"),
        "the kernel has connections: {sockets}"
    );
    server.check_alive()
}

/// The server runs TCP in its own process, on a mux port of the service.
pub fn memcached_clients_on_a_port_of_the_service() -> Outcome {
    tools::require_tools(&["memccapable", "memcaslap"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let server = server(&wire, &format!("--backend direct --listen {SERVER}:{PORT}"))?;
    let mut server = server.registering_at(&service).spawn_ready(SHORT)?;
    check(&wire)?;
    let ports = service.ask("ports")?;
    ensure!(ports.to_string().contains("tidelane-kv"), "{ports}");
    server.check_alive()
}

/// Runs a client on the same host, over the service. First, each connection waits for an answer
/// before its next request (a closed loop). Then the client sends requests at a fixed rate (an open
/// loop).
/// The client runs with --strict, so that no connection is the kernel's.
fn check_within_the_host(arguments: &str) -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let server = server(&wire, arguments)?.registering_at(&service);
    let mut server = server.spawn_ready(SHORT)?;
    for load in ["--connections 16", "--connections 4 --rate 20000"] {
        let client = wire.load_tool(Side::Server, "kv-client")?.args(&format!(
            "--connect {SERVER}:{PORT} --keys 100 --total 20000 {load}"
        ));
        let client = client.accelerated(&service).strict();
        let line = client.run(SHORT)?.success()?.json()?;
        let requests = line["requests"].as_u64();
        ensure!(requests >= Some(20_000), "{line}");
    }
    server.check_alive()
}

/// The server and the client are both programs on the service.
pub fn a_client_of_the_service_on_the_same_host() -> Outcome {
    check_within_the_host(&format!("--backend service --listen 0.0.0.0:{PORT}"))
}

/// The server has a mux port of the service, and the client is a program on the service.
pub fn a_client_of_a_port_on_the_same_host() -> Outcome {
    check_within_the_host(&format!("--backend direct --listen {SERVER}:{PORT}"))
}
