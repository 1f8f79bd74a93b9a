//! A server has its listener in the kernel and in the service (`tidelaned`) at the same time. The
//! cases start servers, and kill and restart the service, while clients connect. A connection that
//! the kernel accepted stays on the kernel's stack.
//!
//! A wire is two network namespaces, the server's and the client's, joined by a veth pair. An
//! accelerated program runs under `tidelane run`: the service, not the kernel, carries the
//! program's TCP connections.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tidelane_tests::{
    Outcome, Program, Running, Service, Side, Stop, Wire, ensure,
    tools::{self, env_number, wait_until},
    wire::SERVER,
};

use crate::{
    servers::{curl, nginx, redis},
    support::{SHORT, check_load, echo_client, echo_server, stop_and_check_load},
};

/// Port of the echo server.
const PORT: u16 = 7000;
/// Number of clients that connect at the same time.
const CLIENTS: u64 = 20;
/// Time limit until a restarted service has a server's listener. Also the time limit of a single
/// client afterwards.
const AGAIN_MAX: Duration = Duration::from_secs(1);

/// The results that the clients (`echo_clients.c`) print.
#[derive(Debug, Default, PartialEq, Eq)]
struct ClientResults {
    /// Clients that received every byte.
    served: u64,
    /// Refused attempts to connect. A client tries again after each refusal.
    refused: u64,
    /// Clients whose connection was reset.
    reset: u64,
    /// Clients whose connection ended early or had wrong bytes.
    broken: u64,
    /// Clients with a timeout or another error.
    silent: u64,
}

impl ClientResults {
    /// Parses the output of `echo_clients.c`.
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

    /// Fails unless all of the `clients` clients were served and no client failed.
    fn check_all_served(&self, clients: u64) -> Outcome {
        let lost = (self.reset, self.broken, self.silent);
        ensure!(self.served == clients && lost == (0, 0, 0), "{self:?}");
        Ok(())
    }
}

/// The path of the compiled client program `echo_clients.c`.
struct EchoClients(std::path::PathBuf);

impl EchoClients {
    /// Compiles the program into the wire's directory.
    fn compile(wire: &Wire) -> Result<Self, Stop> {
        let binary = wire.scratch().join("echo-clients");
        let source = tools::source_root().join("tests/interop/echo_clients.c");
        tools::compile(&binary, &[source])?;
        Ok(Self(binary))
    }

    /// Returns a program that runs `clients` clients in the client's namespace. Each client sends a
    /// message and reads the echo, `exchanges` times, with pauses of 10 ms.
    fn program(&self, wire: &Wire, clients: u64, exchanges: u64) -> Program {
        let program = wire.program(Side::Client, &self.0.to_string_lossy());
        let program = program.arg(SERVER).arg(PORT).arg(clients);
        program.arg(exchanges).arg(10)
    }
}

/// Clients connect while a server starts, and no connection is reset. The kernel accepts the
/// connections that arrive before the listener is in the service, and keeps them. The case prints
/// the number of connections in the kernel, but does not check this number.
pub fn no_client_is_reset_while_a_server_starts() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let echo_clients = EchoClients::compile(&wire)?;
    let mut in_kernel = 0;
    for start in 0..env_number("TIDELANE_STARTS", 15) {
        let clients = echo_clients.program(&wire, CLIENTS, 20).spawn()?;
        std::thread::sleep(Duration::from_millis(30));
        let server = wire.load_tool(Side::Server, "echo-server")?;
        let server = server.arg("--port").arg(PORT).on(Some(&service)).spawn()?;
        wait_until(SHORT, "the server", || wire.listens(Side::Server, PORT))?;
        in_kernel += wire.kernel_connections(Side::Server, PORT)?;
        let results = ClientResults::parse(&clients.wait(SHORT * 2)?.success()?.stdout)?;
        results
            .check_all_served(CLIENTS)
            .map_err(|stop| Stop::Fail(format!("start {start}: {stop:?}")))?;
        ensure!(
            service.has_listener(PORT)?,
            "start {start}: not accelerated"
        );
        server.signal_and_wait(Signal::TERM, SHORT)?;
        wait_until(SHORT, "the port to be free", || {
            Ok(!wire.listens(Side::Server, PORT)?)
        })?;
    }
    println!("NOTE: {in_kernel} connections of the kernel");
    Ok(())
}

