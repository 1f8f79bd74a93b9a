//! Mux ports of the service (`tidelaned`). A program with a TCP/IP stack of its own shares the NIC
//! through a mux port, a pair of packet rings for each core of the service. A claim of a mux port
//! is a protocol, an address and a TCP or UDP port whose packets go to the mux port.
//!
//! A program on a mux port, a program on the service and a program on the kernel can share one
//! address. A wire is two network namespaces, the server's and the client's, joined by a veth pair.

use std::{fs, net::Ipv4Addr, thread, time::Duration};

use rustix::process::Signal;
use serde_json::Value;
use tidelane_tests::{
    Outcome, Program, Running, Service, Side, Stop, Wire, command_in, ensure, tools,
    wire::{CLIENT, INTERFACE, SERVER},
};

use crate::{
    commands::{check_refusal, tidelane},
    embedded::{check_wrk, fetch, load, wrk},
    support::{SHORT, check_load, echo_client, echo_server, ip},
};

/// TCP port of the HTTP server.
pub const HTTP: u16 = 8080;
/// TCP port of the echo server on the service.
const ON_SERVICE: u16 = 7000;
/// TCP port of the echo server on the kernel.
const ON_KERNEL: u16 = 7001;
/// A user who is not root.
const OTHER_USER: &str = "65534";

/// Returns the HTTP server on a mux port of `service`. The server listens on TCP port `port`.
pub fn http(wire: &Wire, service: &Service, port: u16) -> Result<Program, Stop> {
    let path = tools::binary("tidelane-http")?;
    let program = wire.program(Side::Server, &path.to_string_lossy());
    Ok(with_arguments(program, service, port))
}

/// Adds the arguments and the environment of [`http`].
fn with_arguments(program: Program, service: &Service, port: u16) -> Program {
    program.registering_at(service).args(&format!(
        "--service --address {SERVER} --port {port} --seconds 80"
    ))
}

/// Returns the program of `http`, to run as `OTHER_USER`. Copies the program to a directory
/// that this user may read.
fn http_of_other_user(wire: &Wire, service: &Service, port: u16) -> Result<Program, Stop> {
    let copy = wire.scratch().join("tidelane-http");
    fs::copy(tools::binary("tidelane-http")?, &copy)?;
    let line = format!("--reuid {OTHER_USER} --clear-groups {}", copy.display());
    let program = wire.program(Side::Server, "setpriv").args(&line);
    Ok(with_arguments(program, service, port))
}

/// Returns the mux ports that `tidelane port list` shows, as the service's JSON.
pub fn ports(service: &Service) -> Result<Vec<Value>, Stop> {
    let answer = service.ask("ports")?;
    Ok(answer["ports"].as_array().cloned().unwrap_or_default())
}

/// Starts an echo client that connects to TCP port `port` and runs for three seconds.
fn clients(wire: &Wire, port: u16) -> Result<Running, Stop> {
    let client = echo_client(wire, Side::Client, port)?;
    client
        .args("--connections 8 --warmup 0 --seconds 3")
        .spawn()
}

/// Fails unless the HTTP server serves pages of several sizes.
fn check_http(wire: &Wire) -> Outcome {
    let server = format!("{SERVER}:{HTTP}");
    let sizes = [0, 1, 1460, 1461, 100_000, 8_000_000];
    sizes.iter().try_for_each(|len| fetch(wire, &server, *len))
}

