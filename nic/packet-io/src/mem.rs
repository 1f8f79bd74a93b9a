//! A link in memory: two ports joined by bounded queues, or one port in loopback.
//!
//! Each frame is in a box (`Box<[u8]>`), which moves from the transmitter to the receiver and back.
//! Each direction has a pool of empty boxes. A transmitter takes an empty box from the pool of its
//! direction, fills the box and queues it. The receiver has the box in its burst, and the release
//! returns the box to the pool. No byte is copied, and usually no memory is allocated after the
//! creation of the ports and bursts. A full direction applies backpressure ([`PacketIo::tx_frame`]
//! returns None) instead of dropping frames: loss is the task of a link emulator.
//!
//! Different threads may use the two ports, because each direction has a lock. A port takes a lock
//! once per flush of frames, once per refill of free boxes, once per return of released boxes, and
//! once per [`PacketIo::rx_burst`] that finds queued frames.

use std::{
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{BURST_MAX, Burst, Capabilities, PacketIo, TxChecksum, finish_checksum};

/// Configuration of a memory link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemConfig {
    /// Largest frame in bytes.
    pub frame_len_max: u32,
    /// Number of frames of one direction. Free frames, committed frames, queued frames and frames
    /// in bursts all count.
    pub frames: u32,
    /// True if partial checksums ([`TxChecksum::Partial`]) pass unchanged. If false, the port
    /// completes partial checksums, so that the receiver detects bytes that a link emulator has
    /// corrupted.
    pub partial_checksums: bool,
}

impl Default for MemConfig {
    fn default() -> Self {
        Self {
            frame_len_max: 1514,
            frames: 1024,
            partial_checksums: true,
        }
    }
}

/// A frame that fills the first `len` bytes of its box.
struct QueuedFrame {
    bytes: Box<[u8]>,
    len: u32,
}

/// Frames that a [`MemPort`] received.
#[derive(Default)]
pub struct MemBurst {
    frames: Vec<QueuedFrame>,
}

impl Burst for MemBurst {
    #[inline]
    fn len(&self) -> usize {
        self.frames.len()
    }

    #[inline]
    fn frame(&self, at: usize) -> Option<&[u8]> {
        let full = self.frames.get(at)?;
        full.bytes.get(..full.len as usize)
    }
}

/// Frames of one direction of a link. The boxes in `free`, in `queued`, in the two ports and in
/// bursts always add up to [`MemConfig::frames`].
struct ChannelFrames {
    queued: Vec<QueuedFrame>,
    free: Vec<Box<[u8]>>,
}

/// One direction of a link.
struct Channel {
    /// True if frames are queued. The receiver reads this flag without the lock of `frames`.
    waiting: AtomicBool,
    frames: Mutex<ChannelFrames>,
}

/// A channel. The port that sends and the port that receives share the channel.
type SharedChannel = Arc<Channel>;

impl Channel {
    /// Appends up to `max` queued frames to a burst. Returns the number of appended frames.
    #[cold]
    #[inline(never)]
    fn dequeue(&self, queued: &mut Vec<QueuedFrame>, burst: &mut MemBurst, max: usize) -> usize {
        let count = max.min(queued.len());
        burst.frames.extend(queued.drain(..count));
        self.waiting.store(!queued.is_empty(), Ordering::Release);
        count
    }
}

/// Appends committed frames to a queue that still holds earlier frames.
#[cold]
#[inline(never)]
fn append(queued: &mut Vec<QueuedFrame>, staged: &mut Vec<QueuedFrame>) {
    queued.append(staged);
}

fn new_channel(config: &MemConfig) -> SharedChannel {
    let count = config.frames as usize;
    let mut free = Vec::with_capacity(count);
    free.resize_with(count, || {
        vec![0; config.frame_len_max as usize].into_boxed_slice()
    });
    let frames = Mutex::new(ChannelFrames {
        queued: Vec::with_capacity(count),
        free,
    });
    Arc::new(Channel {
        waiting: AtomicBool::new(false),
        frames,
    })
}

/// Locks the frames of a channel, even if a thread panicked while it held the lock. Critical
/// sections only move boxes, so a panic cannot leave the lists half-changed.
fn lock(channel: &SharedChannel) -> MutexGuard<'_, ChannelFrames> {
    let frames = channel.frames.lock();
    frames.unwrap_or_else(PoisonError::into_inner)
}

