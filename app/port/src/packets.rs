//! Packet I/O of a mux port. A mux port is shared memory over which a program exchanges packets
//! with the service (the process `tidelaned`). The memory has a pair of packet rings, one in each
//! direction, for each core (polling thread) of the service. This module combines the program's
//! ends of these rings into one [`PacketIo`].

use tidelane_packet_io::{
    Burst, Capabilities, GsoParameters, GsoPayload, LinkFull, PacketIo, TxChecksum,
};
use tidelane_packet_ring::{ProgramBurst, ProgramEnd};

/// Received frames of a mux port, in memory that the service shares with the program.
#[derive(Debug)]
pub struct PortBurst {
    /// The received frames of each core.
    parts: Vec<ProgramBurst>,
}

impl Burst for PortBurst {
    #[inline]
    fn len(&self) -> usize {
        self.parts.iter().map(Burst::len).sum()
    }

    #[inline]
    fn frame(&self, at: usize) -> Option<&[u8]> {
        let mut at = at;
        for part in &self.parts {
            if at < part.len() {
                return part.frame(at);
            }
            at -= part.len();
        }
        None
    }
}

/// The program's ends of the packet rings: one end of a pair of rings for each core of the service.
pub struct Ends {
    ends: Vec<ProgramEnd>,
    /// Index of the core from which the next burst takes frames first.
    first: usize,
    /// Index of the core from which the most recently received frames came. The mux port sends
    /// through this core.
    last: usize,
    /// From `tx_frame` to `tx_commit`: index of the core in whose ring the program is writing a
    /// frame. Otherwise `None`.
    filling: Option<usize>,
}

impl Ends {
    /// Combines the ends of all cores. There must be at least one core.
    pub fn new(ends: Vec<ProgramEnd>) -> Self {
        assert!(!ends.is_empty(), "the service has no cores");
        Self {
            ends,
            first: 0,
            last: 0,
            filling: None,
        }
    }

    /// Returns true if the mux port is unusable, because a ring contains an invalid value.
    pub fn are_closed(&self) -> bool {
        self.ends.iter().any(ProgramEnd::is_closed)
    }

    /// Announces the program's sleep to all cores. Returns true if no ring has received frames, so
    /// that the program may sleep.
    pub fn prepare_to_sleep(&mut self) -> bool {
        self.ends.iter_mut().for_each(ProgramEnd::prepare_to_sleep);
        !self.have_frames()
    }

    /// Returns true if a ring has received frames.
    #[inline]
    pub fn have_frames(&self) -> bool {
        self.ends.iter().any(ProgramEnd::has_frames)
    }

    /// Undoes `prepare_to_sleep`, so that the cores do not wake the program.
    pub fn cancel_sleep(&mut self) {
        self.ends.iter_mut().for_each(ProgramEnd::cancel_sleep);
    }

    /// Returns true if the program has published frames for `core` since the previous call with
    /// this core.
    pub fn take_published(&mut self, core: usize) -> bool {
        let end = self.ends.get_mut(core);
        end.is_some_and(ProgramEnd::take_published)
    }
}

impl PacketIo for Ends {
    type Burst = PortBurst;

    fn capabilities(&self) -> Capabilities {
        self.ends[0].capabilities()
    }

    fn new_burst(&self) -> PortBurst {
        let ends = self.ends.iter();
        PortBurst {
            parts: ends.map(ProgramEnd::new_burst).collect(),
        }
    }

    /// Takes frames from the rings of all cores. Each call begins with the next core, so that no
    /// core starves.
    #[inline]
    fn rx_burst(&mut self, burst: &mut PortBurst, max: usize) -> usize {
        let Ends {
            ends, first, last, ..
        } = self;
        let mut count = 0;
        for step in 0..ends.len() {
            let core = (*first + step) % ends.len();
            let taken = ends[core].rx_burst(&mut burst.parts[core], max - count);
            if taken > 0 {
                *last = core;
                count += taken;
            }
        }
        *first = (*first + 1) % ends.len();
        count
    }

    fn rx_release(&mut self, burst: &mut PortBurst) {
        for (end, part) in self.ends.iter_mut().zip(&mut burst.parts) {
            end.rx_release(part);
        }
    }

    #[inline]
    fn tx_frame(&mut self) -> Option<&mut [u8]> {
        let Ends {
            ends,
            last,
            filling,
            ..
        } = self;
        let core = *filling.get_or_insert(*last);
        let frame = ends[core].tx_frame();
        if frame.is_none() {
            *filling = None;
        }
        frame
    }

    #[inline]
    fn tx_commit(&mut self, len: usize, checksum: TxChecksum) {
        let core = self.filling.take().unwrap_or(self.last);
        self.ends[core].tx_commit(len, checksum);
    }

    /// Returns the buffer for the headers of a GSO frame. The core from which the most recently
    /// received frames came sends the GSO frame.
    fn tx_gso_headers(&mut self) -> &mut [u8] {
        let core = self.last;
        self.ends[core].tx_gso_headers()
    }

    fn tx_gso_send(&mut self, payload: GsoPayload<'_>, gso: GsoParameters) -> Result<(), LinkFull> {
        let core = self.last;
        self.ends[core].tx_gso_send(payload, gso)
    }

    /// Publishes the written frames in all rings. The caller ([`Port`](crate::Port)) then wakes the
    /// sleeping cores.
    fn tx_flush(&mut self) {
        self.ends.iter_mut().for_each(PacketIo::tx_flush);
    }
}
