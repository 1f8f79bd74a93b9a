//! Tests of mux ports whose packet rings lie in memory that hostile programs can write. A mux port
//! is a pair of packet rings through which a program with a TCP/IP stack of its own shares the NIC.

use tidelane_mux::*;
use tidelane_packet_io::{MemConfig, MemPort, PacketIo, TxChecksum};
use tidelane_packet_ring::{ProgramEnd, ServiceEnd};
use tidelane_ring::PortRegions;
use tidelane_wire::Endpoint;

use crate::frames::{LOCAL, LOCAL_MAC, TestFrame, receive, send};

mod frames;

/// Number of each mux port. The number decides where the indices are in the first page.
const NUMBER: u32 = 20;
/// Length in bytes of the packet ring of each direction.
const RING_LEN: u32 = 16 * 1024;
/// TCP port that the first mux port has claimed.
const FIRST: u16 = 1000;

/// A mux, the other ends of its NIC and host, and the programs.
struct Net {
    mux: Mux<MemPort, MemPort, ServiceEnd>,
    nic: MemPort,
    host: MemPort,
    programs: Vec<Program>,
}

/// A program with a mux port.
struct Program {
    id: PortId,
    end: ProgramEnd,
    /// The program's mappings of the two shared memories of the mux port. The program can write
    /// only the memory `own`.
    regions: PortRegions,
}

fn tuple(port: u16) -> Tuple {
    Tuple {
        protocol: 6,
        local: Endpoint::new(LOCAL, port),
    }
}

impl Net {
    /// Makes a mux with mux ports that have claimed TCP ports from [`FIRST`] on.
    fn new(ports: u16) -> Self {
        let config = MemConfig {
            partial_checksums: false,
            frames: 8192,
            ..MemConfig::default()
        };
        let (nic, mux_nic) = MemPort::pair(config);
        let (host, mux_host) = MemPort::pair(config);
        let mut mux = Mux::new(mux_nic, mux_host, LOCAL_MAC, vec![LOCAL], 4096);
        let programs = (0..ports).map(|number| {
            let program = open(&mut mux);
            let tuple = tuple(FIRST + number);
            assert_eq!(mux.ports_mut().claim(tuple, program.id), Ok(()));
            program
        });
        let programs = programs.collect();
        Self {
            mux,
            nic,
            host,
            programs,
        }
    }

    /// Runs the mux until it has nothing to do. Returns the number of steps.
    fn run_until_idle(&mut self) -> usize {
        // A step polls at most 32 ports, so the mux finds a packet of an idle port within a round
        // over all ports.
        let idle_max = self.programs.len() / 32 + 2;
        let (mut steps, mut idle) = (0, 0);
        while idle < idle_max {
            steps += 1;
            idle = if self.mux.step() { 0 } else { idle + 1 };
            assert!(steps < 100_000, "the mux does not come to rest");
        }
        steps
    }

    /// Sends one segment from and one segment to each program in `which`. Checks that these
    /// segments arrive, and that each program receives no other frame.
    fn check_traffic(&mut self, which: std::ops::Range<usize>) {
        for at in which.clone() {
            let port = FIRST + at as u16;
            assert!(send(
                &mut self.programs[at].end,
                &TestFrame::outgoing(port).bytes()
            ));
            assert!(send(&mut self.nic, &TestFrame::incoming(port).bytes()));
        }
        self.run_until_idle();
        let mut out = receive(&mut self.nic);
        let total = out.len();
        out.retain(|frame| {
            which
                .clone()
                .any(|at| *frame == TestFrame::outgoing(FIRST + at as u16).bytes())
        });
        assert_eq!(out.len(), which.len(), "{total} frames left the NIC");
        for at in which {
            let expected = TestFrame::incoming(FIRST + at as u16).bytes();
            assert_eq!(
                receive(&mut self.programs[at].end),
                [expected],
                "program {at}"
            );
        }
    }
}

fn open(mux: &mut Mux<MemPort, MemPort, ServiceEnd>) -> Program {
    let (service, regions) = PortRegions::heap(NUMBER, RING_LEN).expect("there is memory");
    let end = ServiceEnd::new(&service, None);
    let (id, _doorbell) = mux.open(end).expect("there is room for a port");
    Program {
        id,
        end: ProgramEnd::new(&regions, 1514, false),
        regions,
    }
}

/// Misbehaviour of the first program.
#[derive(Clone, Copy, Debug)]
enum Harm {
    /// Floods with genuine packets.
    Flood,
    /// Sends from a 3-tuple that the second program has claimed.
    Forge,
    /// Sends bytes that are no packet.
    Garbage,
    /// Does not read while packets arrive.
    StopsReading,
    /// Writes impossible indices.
    Indices,
    /// Writes impossible lengths.
    Lengths,
    /// Changes a packet after it has published the packet.
    Change,
    /// Fills its memory with zeros, as if the program had punched holes into the memory file.
    Zeros,
}

