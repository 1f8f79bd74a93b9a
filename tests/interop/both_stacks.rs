//! A server listens in both stacks: its connections stay where they are, whichever stack has them.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tidelane_tests::{
    Outcome, Program, Running, Service, Side, Stop, Wire, ensure,
    tools::{self, env_number, wait_until},
    wire::SERVER,
};

use crate::{
    servers::{curl, nginx, redis},
    support::{SHORT, check_load, echo_client, echo_server},
};

const PORT: u16 = 7000;
/// Clients that knock at once.
const CLIENTS: u64 = 20;
/// Time within which a server listens in the service again.
const AGAIN_MAX: Duration = Duration::from_secs(1);

/// How clients fared, see `knock.c`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Fared {
    served: u64,
    refused: u64,
    reset: u64,
    broken: u64,
    silent: u64,
}

impl Fared {
    fn parse(line: &str) -> Result<Self, Stop> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let count = |at: usize| Ok::<u64, Stop>(words.get(at).unwrap_or(&"").parse()?);
        Ok(Self {
            served: count(1)?,
            refused: count(3)?,
            reset: count(5)?,
            broken: count(7)?,
            silent: count(9)?,
        })
    }

    fn check_all_served(&self, clients: u64) -> Outcome {
        let lost = (self.reset, self.broken, self.silent);
        ensure!(self.served == clients && lost == (0, 0, 0), "{self:?}");
        Ok(())
    }
}

/// Clients of the client's side, compiled.
struct Knock(std::path::PathBuf);

impl Knock {
    fn compile(wire: &Wire) -> Result<Self, Stop> {
        let binary = wire.scratch().join("knock");
        let source = tools::source_root().join("tests/interop/knock.c");
        tools::compile(&binary, &[source])?;
        Ok(Self(binary))
    }

    /// So many clients, each of which echoes so many times, with pauses of 10 ms.
    fn clients(&self, wire: &Wire, clients: u64, exchanges: u64) -> Program {
        let knock = wire.program(Side::Client, &self.0.to_string_lossy());
        let knock = knock.arg(SERVER).arg(PORT).arg(clients);
        knock.arg(exchanges).arg(10)
    }
}

/// Clients knock while a server starts, again and again: those that come before its listener is in
/// the service are the kernel's, and stay there.
pub fn no_client_is_reset_while_a_server_starts() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let knock = Knock::compile(&wire)?;
    let mut in_kernel = 0;
    for start in 0..env_number("TIDELANE_STARTS", 15) {
        let clients = knock.clients(&wire, CLIENTS, 20).spawn()?;
        std::thread::sleep(Duration::from_millis(30));
        let server = wire.load_tool(Side::Server, "echo-server")?;
        let server = server.arg("--port").arg(PORT).on(Some(&service)).spawn()?;
        wait_until(SHORT, "the server", || wire.listens(Side::Server, PORT))?;
        in_kernel += wire.kernel_connections(Side::Server, PORT)?;
        let fared = Fared::parse(&clients.wait(SHORT * 2)?.success()?.stdout)?;
        fared
            .check_all_served(CLIENTS)
            .map_err(|stop| Stop::Fail(format!("start {start}: {stop:?}")))?;
        ensure!(
            service.has_listener(PORT)?,
            "start {start}: not accelerated"
        );
        server.end(Signal::TERM, SHORT)?;
        wait_until(SHORT, "the port to be free", || {
            Ok(!wire.listens(Side::Server, PORT)?)
        })?;
    }
    println!("NOTE: {in_kernel} connections of the kernel");
    Ok(())
}

/// Connections that the kernel accepted go on there while the service has the listener; when they
/// are over, the demux asks the kernel no more.
pub fn connections_of_the_kernel_go_on_there() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let server = echo_server(&wire, Some(&service), PORT)?;
    service.kill()?;
    wait_until(SHORT, "the end of the service", || Ok(!service.alive()))?;
    let before = long_client(&wire)?;
    wait_until(SHORT, "connections of the kernel", || {
        Ok(wire.kernel_connections(Side::Server, PORT)? == 4)
    })?;
    let service = wire.service_again(&service)?;
    wait_listening(&service, PORT, Instant::now())?;
    let after = echo_client(&wire, Side::Client, PORT)?;
    let after = after
        .args("--connections 4 --warmup 0 --seconds 1")
        .run(SHORT)?;
    check_load(&after.json()?)?;
    ensure!(
        wire.kernel_connections(Side::Server, PORT)? == 4,
        "connections came or went"
    );
    check_load(&before.wait(SHORT)?.success()?.json()?)?;
    let asked = || Ok::<_, Stop>(service.counters()?["demux_kernels"].as_u64().unwrap_or(0));
    ensure!(asked()? > 1000, "the demux left nothing to the kernel");
    drop(server);
    Ok(())
}

