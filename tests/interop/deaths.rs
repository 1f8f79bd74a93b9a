//! Programs and services are killed with SIGKILL, and their resources are freed.
//!
//! An accelerated program runs under `tidelane run`: the service (`tidelaned`), not the kernel,
//! carries the program's TCP connections.

use std::time::Duration;

use rustix::process::Signal;
use tidelane_tests::{
    Outcome, Service, Side, Stop, Wire, ensure, nics,
    tools::{self, env_number, wait_until},
    wire::SERVER,
};

use crate::support::{SHORT, check_load, echo_client, echo_server, stop_and_check_load};

/// Number of rounds of kills before the service's resources are measured for the first time.
const REFERENCE_KILL: u64 = 5;
/// Time limit for the kernel to serve a NIC (TIDELANE_WIRE_NICS) after the service is killed. A
/// zero-copy driver must first set up its rings again.
const AT_ONCE: Duration = Duration::from_secs(1);
/// Largest growth of the service's resident memory that does not count as a leak, in KiB.
const GROWTH_MAX_KIB: u64 = 4096;

/// Returns the number of rounds of a case: TIDELANE_KILLS, or 20 without this variable. A round
/// kills one program or two. The number exceeds [`REFERENCE_KILL`], so that each case measures the
/// service.
fn kills() -> u64 {
    env_number("TIDELANE_KILLS", 20).max(REFERENCE_KILL + 1)
}

/// Waits until the service has no socket of the process `pid`.
fn wait_freed(service: &Service, pid: u32) -> Outcome {
    wait_until(SHORT, "the dead program's sockets to go", || {
        Ok(service.sockets_of(pid)?.is_empty())
    })
}

/// Waits until `count` accelerated connections of the process `pid` are at work
/// ([`active_connections`]).
fn wait_connections(service: &Service, pid: u32, count: usize) -> Outcome {
    wait_until(SHORT, "connections at work", || {
        Ok(active_connections(service, pid)? == count)
    })
}

/// Returns the number of accelerated connections of the process `pid` on which the peer has
/// acknowledged data.
fn active_connections(service: &Service, pid: u32) -> Result<usize, Stop> {
    let sockets = service.sockets_of(pid)?;
    let active = sockets.iter().filter(|socket| {
        socket["state"] == "ESTABLISHED" && socket["info"]["bytes_acked"].as_u64() > Some(0)
    });
    Ok(active.count())
}

/// The resources that a service uses.
struct Size {
    /// Resident memory in KiB.
    resident_kib: u64,
    /// Number of open descriptors, except for the sockets that reserve ports.
    descriptors: usize,
}

impl Size {
    /// Measures the service.
    fn of(service: &Service) -> Result<Self, Stop> {
        Ok(Self {
            resident_kib: service.resident_kib()?,
            descriptors: service.descriptors_without_claims()?,
        })
    }

    /// Fails if the service has more descriptors than in `self`, the earlier measurement, or if its
    /// memory has grown by more than [`GROWTH_MAX_KIB`].
    fn check_no_growth(&self, service: &Service) -> Outcome {
        // The service needs some time to notice the end of the last program.
        wait_until(SHORT, "the dead programs' descriptors to be closed", || {
            Ok(service.descriptors_without_claims()? <= self.descriptors)
        })?;
        let now = Self::of(service)?;
        let grown = now.resident_kib.saturating_sub(self.resident_kib);
        ensure!(grown <= GROWTH_MAX_KIB, "the service grew by {grown} KiB");
        Ok(())
    }
}

