//! A link in memory: two ports joined by bounded queues, or one port that hears itself.
//!
//! Frames are boxes that travel: a transmitter takes an empty one from the direction's pool, fills
//! it, and queues it; the receiver reads it in place and its release puts it back into the pool. So
//! nothing is copied and, after the start, nothing is allocated. A full direction pushes back
//! ([`PacketIo::tx_frame`] gives `None`) instead of dropping: loss is a link emulator's business.
//!
//! The lock of a direction is taken once per flush, per refill, and when all frames of the flushes
//! before were received, so the ports of a pair may live on different threads.

use std::{
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{BURST_MAX, Capabilities, Frame, PacketIo, TxChecksum, finish_checksum};

/// The shape of a memory link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemConfig {
    /// Largest frame in bytes.
    pub frame_len_max: u32,
    /// Frames that one direction holds: free, queued and being read.
    pub frames: u32,
    /// Whether unfinished checksums travel as they are. If not, the port finishes them, as a NIC
    /// would: choose this where bytes may be corrupted on the way and must be caught.
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

struct FullFrame {
    bytes: Box<[u8]>,
    len: u32,
}

/// One direction of a link. `free`, `queued` and what the two ports hold are always `frames` boxes.
struct Direction {
    queued: Vec<FullFrame>,
    free: Vec<Box<[u8]>>,
}

/// A direction, and whether frames are queued in it: to look costs no lock.
struct Shared {
    waiting: AtomicBool,
    direction: Mutex<Direction>,
}

type SharedDirection = Arc<Shared>;

fn new_direction(config: &MemConfig) -> SharedDirection {
    let count = config.frames as usize;
    let mut free = Vec::with_capacity(count);
    free.resize_with(count, || {
        vec![0; config.frame_len_max as usize].into_boxed_slice()
    });
    let direction = Mutex::new(Direction {
        queued: Vec::with_capacity(count),
        free,
    });
    Arc::new(Shared {
        waiting: AtomicBool::new(false),
        direction,
    })
}

/// A panic elsewhere cannot leave a direction half-changed: critical sections only move boxes.
fn lock(direction: &SharedDirection) -> MutexGuard<'_, Direction> {
    let direction = direction.direction.lock();
    direction.unwrap_or_else(PoisonError::into_inner)
}

#[inline(never)]
fn finish(frame: &mut [u8], start: u16, offset: u16) {
    let finished = finish_checksum(frame, start, offset);
    assert!(finished, "the checksum field lies outside the frame");
}

/// One end of a memory link.
pub struct MemPort {
    config: MemConfig,
    tx: SharedDirection,
    rx: SharedDirection,
    /// Empty frames taken from `tx`; the last one is what `tx_frame` gives.
    tx_free: Vec<Box<[u8]>>,
    tx_staged: Vec<FullFrame>,
    /// Frames taken from `rx`; those before `rx_at` were received.
    rx_taken: Vec<FullFrame>,
    rx_at: usize,
    /// Received frames by token; without bytes where there is none.
    rx_held: Box<[Box<[u8]>]>,
    /// Where to look for a free token first: the one that was given last.
    rx_token: usize,
    /// Released, not yet back in the pool of `rx`.
    rx_released: Vec<Box<[u8]>>,
    /// So many are given back at the latest: never so many that the other side has none.
    rx_released_max: usize,
}

impl MemPort {
    /// Two ports joined to each other.
    pub fn pair(config: MemConfig) -> (Self, Self) {
        let (there, back) = (new_direction(&config), new_direction(&config));
        let near = Self::new(config, Arc::clone(&there), Arc::clone(&back));
        (near, Self::new(config, back, there))
    }

    /// One port that receives what it transmits.
    pub fn looped(config: MemConfig) -> Self {
        let direction = new_direction(&config);
        Self::new(config, Arc::clone(&direction), direction)
    }

    fn new(config: MemConfig, tx: SharedDirection, rx: SharedDirection) -> Self {
        let count = config.frames as usize;
        Self {
            config,
            tx,
            rx,
            tx_free: Vec::with_capacity(BURST_MAX),
            tx_staged: Vec::with_capacity(count),
            rx_taken: Vec::with_capacity(count),
            rx_at: 0,
            rx_held: (0..count).map(|_| Box::default()).collect(),
            rx_token: 0,
            rx_released: Vec::with_capacity(count),
            rx_released_max: (count / 4).max(1),
        }
    }

    /// Frames that wait to be received.
    pub fn rx_queued(&self) -> usize {
        self.rx_taken.len() - self.rx_at + lock(&self.rx).queued.len()
    }

    /// Takes what was flushed. All that was taken before is received.
    fn take_queued(&mut self) {
        self.rx_taken.clear();
        self.rx_at = 0;
        let mut direction = lock(&self.rx);
        mem::swap(&mut direction.queued, &mut self.rx_taken);
        self.rx.waiting.store(false, Ordering::Release);
    }

