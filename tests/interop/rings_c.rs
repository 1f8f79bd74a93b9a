//! The C interface of the ring API (`app/rings-c`): its example servers on the service
//! (`tidelaned`) and on a queue of a NIC, with the same source. The clients are on the kernel's
//! stack.

use std::time::Duration;

use rustix::process::Signal;
use tidelane_tests::{
    Outcome, Program, Running, Side, Stop, Wire, ensure, tools,
    wire::{INTERFACE, SERVER},
};

use crate::{
    direct,
    support::{SHORT, check_load},
};

/// Port of the servers.
const PORT: u16 = 7430;
/// Time limit for the start of a server.
const START_MAX: Duration = Duration::from_secs(10);

/// Returns the example `name` with the argument of a back end.
fn example(wire: &Wire, name: &str, back_end: &str) -> Result<Program, Stop> {
    let program = wire.scratch().join(name);
    let source = tools::source_root().join(format!("app/rings-c/examples/{name}.c"));
    let library = tools::binary("libtidelane_rings_c.a")?;
    let libraries = ["-ldl", "-lm"].map(Into::into);
    let mut sources = vec![source, library];
    sources.extend(libraries);
    tools::compile(&program, &sources)?;
    let program = wire.program(Side::Server, &program.to_string_lossy());
    Ok(program.args(&format!("{SERVER} {PORT} {back_end}")))
}

/// Returns the argument of the queue of the wire's interface.
fn queue() -> String {
    format!("direct:{INTERFACE}")
}

/// Runs echo clients, and ends the server. No client and no buffer is left.
fn echo(wire: &Wire, mut server: Running) -> Outcome {
    let load = wire.load_tool(Side::Client, "echo-client")?;
    let load = load.arg("--connect").arg(format!("{SERVER}:{PORT}"));
    let load = load.args("--connections 32 --seconds 2").run(SHORT)?;
    check_load(&load.success()?.json()?)?;
    server.check_alive()?;
    let finished = server.end(Signal::TERM, SHORT)?.success()?;
    let report = &finished.stdout;
    ensure!(
        report.contains("present 0 held 0"),
        "clients or buffers are left: {report}"
    );
    Ok(())
}

/// The HTTP server answers curl and wrk on the service.
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

/// The HTTP server answers curl and wrk on a queue of a NIC.
pub fn http_on_a_nic_queue() -> Outcome {
    tools::require_tools(&["curl", "wrk"])?;
    let wire = Wire::new()?;
    let mut server = example(&wire, "ring_http", &queue())?.spawn_ready(START_MAX)?;
    direct::check(&wire, &format!("{SERVER}:{PORT}"))?;
    server.check_alive()
}

/// The echo server returns each byte on the service.
pub fn echo_on_the_service() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let server = example(&wire, "ring_echo", "service")?;
    let server = server.registering_at(&service).spawn_ready(START_MAX)?;
    echo(&wire, server)
}

/// The echo server returns each byte on a queue of a NIC. While it has the queue, a second server
/// is refused with a way out.
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
