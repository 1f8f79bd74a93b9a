//! A host on the link forges IP addresses and MAC addresses. Neither the service (`tidelaned`) nor
//! the kernel sends data in answer to the forged packets, unless the kernel's neighbour table has
//! the forged MAC address.
//!
//! A wire is two network namespaces, the server's and the client's, joined by a veth pair. An
//! accelerated program runs under `tidelane run`: the service carries its TCP connections instead
//! of the kernel.

use serde_json::Value;
use tidelane_tests::{
    Outcome, Service, Side, Stop, Wire, command, command_in, ensure, tools,
    wire::{INTERFACE, SERVER, SERVER_V6},
};

use crate::support::{SHORT, echo_server};

/// Port of the accelerated echo server.
const ACCELERATED_PORT: u16 = 7000;
/// Port of the echo server on the kernel.
const KERNEL_PORT: u16 = 7001;
/// Data that the attacker sends after the handshake, and that the echo server returns.
const PAYLOAD: &str = "are you there?\n";
/// An unused IP address of the link's subnet.
const UNUSED_ADDRESS: &str = "10.77.0.88";
/// The MAC address from which the attacker sends packets of [`UNUSED_ADDRESS`].
const SPOOFED_MAC: &str = "02:00:00:00:00:66";
/// A MAC address that no host has.
const UNUSED_MAC: &str = "02:00:00:00:00:99";

/// Source addresses that no valid packet on the link has: loopback, the server's own addresses,
/// addresses of the subnet behind the server's other interface, broadcast and multicast addresses,
/// and "this network" (RFC 1122 §3.2.1.3).
const MARTIANS: [&str; 15] = [
    "127.0.0.1",
    "127.8.8.8",
    "10.77.0.1",
    "10.99.0.1",
    "10.99.0.5",
    "10.77.0.255",
    "10.99.0.255",
    "255.255.255.255",
    "224.0.0.1",
    "0.0.0.0",
    "0.0.0.5",
    "::1",
    "fd77::1",
    "fd99::1",
    "ff02::1",
];

/// A wire and its service. The server's namespace has a second interface, `other`.
struct Scene {
    wire: Wire,
    service: Service,
    /// MAC address of the served interface.
    server_mac: String,
    /// Source port of the last attack. Each attack uses the next port.
    from_port: u16,
}

impl Scene {
    /// Makes the wire and the second interface, and starts the service.
    fn new() -> Result<Self, Stop> {
        let wire = Wire::new()?;
        let space = wire.namespace(Side::Server);
        for line in [
            "link add other type veth peer name beyond",
            "link set other up",
            "link set beyond up",
            "address add 10.99.0.1/24 dev other",
            "address add fd99::1/64 dev other nodad",
        ] {
            let words = line.split(' ');
            let all: Vec<&str> = ["ip", "-n", &space].into_iter().chain(words).collect();
            command(&all)?;
        }
        let service = wire.service()?;
        let file = format!("/sys/class/net/{INTERFACE}/address");
        let server_mac = command_in(&space, &["cat", &file])?;
        Ok(Self {
            wire,
            service,
            server_mac: server_mac.trim().to_owned(),
            from_port: 20_000,
        })
    }

    /// Tries to open a connection with raw frames from the IP address `from` to `port` of the
    /// server. `to_mac` is the destination MAC address. `more` are further options of the attack.
    /// Returns the attack's result.
    fn attack(&mut self, from: &str, port: u16, to_mac: &str, more: &str) -> Result<Value, Stop> {
        self.from_port += 1;
        let to = if from.contains(':') {
            SERVER_V6.to_string()
        } else {
            SERVER.to_string()
        };
        let attacker = tools::binary("tidelane-attacker")?;
        let program = self.wire.program(Side::Client, &attacker.to_string_lossy());
        let program = program
            .args("frames --seconds 0.4 --interface")
            .arg(INTERFACE)
            .arg("--from")
            .arg(from)
            .arg("--to")
            .arg(to)
            .arg("--port")
            .arg(port)
            .arg("--from-port")
            .arg(self.from_port)
            .arg("--to-mac")
            .arg(to_mac);
        let program = if more.is_empty() {
            program
        } else {
            program.args(more)
        };
        program.run(SHORT)?.success()?.json()
    }

    /// Runs `ip neigh` with the arguments `words` in the server's namespace.
    fn neighbour(&self, words: &str) -> Result<String, Stop> {
        let space = self.wire.namespace(Side::Server);
        let words = words.split(' ');
        let all: Vec<&str> = ["ip", "-n", &space, "neigh"]
            .into_iter()
            .chain(words)
            .collect();
        command(&all)
    }
}