/// Four connections for three seconds.
fn long_client(wire: &Wire) -> Result<Running, Stop> {
    let client = echo_client(wire, Side::Client, PORT)?;
    client
        .args("--connections 4 --warmup 0 --seconds 6")
        .spawn()
}

fn wait_listening(service: &Service, port: u16, since: Instant) -> Outcome {
    let what = format!("the listener on port {port} in the new service");
    wait_until(AGAIN_MAX, &what, || service.has_listener(port))?;
    println!(
        "NOTE: listens again after {} ms",
        since.elapsed().as_millis()
    );
    Ok(())
}

/// The service dies and comes back, again and again, under a server that waits for clients: the
/// server listens in both stacks within a second, whether clients come or not, and no client is
/// lost.
pub fn servers_find_the_service_again() -> Outcome {
    let wire = Wire::new()?;
    let knock = Knock::compile(&wire)?;
    let mut service = wire.service()?;
    let mut server = echo_server(&wire, Some(&service), PORT)?;
    let kills = env_number("TIDELANE_SERVICE_KILLS", 4);
    for kill in 0..kills {
        service.kill()?;
        wait_until(SHORT, "the end of the service", || Ok(!service.alive()))?;
        // One after the other, on the kernel.
        let during = knock.clients(&wire, 3, 1).run(SHORT)?;
        Fared::parse(&during.stdout)?.check_all_served(3)?;
        service = wire.service_again(&service)?;
        let up = Instant::now();
        let coming = knock.clients(&wire, 100, 3).spawn()?;
        if kill % 2 == 0 {
            // Clients come while the server finds its service.
            wait_listening(&service, PORT, up)?;
            Fared::parse(&coming.wait(SHORT)?.success()?.stdout)?.check_all_served(100)?;
        } else {
            Fared::parse(&coming.wait(SHORT)?.success()?.stdout)?.check_all_served(100)?;
            wait_listening(&service, PORT, up)?;
        }
        for _ in 0..6 {
            let began = Instant::now();
            let one = knock.clients(&wire, 1, 1).run(SHORT)?;
            Fared::parse(&one.stdout)?.check_all_served(1)?;
            let took = began.elapsed();
            ensure!(
                took < AGAIN_MAX,
                "kill {kill}: a client waited for {took:?}"
            );
        }
        server.check_alive()?;
    }
    Ok(())
}

/// So do programs of several processes, and programs that do more than to wait.
pub fn real_servers_find_the_service_again() -> Outcome {
    tools::require_tools(&["curl", "nginx"])?;
    let wire = Wire::new()?;
    let mut service = wire.service()?;
    let nginx = nginx(&wire, &service)?;
    let _redis = redis(&wire, &service)?;
    let request = || {
        let size = curl(&wire, "64").args("-o /dev/null -w %{size_download}");
        let size = size.run(SHORT)?.stdout;
        ensure!(size == "64", "a body of {size} bytes");
        let ping = wire.program(Side::Client, "redis-cli");
        let answer = ping.arg("-h").arg(SERVER).arg("ping").run(SHORT)?.stdout;
        ensure!(answer.trim() == "PONG", "redis said {answer}");
        Ok(())
    };
    for _ in 0..3 {
        service.kill()?;
        wait_until(SHORT, "the end of the service", || Ok(!service.alive()))?;
        request()?;
        service = wire.service_again(&service)?;
        let up = Instant::now();
        for port in [nginx.port, 6379] {
            wait_listening(&service, port, up)?;
        }
        let segments = || Ok::<_, Stop>(service.counters()?["in_segs"].as_u64().unwrap_or(0));
        for _ in 0..10 {
            let (before, began) = (segments()?, Instant::now());
            request()?;
            let took = began.elapsed();
            ensure!(took < AGAIN_MAX * 2, "clients waited for {took:?}");
            ensure!(segments()? > before, "not accelerated");
        }
    }
    Ok(())
}