#[inline(never)]
fn finish(frame: &mut [u8], start: u16, offset: u16) {
    let finished = finish_checksum(frame, start, offset);
    assert!(finished, "the checksum field lies outside the frame");
}

/// One end of a memory link.
pub struct MemPort {
    config: MemConfig,
    tx: SharedChannel,
    rx: SharedChannel,
    /// Empty frames taken from the pool of `tx`. `tx_frame` lends out the last frame.
    tx_free: Vec<Box<[u8]>>,
    /// Committed frames that the next flush queues.
    tx_staged: Vec<QueuedFrame>,
    /// Released frames that are not yet back in the pool of `rx`.
    rx_released: Vec<Box<[u8]>>,
    /// Number of entries in `rx_released` at which the port returns all entries to the pool. If the
    /// port kept more frames, the transmitter could run out of frames.
    rx_released_max: usize,
}

impl MemPort {
    /// Creates two ports that are joined to each other.
    pub fn pair(config: MemConfig) -> (Self, Self) {
        let (forward, reverse) = (new_channel(&config), new_channel(&config));
        let near = Self::new(config, Arc::clone(&forward), Arc::clone(&reverse));
        (near, Self::new(config, reverse, forward))
    }

    /// Creates one port that receives the frames that it sends.
    pub fn loopback(config: MemConfig) -> Self {
        let channel = new_channel(&config);
        Self::new(config, Arc::clone(&channel), channel)
    }

    fn new(config: MemConfig, tx: SharedChannel, rx: SharedChannel) -> Self {
        let count = config.frames as usize;
        Self {
            config,
            tx,
            rx,
            tx_free: Vec::with_capacity(BURST_MAX),
            tx_staged: Vec::with_capacity(count),
            rx_released: Vec::with_capacity(count),
            rx_released_max: (count / 4).max(1),
        }
    }

    /// Returns the number of frames that the peer has flushed and that this port has not received.
    pub fn rx_queued(&self) -> usize {
        lock(&self.rx).queued.len()
    }

    #[inline(never)]
    fn receive(&mut self, burst: &mut MemBurst, max: usize) -> usize {
        let mut frames = lock(&self.rx);
        let queued = &mut frames.queued;
        if queued.len() > max || !burst.frames.is_empty() {
            return self.rx.dequeue(queued, burst, max);
        }
        mem::swap(queued, &mut burst.frames);
        self.rx.waiting.store(false, Ordering::Release);
        burst.frames.len()
    }

    #[inline(never)]
    fn return_frames(&mut self) {
        lock(&self.rx).free.append(&mut self.rx_released);
    }

    /// Appends a frame to `tx_staged` when the list has to grow. The function is separate from its
    /// caller, so that the caller saves no registers in the common case.
    #[cold]
    #[inline(never)]
    fn grow_and_stage(&mut self, full: QueuedFrame) {
        self.tx_staged.push(full);
    }

    #[cold]
    #[inline(never)]
    fn refill_tx(&mut self) {
        let mut frames = lock(&self.tx);
        let keep = frames.free.len().saturating_sub(BURST_MAX);
        self.tx_free.extend(frames.free.drain(keep..));
    }
}

