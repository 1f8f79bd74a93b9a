//! Tests of the rates at which mux ports may send. A mux port is a pair of packet rings through
//! which a program with a TCP/IP stack of its own shares the NIC. Packets that exceed the rate of
//! their mux port wait. The packets of other mux ports do not wait.
//!
//! The mux serves the mux ports in turns. A turn is a burst of packets of one mux port. A mux port
//! has one token bucket for its packets and another for its bytes. If a turn needs more tokens than
//! a bucket has, the port has a debt, and waits at least until new tokens have paid the debt.

use tidelane_mux::*;
use tidelane_packet_io::{Capabilities, GsoParameters, GsoPayload, PacketIo};
use tidelane_packet_ring::{ProgramEnd, ServiceEnd};
use tidelane_ring::PortRegions;
use tidelane_time::{Duration, Instant};
use tidelane_wire::Endpoint;

use crate::frames::{LOCAL, LOCAL_MAC, TestFrame, receive, send};

mod frames;

const START: Instant = Instant::from_secs(100);
/// Length of [`TestFrame::bytes`] in bytes.
const FRAME_LEN: u64 = 55;

/// A NIC that records the packets that it sends, and a filter that passes all packets.
#[derive(Default)]
struct Nic {
    /// Source TCP port of each sent packet, not counting GSO frames.
    sent: Vec<u16>,
    /// Number of segments of each sent GSO frame.
    gso: Vec<usize>,
    /// Number of packets for which the NIC has room; `None` without a limit. With a limit, the NIC
    /// takes no GSO frame.
    room: Option<usize>,
    /// Number of packets that the filter has judged; `None` without a filter.
    judged: Option<usize>,
}

impl Filter for Nic {
    fn passes_all(&self) -> bool {
        self.judged.is_none()
    }

    fn judge(&mut self, _: PortId, _: Way, _: &[u8]) -> Verdict {
        self.judged = self.judged.map(|count| count + 1);
        Verdict::Pass
    }
}

impl Egress for Nic {
    fn nic_capabilities(&self) -> Capabilities {
        Capabilities {
            tx_frame_len_max: 1514,
            tx_checksum: false,
            rx_checksum_may_be_partial: false,
            tx_gso_len_max: 65_536,
        }
    }

    fn send_gso_to_nic(&mut self, frame: &GsoFrame<'_>) -> bool {
        let has_room = self.room.is_none();
        if has_room {
            self.gso.push(frame.segments());
        }
        has_room
    }

    fn send_to_nic(&mut self, frame: &[u8]) -> bool {
        if self.waits_for_nic() {
            return false;
        }
        self.room = self.room.map(|room| room - 1);
        self.sent.push(u16::from_be_bytes([frame[34], frame[35]]));
        true
    }

    fn waits_for_nic(&mut self) -> bool {
        self.room == Some(0)
    }

    fn give_to_host(&mut self, _: &[u8]) -> bool {
        true
    }
}

/// Mux ports that have claimed the TCP ports 1000, 1001, ..., and a clock.
struct Net {
    ports: Ports<ServiceEnd>,
    /// The programs' ends of the mux ports.
    programs: Vec<ProgramEnd>,
    nic: Nic,
    now: Instant,
}

impl Net {
    fn new(count: u16) -> Self {
        let mut ports = Ports::new(LOCAL_MAC, vec![LOCAL], usize::from(count));
        let programs = (0..count).map(|number| {
            let (service, program) = PortRegions::heap(number.into(), 512 * 1024).expect("memory");
            let id = ports.open(ServiceEnd::new(&service, None)).expect("room");
            let tuple = Tuple {
                protocol: 6,
                local: Endpoint::new(LOCAL, 1000 + number),
            };
            ports.claim(tuple, id).expect("free");
            ProgramEnd::new(&program, 1514, false)
        });
        let programs = programs.collect();
        Self {
            ports,
            programs,
            nic: Nic::default(),
            now: START,
        }
    }

    /// Limits the rate of a mux port in packets per second and in bytes per second. `None` means no
    /// limit.
    fn limit(&mut self, port: u32, packets: Option<u64>, bytes: Option<u64>) {
        self.ports
            .set_rate(PortId(port), SendRate { packets, bytes });
    }

