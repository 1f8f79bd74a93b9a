//! The embedded stack: Tidelane's TCP engine, linked into a program. In most cases the program is
//! an HTTP server behind a TUN device. The server's clients are on the kernel's stack.

use std::{fs, path::Path, thread, time::Duration};

use rustix::process::Signal;
use tidelane_tests::{Outcome, Program, Running, Side, Stop, Wire, ensure, tools};

use crate::support::{SHORT, check_load};

/// Name of the server's TUN device.
pub const DEVICE: &str = "tlemb0";
/// IP addresses of the TUN device's two ends: the kernel's end (with the prefix length), and the
/// server's end.
pub const ADDRESSES: (&str, &str) = ("10.97.0.1/24", "10.97.0.2");

/// Returns a wire (two network namespaces) with the TUN device in the client's namespace.
pub fn wire_with_device() -> Result<Wire, Stop> {
    tools::require_tools(&["curl", "wrk"])?;
    let wire = Wire::new()?;
    for line in [
        format!("tuntap add mode tun name {DEVICE}"),
        format!("addr add {} dev {DEVICE}", ADDRESSES.0),
        format!("link set {DEVICE} up"),
    ] {
        client(&wire, "ip").args(&line).run(SHORT)?.success()?;
    }
    Ok(wire)
}

/// Returns the program `name`, a client or a server, to start in the client's namespace.
fn client(wire: &Wire, name: &str) -> Program {
    wire.program(Side::Client, name)
}

/// Starts the HTTP server. Each `lose`-th packet of each direction is lost; zero means no loss.
fn server(wire: &Wire, lose: u32) -> Result<Running, Stop> {
    let path = tools::binary("tidelane-http")?;
    let program = client(wire, &path.to_string_lossy());
    let program = program.args(&format!("--device {DEVICE} --address {}", ADDRESSES.1));
    let program = program.arg("--lose").arg(lose).args("--seconds 50");
    program.spawn_ready(Duration::from_secs(10))
}

/// Fetches `len` bytes by curl from the HTTP server at `server`, and compares them with the
/// server's pattern.
pub fn fetch(wire: &Wire, server: &str, len: usize) -> Outcome {
    let url = format!("http://{server}/{len}");
    let curl = client(wire, "curl").args("-sS --fail --max-time 30 -o got");
    curl.arg(url).run(Duration::from_secs(35))?.success()?;
    let got = fs::read(wire.scratch().join("got"))?;
    let is_right = got
        .iter()
        .enumerate()
        .all(|(at, byte)| *byte == b'a' + (at % 26) as u8);
    ensure!(
        got.len() == len && is_right,
        "{} bytes of {len}, right: {is_right}",
        got.len()
    );
    Ok(())
}

/// Returns wrk, which requests `path` from the HTTP server at `server` for two seconds. Each
/// request has the header field `header`.
pub fn wrk(wire: &Wire, server: &str, path: &str, header: &str) -> Program {
    let wrk = client(wire, "wrk")
        .args("-t 1 -c 50 -d 2s --timeout 10s -H")
        .arg(header);
    wrk.arg(format!("http://{server}/{path}"))
}

/// Runs [`wrk`], and checks its output ([`check_wrk`]).
pub fn load(wire: &Wire, server: &str, path: &str, header: &str) -> Outcome {
    check_wrk(
        &wrk(wire, server, path, header)
            .run(SHORT)?
            .success()?
            .stdout,
    )
}

/// Fails if the output of [`wrk`] reports a failed connection or an HTTP error, or has no result.
pub fn check_wrk(output: &str) -> Outcome {
    let failed = output.contains("Socket errors") || output.contains("Non-2xx");
    ensure!(output.contains("Requests/sec") && !failed, "{output}");
    Ok(())
}

/// Over the kernel's stack, curl fetches pages of several lengths, and wrk fetches pages with
/// keep-alive and without.
pub fn http_to_the_kernel() -> Outcome {
    let wire = wire_with_device()?;
    let mut server = server(&wire, 0)?;
    for len in [0, 1, 1460, 1461, 100_000, 8_000_000] {
        fetch(&wire, ADDRESSES.1, len)?;
    }
    load(&wire, ADDRESSES.1, "64", "Connection: keep-alive")?;
    load(&wire, ADDRESSES.1, "64", "Connection: close")?;
    load(&wire, ADDRESSES.1, "100000", "Connection: keep-alive")?;
    server.check_alive()
}

