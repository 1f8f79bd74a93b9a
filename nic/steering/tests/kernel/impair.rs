//! Tests of the impaired link, two interfaces joined by an eBPF program: the link loses and
//! reorders packets as configured, and packets arrive intact.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use tidelane_steering::impair::Impairment;

use crate::{
    net::{Namespace, privileged},
    wire::{Wire, WireConfig, WireCounters},
};

const HOST: &str = "10.77.0.1:9000";
/// Longest time that the link waits for packets in one step.
const TICK: Duration = Duration::from_millis(50);

/// Maximum number of steps after the end of a test's work. These steps send the packets that the
/// link still holds back.
const STEPS_AFTER_MAX: u32 = 200;

/// Returns true if the link has sent or dropped every packet that it delayed.
fn has_released_all(counters: &[WireCounters; 2]) -> bool {
    counters
        .iter()
        .all(|from| from.released + from.refused >= from.program.delayed)
}

/// Client and host with an impaired link of two veth pairs between them.
struct Testbed {
    client: Namespace,
    host: Namespace,
    /// Namespace of the two veth ends that the impaired link joins.
    middle: Namespace,
}

impl Testbed {
    fn new() -> Self {
        let testbed = Self {
            client: Namespace::new("client"),
            host: Namespace::new("host"),
            middle: Namespace::new("wire"),
        };
        let ends = [
            (&testbed.client, "end-a", "10.77.0.2"),
            (&testbed.host, "end-b", "10.77.0.1"),
        ];
        for (end, middle_end, addr) in ends {
            let middle = &testbed.middle;
            middle.ip(&format!(
                "link add name {middle_end} type veth peer name veth0 netns {}",
                end.name
            ));
            middle.ip(&format!("link set {middle_end} up"));
            end.ip(&format!("addr add {addr}/24 dev veth0"));
            end.ip("link set veth0 up");
            end.command("ethtool -K veth0 gro on");
        }
        testbed
    }

    /// Runs `work` while the link forwards packets. Returns the link's counters: first from the
    /// client to the host, then from the host to the client.
    fn carry(&self, impairment: Impairment, work: impl FnOnce()) -> [WireCounters; 2] {
        let ends = ["end-a".to_owned(), "end-b".to_owned()];
        let config = WireConfig {
            ends,
            impairment,
            delay: Duration::from_millis(2),
        };
        let mut wire = self.middle.run(|| Wire::open(&config).unwrap());
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let carrier = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    wire.step(Instant::now() + TICK, None).unwrap();
                }
                // On a busy machine, the work may end before this thread has taken a step. Send all
                // delayed packets nevertheless.
                for _ in 0..STEPS_AFTER_MAX {
                    if has_released_all(&wire.counters().unwrap()) {
                        break;
                    }
                    wire.step(Instant::now() + TICK, None).unwrap();
                }
                wire.counters().unwrap()
            });
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            done.store(true, Ordering::Relaxed);
            let counters = carrier.join().unwrap();
            outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            counters
        })
    }
}

#[test]
fn packets_are_lost_and_reordered_at_the_configured_rates() {
    if !privileged("packets_are_lost_and_reordered_at_the_configured_rates") {
        return;
    }
    const DATAGRAMS: u32 = 20_000;
    let testbed = Testbed::new();
    let bind = |end: &Namespace, addr: &str| end.run(|| UdpSocket::bind(addr)).unwrap();
    let receiver = bind(&testbed.host, HOST);
    let sender = bind(&testbed.client, "10.77.0.2:0");
    receiver
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let mut arrived = Vec::new();
    let impairment = Impairment {
        loss_ppm: 100_000,
        delay_ppm: 100_000,
    };
    let counters = testbed.carry(impairment, || {
        let mut buffer = [0; 64];
        for number in 0..DATAGRAMS {
            sender.send_to(&number.to_be_bytes(), HOST).unwrap();
            if number % 100 == 99 {
                thread::sleep(Duration::from_micros(200));
                receiver.set_nonblocking(true).unwrap();
                while receiver.recv(&mut buffer).is_ok() {
                    arrived.push(u32::from_be_bytes(*buffer.first_chunk().unwrap()));
                }
            }
        }
        receiver.set_nonblocking(false).unwrap();
        while receiver.recv(&mut buffer).is_ok() {
            arrived.push(u32::from_be_bytes(*buffer.first_chunk().unwrap()));
        }
    });
    let from_client = counters[0];
    let share = |count: u64, of: u64| (count as f64 / of as f64 * 100.0).round() as u32;
    let sent = u64::from(DATAGRAMS);
    // The link loses 10 % of the packets, and delays 10 % of the remaining 90 %.
    assert!(
        (8..=12).contains(&share(from_client.program.lost, sent)),
        "{from_client:?}"
    );
    assert!(
        (7..=11).contains(&share(from_client.program.delayed, sent)),
        "{from_client:?}"
    );
    assert_eq!(
        (from_client.released, from_client.refused),
        (from_client.program.delayed, 0)
    );
    assert!(from_client.overtaken <= from_client.released);
    // Count the datagrams that arrived after a datagram that was sent later. The link's own counter
    // `overtaken` is too low on a busy machine.
    let mut latest = 0;
    let late = arrived.iter().filter(|number| {
        latest = latest.max(**number);
        **number < latest
    });
    let late = late.count() as u64;
    assert!(
        share(late, from_client.released) > 50,
        "{late} late, {from_client:?}"
    );
    // The receiving socket's queue may overflow, and then a few datagrams are lost.
    let (received, carried) = (arrived.len(), sent - from_client.program.lost);
    assert!(share(received as u64, carried) > 90, "{received}");
}

#[test]
fn a_kernel_connection_survives_an_impaired_wire() {
    if !privileged("a_kernel_connection_survives_an_impaired_wire") {
        return;
    }
    const LEN: usize = 4 << 20;
    let testbed = Testbed::new();
    let listener = testbed.host.run(|| TcpListener::bind(HOST)).unwrap();
    let bytes: Vec<u8> = (0..LEN as u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut received = Vec::new();
    let impairment = Impairment {
        loss_ppm: 20_000,
        delay_ppm: 20_000,
    };
    let counters = testbed.carry(impairment, || {
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut client = testbed.client.run(|| TcpStream::connect(HOST)).unwrap();
                client.write_all(&bytes).unwrap();
            });
            let mut server = listener.accept().unwrap().0;
            server
                .set_read_timeout(Some(Duration::from_secs(20)))
                .unwrap();
            server.read_to_end(&mut received).unwrap();
        });
    });
    assert!(
        received == bytes,
        "the {} received bytes differ from the {LEN} sent bytes",
        received.len()
    );
    let lost: u64 = counters.iter().map(|from| from.program.lost).sum();
    let released: u64 = counters.iter().map(|from| from.released).sum();
    // The counter `overtaken` may be zero, because the link counts too few overtaken packets on a
    // busy machine.
    let overtaken: u64 = counters.iter().map(|from| from.overtaken).sum();
    assert!(lost > 0 && released >= overtaken.max(1), "{counters:?}");
}