/// Servers are killed under load, one after the other. The peers receive RST, a second server gets
/// the port, connections of another program continue, and the service leaks nothing.
pub fn killed_program_frees_all() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _other = echo_server(&wire, Some(&service), 7001)?;
    let kills = kills();
    let seconds = kills * 40 + 60;
    let bystander = echo_client(&wire, Side::Client, 7001)?;
    let bystander = bystander
        .args("--connections 2 --seconds")
        .arg(seconds)
        .spawn()?;
    let mut size = None;
    for kill in 0..kills {
        if kill == REFERENCE_KILL {
            size = Some(Size::of(&service)?);
        }
        let server = echo_server(&wire, Some(&service), 7000)?;
        let client = echo_client(&wire, Side::Client, 7000)?;
        let client = client
            .args("--connections 32 --bytes 2000 --warmup 0 --seconds 60")
            .spawn()?;
        let pid = server.pid();
        wait_connections(&service, pid, 32)?;
        server.signal_and_wait(Signal::KILL, SHORT)?;
        wait_freed(&service, pid)?;
        // A second server gets the port, and the clients connect again. The kernel accepts the
        // connections that arrive before the new listener is in the service.
        let second = echo_server(&wire, Some(&service), 7000)?;
        let pid = second.pid();
        wait_until(SHORT, "the clients to come back", || {
            let kernels = wire.kernel_connections(Side::Server, 7000)?;
            Ok(active_connections(&service, pid)? + kernels >= 32)
        })?;
        let line = client.signal_and_wait(Signal::TERM, SHORT)?.json()?;
        let error = line["first_error"].as_str().unwrap_or_default();
        ensure!(error.contains("reset"), "kill {kill}: the peers saw {line}");
        ensure!(
            line["requests"].as_u64() > Some(0),
            "kill {kill}: no request: {line}"
        );
        second.signal_and_wait(Signal::KILL, SHORT)?;
        wait_freed(&service, pid)?;
    }
    if let Some(size) = size {
        size.check_no_growth(&service)?;
    }
    stop_and_check_load(bystander)?;
    let client = echo_client(&wire, Side::Client, 7001)?.args("--seconds 0.3");
    check_load(&client.run(SHORT)?.json()?)
}

/// Accelerated clients are killed under load, one after the other. The server is on the kernel, and
/// its connections to a killed client end. The service leaks nothing.
pub fn killed_client_frees_all() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service_with(Side::Client, &[])?;
    let _server = echo_server(&wire, None, 7000)?;
    let mut size = None;
    for kill in 0..kills() {
        if kill == REFERENCE_KILL {
            size = Some(Size::of(&service)?);
        }
        let client = echo_client(&wire, Side::Client, 7000)?.args("--connections 32 --seconds 20");
        let client = client.accelerated(&service).spawn()?;
        wait_until(SHORT, "32 connections", || {
            Ok(wire.kernel_connections(Side::Server, 7000)? == 32)
        })?;
        let pid = client.pid();
        client.signal_and_wait(Signal::KILL, SHORT)?;
        wait_freed(&service, pid)?;
        wait_until(SHORT, "the server's connections to end", || {
            Ok(wire.kernel_connections(Side::Server, 7000)? == 0)
        })?;
    }
    match size {
        Some(size) => size.check_no_growth(&service),
        None => Ok(()),
    }
}

/// The service is killed. Its connections end with ECONNRESET, and the programs continue on the
/// kernel. The kernel serves a veth interface immediately, and a NIC within [`AT_ONCE`]. A new
/// service can start.
pub fn killed_service_resets_and_comes_back() -> Outcome {
    let wire = Wire::new()?;
    for _ in 0..3 {
        let service = wire.service()?;
        let mut server = echo_server(&wire, Some(&service), 7000)?;
        let _kernel = echo_server(&wire, None, 7001)?;
        let local = echo_client(&wire, Side::Server, 7000)?;
        let local = local
            .args("--connections 4 --seconds 60")
            .accelerated(&service)
            .spawn()?;
        let remote = echo_client(&wire, Side::Client, 7000)?;
        let remote = remote.args("--connections 4 --seconds 60").spawn()?;
        wait_connections(&service, server.pid(), 8)?;
        service.kill()?;
        let ask_kernel = || {
            let client = echo_client(&wire, Side::Client, 7001)?.args("--seconds 0.2 --warmup 0");
            check_load(&client.run(SHORT)?.json()?)
        };
        if nics::are_named() {
            let what = "the kernel to serve the interface";
            wait_until(AT_ONCE, what, || Ok(ask_kernel().is_ok()))?;
        } else {
            ask_kernel()?;
        }
        // Both clients connect again, to the server's kernel socket. The kernel lists a connection
        // of the local client twice, once for each end.
        wait_until(SHORT, "the clients to come back", || {
            Ok(wire.kernel_connections(Side::Server, 7000)? >= 4 + 2 * 4)
        })?;
        for (who, client) in [("accelerated", local), ("kernel", remote)] {
            let line = client.signal_and_wait(Signal::TERM, SHORT)?.json()?;
            let error = line["first_error"].as_str().unwrap_or_default();
            ensure!(error.contains("reset"), "the {who} client saw {line}");
        }
        ensure!(server.alive(), "the server died with its service");
        // The server's kernel socket accepts new clients, too.
        let to = format!("{SERVER}:7000");
        let again = wire
            .load_tool(Side::Client, "echo-client")?
            .arg("--connect")
            .arg(to);
        check_load(&again.args("--seconds 0.3").run(SHORT)?.json()?)?;
    }
    Ok(())
}

