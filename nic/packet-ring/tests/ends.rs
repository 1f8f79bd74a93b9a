//! Tests of both ends of a mux port: shared memory over which a program exchanges frames with the
//! service (the process `tidelaned`). In one test, the program writes invalid values over its own
//! part of the memory.

use std::sync::Arc;

use tidelane_packet_io::{BURST_MAX, Burst, PacketIo, TxChecksum};
use tidelane_packet_ring::{ProgramEnd, ServiceEnd};
use tidelane_ring::{Doorbell, PortMemories, PortRegions};

/// Number of the mux port.
const NUMBER: u32 = 7;
const RING_LEN: u32 = 64 * 1024;

/// Both ends, the program's mappings of the shared memory, and the program's doorbell (an eventfd).
struct Port {
    service: ServiceEnd,
    program: ProgramEnd,
    regions: PortRegions,
    doorbell: Arc<Doorbell>,
}

fn port() -> Port {
    let (service, memories) = PortMemories::create(NUMBER, RING_LEN).expect("there is memory");
    let regions = PortRegions::map(memories.descriptors(), NUMBER, RING_LEN)
        .expect("the memory can be mapped");
    let doorbell = Arc::new(Doorbell::new().expect("an eventfd"));
    Port {
        service: ServiceEnd::new(&service, Some(doorbell.clone())),
        program: ProgramEnd::new(&regions, 1514, false),
        regions,
        doorbell,
    }
}

fn send(io: &mut impl PacketIo, bytes: &[u8]) -> bool {
    let Some(frame) = io.tx_frame() else {
        return false;
    };
    frame[..bytes.len()].copy_from_slice(bytes);
    io.tx_commit(bytes.len(), TxChecksum::Done);
    true
}

fn receive<P: PacketIo>(io: &mut P) -> Vec<Vec<u8>> {
    let mut burst = io.new_burst();
    io.rx_burst(&mut burst, BURST_MAX);
    let frames = burst.iter().map(<[u8]>::to_vec).collect();
    io.rx_release(&mut burst);
    frames
}

#[test]
fn frames_pass_in_both_directions() {
    let mut port = port();
    for round in 0..5000_usize {
        let frames: Vec<Vec<u8>> = (0..round % 40)
            .map(|n| vec![n as u8; 14 + (round * 31 + n) % 1500])
            .collect();
        for frame in &frames {
            assert!(send(&mut port.program, frame) && send(&mut port.service, frame));
        }
        assert!(receive(&mut port.service).is_empty(), "arrived too early");
        port.program.tx_flush();
        port.service.tx_flush();
        assert_eq!(port.program.take_published(), !frames.is_empty());
        assert_eq!(receive(&mut port.service), frames);
        assert_eq!(receive(&mut port.program), frames);
    }
    assert!(!port.service.is_corrupt() && !port.program.is_closed());
}

#[test]
fn a_full_ring_refuses_frames_and_drains() {
    let mut port = port();
    let mut count = 0;
    while send(&mut port.service, &[1; 60]) {
        count += 1;
    }
    assert!(count > 500, "only {count} frames fit");
    port.service.tx_flush();
    let mut got = 0;
    while port.program.has_frames() {
        got += receive(&mut port.program).len();
    }
    assert_eq!(got, count);
    assert!(send(&mut port.service, &[1; 60]));
}

/// The release of one burst leaves the frames of another burst intact.
#[test]
fn bursts_overlap() {
    let mut port = port();
    for n in 0..8 {
        assert!(send(&mut port.service, &[n; 60]));
    }
    port.service.tx_flush();
    let (mut one, mut other) = (port.program.new_burst(), port.program.new_burst());
    assert_eq!(port.program.rx_burst(&mut one, 4), 4);
    assert_eq!(port.program.rx_burst(&mut other, 9), 4);
    port.program.rx_release(&mut other);
    while send(&mut port.service, &[9; 1000]) {}
    assert!(
        one.iter()
            .enumerate()
            .all(|(n, frame)| frame == [n as u8; 60])
    );
    port.program.rx_release(&mut one);
    port.service.tx_flush();
    assert!(
        receive(&mut port.program)
            .iter()
            .all(|frame| frame[..] == [9; 1000])
    );
}

/// The service rings once for each sleep, and not for a program that is awake.
#[test]
fn a_sleeping_program_is_rung_once() {
    let mut port = port();
    let mut rings = |asleep: bool| {
        if asleep {
            port.program.prepare_to_sleep();
        }
        for _ in 0..3 {
            assert!(send(&mut port.service, &[1; 60]));
            port.service.tx_flush();
        }
        let rung = port.doorbell.drain();
        port.service.tx_flush();
        assert!(send(&mut port.service, &[1; 60]));
        port.service.tx_flush();
        assert!(!port.doorbell.drain(), "a second ring");
        port.program.cancel_sleep();
        while port.program.has_frames() {
            receive(&mut port.program);
        }
        rung
    };
    assert!(!rings(false));
    for _ in 0..3 {
        assert!(rings(true));
        assert!(!rings(false));
    }
}

/// A program writes random or extreme values over its memory while the service uses the mux port.
/// The service receives at most `BURST_MAX` frames at a time, or finds the port corrupt.
#[test]
fn nonsense_in_the_memory_ends_the_port_only() {
    let mut seed = 1_u64;
    let mut next = || {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (seed >> 33) as u32
    };
    let mut corrupt = 0;
    for _ in 0..2000 {
        let mut port = port();
        for _ in 0..200 {
            send(&mut port.program, &[3; 100]);
            port.program.tx_flush();
            let at = 4096 + u64::from(next() % RING_LEN / 16) * 16;
            let head = port.regions.head_at;
            let at = [head, head + 64, head + 128, 4096, at][next() as usize % 5];
            let value = [next(), next() % 5000, u32::MAX, 0][next() as usize % 4];
            if next() % 20 == 0 {
                assert!(port.regions.own.copy_in(at, &value.to_ne_bytes()));
            }
            assert!(receive(&mut port.service).len() <= BURST_MAX);
            send(&mut port.service, &[4; 1000]);
            port.service.tx_flush();
            receive(&mut port.program);
        }
        corrupt += u32::from(port.service.is_corrupt());
    }
    assert!(corrupt > 100, "only {corrupt} ports were corrupt");
}