/// A program with a stack of its own, a program on the service and a program on the kernel serve
/// clients of one address at the same time. `tidelane port list` shows the mux port and its claim
/// of a TCP port. The service counts the packets of the mux port.
pub fn three_stacks_share_an_address() -> Outcome {
    tools::require_tools(&["curl", "wrk"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let mut server = http(&wire, &service, HTTP)?.spawn_ready(SHORT)?;
    let _on_service = echo_server(&wire, Some(&service), ON_SERVICE)?;
    let _on_kernel = echo_server(&wire, None, ON_KERNEL)?;
    check_http(&wire)?;
    let beside = [clients(&wire, ON_SERVICE)?, clients(&wire, ON_KERNEL)?];
    let address = format!("{SERVER}:{HTTP}");
    load(&wire, &address, "64", "Connection: keep-alive")?;
    load(&wire, &address, "64", "Connection: close")?;
    load(&wire, &address, "100000", "Connection: keep-alive")?;
    for client in beside {
        check_load(&client.wait(SHORT)?.success()?.json()?)?;
    }
    let name = service.name();
    let list = tidelane(&wire, &format!("port list --name {name}"))?.run(SHORT)?;
    let line = list.stdout.lines().nth(1).unwrap_or_default();
    let words: Vec<&str> = line.split_whitespace().collect();
    let pid = server.pid().to_string();
    let claim = address.as_str();
    // The mux port's number, program, process id, user id, ring length in bytes, and claim.
    ensure!(
        words == ["0", "tidelane-http", &pid, "0", "1048576", "tcp", claim],
        "{list}"
    );
    tidelane(&wire, &format!("port stat 0 --name {name}"))?.run(SHORT)?;
    let none = tidelane(&wire, &format!("port stat 1 --name {name}"))?;
    check_refusal(&none.finish(SHORT)?, "there is no mux port 1")?;
    let port = ports(&service)?.into_iter().next().unwrap_or_default();
    ensure!(
        port["received"].as_u64() > Some(1000) && port["sent"].as_u64() > Some(1000),
        "few packets: {port}"
    );
    ensure!(
        port["refused"] == serde_json::json!({}),
        "refused packets: {port}"
    );
    // The large pages leave the mux port as GSO frames.
    ensure!(port["gso_frames"].as_u64() > Some(100), "{port}");
    server.check_alive()
}

/// The interface's MTU gets smaller and larger while a program on a mux port sends bodies of 1460
/// and of 100,000 bytes. The connections go on. The service refuses packets that are longer than
/// the smaller MTU. The client's end of the veth pair keeps its MTU, so that the client's MSS does
/// not limit the segments.
pub fn the_mtu_changes() -> Outcome {
    tools::require_tools(&["curl", "wrk"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let mut server = http(&wire, &service, HTTP)?.spawn_ready(SHORT)?;
    let address = format!("{SERVER}:{HTTP}");
    let mut answered = 0;
    for (mtu, path) in [(1400, "1460"), (1200, "100000"), (1500, "100000")] {
        let running = wrk(&wire, &address, path, "Connection: keep-alive").spawn()?;
        thread::sleep(Duration::from_millis(700));
        ip(
            &wire,
            Side::Server,
            &format!("link set {INTERFACE} mtu {mtu}"),
        )?;
        check_wrk(&running.wait(SHORT)?.success()?.stdout)?;
        check_http(&wire)?;
        let port = ports(&service)?.into_iter().next().unwrap_or_default();
        let now = port["refused"]["too_long"].as_u64().unwrap_or(0);
        ensure!(
            now > answered || mtu == 1500,
            "no packet was longer than {mtu}: {port}"
        );
        answered = now;
    }
    server.check_alive()
}

/// Returns the number of packets that the server's interface has sent.
fn sent_packets(wire: &Wire) -> Result<u64, Stop> {
    let file = format!("/sys/class/net/{INTERFACE}/statistics/tx_packets");
    let space = wire.namespace(Side::Server);
    let text = command_in(&space, &["cat", &file])?;
    Ok(text.trim().parse()?)
}

/// Runs an HTTP client on a mux port against a server of the same host, once with each of the
/// options `loads`. Fails unless the client gets more than 500 answers and the interface sends
/// fewer than 50 packets.
fn load_in_memory(wire: &Wire, service: &Service, loads: &[&str]) -> Outcome {
    let path = tools::binary("tidelane-http-client")?;
    for load in loads {
        let before = sent_packets(wire)?;
        let client = wire.program(Side::Server, &path.to_string_lossy());
        let client = client.registering_at(service);
        let client = client.args(&format!("--address {SERVER} --connect {SERVER}:{HTTP}"));
        let finished = client.args("--seconds 2").args(load).run(SHORT)?;
        let requests = finished.stdout.split(' ').next().unwrap_or_default();
        let requests: u64 = requests.parse()?;
        ensure!(requests > 500, "{load}: {finished}");
        let sent = sent_packets(wire)? - before;
        ensure!(sent < 50, "{load}: {sent} packets left the interface");
    }
    Ok(())
}

/// Two programs with stacks of their own exchange packets through memory, without the NIC.
pub fn two_ports_exchange_packets_in_memory() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let mut server = http(&wire, &service, HTTP)?.spawn_ready(SHORT)?;
    let loads = [
        "--connections 20 --bytes 64",
        "--connections 20 --bytes 100000",
        "--connections 20 --bytes 64 --close",
        // The client has no more TCP ports than connections, so that it has to wait for the end of
        // the previous connection of a TCP port.
        "--connections 512 --bytes 64 --close",
    ];
    load_in_memory(&wire, &service, &loads)?;
    server.check_alive()
}

/// A program with a stack of its own is a client of a server on the service, through memory.
pub fn a_port_reaches_a_server_on_the_service() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let path = tools::binary("tidelane-http")?;
    let server = wire.program(Side::Server, &path.to_string_lossy());
    let server = server.args(&format!(
        "--kernel --address {SERVER} --port {HTTP} --seconds 80"
    ));
    let mut server = server.accelerated(&service).spawn_ready(SHORT)?;
    tools::wait_until(SHORT, "the listener", || service.has_listener(HTTP))?;
    // With --close, this client would close first, and its TCP ports would stay in TIME-WAIT.
    let loads = [
        "--connections 20 --bytes 64",
        "--connections 20 --bytes 100000",
    ];
    load_in_memory(&wire, &service, &loads)?;
    server.check_alive()
}

/// A program on the service is a client of a server with a stack of its own, through memory. When
/// the server has ended, the program fails to connect.
pub fn a_program_on_the_service_reaches_a_port() -> Outcome {
    tools::require_tools(&["curl"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let server = http(&wire, &service, HTTP)?.spawn_ready(SHORT)?;
    let before = sent_packets(&wire)?;
    let fetched = || {
        let curl = wire
            .program(Side::Server, "curl")
            .args("-sS --fail --max-time 20 -o own");
        let curl = curl.arg(format!("http://{SERVER}:{HTTP}/3000000"));
        curl.accelerated(&service).finish(Duration::from_secs(25))
    };
    fetched()?.success()?;
    let got = fs::read(wire.scratch().join("own"))?;
    let pattern = (0..3_000_000).map(|at| b'a' + (at % 26) as u8);
    ensure!(pattern.eq(got.iter().copied()), "{} bytes", got.len());
    let sent = sent_packets(&wire)? - before;
    ensure!(sent < 50, "{sent} packets left the interface");
    server.signal_and_wait(Signal::KILL, SHORT)?;
    tools::wait_until(SHORT, "the end of the port", || {
        Ok(ports(&service)?.is_empty())
    })?;
    check_refusal(&fetched()?, "Failed to connect")
}

/// The program on the mux port is killed under load, and the programs on the service and on the
/// kernel continue to serve. Then the program on the service is killed, and the program on the mux
/// port continues to serve. Each time, a new program gets the TCP port of the killed one.
pub fn a_dead_program_leaves_the_others() -> Outcome {
    tools::require_tools(&["curl", "wrk"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let server = http(&wire, &service, HTTP)?.spawn_ready(SHORT)?;
    let on_service = echo_server(&wire, Some(&service), ON_SERVICE)?;
    let _on_kernel = echo_server(&wire, None, ON_KERNEL)?;
    let url = format!("http://{SERVER}:{HTTP}/64");
    let wrk = wire.program(Side::Client, "wrk");
    let wrk = wrk
        .args("-t 1 -c 20 -d 3s --timeout 10s")
        .arg(url)
        .spawn()?;
    let beside = [clients(&wire, ON_SERVICE)?, clients(&wire, ON_KERNEL)?];
    std::thread::sleep(Duration::from_secs(1));
    server.signal_and_wait(Signal::KILL, SHORT)?;
    for client in beside {
        check_load(&client.wait(SHORT)?.success()?.json()?)?;
    }
    wrk.wait(SHORT)?.success()?;
    tools::wait_until(SHORT, "the end of the port", || {
        Ok(ports(&service)?.is_empty())
    })?;
    let mut server = http(&wire, &service, HTTP)?.spawn_ready(SHORT)?;
    check_http(&wire)?;
    on_service.signal_and_wait(Signal::KILL, SHORT)?;
    check_http(&wire)?;
    let _on_service = echo_server(&wire, Some(&service), ON_SERVICE)?;
    let client = clients(&wire, ON_SERVICE)?;
    check_load(&client.wait(SHORT)?.success()?.json()?)?;
    server.check_alive()
}

/// A program on a mux port claims a 3-tuple: protocol, address and TCP port. No other program can
/// use the same 3-tuple, and a mux port cannot claim the 3-tuple of another program. The 3-tuple is
/// free when the program has ended.
pub fn a_claimed_3_tuple_is_in_use() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let server = http(&wire, &service, HTTP)?.spawn_ready(SHORT)?;
    let second = http(&wire, &service, HTTP)?.finish(SHORT)?;
    check_refusal(&second, "in use")?;
    for on in [None, Some(&service)] {
        let echo = wire.load_tool(Side::Server, "echo-server")?.on(on);
        let finished = echo.arg("--port").arg(HTTP).finish(SHORT)?;
        let refused = !finished.status.success() && finished.stderr.contains("in use");
        ensure!(refused, "another program got the port: {finished}");
    }
    server.signal_and_wait(Signal::TERM, SHORT)?;
    tools::wait_until(SHORT, "the end of the port", || {
        Ok(ports(&service)?.is_empty())
    })?;
    for on in [None, Some(&service)] {
        let echo = echo_server(&wire, on, HTTP)?;
        check_refusal(&http(&wire, &service, HTTP)?.finish(SHORT)?, "in use")?;
        echo.signal_and_wait(Signal::KILL, SHORT)?;
        tools::wait_until(SHORT, "the end of all claims", || {
            Ok(service.counters()?["claims"] == 0)
        })?;
    }
    Ok(())
}

/// A user whom the service does not admit gets no mux port. An admitted user gets a mux port, but
/// only for TCP ports that the kernel would let this user bind.
pub fn other_users_have_their_own_rights() -> Outcome {
    let wire = Wire::new()?;
    let of_root = wire.configured_service("", &[])?;
    let finished = http_of_other_user(&wire, &of_root, HTTP)?.finish(SHORT)?;
    check_refusal(&finished, "does not admit")?;
    ensure!(ports(&of_root)?.is_empty(), "there is a port");
    of_root.down()?;
    drop(of_root);
    let service = wire.service()?;
    let finished = http_of_other_user(&wire, &service, 80)?.finish(SHORT)?;
    check_refusal(&finished, "ermission denied")?;
    let other = http_of_other_user(&wire, &service, HTTP)?;
    let mut other = other.spawn_ready(SHORT)?;
    check_refusal(&http(&wire, &service, HTTP)?.finish(SHORT)?, "in use")?;
    let listed = ports(&service)?;
    let uids: Vec<String> = listed.iter().map(|port| port["uid"].to_string()).collect();
    ensure!(uids == [OTHER_USER], "{listed:?}");
    fetch(&wire, &format!("{SERVER}:{HTTP}"), 100_000)?;
    other.check_alive()
}

/// When the service is killed, the program on a mux port ends with a message.
pub fn a_dead_service_ends_the_program() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let server = http(&wire, &service, HTTP)?.spawn_ready(SHORT)?;
    service.kill()?;
    let finished = server.wait(SHORT)?;
    check_refusal(&finished, "the service has ended")
}

/// UDP ports of the two programs that [`groups`] returns. Each program has a mux port of its own.
const GROUPS: [u16; 2] = [5300, 5301];
/// UDP port of the peer's program on the kernel.
const PEER_GROUP: u16 = 5302;

/// Returns the UDP program on a mux port of `service`. `ask` is empty, or the option `--ask` with
/// the group or broadcast address to which the program sends a question.
fn groups(wire: &Wire, service: &Service, port: u16, ask: &str) -> Result<Program, Stop> {
    let path = tools::binary("tidelane-groups")?;
    let program = wire.program(Side::Server, &path.to_string_lossy());
    let program = program.registering_at(service);
    Ok(program.args(&format!("--address {SERVER} --port {port} {ask}")))
}

/// Waits until a program has written `text`.
fn await_output(program: &mut Running, text: &str) -> Outcome {
    tools::wait_until(SHORT, text, || {
        program.check_alive()?;
        Ok(program.output().0.contains(text))
    })
}

/// If a mux port has claimed a UDP port for all local addresses, the peer's multicast and broadcast
/// datagrams for this UDP port reach the mux port. Multicast and broadcast datagrams of a mux port
/// reach the peer and another mux port. After the claim has ended, the kernel gets the peer's
/// multicast datagrams for the UDP port.
pub fn groups_reach_ports() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let peer = wire.scratch().join("groups");
    let source = tools::source_root().join("tests/interop/groups.c");
    tools::compile(&peer, &[source])?;
    let peer = |side: Side, role: &str, to: &str, port: u16| {
        let local = match side {
            Side::Client => CLIENT,
            _ => SERVER,
        };
        let program = wire.program(side, &peer.to_string_lossy());
        program.args(&format!("{role} {to} {port} {local}"))
    };
    let [first, second] = GROUPS;
    let mut on_first = groups(&wire, &service, first, "")?.spawn_ready(SHORT)?;
    let network = broadcast_of(CLIENT);
    for group in ["255.255.255.255", "224.0.0.77", &network.to_string()] {
        let asked = peer(Side::Client, "ask", group, first).run(SHORT)?;
        let answer = format!("answer from {SERVER}:{first}\n");
        ensure!(asked.success()?.stdout == answer, "{group}");
        let other = peer(Side::Client, "ask", group, second).run(SHORT)?;
        ensure!(
            other.success()?.stdout.is_empty(),
            "{group}: an answer without a claim"
        );
    }
    // The second program asks the first program over memory, and the peer's kernel over the wire.
    let mut answers = peer(Side::Client, "answer", "224.0.0.77", PEER_GROUP).spawn_ready(SHORT)?;
    for (port, from) in [(first, SERVER), (PEER_GROUP, CLIENT)] {
        for group in ["255.255.255.255", "224.0.0.77", &network.to_string()] {
            let ask = format!("--ask {group}:{port}");
            let mut asks = groups(&wire, &service, second, &ask)?.spawn_ready(SHORT)?;
            let answer = format!("answer to {SERVER} from {from}:{port}");
            await_output(&mut asks, &answer)?;
            asks.signal_and_wait(Signal::KILL, SHORT)?;
            tools::wait_until(SHORT, "the end of the port", || {
                Ok(ports(&service)?.len() == 1)
            })?;
        }
    }
    answers.check_alive()?;
    await_output(
        &mut on_first,
        &format!("question to 224.0.0.77 from {SERVER}:{second}"),
    )?;
    on_first.signal_and_wait(Signal::KILL, SHORT)?;
    tools::wait_until(SHORT, "the end of the ports", || {
        Ok(ports(&service)?.is_empty())
    })?;
    // The kernel has the UDP port again: a kernel socket binds it, joins the group and answers.
    let mut answers = peer(Side::Server, "answer", "224.0.0.77", first).spawn_ready(SHORT)?;
    let asked = peer(Side::Client, "ask", "224.0.0.77", first).run(SHORT)?;
    let answer = format!("answer from {SERVER}:{first}\n");
    ensure!(asked.success()?.stdout == answer, "the kernel's socket");
    answers.check_alive()
}

/// Returns the broadcast address of the network of `address`. The network's prefix has 24 bits.
fn broadcast_of(address: Ipv4Addr) -> Ipv4Addr {
    let [a, b, c, _] = address.octets();
    Ipv4Addr::new(a, b, c, 255)
}
