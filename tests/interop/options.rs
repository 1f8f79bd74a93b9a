//! Socket options of a program, and options of the service (`tidelaned`): timeouts, congestion
//! control, ECN and ICMP errors. The peer is on the kernel.
//!
//! A wire is two network namespaces, the server's and the client's, joined by a veth pair.

use std::{fs, path::PathBuf, time::Duration};

use tidelane_tests::{
    Finished, Outcome, Running, Service, Side, Stop, Wire, command, command_in, ensure,
    tools::{self, wait_until},
    wire::{CLIENT, INTERFACE},
};

use crate::support::{SHORT, check_load, echo_client, echo_server};

/// TCP port of the echo server on the kernel.
const PORT: u16 = 7100;
/// Time limit of a step, which suffices on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A wire with an echo server on the kernel in the client's namespace. The program `options.c`
/// connects to the echo server from the server's namespace, where the service runs.
struct Ends {
    wire: Wire,
    /// Path of the compiled program `options.c`.
    binary: PathBuf,
    /// The echo server, which runs as long as this value exists.
    _server: Running,
}

impl Ends {
    /// Makes the wire, compiles the program and starts the echo server.
    fn new() -> Result<Self, Stop> {
        let wire = Wire::new()?;
        let binary = wire.scratch().join("options-program");
        let source = tools::source_root().join("tests/interop/options.c");
        tools::compile(&binary, &[source])?;
        let server = wire.load_tool(Side::Client, "echo-server")?;
        let server = server.arg("--port").arg(PORT).spawn()?;
        wait_until(LONG, "the server", || wire.listens(Side::Client, PORT))?;
        Ok(Self {
            wire,
            binary,
            _server: server,
        })
    }

    /// Starts the program on `service` if given, or else on the kernel. `arguments` are the
    /// program's arguments after GO_FILE. Waits until the program has connected and set its
    /// options.
    fn connect(&self, service: Option<&Service>, arguments: &str) -> Result<Running, Stop> {
        let go = self.go_file();
        let _ = fs::remove_file(&go);
        self.wire
            .program(Side::Server, &self.binary.to_string_lossy())
            .arg(CLIENT)
            .arg(PORT)
            .arg(go.display())
            .args(arguments)
            .on(service)
            .spawn_ready(LONG)
    }

    /// Returns the path of GO_FILE, whose existence `options.c` waits for.
    fn go_file(&self) -> PathBuf {
        self.wire.scratch().join("go")
    }

    /// Makes GO_FILE, and waits for the program's end.
    fn go_on(&self, running: Running) -> Result<Finished, Stop> {
        fs::write(self.go_file(), "")?;
        running.wait(LONG)?.success()
    }

    /// If `silent` is true, removes the address of the echo server's host, so that the host neither
    /// answers nor sends RST. Otherwise adds the address again.
    fn silence(&self, silent: bool) -> Outcome {
        let space = self.wire.namespace(Side::Client);
        let address = format!("{CLIENT}/24");
        let verb = if silent { "del" } else { "add" };
        let line = [
            "ip", "-n", &space, "address", verb, &address, "dev", INTERFACE,
        ];
        command(&line).map(drop)
    }

    /// If `lost` is true, turns the echo server's host into a router that has no route to the echo
    /// server's address, and therefore answers with ICMP errors. Otherwise restores the address.
    fn lose_way(&self, lost: bool) -> Outcome {
        let space = self.wire.namespace(Side::Client);
        let router = "10.77.0.77/24";
        let unreachable = CLIENT.to_string();
        let ip =
            |words: &[&str]| command(&[&["ip", "-n", space.as_str()], words].concat()).map(drop);
        self.wire.sysctl(Side::Client, "net.ipv4.ip_forward", "1")?;
        if lost {
            // Add the router's address last: when the kernel removes the first address of a
            // subnet, it also removes the others.
            self.silence(true)?;
            ip(&["address", "add", router, "dev", INTERFACE])?;
            return ip(&["route", "add", "unreachable", &unreachable]);
        }
        ip(&["route", "del", "unreachable", &unreachable])?;
        ip(&["address", "del", router, "dev", INTERFACE])?;
        self.silence(false)
    }