    /// Sends up to `count` frames of a mux port. Stops if the packet ring has no room. Returns the
    /// number of sent frames.
    fn send(&mut self, port: usize, count: usize) -> usize {
        let frame = TestFrame::outgoing(1000 + port as u16).bytes();
        assert_eq!(frame.len() as u64, FRAME_LEN);
        (0..count)
            .take_while(|_| send(&mut self.programs[port], &frame))
            .count()
    }

    /// Sends a GSO frame of mux port 0 with `len` bytes of payload, in segments of 1,000 bytes.
    fn send_gso(&mut self, len: usize) {
        let mut headers = TestFrame::outgoing(1000).bytes();
        headers.pop();
        let ip_len = (headers.len() - 14 + len) as u16;
        headers[16..18].copy_from_slice(&ip_len.to_be_bytes());
        headers[24..26].fill(0);
        let sum = tidelane_wire::checksum::sum(&headers[14..34]).checksum();
        headers[24..26].copy_from_slice(&sum.to_be_bytes());
        let payload = vec![7; len];
        let program = &mut self.programs[0];
        program.tx_gso_headers()[..headers.len()].copy_from_slice(&headers);
        let parameters = GsoParameters {
            headers_len: headers.len() as u16,
            segment_size: 1000,
            tcp_start: 34,
            is_v6: false,
        };
        let payload = GsoPayload::Private([&payload, &[]]);
        program.tx_gso_send(payload, parameters).expect("room");
        program.tx_flush();
    }

    /// Lets the mux ports send until the time `end`, as a core (polling thread) of the service
    /// does: runs steps while there is work, and then sleeps until the next timeout. Returns the
    /// number of steps.
    fn run_until(&mut self, end: Instant) -> usize {
        let mut steps = 0;
        loop {
            steps += 1;
            self.ports.take_turns(self.now, &mut self.nic);
            if self.ports.has_work() {
                continue;
            }
            match self.ports.next_timeout() {
                Some(due) if due <= end => {
                    assert!(due > self.now, "a sleep that does not end");
                    self.now = due;
                }
                _ => break,
            }
        }
        self.now = end;
        steps
    }

    fn run_step(&mut self) {
        self.ports.take_turns(self.now, &mut self.nic);
    }

    fn sent(&self, port: u16) -> usize {
        let of_port = self.nic.sent.iter().filter(|sent| **sent == 1000 + port);
        of_port.count()
    }

    fn counters(&self, port: u32) -> &PortCounters {
        self.ports.port_counters(PortId(port)).expect("open")
    }
}

#[test]
fn packets_beyond_the_rate_wait_and_others_do_not() {
    let mut net = Net::new(3);
    net.limit(0, Some(1000), None);
    net.limit(1, None, Some(100 * FRAME_LEN));
    assert_eq!(net.send(0, 1000), 1000);
    assert_eq!(net.send(1, 1000), 1000);
    assert_eq!(net.send(2, 1000), 1000);
    let steps = net.run_until(START + Duration::from_millis(1));
    assert_eq!(net.sent(2), 1000, "mux port 2 has no limit");
    assert!(net.sent(0) <= 2 && net.sent(1) <= 1);
    assert!(steps < 60, "{steps} steps");
    let steps = net.run_until(START + Duration::from_millis(500));
    assert!((490..=502).contains(&net.sent(0)), "{}", net.sent(0));
    assert!((45..=51).contains(&net.sent(1)), "{}", net.sent(1));
    // A core that spins would make many more steps.
    assert!(steps < 2000, "{steps} steps");
    net.run_until(START + Duration::from_secs(11));
    assert_eq!((net.sent(0), net.sent(1)), (1000, 1000));
    for port in 0..2 {
        let counters = net.counters(port);
        assert_eq!(counters.sent, 1000);
        assert_eq!((counters.lost, counters.refused.len()), (0, 0));
        assert!(counters.delays > 50);
    }
    assert_eq!(net.counters(2).delays, 0);
    assert_eq!(
        (net.ports.next_timeout(), net.ports.has_work()),
        (None, false)
    );
}

