//! Tests of a core (polling thread of the service) and its watchdog.

use std::{os::unix::process::ExitStatusExt, time::Instant as StdInstant};

use rustix::event::EventfdFlags;
use tidelane_engine::{EngineConfig, LinkId};
use tidelane_host::Interface;
use tidelane_packet_io::{MemConfig, MemPort};
use tidelane_wire::MacAddress;

use super::*;
use crate::confine::tests::{PART, child};

/// Makes a core whose TCP/IP host is on a link in memory. The core writes the heartbeat of queue 3:
/// the time of a recent step. In the service, the XDP program (the demux) reads this time.
fn start_core(heartbeats: &Arc<Heartbeats>) -> CoreHandle<MemPort> {
    let (port, _far) = MemPort::pair(MemConfig::default());
    let interface = Interface {
        link: LinkId(1),
        mac: MacAddress([2, 0, 0, 0, 0, 1]),
        mtu: 1500,
        addresses: Vec::new(),
    };
    let config = EngineConfig {
        flows_max: 64,
        ..EngineConfig::default()
    };
    let host = Host::new(config, [7; 16], interface, vec![port]).expect("memory");
    let (page, _fd) = ServicePageMap::create(1).expect("memory");
    let bell = rustix::event::eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
    let config = CoreConfig {
        number: 0,
        cpu: None,
        spin: Duration::from_micros(100),
        page: Arc::new(page),
        wake_fds: Vec::new(),
        bell: Arc::new(bell),
        notify_control: Box::new(|| ()),
        heartbeats: heartbeats.clone(),
        queues: vec![3],
    };
    start(host, config).expect("a thread").0
}

/// Waits until `condition` returns true. After 20 s, which is longer than a busy machine needs,
/// panics with the failure `what`.
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = StdInstant::now();
    while !condition() {
        assert!(start.elapsed() < StdDuration::from_secs(20), "{what}");
        std::thread::sleep(StdDuration::from_millis(1));
    }
}

#[test]
fn an_idle_core_sleeps_and_a_frame_that_was_lost_wakes_it() {
    let heartbeats = Arc::new(Heartbeats::without_demux().expect("memory"));
    let queue = heartbeats.of_queue(3);
    let core = start_core(&heartbeats);
    let steps = || core.shared.steps.load(Ordering::Relaxed);
    wait_until("the core does not go to sleep", || {
        steps() > 0 && !core.shared.awake.load(Ordering::Acquire) && !queue.is_awaited()
    });
    wait_until("the core stays awake on this CPU", || !core.is_beside());
    // Write a time to the heartbeat, as the demux does when it redirects a frame to a sleeping
    // core. In this test, no frame arrives, so the watchdog has to wake the core.
    let before = steps();
    queue.beat(now().0);
    wait_until("the core does not answer", || {
        steps() > before && !queue.is_awaited()
    });
    core.stop();
}

/// A core hangs in a loop or in a system call. The watchdog aborts the process.
#[test]
fn a_core_that_hangs_ends_the_service() {
    const TEST: &str = "core::tests::a_core_that_hangs_ends_the_service";
    if let Ok(how) = std::env::var(PART) {
        let heartbeats = Arc::new(Heartbeats::without_demux().expect("memory"));
        let core = start_core(&heartbeats);
        core.send(Box::new(move |_, _| match how.as_str() {
            "circle" => loop {
                std::hint::spin_loop();
            },
            _ => std::thread::sleep(StdDuration::from_secs(3600)),
        }));
        // Only the watchdog ends the process within this time.
        std::thread::sleep(StdDuration::from_secs(60));
        return;
    }
    for how in ["circle", "call"] {
        let start = StdInstant::now();
        let output = child(TEST, how);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{how}: {said}");
        assert!(
            said.contains("tdl-core-0 has made no progress"),
            "{how}: {said}"
        );
        assert!(start.elapsed() >= StdDuration::from_millis(500), "{how}");
    }
}

/// Each call counts as progress, so the watchdog does not abort the process.
#[test]
fn a_core_that_is_busy_for_long_does_not_hang() {
    let heartbeats = Arc::new(Heartbeats::without_demux().expect("memory"));
    let core = start_core(&heartbeats);
    // The calls last two seconds in total.
    let done = Arc::new(AtomicU32::new(0));
    for _ in 0..100 {
        let done = done.clone();
        core.send(Box::new(move |_, _| {
            std::thread::sleep(StdDuration::from_millis(20));
            done.fetch_add(1, Ordering::Relaxed);
        }));
    }
    wait_until("not all calls ran", || done.load(Ordering::Relaxed) == 100);
    core.stop();
}