/// The HTTP server of the other cases also runs on the kernel's sockets. A client sends two
/// requests together to each of the two servers, and gets two pages. The second page has the right
/// length.
pub fn the_same_source_on_kernel_sockets() -> Outcome {
    let wire = wire_with_device()?;
    let path = tools::binary("tidelane-http")?;
    let kernel = client(&wire, &path.to_string_lossy());
    let kernel = kernel.args("--kernel --address 127.0.0.1 --port 8080 --seconds 20");
    let mut kernel = kernel.spawn_ready(SHORT)?;
    let mut embedded = server(&wire, 0)?;
    for place in ["127.0.0.1/8080", &format!("{}/80", ADDRESSES.1)] {
        let line = format!(
            "exec 3<>/dev/tcp/{place}; \
             printf 'GET /3 HTTP/1.1\r\n\r\nGET /70000 HTTP/1.1\r\nConnection: close\r\n\r\n' >&3; \
             tr -d '\r' <&3"
        );
        let answers = client(&wire, "bash").arg("-c").arg(line).run(SHORT)?;
        let answers = answers.success()?.stdout;
        let pages = answers.matches("200 OK").count();
        let bytes = answers.lines().last().map_or(0, str::len);
        ensure!(
            pages == 2 && bytes == 70_000,
            "{place}: {pages} pages, {bytes} bytes"
        );
    }
    kernel.check_alive()?;
    embedded.check_alive()
}

/// curl fetches pages while one packet in twenty is lost in each direction.
pub fn http_with_loss() -> Outcome {
    let wire = wire_with_device()?;
    let mut server = server(&wire, 20)?;
    for len in [1, 100_000, 2_000_000] {
        fetch(&wire, ADDRESSES.1, len)?;
    }
    server.check_alive()
}

/// A C program runs the embedded stack in a libuv loop, and is the server of echo clients that use
/// the kernel's stack.
pub fn a_c_program_in_a_libuv_loop() -> Outcome {
    if !Path::new("/usr/include/uv.h").exists() {
        return Err(Stop::Skip(
            "no libuv here; apt-get install libuv1-dev".to_owned(),
        ));
    }
    let wire = wire_with_device()?;
    let program = wire.scratch().join("echo_uv");
    let source = tools::source_root().join("app/embedded-c/examples/echo_uv.c");
    let library = tools::binary("libtidelane_embedded_c.a")?;
    tools::compile(&program, &[source, library, "-luv".into(), "-lm".into()])?;
    let server = client(&wire, &program.to_string_lossy());
    let mut server = server
        .args(&format!("{DEVICE} {} 7000 40", ADDRESSES.1))
        .spawn_ready(Duration::from_secs(10))?;
    let load = wire.load_tool(Side::Client, "echo-client")?;
    let load = load.arg("--connect").arg(format!("{}:7000", ADDRESSES.1));
    let load = load.args("--connections 32 --seconds 2").run(SHORT)?;
    check_load(&load.success()?.json()?)?;
    server.check_alive()
}

/// The server is killed under load, and a second server starts on the same device. The second
/// server resets the old connections, and new connections work.
pub fn a_killed_server() -> Outcome {
    let wire = wire_with_device()?;
    let first = server(&wire, 0)?;
    let url = format!("http://{}/64", ADDRESSES.1);
    let wrk = client(&wire, "wrk")
        .args("-t 1 -c 20 -d 4s --timeout 10s")
        .arg(url);
    let wrk = wrk.spawn()?;
    thread::sleep(Duration::from_secs(1));
    first.signal_and_wait(Signal::KILL, SHORT)?;
    let mut second = server(&wire, 0)?;
    fetch(&wire, ADDRESSES.1, 100_000)?;
    let output = wrk.wait(SHORT)?.success()?.stdout;
    ensure!(
        output.contains("Socket errors"),
        "no connection was reset: {output}"
    );
    fetch(&wire, ADDRESSES.1, 100_000)?;
    second.check_alive()
}
