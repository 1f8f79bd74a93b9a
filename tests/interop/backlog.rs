//! A server has more concurrent clients than its accept queue has room for. Each case runs the
//! server first on the kernel's stack, then on Tidelane. The clients are on the kernel's stack.
//! Every client must be served. On Tidelane, each case also checks that the accept queue overflows.
//!
//! A wire is two network namespaces, the server's and the client's, joined by a veth pair. The
//! service is the process `tidelaned`, which runs Tidelane's TCP/IP stack.

use std::{fs, time::Duration};

use tidelane_tests::{
    Outcome, Program, Service, Side, Stop, Wire, ensure,
    tools::{self, find_tool, require_tools},
    wire::{SERVER, write_random_file},
};

/// Number of concurrent clients: ten times the capacity of an accept queue. The capacity is
/// `BACKLOG` + 1 connections.
const CLIENTS: u64 = 100;
/// Backlog of `fork_server.c`. busybox's httpd has an equal backlog.
const BACKLOG: u32 = 9;
/// Total number of connections. Each has one request.
const TOTAL: u64 = 600;
/// Time limit for all clients. A client whose SYN is dropped several times needs most of this time.
const LIMIT: Duration = Duration::from_secs(80);

/// An echo server that forks a child for each connection.
pub fn a_child_for_each_of_a_hundred_clients() -> Outcome {
    on_both_stacks(7000, |wire| {
        let binary = wire.scratch().join("fork_server");
        let source = tools::source_root().join("tests/interop/fork_server.c");
        tools::compile(&binary, &[source])?;
        let server = wire.program(Side::Server, &binary.to_string_lossy());
        let client = wire
            .load_tool(Side::Client, "short-client")?
            .arg("--connect")
            .arg(format!("{SERVER}:7000"));
        Ok((server.arg(7000).arg(BACKLOG), client))
    })
}

/// busybox's httpd, which forks a child for each connection and closes the connection after
/// one response.
pub fn busybox_httpd() -> Outcome {
    require_tools(&["busybox"])?;
    let busybox = find_tool("busybox").map(fs::read).transpose()?;
    if !busybox.is_some_and(|file| has_interpreter(&file)) {
        let why = "busybox is statically linked here; apt-get install busybox";
        return Err(Stop::Skip(why.to_owned()));
    }
    on_both_stacks(80, |wire| {
        let file = wire.scratch().join("page");
        write_random_file(&file, 1000, 7)?;
        let server = wire.program(Side::Server, "busybox");
        let client = wire
            .load_tool(Side::Client, "http-client")?
            .arg("--connect")
            .arg(format!("{SERVER}:80"))
            .args("--close --path /page --body")
            .arg(file.display());
        let server = server.args("httpd -f -p 80 -h");
        Ok((server.arg(wire.scratch().display()), client))
    })
}

/// Returns true if a 64-bit ELF file is dynamically linked: a program header has the type
/// PT_INTERP. `file` has the bytes of the file.
fn has_interpreter(file: &[u8]) -> bool {
    const PT_INTERP: u32 = 3;
    let number = |at: usize| {
        file.get(at..at + 2)
            .map(|b| u16::from_le_bytes([b[0], b[1]]))
    };
    let (Some(first), Some(size), Some(count)) = (number(0x20), number(0x36), number(0x38)) else {
        return false;
    };
    let kind = |n| {
        file.get(usize::from(first) + usize::from(n) * usize::from(size)..)?
            .get(..4)
    };
    (0..count).any(|n| kind(n) == Some(&PT_INTERP.to_le_bytes()))
}

/// Runs a server and clients twice, each time on a new wire: first with the server on the kernel,
/// then with the server on Tidelane. `programs` returns the server, which listens on `port`, and a
/// program that runs clients.
fn on_both_stacks(
    port: u16,
    programs: impl Fn(&Wire) -> Result<(Program, Program), Stop>,
) -> Outcome {
    for accelerated in [false, true] {
        let wire = Wire::new()?;
        let service = accelerated.then(|| wire.service()).transpose()?;
        let (server, client) = programs(&wire)?;
        let _server = wire.start_server(server, service.as_ref(), port)?;
        serve_all(&wire, client)?;
        if let Some(service) = service {
            check_overflow(&service)?;
        }
    }
    Ok(())
}

/// Runs the clients. Fails if a connection attempt fails or if a connection is not served. A
/// dropped SYN is not a failure, because the clients' kernel sends the SYN again.
fn serve_all(wire: &Wire, client: Program) -> Outcome {
    let before = failures(wire)?;
    let client = client
        .args("--seconds 60 --connections")
        .arg(CLIENTS)
        .arg("--total")
        .arg(TOTAL);
    let line = client.run(LIMIT)?.json()?;
    ensure!(line["errors"] == 0, "connections failed: {line}");
    let served = line["requests"].as_u64();
    ensure!(served >= Some(TOTAL), "not all were served: {line}");
    let failed = failures(wire)? - before;
    ensure!(failed == 0, "{failed} connection attempts failed");
    Ok(())
}

/// Returns the kernel's counter AttemptFails of the client's namespace: the number of failed
/// connection attempts.
fn failures(wire: &Wire) -> Result<u64, Stop> {
    let text = wire.program(Side::Client, "cat").arg("/proc/net/snmp");
    let text = text.run(LIMIT)?.stdout;
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else {
        return Err(Stop::Fail(format!("no counters in {text}")));
    };
    let mut counters = names.split(' ').zip(values.split(' '));
    let value = counters.find(|(name, _)| *name == "AttemptFails");
    let value = value.and_then(|(_, value)| value.parse().ok());
    value.ok_or_else(|| Stop::Fail(format!("no AttemptFails in {text}")))
}

/// Fails unless an accept queue of the service has overflowed. Without an overflow, the case tests
/// nothing.
fn check_overflow(service: &Service) -> Outcome {
    let counters = service.counters()?;
    let overflows = counters["listen_overflows"].as_u64();
    ensure!(overflows > Some(0), "no overflow: {counters}");
    Ok(())
}
