//! A simulated NIC: frames in one memory, rings of frame numbers, and a wire in virtual time.
//!
//! The NIC copies between its frames and the wire, as DMA does. The wire loses, delays, reorders,
//! duplicates and corrupts packets at random, from a seed.

use std::{
    cell::{Cell, RefCell, UnsafeCell},
    collections::VecDeque,
    ops::Range,
    ptr::NonNull,
    rc::Rc,
    slice,
};

use tidelane_engine::{Duration, Instant};
use tidelane_packet_io::{
    Burst, Capabilities, FrameData, FrameMemory, LinkFull, PacketIo, SharedFrames, TxChecksum,
};

/// Length of a frame's memory in bytes.
pub const FRAME_LEN: u32 = 2048;
/// Headroom before the data of a received frame, in bytes.
const RX_HEADROOM: u32 = 256;
/// Longest Ethernet frame in bytes.
pub const PACKET_LEN_MAX: u32 = 1514;
/// Number of frames for receiving.
const RX_FRAMES: u32 = 256;
/// Number of frames for transmitting.
const TX_FRAMES: u32 = 256;

/// Number of frames for the stack under test, if the NIC shares its memory.
const USER_FRAMES: u32 = 8192;
/// Number of bytes before the data of a lent frame. The NIC overwrites these bytes, like a NIC with
/// transmit metadata.
const TX_HEADROOM: u32 = 16;

/// The virtual clock of a test.
pub type Clock = Rc<Cell<Instant>>;

/// Impairments of a wire.
#[derive(Clone, Copy, Debug)]
pub struct Quality {
    /// Seed of the random impairments.
    pub seed: u64,
    /// Probability of loss, in permille.
    pub loss: u64,
    /// Probability of duplication, in permille.
    pub duplicate: u64,
    /// Probability of a random delay from one to 20 times `delay`, in permille. A packet with a
    /// delay above `delay` may arrive after packets that were sent later.
    pub reorder: u64,
    /// Probability of a changed byte or a truncation, in permille.
    pub corrupt: u64,
    /// One-way delay.
    pub delay: Duration,
    /// Time from the start of a transmission to its completion.
    pub completion: Duration,
    /// True if the NICs share their memory with the stacks under test.
    pub is_shared: bool,
    /// Length in bytes of the frames for transmission that the NICs provide.
    pub tx_room: u32,
}

impl Default for Quality {
    fn default() -> Self {
        Self {
            seed: 1,
            loss: 0,
            duplicate: 0,
            reorder: 0,
            corrupt: 0,
            delay: Duration::from_micros(50),
            completion: Duration::from_micros(10),
            is_shared: true,
            tx_room: PACKET_LEN_MAX,
        }
    }
}

/// A packet on the wire.
struct Packet {
    /// Time of arrival.
    at: Instant,
    bytes: Vec<u8>,
}

/// A wire with two ends.
pub struct Wire {
    clock: Clock,
    pub quality: Quality,
    /// State of the random number generator.
    state: u64,
    /// Packets towards each end, in the order of arrival.
    queues: [VecDeque<Packet>; 2],
    /// Buffers of delivered packets, for reuse.
    free: Vec<Vec<u8>>,
    /// Number of sent packets, including lost packets.
    pub sent: u64,
    /// Length of the longest packet in bytes.
    pub longest: usize,
    /// Destination and source link address of the most recently sent packet.
    pub last_link: [u8; 12],
}

impl Wire {
    fn new(clock: Clock, quality: Quality) -> Self {
        Self {
            clock,
            quality,
            state: quality.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            queues: [0; 2].map(|_| VecDeque::with_capacity(1024)),
            // Preallocate, so that the wire allocates only for more than 1024 packets at a time.
            free: (0..1024)
                .map(|_| Vec::with_capacity(PACKET_LEN_MAX as usize))
                .collect(),
            sent: 0,
            longest: 0,
            last_link: [0; 12],
        }
    }

