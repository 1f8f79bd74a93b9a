//! A service (`tidelaned`) dies while clients wait for data and send none. Each connection of the
//! clients is reset within seconds. Without the reset, a client would wait forever, because a
//! waiting client has no segment to retransmit.
//!
//! A wire is two network namespaces, the server's and the client's, joined by a veth pair. An
//! accelerated program runs under `tidelane run`: the service carries its TCP connections instead
//! of the kernel.

use std::{
    fmt::Display,
    path::PathBuf,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tidelane_tests::{
    Outcome, Program, Running, Service, Side, Stop, Wire, WireOptions, ensure,
    impair::{Impairment, impaired_wire},
    tools::{self, wait_until},
    wire::{SERVER, SERVER_V6},
};

use crate::support::{SHORT, check_load, echo_client, echo_server};

/// Port of the echo server.
const PORT: u16 = 7000;
/// Time limit for the reset of all clients on a wire without loss.
const RESET_MAX: Duration = Duration::from_secs(2);
/// Time after which a client stops waiting.
const PATIENCE: Duration = Duration::from_secs(30);

/// The path of the compiled program `waiting.c`.
struct Waiting(PathBuf);

impl Waiting {
    /// Compiles the program into the wire's directory.
    fn compile(wire: &Wire) -> Result<Self, Stop> {
        let binary = wire.scratch().join("waiting");
        let source = tools::source_root().join("tests/interop/waiting.c");
        tools::compile(&binary, &[source])?;
        Ok(Self(binary))
    }

    /// Returns a program in the namespace of `side` that opens `count` connections to `server`,
    /// from ports that the kernel chooses. The caller adds the name of the call in which the
    /// program waits.
    fn clients(&self, wire: &Wire, side: Side, server: impl Display, count: usize) -> Program {
        let program = wire.program(side, &self.0.to_string_lossy());
        let program = program.arg(server).arg(PORT).arg(count);
        program.arg(PATIENCE.as_secs()).arg(0)
    }

    /// Returns a program with `count` connections in the client's namespace that waits in `poll`.
    fn pollers(&self, wire: &Wire, server: impl Display, count: usize) -> Program {
        self.clients(wire, Side::Client, server, count).arg("poll")
    }
}

/// Starts the clients, and returns when all of them wait for data.
fn start(clients: Program) -> Result<Running, Stop> {
    let mut clients = clients.spawn()?;
    wait_until(SHORT * 2, "the clients to wait", || {
        clients.check_alive()?;
        Ok(clients.output().0.contains("waiting\n"))
    })?;
    Ok(clients)
}

/// Kills the service with SIGKILL and waits for its end.
fn kill(service: &Service) -> Outcome {
    service.kill()?;
    wait_until(SHORT, "the end of the service", || Ok(!service.alive()))
}

/// Fails unless all `count` connections of the program `clients` are reset within the time
/// `within`.
fn check_reset(clients: Running, count: usize, within: Duration) -> Outcome {
    let began = Instant::now();
    let finished = clients.wait(PATIENCE + SHORT)?.success()?;
    let took = began.elapsed();
    let expected = format!("waiting\nreset {count} ended 0 silent 0\n");
    ensure!(finished.stdout == expected, "{finished}");
    ensure!(took < within, "reset after {took:?}");
    println!("NOTE: {count} reset within {} ms", took.as_millis());
    Ok(())
}

/// The service of a server is killed. The server's clients, which are on the kernel, are reset over
/// IPv4 and IPv6.
pub fn peers_of_a_dead_service_are_reset() -> Outcome {
    let wire = Wire::new()?;
    let waiting = Waiting::compile(&wire)?;
    let service = wire.service()?;
    let server = wire.load_tool(Side::Server, "echo-server")?;
    let server = server.args("--address :: --port").arg(PORT);
    let _server = wire.start_server(server, Some(&service), PORT)?;
    let v4 = start(waiting.pollers(&wire, SERVER, 3))?;
    let v6 = start(waiting.pollers(&wire, SERVER_V6, 3))?;
    kill(&service)?;
    check_reset(v4, 3, RESET_MAX)?;
    check_reset(v6, 3, RESET_MAX)
}

/// The service of clients dies. The clients are reset, and the connections of their server, which
/// is on the kernel, end.
pub fn servers_of_dead_clients_are_reset() -> Outcome {
    let wire = Wire::new()?;
    let waiting = Waiting::compile(&wire)?;
    let service = wire.service_with(Side::Client, &[])?;
    let _server = echo_server(&wire, None, PORT)?;
    let clients = waiting.pollers(&wire, SERVER, 20).accelerated(&service);
    let clients = start(clients)?;
    ensure!(
        wire.kernel_connections(Side::Server, PORT)? == 20,
        "no connections"
    );
    kill(&service)?;
    check_reset(clients, 20, RESET_MAX)?;
    wait_until(RESET_MAX, "the server's connections to end", || {
        Ok(wire.kernel_connections(Side::Server, PORT)? == 0)
    })
}

/// The service of a server with 8000 connections dies. All connections are reset within
/// [`RESET_MAX`].
pub fn many_peers_are_reset() -> Outcome {
    const COUNT: usize = 8000;
    let wire = Wire::new()?;
    let waiting = Waiting::compile(&wire)?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), PORT)?;
    let clients = start(waiting.pollers(&wire, SERVER, COUNT))?;
    std::thread::sleep(Duration::from_secs(1));
    kill(&service)?;
    check_reset(clients, COUNT, RESET_MAX)
}

