//! The command `tidelane capture`, which writes copies of packets to a file that tcpdump can read.
//!
//! The service (`tidelaned`) has a packet multiplexer ("mux"). A mux port is a pair of packet rings
//! through which a program with a TCP/IP stack of its own shares the NIC. A capture copies packets
//! at the NIC or at one of the mux ports.

use std::fs;

use rustix::process::Signal;
use tidelane_tests::{Outcome, Running, Service, Side, Stop, Wire, ensure, tools, wire::SERVER};

use crate::{
    commands::{check_refusal, tidelane},
    embedded::fetch,
    ports::{HTTP, http},
    support::{SHORT, echo_client, echo_server},
};

/// Port of the echo server on the service.
const ECHO: u16 = 7000;
/// Length in bytes of the two blocks at the start of a capture file (pcapng): the section header
/// and the interface description.
const HEADER_LEN: u64 = 28 + 32;

/// Starts a capture to the file `name`, and waits until it runs.
fn capture(wire: &Wire, service: &Service, name: &str, options: &str) -> Result<Running, Stop> {
    let file = wire.scratch().join(name);
    let line = format!(
        "capture --name {} --write {} {options}",
        service.name(),
        file.display()
    );
    let mut running = tidelane(wire, &line)?.spawn()?;
    tools::wait_until(SHORT, "the capture", || {
        running.check_alive()?;
        Ok(fs::metadata(&file).is_ok_and(|file| file.len() >= HEADER_LEN))
    })?;
    Ok(running)
}

/// Returns the lines that tcpdump prints for a capture file.
fn read(wire: &Wire, name: &str) -> Result<Vec<String>, Stop> {
    let file = wire.scratch().join(name);
    let tcpdump = wire.program(Side::Server, "tcpdump").args("-nn -r");
    let output = tcpdump.arg(file.display()).run(SHORT)?.success()?.stdout;
    Ok(output.lines().map(str::to_owned).collect())
}

/// A capture at the NIC, filtered by the echo server's TCP port, has the SYN, the SYN-ACK and the
/// payload segments of a connection to that port, and no packet of other ports. A capture at a mux
/// port has an HTTP request and the start of the response, and no packet of the echo server. A
/// capture with `--count 3` has three packets.
pub fn tcpdump_reads_the_packets() -> Outcome {
    tools::require_tools(&["tcpdump", "curl"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _server = http(&wire, &service, HTTP)?.spawn_ready(SHORT)?;
    let _echo = echo_server(&wire, Some(&service), ECHO)?;
    let of_echo = format!("--protocol tcp --port {ECHO} --seconds 3");
    let at_nic = capture(&wire, &service, "nic.pcapng", &of_echo)?;
    let at_port = capture(&wire, &service, "port.pcapng", "--mux-port 0 --seconds 3")?;
    let short = capture(&wire, &service, "short.pcapng", "--count 3 --snap-len 60")?;
    let client = echo_client(&wire, Side::Client, ECHO)?;
    client.args("--total 50").run(SHORT)?.success()?;
    fetch(&wire, &format!("{SERVER}:{HTTP}"), 20_000)?;
    for running in [at_nic, at_port, short] {
        let finished = running.wait(SHORT)?.success()?;
        ensure!(finished.stderr.contains(" 0 lost"), "{finished}");
    }

    let lines = read(&wire, "nic.pcapng")?;
    let to_server = format!("> {SERVER}.{ECHO}:");
    let count = |words: &[&str]| {
        let has = |line: &&String| words.iter().all(|word| line.contains(word));
        lines.iter().filter(has).count()
    };
    let syns = (count(&["Flags [S]", &to_server]), count(&["Flags [S.]"]));
    ensure!(syns == (1, 1), "SYNs and SYN-ACKs: {syns:?}");
    // The client may send one more request before it ends.
    let (requests, both) = (count(&["length 64", &to_server]), count(&["length 64"]));
    ensure!(
        (50..52).contains(&requests) && both == 2 * requests,
        "{requests} requests, {both} segments"
    );
    let other = lines
        .iter()
        .find(|line| !line.contains(&format!(".{ECHO}")));
    ensure!(other.is_none(), "a packet of others: {other:?}");
    let lines = read(&wire, "port.pcapng")?;
    let has = |word: &str| lines.iter().any(|line| line.contains(word));
    ensure!(has("GET /20000"), "no request in {} lines", lines.len());
    ensure!(has("HTTP/1.1 200 OK"), "no answer in {} lines", lines.len());
    ensure!(!has(&format!(".{ECHO}")), "packets of others");
    ensure!(read(&wire, "short.pcapng")?.len() == 3, "not 3 packets");
    Ok(())
}

/// `tidelane capture` fails with one line if the mux port or the service does not exist, or if
/// eight captures are open. If a command is killed, its capture stays open at first. The service
/// ends the capture some seconds later, so that a new capture succeeds.
pub fn a_killed_capture_ends() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let name = service.name();
    let none = tidelane(
        &wire,
        &format!("capture --name {name} --mux-port 9 --seconds 1"),
    )?;
    check_refusal(&none.finish(SHORT)?, "mux port 9 is not open")?;
    let none = tidelane(&wire, "capture --name never")?;
    check_refusal(&none.finish(SHORT)?, "not running")?;
    for number in 0..8 {
        let running = capture(&wire, &service, &format!("{number}.pcapng"), "")?;
        running.signal_and_wait(Signal::KILL, SHORT)?;
    }
    let next = || tidelane(&wire, &format!("capture --name {name} --seconds 1"));
    check_refusal(&next()?.finish(SHORT)?, "8 captures are open")?;
    tools::wait_until(SHORT, "the end of the captures", || {
        Ok(next()?.finish(SHORT)?.status.success())
    })
}