/// The service is killed, and the connection of a program ends. The program then adds the
/// connection to an epoll instance in which a thread already sleeps (`armed_dead.c`). The thread is
/// woken, although no service exists that could write to the eventfd of the thread.
pub fn a_dead_connection_wakes_a_sleeper() -> Outcome {
    let wire = Wire::new()?;
    let binary = wire.scratch().join("armed_dead");
    let source = tools::source_root().join("tests/interop/armed_dead.c");
    tools::compile(&binary, &[source])?;
    let _kernel = echo_server(&wire, None, 7001)?;
    let service = wire.service_with(Side::Client, &[])?;
    let program = wire.program(Side::Client, &binary.to_string_lossy());
    let mut program = program
        .arg(SERVER)
        .arg(7001)
        .accelerated(&service)
        .strict()
        .spawn()?;
    wait_until(SHORT, "the connection", || {
        program.check_alive()?;
        Ok(program.output().0.contains("connected"))
    })?;
    service.kill()?;
    let finished = program.wait(SHORT)?.success()?;
    ensure!(finished.stdout.contains("woken 1 11"), "{finished}");
    Ok(())
}

/// After the service is killed, memcached serves clients on the next service. The main thread of
/// memcached accepts the clients. The workers sleep in epoll instances that were created before the
/// kill. The new connections must wake the workers nevertheless.
pub fn workers_of_memcached_find_the_next_service() -> Outcome {
    tools::require_tools(&["memcached", "memcaslap"])?;
    let wire = Wire::new()?;
    let mut service = wire.service()?;
    let server = wire.program(Side::Server, "memcached");
    let server = server.args("-t 3 -p 11211 -U 0 -l 0.0.0.0 -u nobody");
    let _server = wire.start_server(server, Some(&service), 11211)?;
    let load = || {
        let client = wire.program(Side::Client, "memcaslap").arg("-s");
        let client = client.arg(format!("{SERVER}:11211"));
        client.args("-T 1 -c 6 -t 1s").run(SHORT)
    };
    for _ in 0..2 {
        load()?;
        service.kill()?;
        load()?;
        service = wire.service_again(&service)?;
        wait_until(SHORT, "the listener in the new service", || {
            service.has_listener(11211)
        })?;
        load()?;
        let opened = service.counters()?["passive_opens"].as_u64();
        ensure!(
            opened >= Some(6),
            "{opened:?} connections came to the service"
        );
    }
    Ok(())
}

/// After the service is killed, a server with two threads serves clients on the next service. One
/// thread polls the listener, while the second sleeps in an epoll instance. Either thread may be
/// the first to use the next service.
pub fn a_polling_thread_finds_the_next_service() -> Outcome {
    let wire = Wire::new()?;
    let binary = wire.scratch().join("polls_beside");
    let source = tools::source_root().join("tests/interop/polls_beside.c");
    tools::compile(&binary, &[source])?;
    let mut service = wire.service()?;
    let server = wire.program(Side::Server, &binary.to_string_lossy());
    let _server = wire.start_server(server.arg(7000), Some(&service), 7000)?;
    let load = || {
        let client = echo_client(&wire, Side::Client, 7000)?;
        let client = client.args("--total 20 --seconds 10 --warmup 0");
        check_load(&client.run(SHORT)?.json()?)
    };
    for _ in 0..6 {
        load()?;
        service.kill()?;
        load()?;
        service = wire.service_again(&service)?;
        wait_until(SHORT, "the listener in the new service", || {
            service.has_listener(7000)
        })?;
        load()?;
        let opened = service.counters()?["passive_opens"].as_u64();
        ensure!(opened >= Some(1), "no connection came to the new service");
    }
    Ok(())
}