    /// Returns the number of packets with the ECN codepoint ECT(0) that the kernel in the client's
    /// namespace has received.
    fn ecn_packets(&self) -> Result<u64, Stop> {
        let space = self.wire.namespace(Side::Client);
        let text = command_in(&space, &["cat", "/proc/net/netstat"])?;
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("IpExt: "));
        let (names, values) = (lines.next(), lines.next());
        let names = names.unwrap_or_default().split_whitespace();
        let mut pairs = names.zip(values.unwrap_or_default().split_whitespace());
        let found = pairs.find(|(name, _)| *name == "InECT0Pkts");
        let (_, value) = found.ok_or(Stop::Fail("no InECT0Pkts".to_owned()))?;
        Ok(value.parse()?)
    }
}

/// Runs the program with `option` on the kernel and on Tidelane, and silences the peer. Fails
/// unless the program gets ETIMEDOUT after at least `least_ms` milliseconds.
fn times_out(option: &str, least_ms: u64) -> Outcome {
    let ends = Ends::new()?;
    let service = ends.wire.service()?;
    for service in [None, Some(&service)] {
        let running = ends.connect(service, option)?;
        ends.silence(true)?;
        let finished = ends.go_on(running)?;
        let waited = finished
            .stdout
            .lines()
            .find_map(|line| line.strip_prefix("waited "));
        let waited: u64 = waited.unwrap_or_default().parse()?;
        ensure!(
            finished.stdout.contains("read -1 ETIMEDOUT") && waited >= least_ms,
            "{finished}"
        );
        ends.silence(false)?;
    }
    Ok(())
}

/// Keepalive ends an idle connection whose peer is silent. The first probe is due after one idle
/// second, the second probe a second later, and the end of the connection another second later.
pub fn keepalive_ends_a_silent_connection() -> Outcome {
    // The idle second may already be over when the program starts to measure. Then the connection
    // ends two seconds later.
    times_out("keepalive", 1900)
}

/// TCP_USER_TIMEOUT (1500 ms) ends a connection whose data is not acknowledged.
pub fn user_timeout_ends_a_silent_connection() -> Outcome {
    times_out("user_timeout", 1400)
}

/// The option `--congestion` of the service sets the default algorithm of connections.
/// TCP_CONGESTION sets the algorithm of one connection. TCP_CONGESTION and the service report the
/// algorithm.
pub fn congestion_is_as_chosen() -> Outcome {
    let ends = Ends::new()?;
    for algorithm in ["cubic", "newreno", "dctcp", "bbr"] {
        let name = if algorithm == "newreno" {
            "reno"
        } else {
            algorithm
        };
        let service = ends
            .wire
            .service_with(Side::Server, &["--congestion", algorithm])?;
        for (chosen, expected) in [("", name), ("dctcp", "dctcp"), ("reno", "reno")] {
            let running = ends.connect(Some(&service), &format!("congestion {chosen}"))?;
            wait_until(SHORT, "the service to report the algorithm", || {
                let sockets = service.sockets_of(running.pid())?;
                Ok(sockets
                    .iter()
                    .any(|socket| socket["info"]["congestion"] == expected))
            })?;
            let finished = ends.go_on(running)?;
            // The lengths of Linux's `tcp_dctcp_info` and `tcp_bbr_info`.
            let len = match expected {
                "dctcp" => 16,
                "bbr" => 20,
                _ => 0,
            };
            let details = format!("details 0, {len} bytes\n");
            ensure!(
                finished.stdout.ends_with(&details),
                "{expected}: {finished}"
            );
            ensure!(
                finished
                    .stdout
                    .starts_with(&format!("congestion 0 {name}\n"))
                    && finished
                        .stdout
                        .contains(&format!("congestion 0 {expected}\nready")),
                "{algorithm}, {chosen}: {finished}"
            );
        }
        let unknown = ends.go_on(ends.connect(Some(&service), "congestion nosuch")?)?;
        ensure!(unknown.stdout.contains("set -1"), "{unknown}");
    }
    Ok(())
}

