//! Helpers of several tests.

use std::{fs, path::Path, time::Duration};

use serde_json::Value;
use tidelane_tests::{
    Outcome, Program, Running, Service, Side, Stop, Wire, ensure, tools::patience, wire::SERVER,
};

/// Time limit of a short program.
pub const SHORT: Duration = Duration::from_secs(20);

/// Runs `ip` with these arguments at one side.
pub fn ip(wire: &Wire, side: Side, arguments: &str) -> Outcome {
    let ip = wire.program(side, "ip").args(arguments);
    ip.run(SHORT).map(drop)
}

/// Starts an echo server on the server's side, on either stack, and waits until it is ready.
pub fn echo_server(wire: &Wire, service: Option<&Service>, port: u16) -> Result<Running, Stop> {
    let server = wire
        .load_tool(Side::Server, "echo-server")?
        .arg("--port")
        .arg(port);
    wire.start_server(server, service, port)
}

/// Returns an echo client of one side that connects to the server's address.
pub fn echo_client(wire: &Wire, side: Side, port: u16) -> Result<Program, Stop> {
    let to = format!("{SERVER}:{port}");
    Ok(wire
        .load_tool(side, "echo-client")?
        .arg("--connect")
        .arg(to))
}

/// Returns wrk with a longer time limit on slow machines, since wrk counts a request of more than
/// two seconds as failed.
pub fn wrk(wire: &Wire, side: Side) -> Program {
    let timeout = 2 * patience();
    let wrk = wire.program(side, "wrk").arg("--timeout");
    wrk.arg(format!("{timeout}s"))
}

/// Demands that a load client's result shows work and no failure.
pub fn check_load(line: &Value) -> Outcome {
    ensure!(line["errors"] == 0, "connections failed: {line}");
    ensure!(
        line["requests"].as_u64() > Some(0),
        "nothing was done: {line}"
    );
    Ok(())
}

/// Demands that two files are equal.
pub fn check_same(one: &Path, other: &Path) -> Outcome {
    let (a, b) = (fs::read(one)?, fs::read(other)?);
    ensure!(
        a.len() == b.len(),
        "{} has {} bytes, not {}",
        other.display(),
        b.len(),
        a.len()
    );
    let first = a.iter().zip(&b).position(|(x, y)| x != y);
    ensure!(
        first.is_none(),
        "{} differs at byte {first:?}",
        other.display()
    );
    Ok(())
}

/// Demands that the kernel has no connection on `port` while a client of that port is at work.
pub fn check_not_in_kernel(wire: &Wire, port: u16) -> Outcome {
    let count = wire.kernel_connections(Side::Server, port)?;
    ensure!(
        count == 0,
        "{count} connections on port {port} are the kernel's"
    );
    Ok(())
}
