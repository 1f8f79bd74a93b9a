//! A SYN flood from forged addresses against the service (`tidelaned`). An established connection
//! continues to transfer data, new clients can connect, and the service's memory stays within its
//! limits.
//!
//! The cases print the goodput of the established connection (`--nocapture`), but do not check the
//! goodput's value, because other load of the machine can reduce the goodput. At 200,000 SYNs per
//! second or more, the cases measure the kernel's stack, too. Because the flood generator and the
//! client share a CPU, the cases also measure the goodput while the generator sends to an interface
//! that leads nowhere (a veth pair without a host at its far end).
//!
//! A wire is two network namespaces, the server's and the client's, joined by a veth pair. An
//! accelerated program runs under `tidelane run`: the service, not the kernel, carries the
//! program's TCP connections.

use std::{net::IpAddr, thread, time::Duration};

use rustix::process::Signal;
use serde_json::Value;
use tidelane_tests::{
    Outcome, Program, Running, Service, Side, Stop, Wire, command, command_in, ensure,
    tools::{self, env_number},
    wire::{CLIENT, INTERFACE, SERVER, SERVER_V6, WireOptions},
};

use crate::support::{SHORT, check_load};

/// Port of the flooded listener.
const VICTIM: u16 = 7100;
/// Port of the connection that is established before the flood.
const BULK: u16 = 7000;
/// Lowest rate of the flood at which the kernel is measured, too, in SYNs per second.
const FULL_RATE: u64 = 200_000;
/// Rate limits of the client's interface in Mbit/s: no limit, and the rates of common NICs. The
/// flood generator bypasses the limit.
const LINES: [Option<u32>; 3] = [None, Some(2_500), Some(5_000)];
/// Number of clients of each IP version that must connect after the start of the flood, and again
/// after its end.
const NEW_CLIENTS: u64 = 100;
/// Maximum number of half-open connections of the service.
const HALF_OPEN_MAX: u64 = 4096;
/// Upper limit of the growth of the service's resident memory, in KiB. The half-open connections
/// and the buffers of the new clients need memory.
const GROWTH_KIB_MAX: u64 = 48 << 10;
/// Time limit of a step.
const LONG: Duration = Duration::from_secs(60);

/// The direction of the data on the established connection, and the IP version of the flood. The
/// program at the client's end is on the kernel. The program at the server's end is accelerated,
/// except when the kernel is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// The client's end sends to the server's end. The flood uses IPv4, from 250 addresses.
    Upload,
    /// The server's end sends to the client's end. The flood uses IPv6, from a million addresses.
    Download,
}

/// The established connection carries data to the flooded host.
pub fn an_upload_goes_on() -> Outcome {
    floods(Direction::Upload)
}

/// The established connection carries data from the flooded host.
pub fn a_download_goes_on() -> Outcome {
    floods(Direction::Download)
}

/// Runs a flood on Tidelane. At [`FULL_RATE`] or more, runs the same flood on the kernel, too. An
/// upload at this rate is repeated with each of the rate limits [`LINES`].
fn floods(direction: Direction) -> Outcome {
    let rate = env_number("TIDELANE_FLOOD_RATE", 50_000);
    let lines = match direction {
        Direction::Upload if rate >= FULL_RATE => &LINES[..],
        _ => &[None],
    };
    for line in lines {
        if let Some(mbit) = line {
            println!("the client's line has {mbit} Mbit/s:");
        }
        let wire = flooded_wire(*line)?;
        let service = wire.service_on_cores(Side::Server, server_cpu(), &[])?;
        flood_on(&wire, Some(&service), direction, rate)?;
        drop(service);
        if rate >= FULL_RATE {
            flood_on(&flooded_wire(*line)?, None, direction, rate)?;
        }
    }
    Ok(())
}

/// Returns a wire on which the kernel uses CUBIC. `line` is the rate limit of the client's
/// interface in Mbit/s, or `None` for no limit.
fn flooded_wire(line: Option<u32>) -> Result<Wire, Stop> {
    Wire::with(&WireOptions {
        congestion: Some("cubic".to_owned()),
        line,
        ..WireOptions::default()
    })
}

/// Returns the CPU of the service and the servers: CPU 1, or CPU 0 if the machine has only one CPU.
/// The flood generator and the clients use CPU 0.
fn server_cpu() -> &'static str {
    match thread::available_parallelism() {
        Ok(cpus) if cpus.get() > 1 => "1",
        _ => "0",
    }
}