const HARMS: [Harm; 8] = [
    Harm::Flood,
    Harm::Forge,
    Harm::Garbage,
    Harm::StopsReading,
    Harm::Indices,
    Harm::Lengths,
    Harm::Change,
    Harm::Zeros,
];

impl Net {
    /// Makes the first program misbehave. `round` varies the values that the program writes.
    ///
    /// A ring consists of units of 16 bytes. The head of the program's memory has the number of
    /// produced units at its start and the number of consumed units at its offset 64. The packets
    /// start at the offset 4096 of the memory.
    fn harm(&mut self, harm: Harm, round: u32) {
        let Program { end, regions, .. } = &mut self.programs[0];
        let memory = &regions.own;
        match harm {
            Harm::Flood => while send(end, &TestFrame::outgoing(FIRST).bytes()) {},
            Harm::Forge => while send(end, &TestFrame::outgoing(FIRST + 1).bytes()) {},
            Harm::Garbage => while send(end, &[round as u8; 60]) {},
            Harm::StopsReading => {
                for _ in 0..100 {
                    send(&mut self.nic, &TestFrame::incoming(FIRST).bytes());
                }
            }
            Harm::Indices => {
                let head = regions.head_at;
                assert!(memory.copy_in(head, &(round.wrapping_mul(0x9e37_79b9)).to_ne_bytes()));
                assert!(memory.copy_in(head + 64, &(!round).to_ne_bytes()));
            }
            Harm::Lengths => {
                send(end, &TestFrame::outgoing(FIRST).bytes());
                for at in (4096..4096 + u64::from(RING_LEN)).step_by(16) {
                    assert!(memory.copy_in(at, &(round * 777 + 2000).to_ne_bytes()));
                }
            }
            Harm::Change => {
                send(end, &TestFrame::outgoing(FIRST).bytes());
                for at in (4096..4000 + u64::from(RING_LEN)).step_by(48) {
                    assert!(memory.copy_in(at + 30, &[round as u8]));
                }
            }
            Harm::Zeros => {
                send(end, &TestFrame::outgoing(FIRST).bytes());
                assert!(memory.copy_in(0, &vec![0; 4096 + RING_LEN as usize]));
            }
        }
    }
}

/// The first program misbehaves while 100 other programs carry traffic. All packets from and to the
/// other programs arrive, and no packet goes to the host.
#[test]
fn a_hostile_program_harms_only_itself() {
    for harm in HARMS {
        let mut net = Net::new(101);
        for round in 0..50 {
            net.harm(harm, round);
            net.check_traffic(1..101);
            if matches!(harm, Harm::Flood) {
                continue;
            }
            receive(&mut net.nic);
        }
        assert!(receive(&mut net.host).is_empty(), "{harm:?}");
        let counters = net.mux.ports().port_counters(net.programs[0].id);
        let counters = counters.expect("the port is open").clone();
        let corrupt = net.mux.ports_mut().take_corrupt();
        match harm {
            Harm::Flood => assert!(counters.sent > 1000, "{counters:?}"),
            Harm::Forge => {
                let refused = counters.refused.get(&SendRefusal::SourcePort).copied();
                assert!(refused > Some(1000) && counters.sent == 0, "{counters:?}");
            }
            Harm::Garbage => {
                assert!(
                    counters.refused.values().sum::<u64>() > 1000,
                    "{counters:?}"
                );
            }
            Harm::StopsReading => assert!(counters.overruns > 1000, "{counters:?}"),
            Harm::Indices | Harm::Lengths => {
                assert_eq!(corrupt, [net.programs[0].id], "{harm:?}");
            }
            Harm::Change | Harm::Zeros => {}
        }
        for port in corrupt {
            assert!(net.mux.ports_mut().close(port).is_some());
        }
        net.check_traffic(1..101);
    }
}

/// A program sends a frame and changes one word of its ring before each step of the mux. Each frame
/// that leaves the NIC equals the program's frame, except for the destination MAC address.
#[test]
fn only_checked_bytes_are_sent_from_memory_that_changes() {
    let mut net = Net::new(1);
    let genuine = TestFrame::outgoing(FIRST).bytes();
    for round in 0..20_000_u32 {
        let Program { end, regions, .. } = &mut net.programs[0];
        send(end, &genuine);
        let at = 4096 + u64::from(round.wrapping_mul(2_654_435_761) % RING_LEN);
        regions.own.copy_in(at, &round.to_ne_bytes());
        net.mux.step();
        for frame in receive(&mut net.nic) {
            // The destination MAC address is the program's choice.
            assert_eq!(frame[6..], genuine[6..], "round {round}");
        }
    }
}

