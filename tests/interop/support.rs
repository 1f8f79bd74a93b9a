//! Functions that several modules of the interop tests use.
//!
//! The service is the process `tidelaned`, which runs Tidelane's TCP/IP stack. A wire is two
//! network namespaces, the server's and the client's, joined by a veth pair.

use std::{fs, path::Path, time::Duration};

use rustix::process::Signal;
use serde_json::Value;
use tidelane_tests::{
    Outcome, Program, Running, Service, Side, Stop, Wire, ensure, tools::patience, wire::SERVER,
};

/// Time limit of a short step.
pub const SHORT: Duration = Duration::from_secs(20);

/// Runs `ip` with `arguments`, separated by spaces, in the namespace of `side`.
pub fn ip(wire: &Wire, side: Side, arguments: &str) -> Outcome {
    let ip = wire.program(side, "ip").args(arguments);
    ip.run(SHORT).map(drop)
}

/// Starts an echo server in the server's namespace, on `service` if given or else on the kernel.
/// Waits until the server listens on `port`.
pub fn echo_server(wire: &Wire, service: Option<&Service>, port: u16) -> Result<Running, Stop> {
    let server = wire
        .load_tool(Side::Server, "echo-server")?
        .arg("--port")
        .arg(port);
    wire.start_server(server, service, port)
}

/// Returns an echo client in the namespace of `side` that connects to `port` at the server's
/// address. The client verifies every byte.
pub fn echo_client(wire: &Wire, side: Side, port: u16) -> Result<Program, Stop> {
    let to = format!("{SERVER}:{port}");
    Ok(wire
        .load_tool(side, "echo-client")?
        .arg("--connect")
        .arg(to))
}

/// Returns wrk in the namespace of `side`. The time limit for a request is two seconds (wrk's
/// default), multiplied by [`patience`].
pub fn wrk(wire: &Wire, side: Side) -> Program {
    let timeout = 2 * patience();
    let wrk = wire.program(side, "wrk").arg("--timeout");
    wrk.arg(format!("{timeout}s"))
}

/// Fails unless a load client's result has at least one request and no error.
pub fn check_load(line: &Value) -> Outcome {
    ensure!(line["errors"] == 0, "connections failed: {line}");
    ensure!(line["requests"].as_u64() > Some(0), "no request: {line}");
    Ok(())
}

/// Ends a load client by SIGTERM. Fails unless the client's result has at least one request and no
/// error.
pub fn stop_and_check_load(client: Running) -> Outcome {
    let finished = client.signal_and_wait(Signal::TERM, SHORT)?;
    check_load(&finished.success()?.json()?)
}

/// Fails unless two files have the same bytes.
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

/// Fails if the kernel has an established connection from or to `port` in the server's namespace.
pub fn check_not_in_kernel(wire: &Wire, port: u16) -> Outcome {
    let count = wire.kernel_connections(Side::Server, port)?;
    ensure!(
        count == 0,
        "{count} connections on port {port} are the kernel's"
    );
    Ok(())
}