/// Returns the counter `name`, or 0 if there is no such counter.
fn counter(counters: &Value, name: &str) -> u64 {
    counters[name].as_u64().unwrap_or(0)
}

/// Neither the service nor the kernel answers a SYN from an impossible source address.
pub fn martians_get_no_answer() -> Outcome {
    let mut scene = Scene::new()?;
    let _accelerated = echo_server(&scene.wire, Some(&scene.service), ACCELERATED_PORT)?;
    let _kernel = echo_server(&scene.wire, None, KERNEL_PORT)?;
    let mac = scene.server_mac.clone();
    for port in [ACCELERATED_PORT, KERNEL_PORT] {
        for from in MARTIANS {
            let received = scene.attack(from, port, &mac, "")?;
            let nothing = ["syn_acks", "resets", "segments"].map(|name| received[name] == 0);
            ensure!(nothing == [true; 3], "{from} to {port}: {received}");
        }
    }
    let counters = scene.service.counters()?;
    for name in ["drop_martian_source", "drop_bad_address", "drop_no_route"] {
        ensure!(counter(&counters, name) > 0, "{name}: {counters}");
    }
    ensure!(counter(&counters, "passive_opens") == 0, "{counters}");
    Ok(())
}

/// A SYN gets no answer if the destination of its frame is another host's MAC address, the
/// broadcast address or a multicast address. A veth interface receives each of these frames.
pub fn frames_for_others_are_not_taken() -> Outcome {
    let mut scene = Scene::new()?;
    let _accelerated = echo_server(&scene.wire, Some(&scene.service), ACCELERATED_PORT)?;
    let _kernel = echo_server(&scene.wire, None, KERNEL_PORT)?;
    for port in [ACCELERATED_PORT, KERNEL_PORT] {
        for to_mac in [UNUSED_MAC, "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01"] {
            let received = scene.attack(UNUSED_ADDRESS, port, to_mac, "")?;
            let nothing = ["syn_acks", "resets", "segments"].map(|name| received[name] == 0);
            ensure!(nothing == [true; 3], "{to_mac} to {port}: {received}");
        }
    }
    let counters = scene.service.counters()?;
    ensure!(counter(&counters, "passive_opens") == 0, "{counters}");
    Ok(())
}

/// After the handshake, the service sends to the MAC address that the kernel has resolved, not to
/// the source MAC address of a received frame. A host whose MAC address is not in the kernel's
/// neighbour table therefore gets no data. If the table already has an entry for the IP address,
/// the SYN-ACK, too, goes to the MAC address of the entry. The service uses permanent entries, and
/// does not change them.
pub fn only_the_resolved_neighbour_is_sent_to() -> Outcome {
    let mut scene = Scene::new()?;
    let _accelerated = echo_server(&scene.wire, Some(&scene.service), ACCELERATED_PORT)?;
    let _kernel = echo_server(&scene.wire, None, KERNEL_PORT)?;
    let mac = scene.server_mac.clone();
    let spoofed = format!("--from-mac {SPOOFED_MAC}");
    for port in [ACCELERATED_PORT, KERNEL_PORT] {
        let received = scene.attack(UNUSED_ADDRESS, port, &mac, &spoofed)?;
        ensure!(
            received["segments"] == 0 && received["payload"] == "",
            "{port}: {received}"
        );
    }
    scene.neighbour(&format!(
        "replace {UNUSED_ADDRESS} lladdr {UNUSED_MAC} nud permanent dev {INTERFACE}"
    ))?;
    for port in [ACCELERATED_PORT, KERNEL_PORT] {
        let received = scene.attack(UNUSED_ADDRESS, port, &mac, &spoofed)?;
        ensure!(
            received["segments"] == 0 && received["syn_acks"] == 0,
            "{port}: {received}"
        );
    }
    scene.neighbour(&format!(
        "replace {UNUSED_ADDRESS} lladdr {SPOOFED_MAC} nud permanent dev {INTERFACE}"
    ))?;
    for port in [ACCELERATED_PORT, KERNEL_PORT, ACCELERATED_PORT] {
        let received = scene.attack(UNUSED_ADDRESS, port, &mac, &spoofed)?;
        ensure!(received["payload"] == PAYLOAD, "{port}: {received}");
        let shown = scene.neighbour(&format!("show {UNUSED_ADDRESS} dev {INTERFACE}"))?;
        ensure!(shown.contains("PERMANENT"), "{shown}");
        ensure!(shown.contains(SPOOFED_MAC), "{shown}");
    }
    Ok(())
}
