//! The simulated NIC at the near end of a wire in memory. The user of the NIC is a TCP/IP stack.

use std::{
    cell::RefCell,
    collections::VecDeque,
    hash::{DefaultHasher, Hasher},
    ops::Range,
    rc::Rc,
};

use tidelane_packet_io::{
    Burst, Capabilities, FrameData, FrameMemory, LinkFull, PacketIo, SharedFrames, TxChecksum,
};
use tidelane_time::Instant;

use crate::{
    config::{Clock, NicConfig, RX_HEADROOM, TX_HEADROOM},
    frames_unsafe::Frames,
    wire::{Wire, WireEnd},
};

/// A received frame: number of the frame, and range of the data in the frame.
type Received = (u32, Range<u32>);

/// A frame that waits for a flush or whose transmission is not complete.
struct Transmission {
    /// Number of the frame.
    number: u32,
    /// Range of the data in the frame.
    range: Range<u32>,
    /// True if the stack has lent the frame ([`SharedFrames::tx_lend`]). False for one of the NIC's
    /// own transmit frames.
    is_lent: bool,
    /// Hash of the data at the flush. Zero before the flush.
    hash: u64,
    /// Time of the completion. Zero before the flush.
    done: Instant,
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Received frames that the NIC has lent to the stack.
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

/// A simulated NIC at the near end of a wire. The far end is a [`WireEnd`].
pub struct Nic {
    config: NicConfig,
    clock: Clock,
    memory: Rc<Frames>,
    wire: Rc<RefCell<Wire>>,
    /// Numbers of the empty receive frames (AF_XDP: FILL ring).
    fill: VecDeque<u32>,
    /// Numbers of the free transmit frames.
    tx_free: Vec<u32>,
    /// Frames that wait for a flush.
    staged: Vec<Transmission>,
    /// Frames whose transmission is not complete, oldest first.
    in_flight: VecDeque<Transmission>,
    /// Numbers of the lent frames that the NIC no longer reads, and that the stack has not taken
    /// back yet.
    returned: VecDeque<u32>,
    /// True until the stack has taken the memory ([`SharedFrames::take_memory`]). Always false if
    /// the NIC shares no memory.
    has_memory: bool,
}

impl Nic {
    /// Returns a NIC, and the far end of its wire.
    pub fn new(config: NicConfig, clock: &Clock) -> (Self, WireEnd) {
        let NicConfig {
            rx_frames,
            tx_frames,
            ..
        } = config;
        let wire = Rc::new(RefCell::new(Wire {
            room: rx_frames as usize,
            is_complete: true,
            ..Wire::default()
        }));
        let nic = Self {
            memory: Rc::new(Frames::new(config.frames(), config.frame_len())),
            clock: Rc::clone(clock),
            wire: Rc::clone(&wire),
            fill: (0..rx_frames).collect(),
            tx_free: (rx_frames..rx_frames + tx_frames).collect(),
            staged: Vec::new(),
            in_flight: VecDeque::new(),
            returned: VecDeque::new(),
            has_memory: config.is_shared,
            config,
        };
        (nic, WireEnd::new(wire))
    }

    /// Takes the frames of completed transmissions from `in_flight`. The NIC's own frames become
    /// free. Lent frames wait in `returned` until the stack calls [`SharedFrames::tx_returned`].
    ///
    /// # Panics
    ///
    /// If the data of a frame has changed during its transmission.
    fn complete(&mut self) {
        let now = self.clock.get();
        while let Some(sent) = self.in_flight.pop_front_if(|sent| sent.done <= now) {
            // SAFETY: the stack does not write to a frame until its transmission is complete.
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
        self.update_is_complete();
    }

    /// Updates the result of [`WireEnd::is_complete`]: true if all receive frames are empty, all
    /// transmit frames are free, and the stack has taken back all frames that it lent.
    fn update_is_complete(&self) {
        let own = self.fill.len() + self.tx_free.len();
        let lent = self.staged.len() + self.in_flight.len() + self.returned.len();
        self.wire.borrow_mut().is_complete = lent == 0 && own == self.config.own_frames() as usize;
    }

    fn stage(&mut self, number: u32, range: Range<u32>, is_lent: bool) {
        let mut in_flight = self.staged.iter().chain(&self.in_flight);
        let is_twice = in_flight.any(|sent| sent.number == number);
        assert!(!is_twice, "a frame is sent twice at the same time");
        self.staged.push(Transmission {
            number,
            range,
            is_lent,
            hash: 0,
            done: Instant::ZERO,
        });
    }
}

impl PacketIo for Nic {
    type Burst = NicBurst;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            tx_frame_len_max: self.config.frame_len_max,
            tx_checksum: false,
            rx_checksum_may_be_partial: false,
            tx_gso_len_max: 0,
        }
    }