    #[inline(never)]
    fn receive(&mut self, frames: &mut Vec<Frame>, max: usize) -> usize {
        if self.rx_at == self.rx_taken.len() {
            self.take_queued();
        }
        let count = max.min(self.rx_taken.len() - self.rx_at);
        let arrived = &mut self.rx_taken[self.rx_at..self.rx_at + count];
        self.rx_at += count;
        for full in arrived {
            // There is a free one: frames that are held are no more than tokens.
            while !self.rx_held[self.rx_token].is_empty() {
                let next = self.rx_token + 1;
                self.rx_token = if next < self.rx_held.len() { next } else { 0 };
            }
            mem::swap(&mut self.rx_held[self.rx_token], &mut full.bytes);
            frames.push(Frame {
                token: self.rx_token as u64,
                len: full.len,
                continues: false,
            });
        }
        count
    }

    #[inline(never)]
    fn give_back(&mut self) {
        lock(&self.rx).free.append(&mut self.rx_released);
    }

    #[inline(never)]
    fn refill_tx(&mut self) {
        let mut direction = lock(&self.tx);
        let keep = direction.free.len().saturating_sub(BURST_MAX);
        self.tx_free.extend(direction.free.drain(keep..));
    }
}

impl PacketIo for MemPort {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            tx_frame_len_max: self.config.frame_len_max,
            tx_checksum: self.config.partial_checksums,
            rx_checksum_may_be_partial: self.config.partial_checksums,
            tx_super_len_max: 0,
        }
    }

    #[inline]
    fn rx_burst(&mut self, frames: &mut Vec<Frame>, max: usize) -> usize {
        let waiting = self.rx_at < self.rx_taken.len() || self.rx.waiting.load(Ordering::Acquire);
        if waiting {
            self.receive(frames, max)
        } else {
            0
        }
    }

    fn frame_bytes(&self, frame: &Frame) -> &[u8] {
        &self.rx_held[frame.token as usize][..frame.len as usize]
    }

    fn rx_release(&mut self, frames: &[Frame]) {
        for frame in frames {
            let held = mem::take(&mut self.rx_held[frame.token as usize]);
            assert!(!held.is_empty(), "a frame is released once");
            self.rx_released.push(held);
        }
        if self.rx_released.len() >= self.rx_released_max {
            self.give_back();
        }
    }

    #[inline]
    fn tx_frame(&mut self) -> Option<&mut [u8]> {
        if self.tx_free.is_empty() {
            self.refill_tx();
        }
        self.tx_free.last_mut().map(|bytes| &mut bytes[..])
    }

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
        self.tx_staged.push(FullFrame {
            bytes,
            len: len as u32,
        });
    }

    fn tx_flush(&mut self) {
        if !self.tx_staged.is_empty() {
            let queued = &mut lock(&self.tx).queued;
            if queued.is_empty() {
                mem::swap(queued, &mut self.tx_staged);
            } else {
                queued.append(&mut self.tx_staged);
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
        let mut frames = Vec::new();
        assert_eq!(far.rx_burst(&mut frames, BURST_MAX), 0);
        near.tx_flush();
        assert_eq!(far.rx_queued(), 2);
        assert_eq!(far.rx_burst(&mut frames, 1), 1);
        assert_eq!(far.rx_burst(&mut frames, BURST_MAX), 1);
        let bytes: Vec<_> = frames
            .iter()
            .map(|frame| far.frame_bytes(frame).to_vec())
            .collect();
        assert_eq!(bytes, [b"one", b"two"]);
        assert_eq!(near.rx_burst(&mut frames, BURST_MAX), 0);
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
            let mut frames = Vec::new();
            assert_eq!(far.rx_burst(&mut frames, BURST_MAX), 3);
            assert!(near.tx_frame().is_none());
            far.rx_release(&frames);
            far.rx_burst(&mut frames, 0);
        }
    }

    #[test]
    fn a_looped_port_hears_itself() {
        let mut port = MemPort::looped(MemConfig::default());
        assert!(send(&mut port, b"echo"));
        port.tx_flush();
        let mut frames = Vec::new();
        assert_eq!(port.rx_burst(&mut frames, BURST_MAX), 1);
        assert_eq!(port.frame_bytes(&frames[0]), b"echo");
        port.rx_release(&frames);
    }

    #[test]
    fn checksums_are_finished_where_they_may_not_travel_unfinished() {
        let config = MemConfig {
            partial_checksums: false,
            ..MemConfig::default()
        };
        let mut port = MemPort::looped(config);
        port.tx_frame().expect("the pool is full")[..8].copy_from_slice(&[0, 1, 0, 2, 0, 0, 9, 9]);
        port.tx_commit(
            8,
            TxChecksum::Partial {
                start: 0,
                offset: 4,
            },
        );
        port.tx_flush();
        let mut frames = Vec::new();
        port.rx_burst(&mut frames, BURST_MAX);
        let expected = !(1u16 + 2 + 0x0909);
        assert_eq!(port.frame_bytes(&frames[0])[4..6], expected.to_be_bytes());
    }

    #[test]
    #[should_panic(expected = "released")]
    fn releasing_twice_is_a_bug() {
        let mut port = MemPort::looped(MemConfig::default());
        send(&mut port, b"x");
        port.tx_flush();
        let mut frames = Vec::new();
        port.rx_burst(&mut frames, BURST_MAX);
        port.rx_release(&frames);
        port.rx_release(&frames);
    }
}