/// Clients and server are accelerated, by two services. The clients are reset when their own
/// service dies, when the server's service dies, and when both die, in each of five waiting calls.
pub fn connections_are_reset_when_a_service_dies() -> Outcome {
    for (clients_die, server_dies) in [(true, false), (false, true), (true, true)] {
        for how in ["poll", "select", "epoll", "nested", "recv"] {
            let wire = Wire::new()?;
            let waiting = Waiting::compile(&wire)?;
            let (near, far) = (wire.service_with(Side::Client, &[])?, wire.service()?);
            let _server = echo_server(&wire, Some(&far), PORT)?;
            let clients = waiting.clients(&wire, Side::Client, SERVER, 20).arg(how);
            let clients = start(clients.accelerated(&near).strict())?;
            if clients_die {
                near.kill()?;
            }
            if server_dies {
                far.kill()?;
            }
            check_reset(clients, 20, RESET_MAX)
                .map_err(|stop| Stop::Fail(format!("{how}: {stop:?}")))?;
        }
    }
    Ok(())
}

/// Clients and server are accelerated, by two services, and exchange data. Both services die, one
/// shortly after the other. All clients connect again, over the kernel's stack.
pub fn clients_at_work_outlive_both_services() -> Outcome {
    for round in 0..8 {
        let wire = Wire::new()?;
        let (near, far) = (wire.service_with(Side::Client, &[])?, wire.service()?);
        let _server = echo_server(&wire, Some(&far), PORT)?;
        let load = echo_client(&wire, Side::Client, PORT)?;
        let load = load.args("--connections 32 --warmup 0 --seconds 60");
        let load = load.accelerated(&near).spawn()?;
        wait_until(SHORT, "connections at work", || {
            let sockets = far.sockets()?;
            let open = sockets
                .iter()
                .filter(|socket| socket["state"] == "ESTABLISHED");
            Ok(open.count() == 32)
        })?;
        let (first, second) = if round % 2 == 0 {
            (&near, &far)
        } else {
            (&far, &near)
        };
        first.kill()?;
        std::thread::sleep(Duration::from_millis(round * 2));
        second.kill()?;
        wait_until(SHORT, "all clients on the kernel", || {
            Ok(wire.kernel_connections(Side::Server, PORT)? >= 32)
        })?;
        load.signal_and_wait(Signal::TERM, SHORT)?;
    }
    Ok(())
}

/// The service of a server dies. A client immediately connects again, from the port of its old
/// connection, to the kernel's listener. The process `tdl-restorer`, which outlives the service,
/// repeatedly sends the client an ACK of the old connection. If the client still waited on the
/// old connection, its answer to the ACK would make the server's kernel reset that connection. The
/// ACKs do not end the new connection.
pub fn a_peer_that_reconnects_is_not_reset() -> Outcome {
    let wire = Wire::new()?;
    let waiting = Waiting::compile(&wire)?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), PORT)?;
    let client = wire.program(Side::Client, &waiting.0.to_string_lossy());
    // The arguments of `waiting.c`: one connection, 18 seconds, and the local port 5555.
    let client = client
        .arg(SERVER)
        .arg(PORT)
        .arg(1)
        .arg(18)
        .arg(5555)
        .arg("poll");
    let client = start(client)?;
    kill(&service)?;
    let finished = client.wait(PATIENCE)?.success()?;
    let served = finished.stdout.strip_prefix("waiting\nserved ");
    let served: u64 = served.map_or("", str::trim).parse().unwrap_or(0);
    ensure!(served > 1000, "{finished}");
    Ok(())
}

/// Clients are reset over a wire that loses 5 % of the frames. If a reset is lost, a later reset
/// reaches the client, so the time limit is longer than [`RESET_MAX`].
pub fn peers_are_reset_despite_loss() -> Outcome {
    const COUNT: usize = 100;
    let impairment = Impairment {
        loss_ppm: 50_000,
        reorder_ppm: 0,
    };
    let (wire, _impair) = impaired_wire(&WireOptions::default(), &impairment, 100)?;
    let waiting = Waiting::compile(&wire)?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), PORT)?;
    let clients = start(waiting.pollers(&wire, SERVER, COUNT))?;
    kill(&service)?;
    check_reset(clients, COUNT, Duration::from_secs(17))
}

/// `tidelane down` resets all connections. The kernel then serves new clients.
pub fn a_service_that_ends_resets_its_peers() -> Outcome {
    let wire = Wire::new()?;
    let waiting = Waiting::compile(&wire)?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), PORT)?;
    let clients = start(waiting.pollers(&wire, SERVER, 100))?;
    service.down()?;
    check_reset(clients, 100, RESET_MAX)?;
    let load = echo_client(&wire, Side::Client, PORT)?.args("--seconds 0.3");
    check_load(&load.run(SHORT)?.json()?)
}