    /// Returns a random number less than `below`.
    fn random(&mut self, below: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) % below
    }

    /// Returns the arrival time of the next packet.
    pub fn next_arrival(&self) -> Option<Instant> {
        let fronts = self.queues.iter().filter_map(|queue| queue.front());
        fronts.map(|packet| packet.at).min()
    }

    /// Sends a packet to end `to`.
    pub fn send(&mut self, to: usize, bytes: &[u8]) {
        self.sent += 1;
        self.last_link = *bytes.first_chunk().unwrap_or(&[0; 12]);
        self.longest = self.longest.max(bytes.len());
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
            if self.random(1000) < self.quality.corrupt {
                self.corrupt(&mut copy);
            }
            let queue = &mut self.queues[to];
            let place = queue.partition_point(|packet| packet.at <= at);
            queue.insert(place, Packet { at, bytes: copy });
        }
    }

    /// Changes one byte, or truncates the packet.
    fn corrupt(&mut self, bytes: &mut Vec<u8>) {
        let at = self.random(bytes.len() as u64) as usize;
        match self.random(2) {
            0 => bytes.truncate(at),
            _ => bytes[at] ^= 1 + self.random(255) as u8,
        }
    }

    fn receive(&mut self, end: usize) -> Option<Vec<u8>> {
        let now = self.clock.get();
        let queue = &mut self.queues[end];
        let packet = queue.pop_front_if(|packet| packet.at <= now)?;
        Some(packet.bytes)
    }
}

/// Memory of a NIC's frames.
struct Frames(Box<[UnsafeCell<u8>]>);

impl Frames {
    fn new(count: u32) -> Self {
        let len = count as usize * FRAME_LEN as usize;
        Self((0..len).map(|_| UnsafeCell::new(0)).collect())
    }

    fn start(&self, number: u32, range: &Range<u32>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= FRAME_LEN);
        let at = number as usize * FRAME_LEN as usize;
        self.0[at + range.start as usize..].as_ptr() as *mut u8
    }

    /// Returns bytes of a frame.
    ///
    /// # Safety
    ///
    /// No thread writes the bytes during the borrow.
    unsafe fn bytes(&self, number: u32, range: Range<u32>) -> &[u8] {
        // SAFETY: the range is within the memory. The caller guarantees that the bytes do not
        // change during the borrow.
        unsafe { slice::from_raw_parts(self.start(number, &range), range.len()) }
    }

    /// Returns bytes of a frame for writing.
    ///
    /// # Safety
    ///
    /// No other reference accesses the bytes during the borrow.
    #[allow(clippy::mut_from_ref)] // Several callers may each borrow a different frame.
    unsafe fn bytes_mut(&self, number: u32, range: Range<u32>) -> &mut [u8] {
        // SAFETY: the range is within the memory. The caller guarantees that no other reference
        // accesses the bytes.
        unsafe { slice::from_raw_parts_mut(self.start(number, &range), range.len()) }
    }
}

/// A received frame: its number, and the range of its data within the frame.
type Received = (u32, Range<u32>);

/// A frame that the NIC is sending.
struct Transmission {
    number: u32,
    range: Range<u32>,
    /// True if the frame is lent by the stack under test.
    is_lent: bool,
    /// Hash of the data at the start of the transmission.
    hash: u64,
    /// Time of the completion.
    done: Instant,
}

