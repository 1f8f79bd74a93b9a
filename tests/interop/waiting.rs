//! Clients that wait for an answer, and send nothing, when a service dies: each of them is reset.

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

const PORT: u16 = 7000;
/// Time limit for the reset of a peer.
const RESET_MAX: Duration = Duration::from_secs(2);
/// Time after which clients give up.
const PATIENCE: Duration = Duration::from_secs(30);

/// The clients of `waiting.c`, compiled.
struct Waiting(PathBuf);

impl Waiting {
    fn compile(wire: &Wire) -> Result<Self, Stop> {
        let binary = wire.scratch().join("waiting");
        let source = tools::source_root().join("tests/interop/waiting.c");
        tools::compile(&binary, &[source])?;
        Ok(Self(binary))
    }

    fn clients(&self, wire: &Wire, side: Side, server: impl Display, count: usize) -> Program {
        let program = wire.program(side, &self.0.to_string_lossy());
        let program = program.arg(server).arg(PORT).arg(count);
        program.arg(PATIENCE.as_secs()).arg(0)
    }

    /// Returns clients of the client's side that wait in `poll`.
    fn pollers(&self, wire: &Wire, server: impl Display, count: usize) -> Program {
        self.clients(wire, Side::Client, server, count).arg("poll")
    }
}

/// Starts clients, and waits until all of them wait.
fn start(clients: Program) -> Result<Running, Stop> {
    let mut clients = clients.spawn()?;
    wait_until(SHORT * 2, "the clients to wait", || {
        clients.check_alive()?;
        Ok(clients.written().0.contains("waiting\n"))
    })?;
    Ok(clients)
}

fn kill(service: &Service) -> Outcome {
    service.kill()?;
    wait_until(SHORT, "the end of the service", || Ok(!service.alive()))
}

/// Demands that `count` clients are reset, the last of them `within` this time from now.
fn check_reset(clients: Running, count: usize, within: Duration) -> Outcome {
    let began = Instant::now();
    let finished = clients.wait(PATIENCE + SHORT)?.success()?;
    let took = began.elapsed();
    let expected = format!("waiting\nreset {count} ended 0 silent 0\n");
    ensure!(finished.stdout == expected, "{finished}");
    ensure!(took < within, "told after {took:?}");
    println!("NOTE: {count} told within {} ms", took.as_millis());
    Ok(())
}

/// The service of a server dies. Its clients are on the kernel, over both versions of IP.
pub fn peers_of_a_dead_service_are_told() -> Outcome {
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

/// The service of clients dies. Their server, on the kernel, waits for requests.
pub fn servers_are_told_of_dead_clients() -> Outcome {
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

/// Thousands of clients that have waited for some time are reset.
pub fn many_peers_are_told() -> Outcome {
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

/// Clients on Tidelane learn of the death of their own service, of the server's, or of both at
/// once, in whatever call they wait.
pub fn programs_whose_service_dies_are_told() -> Outcome {
    for (clients_die, server_dies) in [(true, false), (false, true), (true, true)] {
        for how in ["poll", "select", "epoll", "recv"] {
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

/// Both ends are on Tidelane and transfer data. Both services die, one shortly after the other. The
/// clients connect again, on the kernel, and none hangs.
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
        load.end(Signal::TERM, SHORT)?;
    }
    Ok(())
}

/// A client connects again from the same port, to the kernel's listener, at once. The segments that
/// are sent because of the first connection do not disturb the new one.
pub fn a_peer_that_came_back_is_left_alone() -> Outcome {
    let wire = Wire::new()?;
    let waiting = Waiting::compile(&wire)?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), PORT)?;
    let client = wire.program(Side::Client, &waiting.0.to_string_lossy());
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

/// Where one of twenty frames is lost, a client may have to wait for a retransmitted segment.
pub fn peers_are_told_through_loss() -> Outcome {
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

/// `tidelane down` resets the connections itself, and nothing is sent afterwards.
pub fn a_service_that_ends_tells_its_peers() -> Outcome {
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