#[test]
fn a_full_ring_delays_its_port_alone() {
    let mut net = Net::new(2);
    net.limit(0, Some(100), None);
    let room = net.send(0, 1_000_000);
    assert!((1000..500_000).contains(&room), "{room}");
    for round in 1..=20 {
        net.send(1, 100);
        net.run_until(START + Duration::from_millis(10 * round));
        assert_eq!(net.sent(1), 100 * round as usize);
    }
    assert!((15..=22).contains(&net.sent(0)), "{}", net.sent(0));
    // All frames that had room in the packet ring leave when there is no limit.
    net.limit(0, None, None);
    net.run_until(net.now);
    assert_eq!(net.sent(0), room);
}

/// Each segment of a GSO frame takes tokens, and so does each refused packet.
#[test]
fn refused_packets_and_segments_count() {
    let mut net = Net::new(1);
    net.limit(0, Some(1000), None);
    net.send_gso(20_000);
    net.send_gso(20_000);
    net.run_until(START + Duration::from_millis(19));
    assert_eq!(net.nic.gso, [20], "the second frame waits for tokens");
    net.run_until(START + Duration::from_millis(22));
    assert_eq!(net.nic.gso, [20, 20]);
    let mut net = Net::new(1);
    net.limit(0, None, Some(1_000_000));
    net.send_gso(20_000);
    net.send_gso(20_000);
    // A GSO frame counts as 21,080 bytes: 20,000 bytes of payload and 20 headers of 54 bytes.
    net.run_until(START + Duration::from_millis(21));
    assert_eq!(net.nic.gso.len(), 1);
    net.run_until(START + Duration::from_millis(23));
    assert_eq!(net.nic.gso.len(), 2);
    let mut net = Net::new(1);
    net.limit(0, Some(1000), None);
    let forged = TestFrame::outgoing(22).bytes();
    for _ in 0..100 {
        send(&mut net.programs[0], &forged);
    }
    net.run_until(START + Duration::from_millis(50));
    let refused: u64 = net.counters(0).refused.values().sum();
    assert!((40..=55).contains(&refused), "{refused}");
}

/// The NIC has room for five of the ten packets of a turn. The turn waits for 100 ms until the NIC
/// has room again.
#[test]
fn a_turn_that_waits_for_the_nic_pays_for_its_packets_once() {
    let mut net = Net::new(1);
    net.limit(0, Some(1000), None);
    net.send(0, 1);
    net.run_until(START + Duration::from_secs(1));
    assert_eq!(net.send(0, 1000), 1000);
    net.nic.room = Some(5);
    for _ in 0..100 {
        net.run_step();
        assert!(net.ports.waits_for_nic(PortId(0)) && net.ports.has_work());
        assert_eq!((net.sent(0), net.counters(0).sent), (6, 6));
        net.now += Duration::from_millis(1);
    }
    net.nic.room = None;
    net.run_until(net.now);
    // After the turn of ten packets, the bucket has neither tokens nor a debt. A port without a
    // debt may still send one packet.
    assert_eq!(net.sent(0), 12);
    assert!(!net.ports.waits_for_nic(PortId(0)));
    net.run_until(net.now + Duration::from_millis(500));
    assert!((505..=513).contains(&net.sent(0)), "{}", net.sent(0));
    assert_eq!(net.counters(0).lost, 0);
}

/// The rate of a mux port may change while one of the port's packets waits for the NIC.
#[test]
fn new_rates_apply_after_the_turn_that_waits_for_the_nic() {
    let mut net = Net::new(1);
    net.send(0, 100);
    net.nic.room = Some(5);
    net.run_step();
    net.limit(0, Some(10), None);
    net.run_step();
    net.nic.room = None;
    net.run_until(net.now);
    assert_eq!(net.sent(0), 32, "one turn");
    // The turn of 32 packets leaves a debt, which is paid after 3.2 s.
    net.run_until(START + Duration::from_secs(3));
    assert_eq!(net.sent(0), 32);
    net.run_until(START + Duration::from_secs(11));
    assert_eq!(net.sent(0), 100);
}

