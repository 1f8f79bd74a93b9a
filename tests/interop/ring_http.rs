//! An HTTP server (`app/kernel/examples/ring-http`) on the ring API, in which one call sends and
//! receives on all connections of a thread. The server uses the ring API instead of sockets, and
//! therefore does not need the preload library. The service (`tidelaned`) carries the server's TCP
//! connections instead of the kernel. The clients are on the kernel's stack.
//!
//! A wire is two network namespaces, the server's and the client's, joined by a veth pair.

use std::fs;

use tidelane_tests::{
    Outcome, Program, Running, Service, Side, Stop, Wire, WireOptions, ensure,
    impair::{Impairment, impaired_wire},
    tools,
    wire::SERVER,
};

use crate::{
    commands::check_refusal,
    embedded::{fetch, load},
    support::SHORT,
};

/// Port of the server.
const PORT: u16 = 7400;
/// A user who is not root.
const OTHER_USER: &str = "65534";
/// Lengths of the pages in bytes. The path of a page is its length.
const LENGTHS: [usize; 6] = [0, 1, 1460, 4096, 100_000, 1_000_000];

/// Returns the server, which listens at the address `listen` and uses `service`.
fn server(wire: &Wire, service: &Service, listen: &str) -> Result<Program, Stop> {
    let path = tools::binary("ring-http")?;
    let program = wire.program(Side::Server, &path.to_string_lossy());
    Ok(with_arguments(program, service, listen))
}

/// Adds to `program` the arguments and the environment variable that the server needs.
fn with_arguments(program: Program, service: &Service, listen: &str) -> Program {
    let arguments = format!("--back-end service --listen {listen} --seconds 110");
    program.registering_at(service).args(&arguments)
}

/// Starts the server, which listens at all addresses, and waits until the server is ready.
fn start(wire: &Wire, service: &Service) -> Result<Running, Stop> {
    server(wire, service, &format!("0.0.0.0:{PORT}"))?.spawn_ready(SHORT)
}

/// Fetches a page of each of the [`LENGTHS`], and checks the bytes of the page.
fn check_pages(wire: &Wire) -> Outcome {
    let address = format!("{SERVER}:{PORT}");
    LENGTHS
        .iter()
        .try_for_each(|len| fetch(wire, &address, *len))
}

/// curl gets the pages unchanged, and wrk has no error. The service counts more than 1000 received
/// segments, and therefore carries the connections. The service does not serve the loopback
/// interface. A client on this interface, in the server's namespace, fails before its time limit.
pub fn curl_and_wrk_on_the_service() -> Outcome {
    tools::require_tools(&["curl", "wrk"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let mut server = start(&wire, &service)?;
    let before = service.counters()?["in_segs"].as_u64();
    check_pages(&wire)?;
    let address = format!("{SERVER}:{PORT}");
    load(&wire, &address, "64", "Connection: keep-alive")?;
    load(&wire, &address, "64", "Connection: close")?;
    load(&wire, &address, "100000", "Connection: keep-alive")?;
    let segments = service.counters()?["in_segs"].as_u64();
    ensure!(
        segments > before.map(|before| before + 1000),
        "{segments:?} segments through the service"
    );
    let curl = wire.program(Side::Server, "curl");
    let curl = curl.args("-sS --max-time 5");
    let local = curl
        .arg(format!("http://127.0.0.1:{PORT}/1"))
        .finish(SHORT)?;
    // Exit statuses of curl: 7 for no connection, 52 for the end of the connection without an
    // answer, 55 for a reset before the request, and 56 for a reset after the request.
    let code = local.status.code();
    ensure!(matches!(code, Some(7 | 52 | 55 | 56)), "no reset: {local}");
    check_pages(&wire)?;
    server.check_alive()
}

/// The server serves pages if it runs as a user who is not root.
pub fn without_privileges() -> Outcome {
    tools::require_tools(&["curl", "setpriv"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    // A copy of the server in a directory that the user may read.
    let copy = wire.scratch().join("ring-http");
    fs::copy(tools::binary("ring-http")?, &copy)?;
    let line = format!("--reuid {OTHER_USER} --clear-groups {}", copy.display());
    let program = wire.program(Side::Server, "setpriv").args(&line);
    let listen = format!("{SERVER}:{PORT}");
    let mut server = with_arguments(program, &service, &listen).spawn_ready(SHORT)?;
    ensure!(service.has_listener(PORT)?, "the service has no listener");
    check_pages(&wire)?;
    server.check_alive()
}

/// curl fetches the pages while one frame in twenty is lost in each direction.
pub fn curl_with_loss() -> Outcome {
    tools::require_tools(&["curl"])?;
    let impairment = Impairment {
        loss_ppm: 50_000,
        reorder_ppm: 0,
    };
    let (wire, _impair) = impaired_wire(&WireOptions::default(), &impairment, 110)?;
    let service = wire.service()?;
    let mut server = start(&wire, &service)?;
    check_pages(&wire)?;
    let retransmitted = service.counters()?["retrans_segs"].as_u64();
    ensure!(
        retransmitted > Some(10),
        "{retransmitted:?} retransmitted segments"
    );
    server.check_alive()
}

/// The service is killed under load, twice. Each time, the server neither hangs nor crashes, and
/// then serves pages on the next service.
pub fn the_next_service_serves() -> Outcome {
    tools::require_tools(&["curl", "wrk"])?;
    let wire = Wire::new()?;
    let mut service = wire.service()?;
    let mut server = start(&wire, &service)?;
    for _ in 0..2 {
        let url = format!("http://{SERVER}:{PORT}/100000");
        let wrk = wire.program(Side::Client, "wrk");
        let wrk = wrk
            .args("-t 1 -c 20 -d 2s --timeout 10s")
            .arg(url)
            .spawn()?;
        tools::wait_until(SHORT, "connections", || {
            Ok(service.sockets_of(server.pid())?.len() > 20)
        })?;
        service.kill()?;
        wrk.wait(SHORT)?;
        server.check_alive()?;
        service = wire.service_again(&service)?;
        tools::wait_until(SHORT, "the listener", || service.has_listener(PORT))?;
        check_pages(&wire)?;
    }
    server.check_alive()
}

/// If the service does not serve the server's address, or if there is no service, the server fails
/// with an error that says what the user must do.
pub fn errors_say_what_to_do() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let local = server(&wire, &service, &format!("127.0.0.1:{PORT}"))?;
    check_refusal(&local.finish(SHORT)?, "listen at 0.0.0.0")?;
    service.down()?;
    let none = server(&wire, &service, &format!("0.0.0.0:{PORT}"))?;
    check_refusal(&none.finish(SHORT)?, "tidelane up")
}
