//! Kinds of interfaces. The service (`tidelaned`) refuses some kinds, such as bridges, and serves a
//! VLAN interface of a NIC.
//!
//! A wire is two network namespaces, the server's and the client's, joined by a veth pair or by two
//! NICs that TIDELANE_WIRE_NICS names. An accelerated program runs under `tidelane run`: the
//! service carries its TCP connections instead of the kernel.

use std::{fs, time::Duration};

use rustix::process::Signal;
use serde_json::Value;
use tidelane_tests::{
    Nginx, Outcome, Running, Service, Side, Stop, Wire, command, command_in, ensure,
    nginx::NginxOptions,
    tools::{self, require_tools, wait_until},
    wire::{INTERFACE, SERVER, write_random_file},
};

use crate::{
    commands::{check_refusal, tidelane},
    support::{SHORT, check_load, check_not_in_kernel, check_same, echo_client, echo_server, ip},
};

/// Kinds of interfaces that the service refuses: arguments of `ip` that make an interface `x0` of
/// the kind, and a part of the error of `tidelane up`. The loopback `lo` exists already.
const KINDS: [(&str, &str); 11] = [
    ("link add x0 type bond", "x0 is a bond: the kernel runs XDP"),
    ("link add x0 type team", "x0 is a team: the kernel runs XDP"),
    (
        "link add x0 type bridge",
        "x0 is a bridge: its ports hand over",
    ),
    (
        "link add link eth1 name x0 type macvlan mode bridge",
        "x0 is a macvlan: the interface below",
    ),
    (
        "link add link eth1 name x0 type ipvlan",
        "x0 is an ipvlan: the interface below",
    ),
    (
        "tuntap add x0 mode tap",
        "x0 is a tap: the process behind it",
    ),
    ("tuntap add x0 mode tun", "x0 has no Ethernet header"),
    ("link add x0 type wireguard", "x0 has no Ethernet header"),
    ("link add x0 type vrf table 7", "x0 is a VRF"),
    (
        "link add x0 type dummy",
        "x0 is a dummy: this kind is not tested",
    ),
    ("link show dev lo", "lo is the loopback"),
];

/// Runs [`ip`] with `words`. If the command fails, skips the test, because the kernel may not
/// support the kind of interface.
fn make(wire: &Wire, side: Side, words: &str) -> Outcome {
    ip(wire, side, words).map_err(|_| Stop::Skip(format!("this kernel cannot: ip {words}")))
}

/// Runs `tidelane up` for `interface`. Fails unless the command refuses with a line that contains
/// `words`.
fn up(wire: &Wire, interface: &str, words: &str) -> Outcome {
    let finished = tidelane(wire, &format!("up {interface} --name never"))?.finish(SHORT)?;
    check_refusal(&finished, words)
}

/// `tidelane up` refuses each kind that the kernel supports, with one line that contains the text
/// in [`KINDS`]. The command also refuses a port of a bridge, bond or team.
pub fn kinds_are_refused_with_the_reason() -> Outcome {
    let wire = Wire::new()?;
    let mut made = Vec::new();
    for (words, refusal) in KINDS {
        if ip(&wire, Side::Server, words).is_err() {
            continue;
        }
        let (name, is_ours) = if words.contains("x0") {
            ("x0", true)
        } else {
            ("lo", false)
        };
        ip(&wire, Side::Server, &format!("link set {name} up"))?;
        up(&wire, name, refusal)?;
        if is_ours {
            ip(&wire, Side::Server, "link del x0")?;
        }
        made.push(words.rsplit(' ').next().unwrap_or_default());
    }
    for kind in ["bridge", "bond", "team"] {
        if ip(&wire, Side::Server, &format!("link add x0 type {kind}")).is_err() {
            continue;
        }
        for change in ["eth1 down", "eth1 master x0", "eth1 up"] {
            ip(&wire, Side::Server, &format!("link set {change}"))?;
        }
        up(
            &wire,
            INTERFACE,
            &format!("eth1 is a port of x0, a {kind}, which"),
        )?;
        ip(&wire, Side::Server, "link del x0")?;
        made.push("port");
    }
    println!("NOTE: {} kinds", made.len());
    // The loopback exists on every kernel. The case needs at least one more kind.
    ensure!(made.len() > 1, "this kernel has no kinds but {made:?}");
    Ok(())
}

