//! A NIC in memory: frames in one memory, rings of numbers, and a wire in virtual time.
//!
//! The NIC copies between its frames and the wire, as DMA does. The wire loses, delays, reorders
//! and duplicates packets by a seed.

use std::{
    cell::{Cell, RefCell, UnsafeCell},
    collections::VecDeque,
    ops::Range,
    rc::Rc,
    slice,
};

use tidelane_engine::{Duration, Instant};
use tidelane_packet_io::{Burst, Capabilities, PacketIo, TxChecksum};

/// Length of a frame's memory in bytes.
pub const FRAME_LEN: u32 = 2048;
/// Room before the data of a received frame.
const RX_HEADROOM: u32 = 256;
/// Largest frame in bytes.
const PACKET_LEN_MAX: u32 = 1514;
/// Frames for receiving.
const RX_FRAMES: u32 = 256;
/// Frames for transmitting.
const TX_FRAMES: u32 = 256;

/// The virtual time of a test.
pub type Clock = Rc<Cell<Instant>>;

/// Behaviour of a wire.
#[derive(Clone, Copy, Debug)]
pub struct Quality {
    /// Seed of the chances.
    pub seed: u64,
    /// Chance of loss in permille.
    pub loss: u64,
    /// Chance of duplication in permille.
    pub duplicate: u64,
    /// Chance of a delay by up to 20 times the usual delay, in permille.
    pub reorder: u64,
    /// Usual delay.
    pub delay: Duration,
    /// Time from a transmission to its completion.
    pub completion: Duration,
}

impl Default for Quality {
    fn default() -> Self {
        Self {
            seed: 1,
            loss: 0,
            duplicate: 0,
            reorder: 0,
            delay: Duration::from_micros(50),
            completion: Duration::from_micros(10),
        }
    }
}

/// A packet on the way.
struct Packet {
    at: Instant,
    bytes: Vec<u8>,
}

/// A wire with two ends.
pub struct Wire {
    clock: Clock,
    pub quality: Quality,
    state: u64,
    /// Packets to each end, in the order of arrival.
    queues: [VecDeque<Packet>; 2],
    /// Memory of delivered packets.
    free: Vec<Vec<u8>>,
    /// Number of packets that were sent.
    pub sent: u64,
}

impl Wire {
    fn new(clock: Clock, quality: Quality) -> Self {
        Self {
            clock,
            quality,
            state: quality.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            queues: Default::default(),
            free: Vec::new(),
            sent: 0,
        }
    }

    /// Returns a random number below `below`.
    fn random(&mut self, below: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) % below
    }

    /// Returns the arrival of the next packet.
    pub fn next_arrival(&self) -> Option<Instant> {
        let fronts = self.queues.iter().filter_map(|queue| queue.front());
        fronts.map(|packet| packet.at).min()
    }

    fn send(&mut self, to: usize, bytes: &[u8]) {
        self.sent += 1;
        let Quality {
            loss,
            duplicate,
            reorder,
            delay,
            ..
        } = self.quality;
        if self.random(1000) < loss {
            return;
        }
        let copies = 1 + u64::from(self.random(1000) < duplicate);
        for _ in 0..copies {
            let factor = match self.random(1000) < reorder {
                true => 1 + self.random(20),
                false => 1,
            };
            let at = self.clock.get() + delay * factor;
            let mut copy = self.free.pop().unwrap_or_default();
            copy.clear();
            copy.extend_from_slice(bytes);
            let queue = &mut self.queues[to];
            let place = queue.partition_point(|packet| packet.at <= at);
            queue.insert(place, Packet { at, bytes: copy });
        }
    }

    fn receive(&mut self, end: usize) -> Option<Vec<u8>> {
        let now = self.clock.get();
        let queue = &mut self.queues[end];
        let packet = queue.pop_front_if(|packet| packet.at <= now)?;
        Some(packet.bytes)
    }
}

/// The memory of a NIC's frames.
struct Frames(Box<[UnsafeCell<u8>]>);

impl Frames {
    fn new(count: u32) -> Self {
        let len = count as usize * FRAME_LEN as usize;
        Self((0..len).map(|_| UnsafeCell::new(0)).collect())
    }

    fn start(&self, number: u32, range: &Range<u32>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= FRAME_LEN);
        let at = number as usize * FRAME_LEN as usize;
        self.0[at..at + FRAME_LEN as usize][range.start as usize..].as_ptr() as *mut u8
    }

    /// Returns bytes of a frame.
    ///
    /// # Safety
    ///
    /// Nobody writes the bytes until the borrow ends.
    unsafe fn bytes(&self, number: u32, range: Range<u32>) -> &[u8] {
        // SAFETY: the range is within the memory, and by the contract unchanged while borrowed.
        unsafe { slice::from_raw_parts(self.start(number, &range), range.len()) }
    }

    /// Returns bytes of a frame for writing.
    ///
    /// # Safety
    ///
    /// Nobody else accesses the bytes until the borrow ends.
    #[allow(clippy::mut_from_ref)] // Several callers may each borrow a different frame.
    unsafe fn bytes_mut(&self, number: u32, range: Range<u32>) -> &mut [u8] {
        // SAFETY: as in `bytes`, and exclusive by the contract.
        unsafe { slice::from_raw_parts_mut(self.start(number, &range), range.len()) }
    }
}

