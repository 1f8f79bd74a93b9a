//! The service's end of a mux port. A mux port is shared memory over which a program with a TCP/IP
//! stack of its own exchanges frames with the service (the process `tidelaned`). The service does
//! not trust the program. If the program writes invalid values, only the program's own mux port
//! becomes unusable.

use std::sync::Arc;

use tidelane_abi::port::PORT_FRAME_LEN_MAX;
use tidelane_packet_io::{Burst, Capabilities, PacketIo, TxChecksum};
use tidelane_ring::{
    Corrupt, Doorbell, PacketConsumer, PacketProducer, PortRegions, PushError, sleep,
};

/// Length in bytes of the entry of a short frame (60 bytes without the check sequence) in a ring.
const SHORT_ENTRY_LEN: usize = 80;

/// Copies of frames that a program has sent. A burst does not refer to the memory of a mux port.
#[derive(Debug, Default)]
pub struct ServiceBurst {
    /// Bytes of all frames, one frame after another.
    bytes: Vec<u8>,
    /// Offset in `bytes` of the end of each frame.
    ends: Vec<usize>,
    /// Index in `ends` and segment size (in bytes) of each GSO frame, in ascending order of the
    /// index. A GSO frame has the payload of many TCP segments.
    gso: Vec<(usize, u16)>,
}

impl Burst for ServiceBurst {
    #[inline]
    fn len(&self) -> usize {
        self.ends.len()
    }

    #[inline]
    fn frame(&self, at: usize) -> Option<&[u8]> {
        let end = *self.ends.get(at)?;
        let start = match at {
            0 => 0,
            _ => *self.ends.get(at - 1)?,
        };
        self.bytes.get(start..end)
    }

    #[inline]
    fn segment_size(&self, at: usize) -> u16 {
        if self.gso.is_empty() {
            return 0;
        }
        let found = self.gso.binary_search_by_key(&at, |(number, _)| *number);
        found.map_or(0, |place| self.gso[place].1)
    }
}

/// The service's end of a mux port. The service receives copies of the frames that the program
/// sends, and sends frames to the program.
#[derive(Debug)]
pub struct ServiceEnd {
    to_program: PacketProducer,
    from_program: PacketConsumer,
    /// The eventfd that wakes the program. `None` for a program that polls.
    doorbell: Option<Arc<Doorbell>>,
    /// Number of the most recent sleep of the program for which the service has rung the doorbell.
    /// The program numbers its sleeps.
    rung: u32,
    /// True after the program has written an impossible index or length, or after a write to the
    /// program's doorbell failed.
    corrupt: bool,
}

impl ServiceEnd {
    /// Creates the service's end of a mux port whose shared memory is new.
    pub fn new(regions: &PortRegions, doorbell: Option<Arc<Doorbell>>) -> Self {
        Self {
            to_program: PacketProducer::new(regions),
            from_program: PacketConsumer::new(regions),
            doorbell,
            rung: 0,
            corrupt: false,
        }
    }

    /// Returns true if the program has written an impossible index or length, or if a write to the
    /// program's doorbell failed. The mux port then transfers no more frames, and the service
    /// closes the port.
    pub fn is_corrupt(&self) -> bool {
        self.corrupt
    }

    /// Returns true if the program has sent frames that the service has not received. Returns false
    /// if the mux port is corrupt (see [`is_corrupt`](Self::is_corrupt)).
    #[inline]
    pub fn has_frames(&self) -> bool {
        !self.corrupt && !self.from_program.is_empty()
    }

    /// Prefetches the memory of the next frames from the program. The memory has room for `count`
    /// short frames, or for fewer long frames.
    #[inline]
    pub fn prefetch_rx(&self, count: usize) {
        self.from_program.prefetch(count * SHORT_ENTRY_LEN);
    }

    /// Prefetches the ring memory to which a frame of `len` bytes for the program will be written,
    /// after `before` other frames of about the same length.
    #[inline]
    pub fn prefetch_tx(&self, before: usize, len: usize) {
        self.to_program.prefetch(before, len as u32);
    }
}

impl PacketIo for ServiceEnd {
    type Burst = ServiceBurst;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            tx_frame_len_max: PORT_FRAME_LEN_MAX,
            tx_checksum: false,
            rx_checksum_may_be_partial: false,
            tx_gso_len_max: 0,
        }
    }

    fn new_burst(&self) -> ServiceBurst {
        ServiceBurst::default()
    }

    /// Copies at most `max` frames to `burst`. A GSO frame counts as one frame, and as one more
    /// frame for each whole 2 KiB of its length. A program that sends GSO frames therefore gets no
    /// larger share of the time of the service's core (polling thread).
    #[inline]
    fn rx_burst(&mut self, burst: &mut ServiceBurst, max: usize) -> usize {
        if self.corrupt || self.from_program.is_empty() {
            return 0;
        }
        let before = burst.len();
        let mut left = max;
        while left > 0 {
            match self.from_program.take() {
                Ok(Some(place)) => {
                    left -= 1;
                    if place.segment_size() > 0 {
                        burst.gso.push((burst.ends.len(), place.segment_size()));
                        left = left.saturating_sub(place.len() / PORT_FRAME_LEN_MAX as usize);
                    }
                    self.from_program.append_to(place, &mut burst.bytes);
                    burst.ends.push(burst.bytes.len());
                }
                Ok(None) => break,
                Err(Corrupt) => {
                    self.corrupt = true;
                    break;
                }
            }
        }
        self.from_program.release();
        burst.len() - before
    }

    fn rx_release(&mut self, burst: &mut ServiceBurst) {
        burst.bytes.clear();
        burst.ends.clear();
        burst.gso.clear();
    }

    #[inline]
    fn tx_frame(&mut self) -> Option<&mut [u8]> {
        if self.corrupt {
            return None;
        }
        match self.to_program.frame() {
            Ok(frame) => Some(frame),
            Err(PushError::Full) => None,
            Err(PushError::Corrupt) => {
                self.corrupt = true;
                None
            }
        }
    }

    #[inline]
    fn tx_commit(&mut self, len: usize, _checksum: TxChecksum) {
        self.to_program.commit(len as u32);
    }

    fn tx_flush(&mut self) {
        if self.to_program.publish()
            && let Some(doorbell) = &self.doorbell
            && sleep::should_ring_sleeper(self.to_program.peer_sleep_word(), &mut self.rung)
            && !doorbell.ring()
        {
            self.corrupt = true;
        }
    }
}