impl PacketIo for MemPort {
    type Burst = MemBurst;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            tx_frame_len_max: self.config.frame_len_max,
            tx_checksum: self.config.partial_checksums,
            rx_checksum_may_be_partial: self.config.partial_checksums,
            tx_gso_len_max: 0,
        }
    }

    fn new_burst(&self) -> MemBurst {
        MemBurst {
            frames: Vec::with_capacity(self.config.frames as usize),
        }
    }

    #[inline]
    fn rx_burst(&mut self, burst: &mut MemBurst, max: usize) -> usize {
        if self.rx.waiting.load(Ordering::Acquire) {
            self.receive(burst, max)
        } else {
            0
        }
    }

    fn rx_release(&mut self, burst: &mut MemBurst) {
        while let Some(full) = burst.frames.pop() {
            self.rx_released.push(full.bytes);
        }
        if self.rx_released.len() >= self.rx_released_max {
            self.return_frames();
        }
    }

    #[inline(always)]
    fn tx_frame(&mut self) -> Option<&mut [u8]> {
        if self.tx_free.is_empty() {
            self.refill_tx();
        }
        self.tx_free.last_mut().map(|bytes| &mut bytes[..])
    }

    #[inline]
    fn tx_commit(&mut self, len: usize, checksum: TxChecksum) {
        let mut bytes = self.tx_free.pop().expect("tx_frame gave a frame");
        assert!(
            len <= bytes.len(),
            "a frame of {len} bytes is too long for the port"
        );
        if let TxChecksum::Partial { start, offset } = checksum
            && !self.config.partial_checksums
        {
            finish(&mut bytes[..len], start, offset);
        }
        let full = QueuedFrame {
            bytes,
            len: len as u32,
        };
        if self.tx_staged.len() == self.tx_staged.capacity() {
            return self.grow_and_stage(full);
        }
        self.tx_staged.push(full);
    }

    fn tx_flush(&mut self) {
        if !self.tx_staged.is_empty() {
            let queued = &mut lock(&self.tx).queued;
            if queued.is_empty() {
                mem::swap(queued, &mut self.tx_staged);
            } else {
                append(queued, &mut self.tx_staged);
            }
            self.tx.waiting.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(port: &mut MemPort, payload: &[u8]) -> bool {
        let Some(frame) = port.tx_frame() else {
            return false;
        };
        frame[..payload.len()].copy_from_slice(payload);
        port.tx_commit(payload.len(), TxChecksum::Done);
        true
    }

    #[test]
    fn frames_arrive_in_order_and_only_after_flush() {
        let (mut near, mut far) = MemPort::pair(MemConfig {
            frames: 8,
            ..MemConfig::default()
        });
        assert!(send(&mut near, b"one") && send(&mut near, b"two"));
        let mut burst = far.new_burst();
        assert_eq!(far.rx_burst(&mut burst, BURST_MAX), 0);
        near.tx_flush();
        assert_eq!(far.rx_queued(), 2);
        assert_eq!(far.rx_burst(&mut burst, 1), 1);
        assert_eq!(far.rx_queued(), 1);
        assert_eq!(far.rx_burst(&mut burst, BURST_MAX), 1);
        assert_eq!(burst.iter().collect::<Vec<_>>(), [b"one", b"two"]);
        assert_eq!(burst.frame(2), None);
        assert_eq!(near.rx_burst(&mut burst, BURST_MAX), 0);
        far.rx_release(&mut burst);
        assert!(burst.is_empty());
    }

    #[test]
    fn a_full_direction_pushes_back_until_frames_are_released() {
        let (mut near, mut far) = MemPort::pair(MemConfig {
            frames: 3,
            ..MemConfig::default()
        });
        for _ in 0..100 {
            let mut sent = 0;
            while send(&mut near, &[sent]) {
                sent += 1;
            }
            assert_eq!(sent, 3);
            near.tx_flush();
            let mut burst = far.new_burst();
            assert_eq!(far.rx_burst(&mut burst, BURST_MAX), 3);
            assert!(near.tx_frame().is_none());
            far.rx_release(&mut burst);
        }
    }

    #[test]
    fn a_loopback_port_receives_its_own_frames() {
        let mut port = MemPort::loopback(MemConfig::default());
        assert!(send(&mut port, b"echo"));
        port.tx_flush();
        let mut burst = port.new_burst();
        assert_eq!(port.rx_burst(&mut burst, BURST_MAX), 1);
        assert_eq!(burst.iter().collect::<Vec<_>>(), [b"echo"]);
        port.rx_release(&mut burst);
    }

    #[test]
    fn partial_checksums_are_completed_if_not_configured() {
        let config = MemConfig {
            partial_checksums: false,
            ..MemConfig::default()
        };
        let mut port = MemPort::loopback(config);
        port.tx_frame().expect("the pool has free frames")[..8]
            .copy_from_slice(&[0, 1, 0, 2, 0, 0, 9, 9]);
        port.tx_commit(
            8,
            TxChecksum::Partial {
                start: 0,
                offset: 4,
            },
        );
        port.tx_flush();
        let mut burst = port.new_burst();
        port.rx_burst(&mut burst, BURST_MAX);
        let expected = !(1u16 + 2 + 0x0909);
        let frame = burst.frame(0).expect("a frame");
        assert_eq!(frame[4..6], expected.to_be_bytes());
    }
}
