//! The program's end of a mux port. A mux port is shared memory over which a program with a TCP/IP
//! stack of its own exchanges frames with the service (the process `tidelaned`).

use tidelane_abi::port::{PORT_FRAME_LEN_MAX, gso_len_max};
use tidelane_packet_io::{
    Burst, Capabilities, GsoParameters, GsoPayload, LinkFull, PacketIo, TxChecksum,
};
use tidelane_ring::{
    PacketConsumer, PacketPlace, PacketProducer, PacketView, PortRegions, PushError, sleep,
};

use crate::view_unsafe;

/// Length in bytes of an Ethernet header, an IPv6 header and the longest TCP header.
const GSO_HEADERS_LEN_MAX: usize = 14 + 40 + 60;

/// Frames that a program has received, in the shared memory that the service writes.
#[derive(Debug)]
pub struct ProgramBurst {
    view: PacketView,
    places: Vec<PacketPlace>,
}

impl Burst for ProgramBurst {
    #[inline]
    fn len(&self) -> usize {
        self.places.len()
    }

    #[inline]
    fn frame(&self, at: usize) -> Option<&[u8]> {
        self.view.bytes(*self.places.get(at)?)
    }
}

/// The program's end of a mux port. The other end belongs to one core (polling thread) of the
/// service.
#[derive(Debug)]
pub struct ProgramEnd {
    to_service: PacketProducer,
    from_service: PacketConsumer,
    view: PacketView,
    capabilities: Capabilities,
    /// Headers of the next GSO frame (a frame with the payload of many TCP segments).
    gso_headers: [u8; GSO_HEADERS_LEN_MAX],
    /// Number of received frames in bursts. When the number drops to zero, the program returns the
    /// ring space of all received frames to the service.
    lent: usize,
    /// True if a flush has published frames since the last call of
    /// [`take_published`](Self::take_published).
    published: bool,
    /// Number of the program's most recent sleep. Each sleep has its own number, so that the
    /// service rings the program's doorbell (an eventfd) once for each sleep.
    sleep: u32,
    /// True after the shared memory has had an impossible index or length.
    closed: bool,
}

impl ProgramEnd {
    /// Creates the program's end of a mux port. The service states the two other arguments:
    /// `frame_len_max` is the length in bytes of the largest frame of its NIC, and
    /// `rx_checksum_may_be_partial` is true if a received frame may have a partial checksum.
    pub fn new(
        regions: &PortRegions,
        frame_len_max: u32,
        rx_checksum_may_be_partial: bool,
    ) -> Self {
        let from_service = PacketConsumer::new(regions);
        Self {
            to_service: PacketProducer::new(regions),
            view: view_unsafe::of_service(&from_service),
            from_service,
            capabilities: Capabilities {
                tx_frame_len_max: frame_len_max.min(PORT_FRAME_LEN_MAX),
                // The mux of the service verifies checksums, so the program must send complete
                // checksums.
                tx_checksum: false,
                rx_checksum_may_be_partial,
                tx_gso_len_max: gso_len_max(regions.ring_len),
            },
            gso_headers: [0; GSO_HEADERS_LEN_MAX],
            lent: 0,
            published: false,
            sleep: 0,
            closed: false,
        }
    }

    /// Returns true if a flush has published frames since the last call. After a result of true,
    /// the program wakes the service's core if the core sleeps.
    pub fn take_published(&mut self) -> bool {
        std::mem::take(&mut self.published)
    }

    /// Announces that the program is going to sleep. The caller then looks for frames once more. If
    /// no frame waits, the caller sleeps until its doorbell (an eventfd) is readable.
    pub fn prepare_to_sleep(&mut self) {
        sleep::announce_sleep(self.to_service.own_sleep_word(), &mut self.sleep);
    }

    /// Ends the announced sleep.
    pub fn cancel_sleep(&mut self) {
        sleep::end_sleep(self.to_service.own_sleep_word(), self.sleep);
    }

    /// Returns true if the service has sent frames that the program has not received. Returns false
    /// if the mux port is closed (see [`is_closed`](Self::is_closed)).
    pub fn has_frames(&self) -> bool {
        !self.closed && !self.from_service.is_empty()
    }

    /// Returns true if the shared memory has had an impossible index or length. The mux port then
    /// transfers no more frames.
    pub fn is_closed(&self) -> bool {
        self.closed
    }
}

impl PacketIo for ProgramEnd {
    type Burst = ProgramBurst;

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn new_burst(&self) -> ProgramBurst {
        ProgramBurst {
            view: self.view.clone(),
            places: Vec::new(),
        }
    }

    #[inline]
    fn rx_burst(&mut self, burst: &mut ProgramBurst, max: usize) -> usize {
        let before = burst.len();
        while !self.closed && burst.len() - before < max {
            match self.from_service.take() {
                Ok(Some(place)) => burst.places.push(place),
                Ok(None) => break,
                Err(_) => self.closed = true,
            }
        }
        let count = burst.len() - before;
        self.lent += count;
        count
    }

    fn rx_release(&mut self, burst: &mut ProgramBurst) {
        self.lent -= burst.places.len().min(self.lent);
        burst.places.clear();
        if self.lent == 0 {
            self.from_service.release();
        }
    }

    #[inline]
    fn tx_frame(&mut self) -> Option<&mut [u8]> {
        if self.closed {
            return None;
        }
        match self.to_service.frame() {
            Ok(frame) => frame.get_mut(..self.capabilities.tx_frame_len_max as usize),
            Err(PushError::Full) => None,
            Err(PushError::Corrupt) => {
                self.closed = true;
                None
            }
        }
    }

    fn tx_gso_headers(&mut self) -> &mut [u8] {
        &mut self.gso_headers
    }

    /// Copies the headers and the payload into the ring. The service or its NIC computes the
    /// checksums of the segments.
    fn tx_gso_send(&mut self, payload: GsoPayload<'_>, gso: GsoParameters) -> Result<(), LinkFull> {
        let headers = &self.gso_headers[..usize::from(gso.headers_len)];
        let len = headers.len() + payload.len();
        let frame = match self.to_service.frame_of(len as u32) {
            Ok(frame) if !self.closed => frame,
            Ok(_) | Err(PushError::Full) => return Err(LinkFull),
            Err(PushError::Corrupt) => {
                self.closed = true;
                return Err(LinkFull);
            }
        };
        let (to_headers, to_payload) = frame.split_at_mut(headers.len());
        to_headers.copy_from_slice(headers);
        payload.copy_to(to_payload);
        self.to_service.commit_gso(gso.segment_size);
        Ok(())
    }

    #[inline]
    fn tx_commit(&mut self, len: usize, _checksum: TxChecksum) {
        self.to_service.commit(len as u32);
    }

    fn tx_flush(&mut self) {
        self.published |= self.to_service.publish();
    }
}
