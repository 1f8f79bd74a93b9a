//! The channels between the cores (polling threads) of a service. If a core receives a frame of
//! another core's flow, the core hands the frame over to the other core.
//!
//! Each core has one host (a TCP/IP stack). A NIC queue delivers frames of any flow, but each flow
//! belongs to one core. The receiving core copies the frames that it hands over into a batch for
//! the other core. A channel with a limited number of places carries the batch. See
//! `docs/design/cores.md`.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
    mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
};

use tidelane_engine::LinkId;
use tidelane_ring::core_of;
use tidelane_wire::{Packet, parse_frame, protocol};

use crate::{Bell, icmp_error::icmp_error};

/// Limit of the batches that wait in the channel from one core to another core. A batch of frames
/// from a NIC queue has at most the frames of one burst.
const BATCHES_MAX: usize = 64;

/// The index of a core, and the number of cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreIndex {
    /// Index of the core, from zero.
    pub core: u32,
    /// Number of cores.
    pub cores: u32,
}

impl CoreIndex {
    /// The index of the only core of a service.
    pub(crate) const ALONE: Self = Self { core: 0, cores: 1 };

    /// Returns true if connections between the ports `port` and `other` belong to this core.
    #[inline]
    pub fn has(self, port: u16, other: u16) -> bool {
        self.cores == 1 || core_of(port, other, self.cores) == self.core
    }

    /// Returns the index of the core that gave the number `connection` to a connection. The service
    /// has `cores` cores.
    pub fn core_of_connection(connection: u64, cores: usize) -> usize {
        (connection % cores.max(1) as u64) as usize
    }
}

/// The source of the numbers of a core's connections. No two cores use the same number.
#[derive(Debug)]
pub(crate) struct ConnectionNumbers {
    core_index: CoreIndex,
    /// Number of connections that got a number so far.
    count: u64,
}

impl Default for ConnectionNumbers {
    fn default() -> Self {
        Self::of_core(CoreIndex::ALONE)
    }
}

impl ConnectionNumbers {
    /// Returns the source of numbers for a core whose connections have no numbers yet.
    pub(crate) fn of_core(core_index: CoreIndex) -> Self {
        Self {
            core_index,
            count: 0,
        }
    }

    /// Returns a number that no connection of any core has had. The number is not zero.
    pub(crate) fn next(&mut self) -> u64 {
        let CoreIndex { core, cores } = self.core_index;
        self.count += 1;
        self.count * u64::from(cores) + u64::from(core)
    }
}

/// A batch of copied frames for one core, in the order of their arrival.
#[derive(Default)]
pub(crate) struct Batch {
    /// The bytes of all frames, without gaps.
    bytes: Vec<u8>,
    /// Length of each frame in bytes, and the link on which the frame arrived.
    lens: Vec<(u32, LinkId)>,
    /// True if the checksum of any frame may be partial (only the pseudo-header sum).
    partial_allowed: bool,
}

impl Batch {
    fn push(&mut self, link: LinkId, frame: &[u8], partial_allowed: bool) {
        self.bytes.extend_from_slice(frame);
        self.lens.push((frame.len() as u32, link));
        self.partial_allowed |= partial_allowed;
    }

    /// Returns true if the checksums of the frames may be partial (only the pseudo-header sum).
    pub(crate) fn partial_allowed(&self) -> bool {
        self.partial_allowed
    }

    /// Returns each frame, and the link on which the frame arrived.
    pub(crate) fn frames(&self) -> impl Iterator<Item = (&[u8], LinkId)> {
        let mut rest = &self.bytes[..];
        self.lens.iter().map_while(move |(len, link)| {
            let (frame, next) = rest.split_at_checked(*len as usize)?;
            rest = next;
            Some((frame, *link))
        })
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.lens.clear();
        self.partial_allowed = false;
    }
}

/// The channel to another core.
struct Outgoing {
    to: SyncSender<Batch>,
    /// Empty batches that the other core returns for reuse.
    used: Receiver<Batch>,
    /// The batch that takes the next frames.
    filling: Batch,
    /// Number of batches that wait for the other core. The batches may come from any core.
    waiting: Arc<AtomicUsize>,
    /// The doorbell of the other core.
    bell: Box<dyn Bell>,
}

/// The channel from another core.
struct Incoming {
    from: Receiver<Batch>,
    /// Returns empty batches to the other core.
    used: Sender<Batch>,
}