/// A program corrupts its mux port, and the port is closed before the caller asks for corrupt
/// ports. The port of the next program gets the same number, and does not count as corrupt.
#[test]
fn a_new_port_is_not_corrupt_because_the_old_one_was() {
    let mut net = Net::new(1);
    net.harm(Harm::Indices, 1);
    net.run_until_idle();
    assert!(net.mux.ports().has_corrupt());
    let old = net.programs[0].id;
    assert!(net.mux.ports_mut().close(old).is_some());
    assert!(!net.mux.ports().has_corrupt());
    net.programs[0] = open(&mut net.mux);
    assert_eq!(net.programs[0].id, old);
    assert_eq!(net.mux.ports_mut().claim(tuple(FIRST), old), Ok(()));
    assert!(net.mux.ports_mut().take_corrupt().is_empty());
    net.check_traffic(0..1);
}

/// The mux finds the packets of three of 2,000 idle mux ports within one round over all ports. If
/// all ports flood, no port sends more than twice as many packets as the port that sends the
/// fewest.
#[test]
fn idle_ports_are_found_and_turns_are_fair() {
    let mut net = Net::new(2000);
    for at in [0, 999, 1999] {
        assert!(send(
            &mut net.programs[at].end,
            &TestFrame::outgoing(FIRST + at as u16).bytes()
        ));
    }
    let mut steps = 0;
    let mut found = 0;
    while found < 3 {
        net.mux.step();
        found += receive(&mut net.nic).len();
        steps += 1;
        assert!(steps <= 2000 / 32 + 1, "{found} found");
    }
    // All mux ports flood. Once the mux has found all ports, the shares of the ports are similar.
    let mut counts = vec![0_u32; 2000];
    for round in 0..1000 {
        for (at, program) in net.programs.iter_mut().enumerate() {
            while send(
                &mut program.end,
                &TestFrame::outgoing(FIRST + at as u16).bytes(),
            ) {}
        }
        for _ in 0..8 {
            net.mux.step();
            for frame in receive(&mut net.nic) {
                let port = u16::from_be_bytes([frame[34], frame[35]]);
                counts[usize::from(port - FIRST)] += u32::from(round >= 50);
            }
        }
        if counts.iter().all(|count| *count >= 64) {
            break;
        }
    }
    let (least, most) = (counts.iter().min(), counts.iter().max());
    assert!(least >= Some(&64), "{least:?} to {most:?}");
    assert!(most <= Some(&(64 + 64)), "{least:?} to {most:?}");
}

/// Under traffic, a mux port opens and takes over the claim of the only other port, and the other
/// port closes. These steps repeat 100,000 times. Each packet reaches the port that has the claim.
/// In the end, one claim is left.
#[test]
fn ports_come_and_go_under_traffic() {
    let mut net = Net::new(1);
    let mut owner = 0;
    for round in 0..100_000_u32 {
        send(&mut net.nic, &TestFrame::incoming(FIRST).bytes());
        net.mux.step();
        let received = receive(&mut net.programs[owner].end);
        assert_eq!(
            received,
            [TestFrame::incoming(FIRST).bytes()],
            "round {round}"
        );
        let next = open(&mut net.mux);
        let (from, to) = (net.programs[owner].id, next.id);
        if round % 2 == 0 {
            assert!(net.mux.ports_mut().move_claim(tuple(FIRST), from, to));
        } else {
            assert!(net.mux.ports_mut().hand_over(from, to));
        }
        assert!(net.mux.ports_mut().close(from).is_some());
        // The mux sends no packet of the closed mux port.
        send(
            &mut net.programs[owner].end,
            &TestFrame::outgoing(FIRST).bytes(),
        );
        net.programs[owner] = next;
        owner = 0;
        assert_eq!(net.mux.ports().len(), 1);
        if round % 1000 == 0 {
            net.mux.step();
            assert!(receive(&mut net.nic).is_empty() && receive(&mut net.host).is_empty());
        }
    }
    assert!(receive(&mut net.nic).is_empty() && receive(&mut net.host).is_empty());
    assert_eq!(net.mux.ports().claims().len(), 1);
}

/// A program sends a frame of the maximum length. The frame contains no packet. The mux port still
/// carries the program's later packets.
#[test]
fn a_frame_without_a_packet_stops_no_later_packet() {
    let mut net = Net::new(1);
    let port = &mut net.programs[0].end;
    let room = port.tx_frame().expect("room").len();
    assert_eq!(room, 1514);
    port.tx_commit(room, TxChecksum::Done);
    port.tx_flush();
    net.check_traffic(0..1);
}