/// A received frame: its number, and the range of its data.
type Received = (u32, Range<u32>);

/// Received frames.
pub struct NicBurst {
    memory: Rc<Frames>,
    frames: Vec<Received>,
}

impl Burst for NicBurst {
    fn len(&self) -> usize {
        self.frames.len()
    }

    fn frame(&self, at: usize) -> Option<&[u8]> {
        let (number, range) = self.frames.get(at)?;
        // SAFETY: the NIC does not write to frames of a burst.
        Some(unsafe { self.memory.bytes(*number, range.clone()) })
    }
}

/// One end of a wire.
pub struct Nic {
    memory: Rc<Frames>,
    wire: Rc<RefCell<Wire>>,
    /// End of the wire.
    end: usize,
    /// Frames for received packets.
    fill: VecDeque<u32>,
    /// Free frames for transmission.
    tx_free: Vec<u32>,
    /// Frames that wait for a flush.
    staged: Vec<Received>,
    /// Frames whose transmission completes at a time, oldest first.
    in_flight: VecDeque<(Instant, u32)>,
    /// Packets dropped because no frame was free.
    pub overruns: u64,
}

/// Makes two NICs on one wire.
pub fn pair(clock: &Clock, quality: Quality) -> (Nic, Nic, Rc<RefCell<Wire>>) {
    let wire = Rc::new(RefCell::new(Wire::new(Rc::clone(clock), quality)));
    let nic = |end| Nic::new(Rc::clone(&wire), end);
    (nic(0), nic(1), wire)
}

impl Nic {
    fn new(wire: Rc<RefCell<Wire>>, end: usize) -> Self {
        Self {
            memory: Rc::new(Frames::new(RX_FRAMES + TX_FRAMES)),
            wire,
            end,
            fill: (0..RX_FRAMES).collect(),
            tx_free: (RX_FRAMES..RX_FRAMES + TX_FRAMES).collect(),
            staged: Vec::new(),
            in_flight: VecDeque::new(),
            overruns: 0,
        }
    }

    /// Takes completed frames back.
    fn complete(&mut self) {
        let now = self.wire.borrow().clock.get();
        while let Some((_, number)) = self.in_flight.pop_front_if(|(at, _)| *at <= now) {
            self.tx_free.push(number);
        }
    }
}

impl PacketIo for Nic {
    type Burst = NicBurst;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            tx_frame_len_max: PACKET_LEN_MAX,
            tx_checksum: false,
            rx_checksum_may_be_partial: false,
            tx_gso_len_max: 0,
        }
    }

    fn new_burst(&self) -> NicBurst {
        NicBurst {
            memory: Rc::clone(&self.memory),
            frames: Vec::with_capacity(RX_FRAMES as usize),
        }
    }

    fn rx_burst(&mut self, burst: &mut NicBurst, max: usize) -> usize {
        let mut wire = self.wire.borrow_mut();
        let before = burst.frames.len();
        while burst.frames.len() - before < max
            && let Some(packet) = wire.receive(self.end)
        {
            match self.fill.pop_front() {
                Some(number) => {
                    let range = RX_HEADROOM..RX_HEADROOM + packet.len() as u32;
                    // SAFETY: the NIC has the frames of the fill ring, and only the NIC.
                    let frame = unsafe { self.memory.bytes_mut(number, range.clone()) };
                    frame.copy_from_slice(&packet);
                    burst.frames.push((number, range));
                }
                None => self.overruns += 1,
            }
            wire.free.push(packet);
        }
        burst.frames.len() - before
    }

    fn rx_release(&mut self, burst: &mut NicBurst) {
        let numbers = burst.frames.drain(..).map(|(number, _)| number);
        self.fill.extend(numbers);
    }

    fn tx_frame(&mut self) -> Option<&mut [u8]> {
        self.complete();
        let number = *self.tx_free.last()?;
        // SAFETY: the NIC has the free frames, and lends one frame by a borrow of itself.
        Some(unsafe { self.memory.bytes_mut(number, 0..PACKET_LEN_MAX) })
    }

    fn tx_commit(&mut self, len: usize, _checksum: TxChecksum) {
        let number = self.tx_free.pop().expect("`tx_frame` gave a frame");
        self.staged.push((number, 0..len as u32));
    }

    fn tx_flush(&mut self) {
        self.complete();
        let mut wire = self.wire.borrow_mut();
        let done = wire.clock.get() + wire.quality.completion;
        for (number, range) in self.staged.drain(..) {
            // SAFETY: the sender does not write to a frame until its transmission is complete.
            let bytes = unsafe { self.memory.bytes(number, range) };
            wire.send(1 - self.end, bytes);
            self.in_flight.push_back((done, number));
        }
    }
}