/// A core's channels to the other cores.
pub struct Siblings {
    core_index: CoreIndex,
    /// Channel to each core, by core index; `None` for this core.
    outgoing: Vec<Option<Outgoing>>,
    incoming: Vec<Incoming>,
    /// Number of batches that wait for this core.
    waiting: Arc<AtomicUsize>,
    /// Number of frames that this core has handed over to other cores, including frames that a full
    /// channel refused.
    handed_over: u64,
}

impl Siblings {
    /// Returns the channels of the only core of a service, which has no other cores.
    pub(crate) fn alone() -> Self {
        Self::without_channels(CoreIndex::ALONE)
    }

    fn without_channels(core_index: CoreIndex) -> Self {
        Self {
            core_index,
            outgoing: Vec::new(),
            incoming: Vec::new(),
            waiting: Arc::default(),
            handed_over: 0,
        }
    }

    /// Makes the channels between `cores` cores. Returns one `Siblings` per core, ordered by core
    /// index. `bell` returns the doorbell of a core.
    pub fn of(cores: usize, mut bell: impl FnMut(usize) -> Box<dyn Bell>) -> Vec<Self> {
        let of_core = |core| CoreIndex {
            core: core as u32,
            cores: cores as u32,
        };
        let all = (0..cores).map(|core| Self::without_channels(of_core(core)));
        let mut all: Vec<Self> = all.collect();
        for from in 0..cores {
            for to in 0..cores {
                if from == to {
                    all[from].outgoing.push(None);
                    continue;
                }
                let (sender, receiver) = sync_channel(BATCHES_MAX);
                let (used, used_receiver) = channel();
                let channel = Outgoing {
                    to: sender,
                    used: used_receiver,
                    filling: Batch::default(),
                    waiting: all[to].waiting.clone(),
                    bell: bell(to),
                };
                all[from].outgoing.push(Some(channel));
                all[to].incoming.push(Incoming {
                    from: receiver,
                    used,
                });
            }
        }
        all
    }

    /// Returns the index of this core, and the number of cores.
    pub(crate) fn core_index(&self) -> CoreIndex {
        self.core_index
    }

    /// Returns true if the service has no other cores.
    #[inline]
    pub(crate) fn is_alone(&self) -> bool {
        self.core_index.cores == 1
    }

    /// Returns the number of frames that this core has handed over to other cores, including frames
    /// that a full channel refused.
    pub(crate) fn handed_over(&self) -> u64 {
        self.handed_over
    }

    /// Hands over a frame that arrived on `link`, if the frame's flow belongs to another core.
    /// Returns true if the frame was handed over.
    #[inline(never)]
    pub(crate) fn takes(&mut self, link: LinkId, frame: &[u8], partial_allowed: bool) -> bool {
        let packet = parse_frame(frame).ok();
        let Some(core) = packet.and_then(|packet| self.elsewhere(&packet)) else {
            return false;
        };
        self.hand_over(core, link, frame, partial_allowed);
        true
    }

    /// Returns the index of the packet's core if this is another core. Returns `None` if the packet
    /// belongs to this core, or if [`ports_of`] finds no ports.
    fn elsewhere(&self, packet: &Packet<'_>) -> Option<usize> {
        let (port, other) = ports_of(packet)?;
        let core = core_of(port, other, self.core_index.cores);
        (core != self.core_index.core).then_some(core as usize)
    }

    /// Returns the core that reassembles packets with the IP identification `id`. Returns `None` if
    /// this core reassembles these packets.
    pub(crate) fn elsewhere_in_fragments(&self, id: u32) -> Option<usize> {
        let core = core_of(id as u16, (id >> 16) as u16, self.core_index.cores);
        (core != self.core_index.core).then_some(core as usize)
    }

    /// Adds a frame that arrived on `link` to the batch for `core`.
    pub(crate) fn hand_over(
        &mut self,
        core: usize,
        link: LinkId,
        frame: &[u8],
        partial_allowed: bool,
    ) {
        if let Some(Some(channel)) = self.outgoing.get_mut(core) {
            self.handed_over += 1;
            channel.filling.push(link, frame, partial_allowed);
        }
    }

