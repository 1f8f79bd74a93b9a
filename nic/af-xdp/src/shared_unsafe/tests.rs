//! Tests of the receive half and the transmit half of an [`XdpPort`] that shares frames of its UMEM
//! (the memory of all frames) with its user, a TCP/IP stack. The tests act as the kernel, which has
//! the other sides of the rings.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use tidelane_packet_io::{BURST_MAX, Burst};

use super::*;
use crate::{
    config::{UmemLayout, XdpConfig},
    ring_unsafe::{Descriptor, Ring},
    rx_unsafe::RxQueue,
    shared_memory::SharedMemory,
    tx_unsafe::TxQueue,
    umem_unsafe::Umem,
};

/// Number of receive frames, which is also the number of transmit frames and the number of the
/// user's frames.
const FRAMES: u32 = 4;
/// Length of a frame in bytes.
const FRAME_LEN: u64 = 2048;
/// Headroom in bytes that the kernel keeps before received data.
const HEADROOM: u64 = 256;

/// A port without a socket, and the kernel's sides of its rings.
struct Testbed {
    umem: Arc<Umem>,
    rx: RxQueue,
    tx: TxQueue,
    /// Frames that belong to the user.
    user: Vec<u32>,
    fill: Ring<u64>,
    received: Ring<Descriptor>,
    sent: Ring<Descriptor>,
    completion: Ring<u64>,
}

impl Testbed {
    fn new(metadata: bool) -> Self {
        let config = XdpConfig {
            rx_frames: FRAMES,
            tx_packets: FRAMES,
            shared_frames: FRAMES,
            ..XdpConfig::default()
        };
        let layout = UmemLayout::new(&config, 1500);
        let umem = Arc::new(Umem::new(&layout, false).unwrap());
        let ((port_fill, fill), (port_rx, received)) = (Ring::pair(FRAMES), Ring::pair(FRAMES));
        let ((port_tx, sent), (port_done, completion)) = (Ring::pair(FRAMES), Ring::pair(FRAMES));
        let memory = SharedMemory::new(Arc::clone(&umem), layout)
            .into_frames()
            .unwrap();
        assert_eq!((memory.free.clone(), memory.count), (8..12, 12));
        assert_eq!(memory.start.as_ptr(), umem.start());
        Self {
            rx: RxQueue::new(Arc::clone(&umem), port_fill, port_rx, &layout),
            tx: TxQueue::new(Arc::clone(&umem), port_tx, port_done, &layout, metadata),
            user: memory.free.collect(),
            umem,
            fill,
            received,
            sent,
            completion,
        }
    }

    /// Returns the bytes of a frame.
    #[allow(clippy::mut_from_ref)] // No caller keeps a borrow until the next call.
    fn bytes(&self, number: u32, range: Range<u32>) -> &mut [u8] {
        let addr = u64::from(number) * FRAME_LEN + u64::from(range.start);
        // SAFETY: the test accesses a frame only while it acts as the frame's owner.
        unsafe { self.umem.bytes_mut(addr, range.len()) }
    }

    /// Acts as the kernel, which receives up to `count` packets into frames of the FILL ring.
    /// Returns the numbers of the frames.
    fn receive(&mut self, byte: u8, count: u32) -> Vec<u32> {
        let mut frames = Vec::new();
        while (frames.len() as u32) < count && self.fill.available(1) > 0 {
            let number = (self.fill.pop() / FRAME_LEN) as u32;
            self.fill.release();
            self.bytes(number, 256..356).fill(byte);
            self.received.push(Descriptor {
                addr: u64::from(number) * FRAME_LEN + HEADROOM,
                len: 100,
                options: 0,
            });
            frames.push(number);
        }
        self.received.publish();
        frames
    }

    /// Acts as the kernel, which takes all queued frames from the TX ring. Returns the frames. The
    /// kernel has the frames until [`Self::complete`].
    fn transmit(&mut self) -> Vec<Descriptor> {
        self.tx.publish();
        let mut frames = Vec::new();
        while self.sent.available(1) > 0 {
            frames.push(self.sent.pop());
        }
        self.sent.release();
        frames
    }

    fn complete(&mut self, frames: &[Descriptor]) {
        for frame in frames {
            self.completion.push(frame.addr);
        }
        self.completion.publish();
    }

    fn lend(&mut self, number: u32, range: Range<u32>) -> Result<(), LinkFull> {
        let data = FrameData { number, range };
        // SAFETY: the test does not access the frame until it is returned.
        unsafe { self.tx.lend(data, TxChecksum::Done) }
    }
}

