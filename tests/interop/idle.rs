//! The memory that idle connections occupy.
//!
//! The service is the process `tidelaned`, which runs Tidelane's TCP/IP stack.

use std::time::Duration;

use rustix::process::Signal;
use tidelane_tests::{Outcome, Side, Wire, ensure, tools::wait_until, wire::SERVER};

use crate::support::{SHORT, echo_server};

/// Number of idle connections. Some machines allow a process 20,000 descriptors. A part of the
/// memory does not depend on the number of connections, so fewer connections need more memory each.
const CONNECTIONS: u64 = 18_000;
/// Upper limit of the memory of service and program together per connection, in bytes. A million
/// connections then need at most 4 GiB.
const EACH_MAX: u64 = 4294;
/// Upper limit in KiB of the difference between the service's memory after the connections have
/// ended and its memory before the connections began.
const LEFT_MAX_KIB: u64 = 4096;

/// Connections that are idle after one request occupy little memory. The service returns the memory
/// to the system when the program has ended.
pub fn memory_goes_back() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let server = echo_server(&wire, Some(&service), 7000)?;
    let before = service.resident_kib()?;
    let client = wire.load_tool(Side::Client, "idle-client")?;
    let client = client.arg("--connect").arg(format!("{SERVER}:7000"));
    let client = client.arg("--connections").arg(CONNECTIONS);
    let watched = format!("service:{},program:{}", service.pid(), server.pid());
    let client = client.args("--rounds 1 --rest 1.5 --watch").arg(watched);
    let line = client.run(Duration::from_secs(60))?.json()?;
    let kib = |when: &str, name: &str| {
        let value = line["memory"][when][name]["pss_kib"].as_u64();
        value.unwrap_or(u64::MAX / 2)
    };
    let grown = |name: &str| kib("idle", name).saturating_sub(kib("before", name));
    let each = (grown("service") + grown("program")) * 1024 / CONNECTIONS;
    ensure!(each <= EACH_MAX, "{each} bytes per connection: {line}");
    server.signal_and_wait(Signal::TERM, SHORT)?;
    wait_until(SHORT, "the service's memory to go back", || {
        Ok(service.resident_kib()? < before + LEFT_MAX_KIB)
    })
}