/// Starts a program that attaches an XDP program called `name` to `interface` in the mode `mode`.
fn other_program(wire: &Wire, interface: &str, mode: &str, name: &str) -> Result<Running, Stop> {
    let binary = wire.scratch().join("other_xdp");
    let source = tools::source_root().join("tests/interop/other_xdp.c");
    tools::compile(&binary, &[source])?;
    let other = wire.program(Side::Server, &binary.to_string_lossy());
    let other = other.arg(interface).arg(mode).arg(name);
    other.spawn_ready(SHORT)
}

/// `tidelane up` refuses an interface that already has an XDP program. The error has the mode and
/// the name of that program. If the program is the dispatcher of `xdp-loader`, the error has the
/// command that unloads it.
pub fn programs_of_others_are_named() -> Outcome {
    let wire = Wire::new()?;
    let mut modes = vec!["generic"];
    let native = other_program(&wire, INTERFACE, "native", "probe");
    if native.is_ok() {
        modes.push("native");
    }
    drop(native);
    for mode in &modes {
        for wish in ["auto", "native", "generic"] {
            let other = other_program(&wire, INTERFACE, mode, "theirs")?;
            let line = format!("up eth1 --xdp {wish} --name never");
            let finished = tidelane(&wire, &line)?.finish(SHORT)?;
            let words = format!("eth1 has another {mode} XDP program, theirs (id ");
            check_refusal(&finished, &words)?;
            drop(other);
        }
        let _dispatcher = other_program(&wire, INTERFACE, mode, "xdp_dispatcher")?;
        up(&wire, INTERFACE, "xdp-loader unload eth1 --all")?;
    }
    println!("NOTE: {}", modes.join(", "));
    let service = wire.service()?;
    ensure!(service.alive(), "the service does not start afterwards");
    Ok(())
}

/// Two commands start a service of the same name at the same time, on two interfaces that the
/// service refuses. Each command states the reason for its own interface.
pub fn commands_of_one_name_state_their_own_reasons() -> Outcome {
    let wire = Wire::new()?;
    let _other = other_program(&wire, INTERFACE, "generic", "theirs")?;
    let name = format!("{}-twice", wire.namespace(Side::Server));
    for _ in 0..5 {
        let mut commands = Vec::new();
        for (interface, words) in [
            (INTERFACE, "eth1 has another generic XDP program"),
            ("lo", "lo is the loopback"),
        ] {
            let command = tidelane(&wire, &format!("up {interface} --name {name}"))?;
            commands.push((command.spawn()?, words));
        }
        for (command, words) in commands {
            check_refusal(&command.wait(SHORT)?, words)?;
        }
    }
    Ok(())
}

/// A service ends when its interface becomes a port of a bridge, because the bridge then has the
/// addresses.
pub fn a_port_of_a_bridge_ends_the_service() -> Outcome {
    let wire = Wire::new()?;
    make(&wire, Side::Server, "link add br0 type bridge")?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    ip(&wire, Side::Server, "link set eth1 master br0")?;
    wait_until(SHORT, "the end of the service", || Ok(!service.alive()))?;
    let log = fs::read_to_string(format!("/var/log/tidelane/{}.log", service.name()))?;
    ensure!(
        log.contains("eth1 is a port of br0, a bridge, which has the addresses")
            && log.contains("the service ends"),
        "{log}"
    );
    // After the end of the service, the kernel serves the server's listener, at the address of the
    // bridge.
    for words in [
        "address flush dev eth1",
        "link set br0 up",
        "address add 10.77.0.1/24 dev br0",
    ] {
        ip(&wire, Side::Server, words)?;
    }
    let client = echo_client(&wire, Side::Client, 7000)?;
    check_load(&client.args("--seconds 0.5").run(SHORT)?.json()?)
}

/// Returns the MAC address of the interface of `side`.
fn mac_address(wire: &Wire, side: Side) -> Result<String, Stop> {
    let space = wire.namespace(side);
    let file = format!("/sys/class/net/{INTERFACE}/address");
    let text = command_in(&space, &["cat", &file])?;
    Ok(text.trim().to_owned())
}