/// Connections that the kernel accepted while no service ran stay with the kernel when the
/// restarted service has the listener. The demux (the XDP program that chooses between service and
/// kernel for each frame) leaves the frames of these connections to the kernel, and counts the
/// frames.
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
        "the kernel has not exactly the four earlier connections"
    );
    wait_until(
        SHORT,
        "1,000 frames that the demux left to the kernel",
        || Ok(service.counters()?["demux_kernel_socket"].as_u64() > Some(1000)),
    )?;
    stop_and_check_load(before)?;
    drop(server);
    Ok(())
}

/// Starts a client that keeps four connections open until a signal.
fn long_client(wire: &Wire) -> Result<Running, Stop> {
    let client = echo_client(wire, Side::Client, PORT)?;
    client
        .args("--connections 4 --warmup 0 --seconds 60")
        .spawn()
}

/// Waits at most [`AGAIN_MAX`] until a restarted service has the listener on `port`. Prints the
/// time since `since`.
fn wait_listening(service: &Service, port: u16, since: Instant) -> Outcome {
    let what = format!("the listener on port {port} in the new service");
    wait_until(AGAIN_MAX, &what, || service.has_listener(port))?;
    println!(
        "NOTE: listens again after {} ms",
        since.elapsed().as_millis()
    );
    Ok(())
}

/// Number of deaths of the service before the server's footprint is measured for the first time.
const REFERENCE_KILL: u64 = 2;
/// Largest growth of the server's resident memory that does not count as a leak, in KiB.
const GROWTH_MAX_KIB: u64 = 1024;

/// The resources that a process uses.
#[derive(Debug)]
struct Footprint {
    /// Number of open descriptors.
    descriptors: usize,
    /// Number of memory mappings.
    mappings: usize,
    /// Resident memory in KiB.
    resident_kib: u64,
}

impl Footprint {
    /// Measures the process `pid`.
    fn of(pid: u32) -> Result<Self, Stop> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|line| line.split_whitespace().next());
        Ok(Self {
            descriptors: std::fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
            mappings: std::fs::read_to_string(format!("/proc/{pid}/maps"))?
                .lines()
                .count(),
            resident_kib: resident.unwrap_or_default().parse()?,
        })
    }

    /// Fails if the process `pid` uses more than the earlier measurement `self` plus the permitted
    /// growth.
    fn check_no_growth(&self, pid: u32) -> Outcome {
        let now = Self::of(pid)?;
        println!("NOTE: the program had {self:?}, and has {now:?}");
        // The server may still have the descriptors of connections that have just ended.
        ensure!(
            now.descriptors <= self.descriptors + 2,
            "{self:?} became {now:?}"
        );
        ensure!(now.mappings <= self.mappings + 2, "{self:?} became {now:?}");
        let grown = now.resident_kib.saturating_sub(self.resident_kib);
        ensure!(grown <= GROWTH_MAX_KIB, "{self:?} became {now:?}");
        Ok(())
    }
}

/// The service is killed and restarted repeatedly while a server runs, and clients connect after
/// each restart. After even-numbered kills, the server's listener must be in the new service within
/// a second after the restart. After odd-numbered kills, this time begins when the clients have
/// ended. All clients are served, and the server leaks neither descriptors nor memory.
pub fn servers_find_the_service_again() -> Outcome {
    let wire = Wire::new()?;
    let echo_clients = EchoClients::compile(&wire)?;
    let mut service = wire.service()?;
    let mut server = echo_server(&wire, Some(&service), PORT)?;
    let kills = env_number("TIDELANE_SERVICE_KILLS", 4);
    let mut reference = None;
    let mut restorers = Vec::new();
    for kill in 0..kills {
        if kill == REFERENCE_KILL {
            reference = Some(Footprint::of(server.pid())?);
        }
        restorers.push(restorer_of(&service)?);
        service.kill()?;
        wait_until(SHORT, "the end of the service", || Ok(!service.alive()))?;
        // Without a service, the kernel serves the clients.
        let during = echo_clients.program(&wire, 3, 1).run(SHORT)?;
        ClientResults::parse(&during.stdout)?.check_all_served(3)?;
        service = wire.service_again(&service)?;
        let up = Instant::now();
        let coming = echo_clients.program(&wire, 100, 3).spawn()?;
        if kill % 2 == 0 {
            // The clients connect while the server registers with the new service.
            wait_listening(&service, PORT, up)?;
            ClientResults::parse(&coming.wait(SHORT)?.success()?.stdout)?.check_all_served(100)?;
        } else {
            ClientResults::parse(&coming.wait(SHORT)?.success()?.stdout)?.check_all_served(100)?;
            wait_listening(&service, PORT, up)?;
        }
        for _ in 0..6 {
            let began = Instant::now();
            let one = echo_clients.program(&wire, 1, 1).run(SHORT)?;
            ClientResults::parse(&one.stdout)?.check_all_served(1)?;
            let took = began.elapsed();
            ensure!(
                took < AGAIN_MAX,
                "kill {kill}: a client waited for {took:?}: {}",
                service.counters()?
            );
        }
        server.check_alive()?;
    }
    if let Some(reference) = reference {
        reference.check_no_growth(server.pid())?;
    }
    server.signal_and_wait(Signal::TERM, SHORT)?;
    wait_until(SHORT, "the listener and its port to go", || {
        Ok(service.sockets()?.is_empty() && !wire.listens(Side::Server, PORT)?)
    })?;
    wait_until(SHORT, "the restorers of dead services to end", || {
        Ok(!restorers.iter().any(is_restorer))
    })
}

