//! Tests of packet rings, which carry frames between the service (process `tidelaned`) and a
//! program: order, GSO frames, hostile indices and lengths, and rights to memory.

use std::os::fd::AsFd;

use tidelane_abi::port::{PORT_RING_LEN_MAX, PORT_RING_LEN_MIN};

use super::*;
use crate::PortMemories;

/// Number of the port.
const NUMBER: u32 = 5;

/// Returns both ends of a ring from the program to the service. Also returns the program's
/// mappings, so that a test can write invalid values.
fn ring(len: u32) -> (PacketProducer, PacketConsumer, PortRegions) {
    let (service, program) = PortRegions::heap(NUMBER, len).expect("a possible length");
    let producer = PacketProducer::new(&program);
    (producer, PacketConsumer::new(&service), program)
}

fn push(producer: &mut PacketProducer, frame: &[u8]) -> Result<(), PushError> {
    producer.frame()?[..frame.len()].copy_from_slice(frame);
    producer.commit(frame.len() as u32);
    Ok(())
}

fn pop(consumer: &mut PacketConsumer) -> Option<Vec<u8>> {
    let place = consumer.take().expect("a sound ring")?;
    let mut bytes = Vec::new();
    consumer.append_to(place, &mut bytes);
    // SAFETY: the test's producer changes no published frame.
    let view = unsafe { consumer.view() };
    assert_eq!(view.bytes(place), Some(&bytes[..]));
    Some(bytes)
}

fn frame_of(number: usize) -> Vec<u8> {
    let len = number * 37 % (PORT_FRAME_LEN_MAX as usize + 1);
    (0..len).map(|at| (number + at) as u8).collect()
}

#[test]
fn frames_of_all_lengths_pass_in_order_through_many_rounds() {
    let (mut producer, mut consumer, _program) = ring(PORT_RING_LEN_MIN);
    let (mut sent, mut received) = (0, 0);
    while received < 20_000 {
        // A prefetch changes nothing, even if the prefetched memory extends beyond the ring.
        producer.prefetch(2, 1000);
        consumer.prefetch(3000);
        while push(&mut producer, &frame_of(sent)).is_ok() {
            sent += 1;
        }
        assert!(producer.publish());
        assert!(sent > received, "a drained ring has no room");
        consumer.prefetch(3000);
        while let Some(frame) = pop(&mut consumer) {
            assert_eq!(frame, frame_of(received), "frame {received}");
            received += 1;
        }
        assert_eq!(received, sent);
        consumer.release();
    }
    assert!(consumer.is_empty() && !producer.publish());
}

#[test]
fn frames_keep_their_room_until_the_release() {
    let (mut producer, mut consumer, _program) = ring(PORT_RING_LEN_MIN);
    let mut count = 0;
    while push(&mut producer, &[7; 1000]).is_ok() {
        count += 1;
    }
    producer.publish();
    for _ in 0..count {
        assert!(pop(&mut consumer).is_some());
        assert_eq!(push(&mut producer, &[8; 1000]), Err(PushError::Full));
    }
    consumer.release();
    assert_eq!(push(&mut producer, &[8; 1000]), Ok(()));
    assert!(pop(&mut consumer).is_none(), "got an unpublished frame");
}

/// A program can write any words into its memory. The service then finds the ring corrupt, or gets
/// frames within the ring.
#[test]
fn no_index_and_no_length_leads_outside_the_ring() {
    let units = PORT_RING_LEN_MIN / PACKET_UNIT;
    let lens = [
        0,
        1,
        8,
        9,
        2047,
        2048,
        2049,
        gso_len_max(PORT_RING_LEN_MIN),
        gso_len_max(PORT_RING_LEN_MIN) + 1,
        1 << 31,
        PACKET_SKIP,
    ];
    let indices = [
        1,
        2,
        129,
        130,
        units - 1,
        units,
        units + 1,
        1 << 31,
        u32::MAX,
    ];
    let pairs = indices
        .into_iter()
        .flat_map(|index| [(index, 0), (index, 1448)]);
    for (index, segment_size) in pairs {
        for first in lens {
            for second in lens {
                let (_producer, mut consumer, program) = ring(PORT_RING_LEN_MIN);
                let head = |at: u64, len: u32| {
                    let at = PORT_DATA_OFFSET + at * u64::from(PACKET_UNIT);
                    let bytes = [len.to_ne_bytes(), u32::to_ne_bytes(segment_size)];
                    assert!(program.own.copy_in(at, bytes.as_flattened()));
                };
                for at in 0..u64::from(units) {
                    head(at, second);
                }
                head(0, first);
                let produced: &[u8] = &index.to_ne_bytes();
                assert!(program.own.copy_in(program.head_at, produced));
                let mut steps = 0;
                consumer.prefetch(3000);
                while let Ok(Some(place)) = consumer.take() {
                    let end = place.at * PACKET_UNIT + HEAD_LEN + place.len;
                    assert!(end <= PORT_RING_LEN_MIN, "{index} {first} {second}");
                    let is_gso = place.segment_size > 0;
                    assert_eq!(is_gso, segment_size > 0);
                    assert!(is_gso || place.len <= PORT_FRAME_LEN_MAX);
                    steps += 1;
                    assert!(steps <= units, "more entries than units");
                }
            }
        }
    }
}