    fn new_burst(&self) -> NicBurst {
        NicBurst {
            memory: Rc::clone(&self.memory),
            frames: Vec::new(),
        }
    }

    fn rx_burst(&mut self, burst: &mut NicBurst, max: usize) -> usize {
        let before = burst.frames.len();
        let mut wire = self.wire.borrow_mut();
        while burst.frames.len() - before < max
            && !self.fill.is_empty()
            && let Some(frame) = wire.arrived.pop_front()
        {
            // Drop a frame that is longer than the NIC's largest frame.
            if frame.len() > self.config.frame_len_max as usize {
                continue;
            }
            let Some(number) = self.fill.pop_front() else {
                break;
            };
            let range = RX_HEADROOM..RX_HEADROOM + frame.len() as u32;
            // SAFETY: only the NIC accesses the frames of `fill`.
            let memory = unsafe { self.memory.bytes_mut(number, range.clone()) };
            memory.copy_from_slice(&frame);
            burst.frames.push((number, range));
        }
        drop(wire);
        self.update_is_complete();
        burst.frames.len() - before
    }

    fn rx_release(&mut self, burst: &mut NicBurst) {
        let numbers = burst.frames.drain(..).map(|(number, _)| number);
        self.fill.extend(numbers);
        self.update_is_complete();
    }

    fn tx_frame(&mut self) -> Option<&mut [u8]> {
        self.complete();
        self.wire.borrow_mut().is_full = self.tx_free.is_empty();
        let number = *self.tx_free.last()?;
        // SAFETY: only the NIC accesses the frames of `tx_free`. The result borrows the NIC, so the
        // NIC cannot access the frame meanwhile.
        Some(unsafe { self.memory.bytes_mut(number, 0..self.config.frame_len_max) })
    }

    fn tx_commit(&mut self, len: usize, _checksum: TxChecksum) {
        let number = self.tx_free.pop().expect("`tx_frame` gave a frame");
        self.stage(number, 0..len as u32, false);
    }

    fn tx_flush(&mut self) {
        self.complete();
        let done = self.clock.get() + self.config.completion;
        let mut wire = self.wire.borrow_mut();
        for mut sent in self.staged.drain(..) {
            // SAFETY: the stack does not write to a frame until its transmission is complete.
            let bytes = unsafe { self.memory.bytes(sent.number, sent.range.clone()) };
            wire.sent.push(bytes.to_vec());
            (sent.hash, sent.done) = (hash(bytes), done);
            self.in_flight.push_back(sent);
        }
    }

    fn shared_frames(&mut self) -> Option<&mut dyn SharedFrames<NicBurst>> {
        self.config.is_shared.then_some(())?;
        Some(self)
    }
}

// SAFETY: the `owner` of the memory is a counted reference to the memory, so the memory exists as
// long as its owner. The NIC accesses only the frames of `fill` and `tx_free`, of bursts, and of
// transmissions. In a lent frame, the NIC writes only the headroom, before `tx_lend` returns.
unsafe impl SharedFrames<NicBurst> for Nic {
    fn take_memory(&mut self) -> Option<FrameMemory> {
        std::mem::take(&mut self.has_memory).then_some(())?;
        let first = self.config.own_frames();
        Some(FrameMemory {
            owner: Box::new(Rc::clone(&self.memory)),
            start: self.memory.start(),
            count: self.config.frames(),
            frame_len: self.config.frame_len(),
            free: first..self.config.frames(),
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
        let is_full = self.in_flight.len() + self.staged.len() >= self.config.tx_frames as usize;
        self.wire.borrow_mut().is_full = is_full;
        if is_full {
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
        let returned = self.returned.pop_front();
        self.update_is_complete();
        returned
    }
}

#[cfg(test)]
mod tests;