/// Returns the process id of `tdl-restorer`, a child process of the service. After the service is
/// killed, `tdl-restorer` restores the NIC's settings and ends.
fn restorer_of(service: &Service) -> Result<u32, Stop> {
    let pid = service.pid();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    Ok(children.trim().parse()?)
}

/// Returns true if the process `pid` is a `tdl-restorer` and not a zombie.
fn is_restorer(pid: &u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.contains("tdl-restorer") && !status.contains("\nState:\tZ")
}

/// Servers start or change while no service runs, and the next service gets their listeners. The
/// servers are a new server, a running server that closes its listener and opens a new one, and a
/// reloaded nginx. The next service accepts the connections of the new server's clients.
pub fn listeners_of_an_outage_find_the_service() -> Outcome {
    const REOPENED: u16 = 7001;
    tools::require_tools(&["nginx"])?;
    let wire = Wire::new()?;
    let echo_clients = EchoClients::compile(&wire)?;
    let binary = wire.scratch().join("reopens");
    let source = tools::source_root().join("tests/interop/reopens.c");
    tools::compile(&binary, &[source])?;
    let mut service = wire.service()?;
    let reopens = wire.program(Side::Server, &binary.to_string_lossy());
    let reopens = reopens.arg(REOPENED);
    let mut reopens = wire.start_server(reopens, Some(&service), REOPENED)?;
    let nginx = nginx(&wire, &service)?;
    let library = tools::binary("libtidelane.so")?;
    let socket = service.control_socket();
    for _ in 0..3 {
        service.kill()?;
        wait_until(SHORT, "the end of the service", || Ok(!service.alive()))?;
        // `reopens.c` closes its listener after each client and opens a new one.
        let client = wire.program(Side::Client, &echo_clients.0.to_string_lossy());
        let client = client.arg(SERVER).arg(REOPENED).args("1 1 10").run(SHORT)?;
        ClientResults::parse(&client.stdout)?.check_all_served(1)?;
        // Preload the library directly: `tidelane run` starts no program without a service.
        let echo = wire.load_tool(Side::Server, "echo-server")?;
        let echo = echo.arg("--port").arg(PORT);
        let echo = echo.env("TIDELANE_SOCKET", &socket.to_string_lossy());
        let echo = echo.env("LD_PRELOAD", &library.to_string_lossy());
        let echo = wire.start_server(echo, None, PORT)?;
        nginx.master.signal(Signal::HUP)?;
        service = wire.service_again(&service)?;
        let up = Instant::now();
        for port in [nginx.port, PORT, REOPENED] {
            wait_listening(&service, port, up)?;
        }
        let clients = echo_clients.program(&wire, 20, 3).run(SHORT)?;
        ClientResults::parse(&clients.stdout)?.check_all_served(20)?;
        let opened = service.counters()?["passive_opens"].as_u64();
        ensure!(
            opened >= Some(20),
            "the new service accepted {opened:?} connections"
        );
        reopens.check_alive()?;
        drop(echo);
    }
    Ok(())
}

/// After each restart of the service, the listeners of nginx and redis are in the new service and
/// serve clients. nginx has several processes, and redis has timers of its own.
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