/// The option `--ecn` of the service decides whether the data that the service sends is
/// ECN-capable. `active` is the expected result for a connection that the service opens, and
/// `passive` for a connection that the service accepts. The peer requests ECN, and agrees if the
/// service requests ECN. With `asked`, the service agrees, but does not request ECN.
pub fn ecn_is_as_chosen() -> Outcome {
    let ends = Ends::new()?;
    ends.wire.sysctl(Side::Client, "net.ipv4.tcp_ecn", "1")?;
    for (option, active, passive) in [
        ("off", false, false),
        ("asked", false, true),
        ("on", true, true),
    ] {
        let service = ends.wire.service_with(Side::Server, &["--ecn", option])?;
        let before = ends.ecn_packets()?;
        ends.go_on(ends.connect(Some(&service), "congestion")?)?;
        let connected = ends.ecn_packets()?;
        ensure!(
            (connected > before) == active,
            "--ecn {option}, connecting: {before} to {connected} packets"
        );
        let _server = echo_server(&ends.wire, Some(&service), PORT + 1)?;
        let client = echo_client(&ends.wire, Side::Client, PORT + 1)?;
        let client = client.args("--connections 1 --seconds 1").run(LONG)?;
        check_load(&client.json()?)?;
        let served = ends.ecn_packets()?;
        ensure!(
            (served > connected) == passive,
            "--ecn {option}, connected to: {connected} to {served} packets"
        );
    }
    Ok(())
}

/// With TCP_SYNCNT 1, a connect to a silent peer fails with ETIMEDOUT on both stacks. The connect
/// lasts at least about two seconds: one second until the SYN is retransmitted, and one second or
/// more until the connect fails.
pub fn syn_count_is_as_chosen() -> Outcome {
    times_out("syn_count", 1900)
}

/// RFC 9293 MUST-20: if a peer does not acknowledge data, the service requests the kernel to verify
/// the peer's neighbour entry. The service counts the request.
pub fn a_silent_peer_is_looked_for() -> Outcome {
    let ends = Ends::new()?;
    let service = ends.wire.service()?;
    let running = ends.connect(Some(&service), "silent")?;
    let doubts = || Ok::<_, Stop>(service.counters()?["path_doubts"].as_u64());
    ensure!(doubts()? == Some(0), "{:?}", doubts()?);
    ends.silence(true)?;
    fs::write(ends.go_file(), "")?;
    wait_until(LONG, "a doubt", || Ok(doubts()? == Some(1)))?;
    drop(running);
    ends.silence(false)
}

/// RFC 9293 MUST-47, SHLD-20, SHLD-25: a program on Tidelane gets the same ICMP errors as on the
/// kernel. Without IP_RECVERR, SO_ERROR has the error. With IP_RECVERR, recv or sendfile returns
/// the error. The connection continues.
pub fn soft_errors_are_reported() -> Outcome {
    let ends = Ends::new()?;
    let service = ends.wire.service()?;
    let back = ends.wire.scratch().join("go-back");
    for option in ["soft_error", "soft_error_recverr", "soft_error_sendfile"] {
        let mut seen = Vec::new();
        for service in [None, Some(&service)] {
            let _ = fs::remove_file(&back);
            let mut running = ends.connect(service, option)?;
            ends.lose_way(true)?;
            fs::write(ends.go_file(), "")?;
            wait_until(LONG, "the error", || {
                running.check_alive()?;
                Ok(running.output().0.matches("ready").count() == 2)
            })?;
            ends.lose_way(false)?;
            fs::write(&back, "")?;
            let said = running.wait(LONG)?.success()?.stdout;
            let after = said.split_once("ready\n").map_or("", |(_, after)| after);
            seen.push(after.to_owned());
        }
        ensure!(seen[0].contains("EHOSTUNREACH"), "the kernel: {}", seen[0]);
        ensure!(seen[0].ends_with("echoed\n"), "the kernel: {}", seen[0]);
        ensure!(seen[0] == seen[1], "{}\nTidelane:\n{}", seen[0], seen[1]);
    }
    Ok(())
}