    /// Sends the batches that have frames. Returns the number of frames that were dropped because
    /// the channel to their core was full, or because their core has ended.
    pub(crate) fn flush(&mut self) -> u64 {
        let mut lost = 0;
        for channel in self.outgoing.iter_mut().flatten() {
            if channel.filling.lens.is_empty() {
                continue;
            }
            let spare = channel.used.try_recv().unwrap_or_default();
            let batch = std::mem::replace(&mut channel.filling, spare);
            // Count the batch before the send, because the receiving core may receive the batch and
            // lower the count immediately.
            channel.waiting.fetch_add(1, Ordering::SeqCst);
            if let Err(refused) = channel.to.try_send(batch) {
                channel.waiting.fetch_sub(1, Ordering::SeqCst);
                let (std::sync::mpsc::TrySendError::Full(mut batch)
                | std::sync::mpsc::TrySendError::Disconnected(mut batch)) = refused;
                lost += batch.lens.len() as u64;
                batch.clear();
                channel.filling = batch;
            }
            // Ignore the result: a core without a working doorbell polls, or is about to end.
            let _ = channel.bell.ring();
        }
        lost
    }

    /// Returns true if a batch waits for this core.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Returns the next batch for this core, and the index of its channel for
    /// [`recycle`](Self::recycle).
    pub(crate) fn next(&mut self) -> Option<(Batch, usize)> {
        if !self.has_work() {
            return None;
        }
        let found = |(at, channel): (usize, &Incoming)| Some((channel.from.try_recv().ok()?, at));
        let next = self.incoming.iter().enumerate().find_map(found)?;
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        Some(next)
    }

    /// Empties a processed batch, and returns the batch to its sender.
    pub(crate) fn recycle(&mut self, (mut batch, number): (Batch, usize)) {
        batch.clear();
        if let Some(channel) = self.incoming.get(number) {
            let _ = channel.used.send(batch);
        }
    }
}

/// Returns the ports of the packet's connection. An ICMP error belongs to the connection of the
/// quoted packet.
///
/// Returns `None` if the packet belongs to no connection or is malformed. The core that received
/// the packet then processes and counts the packet.
fn ports_of(packet: &Packet<'_>) -> Option<(u16, u16)> {
    match packet.protocol {
        protocol::TCP => {
            let [a, b, c, d] = *packet.payload.first_chunk()?;
            Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
        }
        _ => {
            let key = icmp_error(packet).ok()?.key;
            Some((key.local.port, key.peer.port))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    /// A doorbell that counts the rings.
    struct Count(Arc<AtomicU32>);

    impl Bell for Count {
        fn ring(&self) -> bool {
            self.0.fetch_add(1, Ordering::Relaxed);
            true
        }
    }

    #[test]
    fn frames_come_in_order_and_a_busy_core_loses_whole_batches() {
        let rings = Arc::new(AtomicU32::new(0));
        let mut cores = Siblings::of(3, |_| Box::new(Count(rings.clone())));
        let [first, _, last] = &mut cores[..] else {
            panic!("three cores");
        };
        assert!(!last.has_work() && last.next().is_none());
        for round in 0..2 * BATCHES_MAX as u8 {
            first.hand_over(2, LinkId(1), &[round; 3], true);
            first.hand_over(2, LinkId(9), &[round, 1], false);
            let lost = first.flush();
            assert_eq!(lost, if (round as usize) < BATCHES_MAX { 0 } else { 2 });
        }
        assert_eq!(rings.load(Ordering::Relaxed), 2 * BATCHES_MAX as u32);
        for round in 0..BATCHES_MAX as u8 {
            let next = last.next().expect("a batch");
            let frames: Vec<_> = next.0.frames().collect();
            let expected = [(&[round; 3][..], LinkId(1)), (&[round, 1][..], LinkId(9))];
            assert_eq!(frames, expected);
            assert!(next.0.partial_allowed());
            last.recycle(next);
        }
        assert!(!last.has_work() && last.next().is_none());
        // The first core reuses the most recent batch that the full channel refused. The first core
        // has emptied this batch.
        first.hand_over(2, LinkId(1), &[7], false);
        assert_eq!(first.flush(), 0);
        let next = last.next().expect("a batch");
        let frames: Vec<_> = next.0.frames().collect();
        assert_eq!(frames, [(&[7][..], LinkId(1))]);
        assert!(!next.0.partial_allowed());
    }

    #[test]
    fn numbers_of_connections_name_their_core() {
        for cores in 1..5 {
            for core in 0..cores {
                let number = ConnectionNumbers::of_core(CoreIndex { core, cores }).next();
                assert_eq!(
                    CoreIndex::core_of_connection(number, cores as usize),
                    core as usize
                );
            }
        }
    }
}