/// The established connection: a program that sends, and a program that receives and checks.
struct Flow {
    source: Running,
    sink: Running,
}

impl Flow {
    /// Starts the programs and waits until more than 1 MiB has arrived.
    fn start(wire: &Wire, service: Option<&Service>, direction: Direction) -> Result<Self, Stop> {
        let tool = |side, name| -> Result<Program, Stop> {
            let tool = wire.load_tool(side, name)?;
            Ok(match side {
                Side::Server => tool.cpus(server_cpu()).on(service),
                _ => tool.cpus("0"),
            })
        };
        let (from, to, address) = match direction {
            Direction::Upload => (Side::Client, Side::Server, SERVER),
            Direction::Download => (Side::Server, Side::Client, CLIENT),
        };
        let sink = tool(to, "bulk-sink")?.arg("--port").arg(BULK);
        let mut sink = sink
            .args("--check --every 0.1 --warmup 0 --seconds 200")
            .spawn()?;
        tools::wait_until(SHORT, "the sink", || {
            sink.check_alive()?;
            wire.listens(to, BULK)
        })?;
        let source = tool(from, "bulk-source")?.args("--seconds 200");
        let source = source.arg("--connect").arg(format!("{address}:{BULK}"));
        let mut flow = Self {
            source: source.spawn()?,
            sink,
        };
        tools::wait_until(SHORT, "the flow", || Ok(flow.progress()?.1 > 1 << 20))?;
        Ok(flow)
    }

    /// Returns the duration of the transfer in seconds, and the number of received bytes.
    fn progress(&mut self) -> Result<(f64, u64), Stop> {
        self.sink.check_alive()?;
        let written = self.sink.output().0;
        let lines = written.lines().filter(|line| line.starts_with('{'));
        // The last line may be incomplete.
        let mut values = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let last = values.next_back().unwrap_or_default();
        let (seconds, bytes) = (last["seconds"].as_f64(), last["bytes"].as_u64());
        Ok((seconds.unwrap_or(0.0), bytes.unwrap_or(0)))
    }

    /// Ends the transfer. Fails unless all received bytes were right.
    fn end(self) -> Outcome {
        let line = self
            .sink
            .signal_and_wait(Signal::TERM, LONG)?
            .success()?
            .json()?;
        ensure!(line["bytes"].as_u64() > Some(0), "nothing came: {line}");
        self.source.wait(LONG)?.success().map(drop)
    }
}

/// Starts a flood of `rate` SYNs per second from the client's `interface`, and waits until the
/// generator is ready. The flood lasts TIDELANE_FLOOD_SECONDS.
fn start_flood(
    wire: &Wire,
    direction: Direction,
    rate: u64,
    interface: &str,
) -> Result<Running, Stop> {
    let space = wire.namespace(Side::Server);
    let path = format!("/sys/class/net/{INTERFACE}/address");
    let mac = command_in(&space, &["cat", &path])?;
    let (to, from, hosts): (IpAddr, _, _) = match direction {
        Direction::Upload => (SERVER.into(), "10.77.0.3", 250),
        Direction::Download => (SERVER_V6.into(), "fd77::1:0", 1_000_000),
    };
    let path = tools::binary("tidelane-flood")?;
    let flood = wire
        .program(Side::Client, &path.to_string_lossy())
        .cpus("0")
        .arg("--interface")
        .arg(interface)
        .arg("--to")
        .arg(std::net::SocketAddr::new(to, VICTIM))
        .arg("--to-mac")
        .arg(mac.trim())
        .arg("--from")
        .arg(from)
        .arg("--hosts")
        .arg(hosts);
    let seconds = env_number("TIDELANE_FLOOD_SECONDS", 2);
    let flood = flood.arg("--rate").arg(rate);
    flood.arg("--count").arg(rate * seconds).spawn_ready(SHORT)
}

/// Opens `count` connections over IPv4 to the flooded listener, then `count` connections over IPv6.
/// Fails unless all connections are served.
fn check_new_clients(wire: &Wire, count: u64) -> Outcome {
    for address in [SERVER.into(), SERVER_V6.into()] {
        let to = std::net::SocketAddr::new(address, VICTIM);
        let client = wire.load_tool(Side::Client, "short-client")?.cpus("0");
        let client = client.arg("--connect").arg(to);
        let client = client.args("--connections 4 --warmup 0 --seconds 50");
        let finished = client.arg("--total").arg(count).run(LONG)?;
        check_load(&finished.json()?)?;
    }
    Ok(())
}

