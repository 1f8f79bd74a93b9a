//! Programs that use a service (`tidelaned`) and attack the service. The service continues to work,
//! and so do the connections of its other programs.

use std::{os::fd::OwnedFd, time::Duration};

use rustix::{
    fs::Mode,
    net::{
        AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send,
        socket_with,
    },
};
use tidelane_tests::{
    Outcome, Service, Side, Stop, Wire, ensure,
    service::run_dir,
    tools::{self, env_number},
    wire::SERVER,
};

use crate::support::{SHORT, check_load, echo_client, echo_server, stop_and_check_load};

/// Largest number of programs that try to jam a doorbell, one after the other. Each program tries
/// for a second. A doorbell is the eventfd to which the service writes in order to wake a program.
const JAMMERS_MAX: u32 = 15;

/// A program repeatedly writes random values into the memory that it shares with the service: into
/// the rings, and into the starts of the connections' records and of the send buffers. The
/// connections of other programs continue meanwhile.
pub fn scribbler_disturbs_nobody() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    let rounds = env_number("TIDELANE_SCRIBBLES", 10);
    let seconds = rounds * 3 + 60;
    let remote = echo_client(&wire, Side::Client, 7000)?.args("--connections 8 --bytes 3000");
    let remote = remote.arg("--seconds").arg(seconds).spawn()?;
    let local = echo_client(&wire, Side::Server, 7000)?.args("--connections 4");
    let local = local
        .arg("--seconds")
        .arg(seconds)
        .accelerated(&service)
        .spawn()?;
    for seed in 1..=rounds {
        let scribbler = wire.load_tool(Side::Server, "corrupt-memory")?;
        let scribbler = scribbler.arg("--connect").arg(format!("{SERVER}:7000"));
        let scribbler = scribbler.args("--connections 16 --warmup 0 --seconds 2 --allow-errors");
        let finished = scribbler
            .arg("--seed")
            .arg(seed)
            .accelerated(&service)
            .finish(SHORT)?;
        ensure!(
            finished.stdout.contains("overwriting "),
            "seed {seed}: nothing was written: {finished}"
        );
        ensure!(service.alive(), "seed {seed} killed the service");
        service.ask("status")?;
    }
    for client in [remote, local] {
        stop_and_check_load(client)?;
    }
    let fresh = echo_client(&wire, Side::Client, 7000)?.args("--seconds 0.3");
    check_load(&fresh.run(SHORT)?.json()?)
}

/// A program fills the counter of its doorbell eventfd, so that the service's write would block.
/// The service ends the program's session. The connections of other programs continue meanwhile.
pub fn jammed_doorbell_disturbs_nobody() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    let remote = echo_client(&wire, Side::Client, 7000)?.args("--connections 8 --seconds 30");
    let remote = remote.spawn()?;
    let mut counters = service.counters()?;
    // The service writes to the doorbell only if the program sleeps. On a busy machine, the program
    // rarely sleeps at the moment at which the counter is full.
    for _ in 0..JAMMERS_MAX {
        if counters["stuck_doorbells"].as_u64() > Some(0) {
            break;
        }
        let jammer = wire.load_tool(Side::Server, "block-doorbells")?;
        let jammer = jammer.arg("--connect").arg(format!("{SERVER}:7000"));
        let jammer = jammer.args("--connections 16 --warmup 0 --seconds 1 --allow-errors");
        jammer.accelerated(&service).finish(SHORT)?;
        counters = service.counters()?;
    }
    ensure!(
        counters["stuck_doorbells"].as_u64() > Some(0),
        "the service never met a jammed doorbell: {counters}"
    );
    stop_and_check_load(remote)?;
    let fresh = echo_client(&wire, Side::Client, 7000)?.args("--seconds 0.3");
    check_load(&fresh.run(SHORT)?.json()?)
}

/// Malformed messages of many lengths reach the registration socket (the socket at which programs
/// register with the service), and other connections to this socket stay silent. The service
/// continues to serve. After the test has closed the connections, the service closes its
/// descriptors of the connections.
pub fn nonsense_at_the_registration_socket() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let before = service.descriptors()?;
    for len in [0, 1, 8, 95, 96, 97, 4096, 65_536] {
        for fill in [0, 0xff, 0x5a] {
            let talker = registration_socket(&service)?;
            // The service may close the socket before all bytes are sent.
            let _ = send(&talker, &vec![fill; len], SendFlags::NOSIGNAL);
        }
    }
    // Open 64 connections that send nothing.
    let silent: Vec<OwnedFd> = (0..64)
        .map(|_| registration_socket(&service))
        .collect::<Result<_, _>>()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    let client = echo_client(&wire, Side::Client, 7000)?.args("--seconds 0.3");
    check_load(&client.run(SHORT)?.json()?)?;
    drop(silent);
    tools::wait_until(Duration::from_secs(5), "descriptors to be closed", || {
        // The margin covers the descriptors of the echo server.
        Ok(service.descriptors()? <= before + 8)
    })
}

/// Returns a new connection to the service's registration socket.
fn registration_socket(service: &Service) -> Result<OwnedFd, Stop> {
    let path = service.control_socket();
    // Programs that the case starts must not inherit the socket.
    let flags = SocketFlags::CLOEXEC;
    let talker = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&talker, &SocketAddrUnix::new(path)?)?;
    Ok(talker)
}

/// A program of an unprivileged user can use the service. The mode of the service's admin socket,
/// which the commands of `tidelane` use, gives other users no write permission.
pub fn unprivileged_program() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let mode =
        Mode::from_raw_mode(rustix::fs::stat(run_dir(service.name()).join("admin.sock"))?.st_mode);
    ensure!(
        !mode.intersects(Mode::WOTH),
        "anybody may write to the admin socket"
    );
    // Copy the binaries, because the source tree may be readable for root only.
    let home = wire.scratch().join("bin");
    std::fs::create_dir(&home)?;
    for name in ["tidelane", "libtidelane.so", "tidelane-load"] {
        std::fs::copy(tools::binary(name)?, home.join(name))?;
    }
    let line = format!(
        "run --name {} -- setpriv --reuid 65534 --clear-groups {}/tidelane-load echo-server",
        service.name(),
        home.display()
    );
    let tidelane = home.join("tidelane");
    let server = wire
        .program(Side::Server, &tidelane.to_string_lossy())
        .args(&line);
    let _server = wire.start_server(server.args("--port 7000"), None, 7000)?;
    tools::wait_until(SHORT, "an accelerated listener", || {
        service.has_listener(7000)
    })?;
    let client = echo_client(&wire, Side::Client, 7000)?.args("--connections 4 --seconds 0.5");
    check_load(&client.run(SHORT)?.json()?)
}
