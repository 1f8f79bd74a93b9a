//! Programs that use io_uring for their sockets.
//!
//! An accelerated program runs under `tidelane run`: the service (`tidelaned`) carries its TCP
//! connections instead of the kernel. `tidelane run` loads the preload library (`libtidelane.so`)
//! into the program. io_uring operations would bypass the library, so the library refuses io_uring
//! by default.

use std::time::Duration;

use tidelane_tests::{Outcome, Running, Service, Side, Stop, Wire, ensure, tools};

use crate::support::{SHORT, check_load, echo_client};

/// Port of the server.
const PORT: u16 = 7300;

/// Starts the server `rings.c`, on `service` if given or else on the kernel. If `allowed` is true,
/// the preload library lets the server make an io_uring instance.
fn start(wire: &Wire, service: Option<&Service>, allowed: bool) -> Result<Running, Stop> {
    let binary = wire.scratch().join("rings");
    let source = tools::source_root().join("tests/interop/rings.c");
    tools::compile(&binary, &[source])?;
    let server = wire.program(Side::Server, &binary.to_string_lossy());
    let server = server.arg(PORT);
    // `tidelane run --io-uring` sets this variable.
    let server = if allowed {
        server.env("TIDELANE_IO_URING", "1")
    } else {
        server
    };
    wire.start_server(server, service, PORT)
}

/// Runs an echo client for 0.3 seconds. The server exits when the client closes its connection.
/// Returns the server's output: the line "ring" if the server uses io_uring, or else "calls".
fn serve(wire: &Wire, server: Running) -> Result<String, Stop> {
    let client = echo_client(wire, Side::Client, PORT)?;
    let client = client.args("--connections 1 --warmup 0 --seconds 0.3");
    check_load(&client.run(SHORT)?.json()?)?;
    Ok(server.wait(SHORT)?.success()?.stdout)
}

/// The preload library refuses io_uring, so that the server falls back to system calls. The
/// server's connections are accelerated.
pub fn a_server_without_a_ring_is_served() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let server = start(&wire, Some(&service), false)?;
    let before = service.counters()?["in_segs"].as_u64();
    let way = serve(&wire, server)?;
    ensure!(way == "calls\n", "added its sockets to epoll by {way}");
    ensure!(
        service.counters()?["in_segs"].as_u64() > before,
        "not accelerated"
    );
    Ok(())
}

/// The server can make an io_uring instance in two cases: it runs without Tidelane, or it runs on
/// Tidelane with the environment variable that `tidelane run --io-uring` sets.
pub fn io_uring_works_if_allowed() -> Outcome {
    let wire = Wire::new()?;
    let way = serve(&wire, start(&wire, None, false)?)?;
    if way == "calls\n" {
        let text = "this kernel lets nobody make a ring (kernel.io_uring_disabled)";
        return Err(Stop::Skip(text.to_owned()));
    }
    let service = wire.service()?;
    let mut server = start(&wire, Some(&service), true)?;
    tools::wait_until(Duration::from_secs(10), "the ring", || {
        server.check_alive()?;
        Ok(server.output().0 == "ring\n")
    })?;
    server
        .signal_and_wait(rustix::process::Signal::KILL, SHORT)
        .map(drop)
}