/// Each exchange swaps a received frame for a frame of the user. Each of these frames has one owner
/// at each time.
#[test]
fn received_frames_are_exchanged_by_number() {
    let mut testbed = Testbed::new(false);
    let mut burst = testbed.rx.new_burst();
    for round in 0..100_u8 {
        let frames = testbed.receive(round, FRAMES);
        assert_eq!(
            frames.len() as u32,
            FRAMES,
            "round {round}: a frame is lost"
        );
        let owned: BTreeSet<u32> = frames.iter().chain(&testbed.user).copied().collect();
        assert_eq!(owned.len() as u32, 2 * FRAMES, "a frame has two owners");
        assert_eq!(testbed.rx.burst(&mut burst, BURST_MAX), FRAMES as usize);
        for (at, number) in frames.iter().enumerate().skip(usize::from(round % 3)) {
            let free = testbed.user.remove(0);
            let taken = testbed.rx.exchange(&mut burst, at, free);
            let taken = taken.expect("a packet in one frame");
            assert_eq!((taken.number, taken.range.clone()), (*number, 256..356));
            assert_eq!(testbed.bytes(taken.number, taken.range), [round; 100]);
            assert_eq!(
                burst.frame(at),
                Some(&[][..]),
                "the taken frame is still in the burst"
            );
            assert!(
                testbed.rx.exchange(&mut burst, at, 0).is_none(),
                "a frame was taken twice"
            );
            testbed.user.push(*number);
        }
        assert!(
            testbed
                .rx
                .exchange(&mut burst, FRAMES as usize, 0)
                .is_none()
        );
        testbed.rx.release(&mut burst);
    }
}

/// Lent frames and frames of the port share the rings, which never overflow. A lent frame returns
/// once, after its completion.
#[test]
fn lent_frames_return_when_they_are_sent() {
    let mut testbed = Testbed::new(false);
    for round in 0..100 {
        for number in 8..11 {
            testbed.bytes(number, 150..250).fill(round);
            assert_eq!(testbed.lend(number, 150..250), Ok(()));
        }
        // A frame of the port between lent frames.
        testbed.tx.packet().expect("a free frame")[..60].fill(99);
        testbed.tx.commit(60, TxChecksum::Done);
        assert_eq!(
            testbed.lend(11, 150..250),
            Err(LinkFull),
            "a full ring took a frame"
        );
        assert!(testbed.tx.packet().is_none());
        let sent = testbed.transmit();
        let places: Vec<(u64, u32)> = sent.iter().map(|at| (at.addr, at.len)).collect();
        let lent = [8, 9, 10].map(|number| (number * FRAME_LEN + 150, 100));
        assert_eq!(places[..3], lent);
        assert_eq!(places[3].1, 60);
        assert_eq!(testbed.tx.returned(), None, "not completed yet");
        testbed.complete(&sent[1..3]);
        let mut returned = || std::iter::from_fn(|| testbed.tx.returned()).collect::<Vec<_>>();
        assert_eq!(returned(), [9, 10]);
        testbed.complete(&[sent[3], sent[0]]);
        let mut returned = || std::iter::from_fn(|| testbed.tx.returned()).collect::<Vec<_>>();
        assert_eq!(returned(), [8]);
    }
    assert_eq!(testbed.tx.free_packets(), FRAMES as usize);
}

/// The port requests the offload of a partial checksum in the metadata before the data, or
/// completes the checksum in place.
#[test]
fn checksums_of_lent_frames() {
    for metadata in [true, false] {
        let mut testbed = Testbed::new(metadata);
        testbed.bytes(8, 100..200).fill(1);
        testbed.bytes(8, 84..100).fill(7);
        let (number, range) = (8, 100..200);
        let checksum = TxChecksum::Partial {
            start: 34,
            offset: 16,
        };
        // SAFETY: the test does not write the frame.
        let lent = unsafe { testbed.tx.lend(FrameData { number, range }, checksum) };
        assert_eq!(lent, Ok(()));
        let sent = testbed.transmit();
        assert_eq!(sent[0].options & libc::XDP_TX_METADATA != 0, metadata);
        let before = testbed.bytes(8, 84..100).to_vec();
        let field = testbed.bytes(8, 150..152).to_vec();
        match metadata {
            true => {
                assert_eq!((before[8], before[10]), (34, 16));
                assert_eq!(field, [1, 1]);
            }
            false => {
                assert_eq!(before, [7; 16]);
                assert_ne!(field, [1, 1]);
            }
        }
    }
}

#[test]
#[should_panic(expected = "a frame of the transmit half")]
fn a_frame_of_the_port_is_not_lent() {
    let mut testbed = Testbed::new(false);
    let _ = testbed.lend(5, 100..200);
}