/// Floods a listener on `service` if given, or else on the kernel. Checks the established
/// connection and new clients, and prints the goodput.
fn flood_on(wire: &Wire, service: Option<&Service>, direction: Direction, rate: u64) -> Outcome {
    let victim = wire.load_tool(Side::Server, "echo-server")?;
    let victim = victim.args("--address ::").cpus(server_cpu());
    let victim = victim.arg("--port").arg(VICTIM);
    let _victim = wire.start_server(victim, service, VICTIM)?;
    let mut flow = Flow::start(wire, service, direction)?;
    check_new_clients(wire, 4)?;
    let resident = service.map(Service::resident_kib).transpose()?;
    let alone = flow.progress()?;
    thread::sleep(Duration::from_secs(1));
    let before = flow.progress()?;
    // The generator sends to an interface that leads nowhere, and takes CPU time from the client.
    let aside = start_flood(wire, direction, rate, wire.add_dead_end(Side::Client)?)?;
    let beside = flow.progress()?;
    aside.wait(LONG)?.success()?;
    let spent = flow.progress()?;
    let flood = start_flood(wire, direction, rate, INTERFACE)?;
    let begin = flow.progress()?;
    check_new_clients(wire, NEW_CLIENTS)?;
    let flood = flood.wait(LONG)?.success()?;
    let end = flow.progress()?;
    ensure!(end.1 > begin.1, "the flow stood still during the flood");
    let stack = if service.is_some() {
        "Tidelane"
    } else {
        "kernel"
    };
    println!(
        "{stack}: {}",
        report(
            [alone, before],
            [beside, spent],
            [begin, end],
            &flood.stdout
        )
    );
    if let (Some(service), Some(resident)) = (service, resident) {
        check_service(wire, service, resident)?;
    }
    // After the flood, new clients can connect, and the established connection continues.
    check_new_clients(wire, NEW_CLIENTS)?;
    let last = flow.progress()?;
    tools::wait_until(
        LONG,
        "the flow to go on",
        || Ok(flow.progress()?.1 > last.1),
    )?;
    flow.end()
}

/// Checks that the service has sent SYN cookies and has not grown beyond its limits, and that the
/// flood has not filled the kernel's neighbour table.
fn check_service(wire: &Wire, service: &Service, resident_before: u64) -> Outcome {
    let counters = service.counters()?;
    ensure!(
        counters["syncookies_sent"].as_u64() > Some(0),
        "no SYN was answered with a cookie: {counters}"
    );
    let connections = service.ask("status")?["connections"].as_u64();
    ensure!(
        connections.is_some_and(|count| count <= HALF_OPEN_MAX + 256),
        "{connections:?} connections"
    );
    let grown = service.resident_kib()?.saturating_sub(resident_before);
    ensure!(grown < GROWTH_KIB_MAX, "the service grew by {grown} KiB");
    let space = wire.namespace(Side::Server);
    let neighbours = command(&["ip", "-n", &space, "neigh", "show", "dev", INTERFACE])?;
    ensure!(
        neighbours.lines().count() <= 8,
        "the neighbour table has addresses that no host has:\n{neighbours}"
    );
    Ok(())
}

/// Two measurements of a transfer. Each has the duration of the transfer so far in seconds, and the
/// number of bytes received so far.
type Span = [(f64, u64); 2];

/// Formats three goodputs: without a flood, while the generator sends to an interface that leads
/// nowhere, and during the flood. `flood` is the generator's output.
fn report(alone: Span, aside: Span, flooded: Span, flood: &str) -> String {
    let rate = |[from, to]: Span| {
        let bytes = to.1.saturating_sub(from.1) as f64;
        bytes * 8e-9 / (to.0 - from.0).max(1e-3)
    };
    let [before, beside, during] = [alone, aside, flooded].map(rate);
    let share = |of: f64| during / of.max(1e-9);
    let what = flood.lines().last().unwrap_or_default();
    format!(
        "{before:.2} Gbit/s before, {beside:.2} beside a flood that goes nowhere, {during:.2} in \
         the flood ({:.2} and {:.2} of them); {what}",
        share(before),
        share(beside)
    )
}