/// Frames with the tag of a VLAN do not reach an accelerated listener, because a VLAN is another
/// network. Frames with a priority tag (VLAN 0) and frames without a tag reach the listener.
pub fn tagged_frames_reach_no_connection() -> Outcome {
    require_tools(&["ethtool"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    let mac = mac_address(&wire, Side::Server)?;
    let attack = |from_port: u16, more: &str| -> Result<Value, Stop> {
        let attacker = tools::binary("tidelane-attacker")?;
        let program = wire.program(Side::Client, &attacker.to_string_lossy());
        let line = format!(
            "frames --seconds 0.5 --interface {INTERFACE} --from 10.77.0.77 --to {SERVER} --port \
             7000 --from-port {from_port} --to-mac {mac} {more}"
        );
        program.args(&line).run(SHORT)?.json()
    };
    // The server can send its answers only if it knows the MAC address of 10.77.0.77.
    let stranger = mac_address(&wire, Side::Client)?;
    let neighbour = format!("neigh add 10.77.0.77 lladdr {stranger} dev eth1");
    ip(&wire, Side::Server, &neighbour)?;
    for (from_port, vlan) in [(20_001, 5), (20_002, 100), (20_003, 4094)] {
        let received = attack(from_port, &format!("--vlan {vlan}"))?;
        ensure!(received["syn_acks"] == 0, "VLAN {vlan}: {received}");
    }
    let opens = |service: &Service| Ok::<_, Stop>(service.counters()?["passive_opens"].take());
    ensure!(opens(&service)? == 0, "a tagged frame opened a connection");
    // VLAN 0 is a priority tag, which does not select another network (IEEE 802.1Q).
    let received = attack(20_005, "--vlan 0")?;
    ensure!(received["syn_acks"] == 1, "priority alone: {received}");
    let received = attack(20_004, "")?;
    ensure!(received["syn_acks"] == 1, "without a tag: {received}");
    Ok(())
}

/// Adds a VLAN interface with an address at each end of the wire. Switches VLAN offload off at the
/// client, so that the client's kernel writes the tags into the frames, as on a real network. With
/// the offload, a veth pair would pass the tags as metadata beside the frames (`docs/kernels.md`).
fn add_vlans(wire: &Wire) -> Outcome {
    require_tools(&["ethtool"])?;
    let offload = wire
        .program(Side::Client, "ethtool")
        .args("-K eth1 txvlan off");
    offload.finish(SHORT)?;
    for (side, address) in [
        (Side::Server, "10.78.0.1/24"),
        (Side::Client, "10.78.0.2/24"),
    ] {
        make(wire, side, "link add link eth1 name eth1.5 type vlan id 5")?;
        ip(wire, side, &format!("address add {address} dev eth1.5"))?;
        ip(wire, side, "link set eth1.5 up")?;
    }
    Ok(())
}

/// The service serves eth1, and accelerates the connections over eth1. At the same time, the kernel
/// has the connections over a VLAN interface on top of eth1. A client in the VLAN does not reach an
/// accelerated listener, even at the listener's address.
pub fn vlans_beside_the_service() -> Outcome {
    let wire = Wire::new()?;
    add_vlans(&wire)?;
    let service = wire.service()?;
    let _accelerated = echo_server(&wire, Some(&service), 7000)?;
    let _kernel = echo_server(&wire, None, 7001)?;
    let tool = |to: &str| -> Result<tidelane_tests::Program, Stop> {
        let tool = wire.load_tool(Side::Client, "echo-client")?;
        Ok(tool
            .arg("--connect")
            .arg(to)
            .args("--connections 4 --seconds 4"))
    };
    let accelerated = tool("10.77.0.1:7000")?.spawn()?;
    let kernel = tool("10.78.0.1:7001")?.spawn()?;
    // Some NICs lose the carrier for seconds when an offload is switched.
    wait_until(SHORT, "the VLAN's connections in the kernel", || {
        Ok(wire.kernel_connections(Side::Server, 7001)? == 4)
    })?;
    wait_until(SHORT, "accelerated connections beside them", || {
        Ok(service.counters()?["passive_opens"].as_u64() >= Some(4))
    })?;
    check_not_in_kernel(&wire, 7000)?;
    for running in [accelerated, kernel] {
        check_load(&running.wait(SHORT)?.success()?.json()?)?;
    }
    // Connect to the listener's address through the VLAN. The kernel receives the frames and may
    // answer, but the service must not.
    let opens = |service: &Service| Ok::<_, Stop>(service.counters()?["passive_opens"].as_u64());
    let before = opens(&service)?;
    ip(&wire, Side::Client, "route add 10.77.0.1/32 dev eth1.5")?;
    let mac = mac_address(&wire, Side::Server)?;
    ip(
        &wire,
        Side::Client,
        &format!("neigh replace 10.77.0.1 lladdr {mac} dev eth1.5"),
    )?;
    let tagged = tool("10.77.0.1:7000")?.finish(SHORT)?;
    let after = opens(&service)?;
    ensure!(
        before == after,
        "{before:?}, then {after:?} connections: {tagged}"
    );
    ip(&wire, Side::Client, "route del 10.77.0.1/32 dev eth1.5")?;
    check_load(&tool("10.77.0.1:7000")?.run(SHORT)?.json()?)
}

/// A service on a VLAN interface of a NIC switches the NIC's GRO off. Bytes are right in both
/// directions. When `tidelane down` or SIGKILL has ended the service, the NIC's settings are
/// restored. If the wire is a veth pair, the case only checks that no service starts on a VLAN
/// interface of a veth.
pub fn a_vlan_is_served() -> Outcome {
    require_tools(&["curl", "nginx", "ethtool"])?;
    let wire = Wire::new()?;
    add_vlans(&wire)?;
    let details = command(&[
        "ip",
        "-n",
        &wire.namespace(Side::Server),
        "-d",
        "link",
        "show",
        "eth1",
    ])?;
    if details.contains("veth") {
        return up(
            &wire,
            "eth1.5",
            "eth1.5 is a VLAN of eth1, a veth; only VLANs of a NIC",
        );
    }
    let features = || -> Result<String, Stop> {
        let ethtool = wire.program(Side::Server, "ethtool").args("-k eth1");
        Ok(ethtool.run(SHORT)?.stdout)
    };
    let before = features()?;
    ensure!(before.contains("generic-receive-offload: on"), "{before}");
    for killed in [false, true] {
        let service = wire.service_on_interface("eth1.5", &[])?;
        let now = features()?;
        ensure!(now.contains("generic-receive-offload: off"), "{now}");
        exchange(&wire, &service, "10.78.0.1")?;
        if killed {
            service.kill()?;
        } else {
            service.down()?;
        }
        wait_until(
            SHORT,
            "the settings of before",
            || Ok(features()? == before),
        )?;
    }
    Ok(())
}

/// Uploads a file to an accelerated nginx at `address`, gets the file back, and compares the bytes.
/// Also fails if the service has received too few segments to have carried the file.
pub fn exchange(wire: &Wire, service: &Service, address: &str) -> Outcome {
    let mib = tools::env_number("TIDELANE_BULK_MIB", 64);
    let options = NginxOptions {
        server: "location /put/ { dav_methods PUT; client_max_body_size 2g; }".to_owned(),
        ..NginxOptions::default()
    };
    let nginx = Nginx::start(wire, Some(service), &options)?;
    let put = nginx.file("put");
    fs::create_dir_all(&put)?;
    command(&["chmod", "777", &put.to_string_lossy()])?;
    let sent = wire.scratch().join("sent");
    write_random_file(&sent, mib << 20, 31)?;
    let url = format!("http://{address}/put/{}", std::process::id());
    let curl = |line: &str| {
        let curl = wire.program(Side::Client, "curl");
        curl.args("-sS --fail --max-time 40").args(line).arg(&url)
    };
    let limit = Duration::from_secs(45);
    curl(&format!("-T {}", sent.display())).run(limit)?;
    let stored = put.join(std::process::id().to_string());
    check_same(&sent, &stored)?;
    let got = wire.scratch().join("got");
    curl(&format!("-o {}", got.display())).run(limit)?;
    check_same(&sent, &got)?;
    let took = service.counters()?["in_segs"].as_u64();
    ensure!(took > Some(mib), "the service took {took:?} segments");
    fs::remove_file(stored)?;
    // Wait for the end of nginx, so that the next server can have the port.
    nginx.master.signal_and_wait(Signal::TERM, SHORT).map(drop)
}