fn hash(bytes: &[u8]) -> u64 {
    let mix = |all: u64, byte: &u8| (all ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// A burst of received frames.
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

/// A NIC at one end of a wire.
pub struct Nic {
    memory: Rc<Frames>,
    wire: Rc<RefCell<Wire>>,
    /// The NIC's end of the wire, 0 or 1.
    end: usize,
    /// Free frames for received packets.
    fill: VecDeque<u32>,
    /// Free frames for transmission.
    tx_free: Vec<u32>,
    /// Frames to send at the next flush.
    staged: Vec<Transmission>,
    /// Frames in transmission, oldest first.
    in_flight: VecDeque<Transmission>,
    /// Lent frames that the stack under test gets back.
    returned: VecDeque<u32>,
    /// True until the stack under test has taken the memory.
    has_memory: bool,
    /// Number of received packets that were dropped for lack of a free frame.
    pub overruns: u64,
}

/// Creates two NICs on one wire.
pub fn pair(clock: &Clock, quality: Quality) -> (Nic, Nic, Rc<RefCell<Wire>>) {
    let wire = Rc::new(RefCell::new(Wire::new(Rc::clone(clock), quality)));
    let nic = |end| Nic::new(Rc::clone(&wire), end);
    (nic(0), nic(1), wire)
}

impl Nic {
    fn new(wire: Rc<RefCell<Wire>>, end: usize) -> Self {
        let has_memory = wire.borrow().quality.is_shared;
        let user_frames = if has_memory { USER_FRAMES } else { 0 };
        Self {
            memory: Rc::new(Frames::new(RX_FRAMES + TX_FRAMES + user_frames)),
            returned: VecDeque::new(),
            has_memory,
            wire,
            end,
            fill: (0..RX_FRAMES).collect(),
            tx_free: (RX_FRAMES..RX_FRAMES + TX_FRAMES).collect(),
            staged: Vec::with_capacity(TX_FRAMES as usize),
            in_flight: VecDeque::with_capacity(TX_FRAMES as usize),
            overruns: 0,
        }
    }

    /// Completes the transmissions that are due. Panics if the data of a frame has changed during
    /// its transmission.
    fn complete(&mut self) {
        let now = self.wire.borrow().clock.get();
        while let Some(sent) = self.in_flight.pop_front_if(|sent| sent.done <= now) {
            // SAFETY: the NIC owns the frame until its completion.
            let bytes = unsafe { self.memory.bytes(sent.number, sent.range) };
            assert_eq!(
                hash(bytes),
                sent.hash,
                "a frame changed during its transmission"
            );
            match sent.is_lent {
                true => self.returned.push_back(sent.number),
                false => self.tx_free.push(sent.number),
            }
        }
    }

    fn stage(&mut self, number: u32, range: Range<u32>, is_lent: bool) {
        let in_flight = self.staged.iter().chain(&self.in_flight);
        let is_twice = in_flight.filter(|sent| sent.number == number).count() > 0;
        assert!(!is_twice, "a frame is sent twice at the same time");
        self.staged.push(Transmission {
            number,
            range,
            is_lent,
            hash: 0,
            done: Instant(0),
        });
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
                    // SAFETY: only the NIC accesses the frames of the fill ring.
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
        let range = 0..self.wire.borrow().quality.tx_room;
        // SAFETY: only the NIC accesses its free frames. The returned borrow is a borrow of the
        // NIC.
        Some(unsafe { self.memory.bytes_mut(number, range) })
    }

    fn tx_commit(&mut self, len: usize, _checksum: TxChecksum) {
        let number = self.tx_free.pop().expect("`tx_frame` gave a frame");
        self.stage(number, 0..len as u32, false);
    }

    fn tx_flush(&mut self) {
        self.complete();
        let mut wire = self.wire.borrow_mut();
        let done = wire.clock.get() + wire.quality.completion;
        for mut sent in self.staged.drain(..) {
            // SAFETY: the sender does not write to a frame until its transmission is complete.
            let bytes = unsafe { self.memory.bytes(sent.number, sent.range.clone()) };
            wire.send(1 - self.end, bytes);
            (sent.hash, sent.done) = (hash(bytes), done);
            self.in_flight.push_back(sent);
        }
    }

    fn shared_frames(&mut self) -> Option<&mut dyn SharedFrames<NicBurst>> {
        self.wire.borrow().quality.is_shared.then_some(())?;
        Some(self)
    }
}

// SAFETY: the owner is a counted reference, which keeps the memory alive. The NIC accesses only
// frames of its rings, of bursts, and of transmissions. A transmission only reads its frame.
unsafe impl SharedFrames<NicBurst> for Nic {
    fn take_memory(&mut self) -> Option<FrameMemory> {
        std::mem::take(&mut self.has_memory).then_some(())?;
        let first = RX_FRAMES + TX_FRAMES;
        Some(FrameMemory {
            owner: Box::new(Rc::clone(&self.memory)),
            start: NonNull::new(self.memory.start(0, &(0..0)))?,
            count: first + USER_FRAMES,
            frame_len: FRAME_LEN,
            free: first..first + USER_FRAMES,
            tx_headroom: TX_HEADROOM,
        })
    }

    unsafe fn rx_exchange(
        &mut self,
        burst: &mut NicBurst,
        at: usize,
        free: u32,
    ) -> Option<FrameData> {
        let frame = burst.frames.get_mut(at)?;
        assert!(!self.fill.contains(&free), "the NIC has this frame");
        let (number, range) = std::mem::replace(frame, (free, 0..0));
        Some(FrameData { number, range })
    }

    unsafe fn tx_lend(&mut self, data: FrameData, _checksum: TxChecksum) -> Result<(), LinkFull> {
        self.complete();
        if self.in_flight.len() + self.staged.len() >= TX_FRAMES as usize {
            return Err(LinkFull);
        }
        assert!(data.range.start >= TX_HEADROOM, "no room for metadata");
        let headroom = data.range.start - TX_HEADROOM..data.range.start;
        // SAFETY: the NIC may write the headroom of a lent frame.
        unsafe { self.memory.bytes_mut(data.number, headroom) }.fill(0xaa);
        self.stage(data.number, data.range, true);
        Ok(())
    }

    fn tx_returned(&mut self) -> Option<u32> {
        self.complete();
        self.returned.pop_front()
    }
}