/// A filter may count packets. The filter therefore judges a packet that waits for the NIC only
/// once, after the wait.
#[test]
fn a_packet_that_waits_for_the_nic_is_judged_once() {
    let mut net = Net::new(2);
    net.nic.judged = Some(0);
    net.nic.room = Some(4);
    net.send(0, 10);
    for _ in 0..5 {
        net.run_step();
        assert_eq!((net.sent(0), net.nic.judged), (4, Some(4)));
    }
    // The packets of the other mux port wait, too.
    net.send(1, 10);
    net.run_step();
    assert_eq!((net.sent(1), net.nic.judged), (0, Some(4)));
    net.nic.room = None;
    net.run_until(net.now);
    assert_eq!((net.sent(0), net.sent(1)), (10, 10));
    assert_eq!(net.nic.judged, Some(20));
}

/// The filter judges a GSO frame once, even if some segments of the frame wait for the NIC.
#[test]
fn a_gso_frame_whose_segments_wait_for_the_nic_is_judged_once() {
    let mut net = Net::new(1);
    net.nic.judged = Some(0);
    net.nic.room = Some(3);
    net.send_gso(10_000);
    for _ in 0..5 {
        net.run_step();
        assert_eq!((net.nic.sent.len(), net.nic.judged), (3, Some(1)));
    }
    net.nic.room = Some(4);
    net.run_step();
    assert_eq!((net.nic.sent.len(), net.nic.judged), (7, Some(1)));
    net.nic.room = None;
    net.run_until(net.now);
    assert_eq!((net.nic.sent.len(), net.nic.judged), (10, Some(1)));
}

#[test]
fn new_rates_apply_to_a_port_that_waits() {
    let mut net = Net::new(1);
    net.limit(0, Some(0), None);
    net.send(0, 100);
    net.run_until(START + Duration::from_secs(3600));
    assert_eq!(net.sent(0), 0, "a rate of zero");
    assert_eq!(
        (net.ports.next_timeout(), net.ports.has_work()),
        (None, false)
    );
    net.limit(0, None, Some(1));
    net.run_until(net.now);
    assert_eq!(net.sent(0), 1);
    assert!(net.ports.next_timeout() > Some(net.now + Duration::from_secs(50)));
    net.limit(0, Some(10), None);
    assert!(net.ports.has_work());
    net.run_until(net.now + Duration::from_secs(20));
    assert_eq!(net.sent(0), 100);
}

#[test]
fn a_closed_port_does_not_wait() {
    let mut net = Net::new(2);
    net.limit(0, Some(1), None);
    net.send(0, 10);
    net.run_until(START);
    assert!(net.ports.next_timeout().is_some());
    assert!(net.ports.close(PortId(0)).is_some());
    assert_eq!(net.ports.next_timeout(), None);
    net.run_until(START + Duration::from_secs(5));
    assert_eq!(net.sent(0), 1);
    // The next mux port with this number has no limit.
    let (service, program) = PortRegions::heap(0, 64 * 1024).expect("memory");
    assert_eq!(
        net.ports.open(ServiceEnd::new(&service, None)),
        Ok(PortId(0))
    );
    let tuple = Tuple {
        protocol: 6,
        local: Endpoint::new(LOCAL, 1000),
    };
    net.ports.claim(tuple, PortId(0)).expect("free");
    let mut end = ProgramEnd::new(&program, 1514, false);
    for _ in 0..10 {
        assert!(send(&mut end, &TestFrame::outgoing(1000).bytes()));
    }
    net.run_until(net.now);
    assert_eq!(net.sent(0), 11);
}

#[test]
fn a_port_receives_without_a_limit() {
    let mut net = Net::new(1);
    net.limit(0, Some(1), Some(1));
    net.send(0, 10);
    let frames = vec![TestFrame::incoming(1000).bytes(); 100];
    let mut receptions = Vec::new();
    let arriving = frames.iter().map(Vec::as_slice);
    net.ports.receive(arriving, true, &mut (), &mut receptions);
    assert_eq!(receptions, [Reception::Taken; 100]);
    net.run_until(START);
    net.ports.flush();
    assert_eq!(receive(&mut net.programs[0]).len(), 100);
    assert_eq!(net.sent(0), 1);
}
