//! Tests of captures of frames, on cores that run on the caller's thread. In the service, each core
//! is a polling thread.

use std::{
    io,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use tidelane_engine::{EngineConfig, LinkId};
use tidelane_host::{Host, Interface};
use tidelane_packet_io::{MemConfig, MemPort, PacketIo, TxChecksum, pcapng};
use tidelane_time::{Duration, Instant};
use tidelane_wire::{IpAddress, MacAddress};

use super::{CAPTURES_MAX, Captures, IDLE_MAX};
use crate::{
    core_link::{Call, CoreLink},
    cores::Cores,
};

const NOW: Instant = Instant::from_secs(1);

/// A core that runs on its caller's thread.
#[derive(Clone)]
struct Link(Arc<Mutex<Host<MemPort>>>);

impl CoreLink<MemPort> for Link {
    fn send(&self, call: Call<MemPort>) {
        call(&mut self.0.lock().expect("no test has failed"), NOW);
    }

    fn watch(&self, _: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn unwatch(&self, _: BorrowedFd<'_>) {}

    fn is_beside(&self) -> bool {
        false
    }

    fn stop(&self) {}

    fn boosts(&self) -> u32 {
        0
    }
}

/// Two cores, whose NICs are pairs of ports in memory: each core has one end of a pair, and the
/// test has the other end in `wires`.
struct Scene {
    links: Vec<Link>,
    cores: Cores<MemPort>,
    wires: Vec<MemPort>,
    captures: Captures,
}

impl Scene {
    fn new() -> Self {
        let (mut links, mut wires) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let (near, far) = MemPort::pair(MemConfig::default());
            let interface = Interface {
                link: LinkId(1),
                mac: MacAddress([2, 0, 0, 0, 0, 1]),
                mtu: 1500,
                addresses: vec![IpAddress::from_v4([10, 0, 0, 1])],
            };
            let config = EngineConfig {
                flows_max: 16,
                ..EngineConfig::default()
            };
            let host = Host::new(config, [7; 16], interface, vec![near]);
            links.push(Link(Arc::new(Mutex::new(host.expect("there is memory")))));
            wires.push(far);
        }
        let cores = links.iter().map(|link| Arc::new(link.clone()) as _);
        Self {
            cores: Cores::new(cores.collect()),
            links,
            wires,
            captures: Captures::default(),
        }
    }

    /// Returns the answer to a request, and the bytes of the capture file that follow the answer.
    fn ask(&mut self, now: Instant, request: &Value) -> (Value, Vec<u8>) {
        self.captures.handle(&self.cores, now, request)
    }

    /// Opens a capture of the NIC's frames. Returns the answer.
    fn open(&mut self) -> Value {
        let request = json!({"op": "capture", "capture": "open"});
        self.ask(NOW, &request).0
    }

    fn take(&mut self, now: Instant, number: &Value) -> (Value, Vec<u8>) {
        let request = json!({"op": "capture", "capture": "take", "number": number});
        self.ask(now, &request)
    }

    /// Sends a frame of `len` bytes to a core, and lets the core receive the frame.
    fn send(&mut self, core: usize, len: usize) {
        let wire = &mut self.wires[core];
        wire.tx_frame().expect("room")[..len].fill(1);
        wire.tx_commit(len, TxChecksum::Done);
        wire.tx_flush();
        self.links[core].0.lock().expect("unlocked").step(NOW);
    }
}

#[test]
fn frames_of_all_cores_are_taken_once() {
    let mut scene = Scene::new();
    let number = scene.open()["number"].clone();
    scene.send(0, 60);
    scene.send(1, 70);
    scene.send(1, 80);
    let (answer, blocks) = scene.take(NOW, &number);
    assert_eq!(answer["frames"], 3);
    assert_eq!(answer["lost"], 0);
    assert_eq!(answer["bytes"], blocks.len());
    let lens = [60, 70, 80].map(pcapng::frame_block_len);
    assert_eq!(blocks.len(), lens.iter().sum::<usize>());
    assert_eq!(scene.take(NOW, &number).0["frames"], 0);
    let close = json!({"op": "capture", "capture": "close", "number": number});
    assert_eq!(scene.ask(NOW, &close).0, json!({"ok": true}));
    assert!(scene.take(NOW, &number).0["error"].is_string());
}

#[test]
fn the_number_of_captures_is_limited() {
    let mut scene = Scene::new();
    for _ in 0..CAPTURES_MAX {
        assert!(scene.open()["error"].is_null());
    }
    assert!(scene.open()["error"].is_string());
}

#[test]
fn an_abandoned_capture_is_closed() {
    let mut scene = Scene::new();
    let kept = scene.open()["number"].clone();
    let abandoned = scene.open()["number"].clone();
    let later = NOW + IDLE_MAX;
    assert_eq!(scene.take(later, &kept).0["frames"], 0);
    scene.captures.close_abandoned(&scene.cores, later);
    assert_eq!(scene.take(NOW, &abandoned).0["frames"], 0);
    let later = later + Duration::from_millis(1);
    scene.captures.close_abandoned(&scene.cores, later);
    assert_eq!(scene.take(later, &kept).0["frames"], 0);
    assert!(scene.take(later, &abandoned).0["error"].is_string());
    // The cores have given up the buffers, too.
    for link in &scene.links {
        let mut host = link.0.lock().expect("unlocked");
        let number = abandoned.as_u64().expect("a number");
        assert_eq!(host.take_capture(number, super::CapturePoint::Nic), None);
    }
}

#[test]
fn impossible_requests_are_refused() {
    let mut scene = Scene::new();
    for request in [
        json!({"op": "capture"}),
        json!({"op": "capture", "capture": "open", "mux_port": 3}),
        json!({"op": "capture", "capture": "open", "address": "x"}),
        json!({"op": "capture", "capture": "open", "other": 1}),
        json!({"op": "capture", "capture": "take", "number": 9}),
        json!([]),
    ] {
        assert!(scene.ask(NOW, &request).0["error"].is_string(), "{request}");
    }
    assert!(scene.captures.open.is_empty());
}
