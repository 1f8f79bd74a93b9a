//! Rate limits of mux ports. A mux port is a pair of packet rings through which a program with a
//! TCP/IP stack of its own shares the NIC. The configuration of the service (`tidelaned`) limits
//! the rate.

use std::time::{Duration, Instant};

use tidelane_tests::{Outcome, Side, Stop, Wire, ensure, fail, tools, wire::SERVER};

use crate::{
    ports::{HTTP, http, ports},
    support::SHORT,
};

/// Length in bytes of the page that the client gets.
const PAGE: u64 = 8_000_000;
/// Rate limit of each mux port in bytes per second.
const RATE: u64 = 2_000_000;

/// Gets a page from the HTTP server on the mux port. Returns the duration.
fn fetch(wire: &Wire) -> Result<Duration, Stop> {
    let url = format!("http://{SERVER}:{HTTP}/{PAGE}");
    let curl = wire
        .program(Side::Client, "curl")
        .args("-sS --fail --max-time 30 -o /dev/null");
    let started = Instant::now();
    curl.arg(url).finish(SHORT)?.success()?;
    Ok(started.elapsed())
}

/// A mux port sends no faster than its rate limit, and loses no packet that it sends. When the
/// service reloads a configuration that has no limit, the mux port continues without a limit.
pub fn a_port_sends_at_its_rate() -> Outcome {
    tools::require_tools(&["curl"])?;
    let wire = Wire::new()?;
    let limited =
        format!("[access]\nusers = ['*']\n[limits.user.root]\nport_bytes_per_second = {RATE}\n");
    let service = wire.configured_service(&limited, &[])?;
    let mut server = http(&wire, &service, HTTP)?.spawn_ready(SHORT)?;
    let took = fetch(&wire)?.as_millis() as u64;
    let expected = PAGE * 1000 / RATE;
    ensure!(
        (expected * 9 / 10..expected * 2).contains(&took),
        "{PAGE} bytes took {took} ms"
    );
    let port = &ports(&service)?[0];
    ensure!(
        port["lost"] == 0 && port["refused"] == serde_json::json!({}),
        "{port}"
    );
    ensure!(port["delays"].as_u64() > Some(20), "{port}");
    if let Err(error) = service.reload("[access]\nusers = ['*']\n")? {
        fail!("{error}");
    }
    let took = fetch(&wire)?;
    ensure!(took < Duration::from_secs(2), "without a limit: {took:?}");
    server.check_alive()
}