#[test]
fn gso_frames_pass_between_other_frames() {
    let ring_len = 4 * PORT_RING_LEN_MIN;
    let (mut producer, mut consumer, _program) = ring(ring_len);
    let len_max = gso_len_max(ring_len);
    assert_eq!(producer.frame_of(len_max + 1).err(), Some(PushError::Full));
    for round in 0..1000_u32 {
        let len = PORT_FRAME_LEN_MAX + round * 131 % (len_max - PORT_FRAME_LEN_MAX + 1);
        let gso = vec![round as u8; len as usize];
        push(&mut producer, &frame_of(round as usize)).unwrap();
        // A frame that is written and not committed does not reach the consumer.
        producer.frame().unwrap()[0] = 0xaa;
        producer.frame_of(len).unwrap().copy_from_slice(&gso);
        producer.commit_gso(1448);
        producer.publish();
        assert_eq!(pop(&mut consumer), Some(frame_of(round as usize)));
        let place = consumer.take().expect("a sound ring").expect("a frame");
        let mut bytes = Vec::new();
        consumer.append_to(place, &mut bytes);
        assert!(bytes == gso && place.segment_size() == 1448);
        consumer.release();
    }
}

/// A consumer that moves its index back or beyond the produced units is reported.
#[test]
fn a_wrong_consumer_index_is_corrupt() {
    for consumed in [1, 63, 1 << 31, u32::MAX] {
        let (service, program) =
            PortRegions::heap(NUMBER, PORT_RING_LEN_MIN).expect("a possible length");
        let mut producer = PacketProducer::new(&service);
        assert!(
            program
                .own
                .copy_in(program.head_at + 64, &u32::to_ne_bytes(consumed))
        );
        let mut result = Ok(());
        for _ in 0..100 {
            result = push(&mut producer, &[1; 2000]);
            if result.is_err() {
                break;
            }
        }
        assert_eq!(result, Err(PushError::Corrupt), "{consumed}");
    }
}

#[test]
fn only_the_owner_writes_a_memory() {
    let (service, memories) =
        PortMemories::create(NUMBER, PORT_RING_LEN_MIN).expect("there is memory");
    assert!(!memories.are_sealed());
    let program = PortRegions::map(memories.descriptors(), NUMBER, PORT_RING_LEN_MIN);
    let program = program.expect("the service's memories");
    assert!(memories.are_sealed());
    assert!(!program.peer.copy_in(0, &[1]) && !service.peer.copy_in(0, &[1]));
    let [from_service, from_program] = memories.descriptors();
    let len = service.own.len();
    assert!(Region::map(from_service, len, true).is_err());
    // Nobody can map the program's memory for writing again, or punch holes into it.
    assert!(Region::map(from_program, len, true).is_err());
    assert!(program.own.punch_hole(0, len).is_err());
    let mut producer = PacketProducer::new(&program);
    let mut consumer = PacketConsumer::new(&service);
    push(&mut producer, b"across").expect("an empty ring");
    producer.publish();
    assert_eq!(pop(&mut consumer).as_deref(), Some(&b"across"[..]));
}

#[test]
fn impossible_lengths_are_refused() {
    for len in [
        0,
        4096,
        PORT_RING_LEN_MIN + 1,
        3 << 16,
        PORT_RING_LEN_MAX * 2,
    ] {
        assert!(PortRegions::heap(NUMBER, len).is_err(), "{len}");
        assert!(PortMemories::create(NUMBER, len).is_err(), "{len}");
    }
    let memfd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC);
    let memfd = memfd.expect("a memfd");
    assert!(PortRegions::map([memfd.as_fd(), memfd.as_fd()], NUMBER, PORT_RING_LEN_MIN).is_err());
}
