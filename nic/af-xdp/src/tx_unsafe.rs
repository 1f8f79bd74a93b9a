//! The transmit half of an AF_XDP port: TX ring, COMPLETION ring, and the stack of free packets.
//!
//! The UMEM is the memory of all frames. In this module, a *frame* is a chunk of the UMEM, and a
//! *packet* is the buffer for one packet of the link. The buffer consists of one frame, or of
//! several adjacent frames if one frame is too short for the MTU. The bytes of the buffer are
//! contiguous. Each frame that contains data has a descriptor of its own.
//!
//! The *user* of the port is the TCP/IP stack that opened the port. The user may lend the port one
//! of the user's own frames. The port transmits the lent frame without a copy, and then returns the
//! frame to the user.

use std::{collections::VecDeque, sync::Arc};

use tidelane_packet_io::{FrameData, LinkFull, TxChecksum, finish_checksum};

use crate::{
    config::{TX_HEADROOM, UmemLayout},
    ring_unsafe::{Descriptor, Ring},
    umem_unsafe::Umem,
};

/// Length in bytes of the transmit metadata, which directly precedes a frame's data.
pub(crate) const TX_METADATA_LEN: u32 = 16;
const _: () = assert!(size_of::<libc::xsk_tx_metadata>() == TX_METADATA_LEN as usize);
const _: () = assert!(TX_METADATA_LEN <= TX_HEADROOM);
/// Length of an Ethernet header in bytes. The port accepts no packet that is shorter than the
/// header.
const PACKET_LEN_MIN: usize = 14;

/// The transmit half of a port.
pub(crate) struct TxQueue {
    umem: Arc<Umem>,
    tx: Ring<Descriptor>,
    /// COMPLETION ring: UMEM offsets of frames that the kernel no longer reads.
    completion: Ring<u64>,
    layout: UmemLayout,
    /// Size in bytes of a packet, with the headroom before its data.
    packet_size: u64,
    /// Largest number of bytes of data that can be sent in a packet.
    packet_len_max: u32,
    /// UMEM offset of the first frame of the transmit half.
    area_start: u64,
    /// UMEM offsets of the data of free packets. The list is a stack, so that the packets in use
    /// stay in the CPU cache. `packet` returns the packet at the top.
    free: Vec<u64>,
    /// Parked packets: packets taken from `free`, one for each lent frame in flight. The rings have
    /// room for the frames of all packets. A lent frame uses a ring entry of a parked packet, so
    /// the rings never overflow.
    parked: Vec<u64>,
    /// Numbers of lent frames that the kernel no longer reads, until the user takes the frames back
    /// with `returned`.
    returned: VecDeque<u32>,
    /// For each packet in flight: the number of frames that the kernel has not completed, minus
    /// one.
    extra_frames: Box<[u8]>,
    /// True if the port requests checksum offload through transmit metadata
    /// (`struct xsk_tx_metadata`).
    metadata: bool,
    /// Number of packets queued since the port was opened.
    committed: u64,
}

impl TxQueue {
    pub(crate) fn new(
        umem: Arc<Umem>,
        tx: Ring<Descriptor>,
        completion: Ring<u64>,
        layout: &UmemLayout,
        metadata: bool,
    ) -> Self {
        let packet_size = u64::from(layout.tx_packet_frames * layout.frame_size);
        let area_start = u64::from(layout.rx_frames) * u64::from(layout.frame_size);
        let first = area_start + u64::from(TX_HEADROOM);
        let numbers = (0..u64::from(layout.tx_packets)).rev();
        let free = numbers.map(|number| first + number * packet_size).collect();
        Self {
            umem,
            tx,
            completion,
            layout: *layout,
            packet_size,
            packet_len_max: layout.tx_packet_len_max(),
            area_start,
            free,
            parked: Vec::with_capacity(layout.tx_packets as usize),
            returned: VecDeque::with_capacity(layout.tx_packets as usize),
            extra_frames: vec![0; layout.tx_packets as usize].into_boxed_slice(),
            metadata,
            committed: 0,
        }
    }

    /// Returns the largest number of bytes of data that can be sent in a packet.
    pub(crate) fn packet_len_max(&self) -> u32 {
        self.packet_len_max
    }

    /// Returns the number of packets queued since the port was opened.
    pub(crate) fn committed(&self) -> u64 {
        self.committed
    }

    /// Returns true if the port requests checksum offload through transmit metadata.
    pub(crate) fn has_metadata(&self) -> bool {
        self.metadata
    }

    /// Returns the space for the data of the packet at the top of the free stack. Returns `None` if
    /// no packet is free.
    pub(crate) fn packet(&mut self) -> Option<&mut [u8]> {
        if self.free.is_empty() {
            self.reap();
        }
        let addr = *self.free.last()?;
        // SAFETY: the packet is on the free stack, so the kernel does not have its frames, and the
        // borrow of `self` prevents another borrow of the packet.
        Some(unsafe { self.umem.bytes_mut(addr, self.packet_len_max as usize) })
    }

    /// Queues the packet that [`Self::packet`] returned, with `len` bytes of data.
    pub(crate) fn commit(&mut self, len: usize, checksum: TxChecksum) {
        assert!(
            len >= PACKET_LEN_MIN && len <= self.packet_len_max as usize,
            "packet of {len} bytes"
        );
        let addr = self.free.pop().expect("`packet` returned a packet");
        let options = match checksum {
            TxChecksum::Done => 0,
            TxChecksum::Partial { start, offset } => {
                self.request_checksum(addr, len, start, offset)
            }
        };
        if len as u32 <= self.layout.frame_size - TX_HEADROOM {
            self.tx.push(Descriptor {
                addr,
                len: len as u32,
                options,
            });
        } else {
            self.push_frames(addr, len as u32, options);
        }
        self.committed += 1;
    }

    /// Queues a lent frame for transmission. Returns an error, without any effect, if no packet is
    /// free to be parked.
    ///
    /// # Safety
    ///
    /// The frame belongs to the user. Until [`Self::returned`] returns the number of the frame, the
    /// user writes neither the data nor the metadata before the data.
    pub(crate) unsafe fn lend(
        &mut self,
        data: FrameData,
        checksum: TxChecksum,
    ) -> Result<(), LinkFull> {
        let (start, len) = (data.range.start, data.range.len());
        let is_frame =
            data.number < self.layout.frames() && data.range.end <= self.layout.frame_size;
        assert!(
            is_frame && len >= PACKET_LEN_MIN && start >= TX_METADATA_LEN,
            "{data:?}"
        );
        let addr = u64::from(data.number) * u64::from(self.layout.frame_size) + u64::from(start);
        assert!(
            self.packet_of(addr).is_none(),
            "a frame of the transmit half"
        );
        if self.free.is_empty() {
            self.reap();
        }
        self.parked.push(self.free.pop().ok_or(LinkFull)?);
        let options = match checksum {
            TxChecksum::Done => 0,
            TxChecksum::Partial { start, offset } => {
                self.request_checksum(addr, len, start, offset)
            }
        };
        self.tx.push(Descriptor {
            addr,
            len: len as u32,
            options,
        });
        self.committed += 1;
        Ok(())
    }

    /// Returns the number of a lent frame that the kernel no longer reads. The frame belongs to the
    /// user again. Returns `None` if there is no such frame.
    pub(crate) fn returned(&mut self) -> Option<u32> {
        if self.returned.is_empty() && !self.parked.is_empty() {
            self.reap();
        }
        self.returned.pop_front()
    }

    /// Queues the packet with `len` bytes of data at `addr`: one descriptor for each frame that
    /// contains data.
    #[cold]
    fn push_frames(&mut self, addr: u64, len: u32, mut options: u32) {
        let number = self.packet_index(addr);
        let (mut at, mut left) = (addr, len);
        let mut room = self.layout.frame_size - TX_HEADROOM;
        while left > 0 {
            let here = left.min(room);
            let continues = if left > here { libc::XDP_PKT_CONTD } else { 0 };
            self.tx.push(Descriptor {
                addr: at,
                len: here,
                options: options | continues,
            });
            at += u64::from(here);
            left -= here;
            room = self.layout.frame_size;
            options = 0;
            self.extra_frames[number] += u8::from(continues != 0);
        }
    }

    /// Returns the index of the packet at the UMEM offset `addr`. Returns `None` if `addr` is not
    /// in the transmit half.
    fn packet_of(&self, addr: u64) -> Option<usize> {
        let end = self.area_start + self.extra_frames.len() as u64 * self.packet_size;
        let is_packet = (self.area_start..end).contains(&addr);
        is_packet.then(|| self.packet_index(addr))
    }

    /// Returns the index of the packet at the UMEM offset `addr`, which must be in the transmit
    /// half.
    fn packet_index(&self, addr: u64) -> usize {
        ((addr - self.area_start) / self.packet_size) as usize
    }

    /// Requests checksum offload in the transmit metadata. If the port has no transmit metadata,
    /// completes the partial checksum in software instead. `start` and `offset` are the fields of
    /// [`TxChecksum::Partial`]. Returns the options of the packet's first descriptor.
    fn request_checksum(&mut self, addr: u64, len: usize, start: u16, offset: u16) -> u32 {
        let field_end = usize::from(start) + usize::from(offset) + 2;
        // The kernel would reject a descriptor whose checksum field lies outside the frame. The TX
        // ring would then stall, because the kernel never advances past this descriptor.
        assert!(
            field_end <= len,
            "the checksum field lies outside the frame"
        );
        if !self.metadata {
            // SAFETY: `commit` took the frame from the free stack, or the user has lent the frame,
            // and the frame is not queued yet.
            let bytes = unsafe { self.umem.bytes_mut(addr, len) };
            finish_checksum(bytes, start, offset);
            return 0;
        }
        let metadata_addr = addr - u64::from(TX_METADATA_LEN);
        // SAFETY: the metadata lies in the headroom of the frame, which is not queued yet.
        let metadata = unsafe { self.umem.bytes_mut(metadata_addr, TX_METADATA_LEN as usize) };
        let flags = u64::from(libc::XDP_TXMD_FLAGS_CHECKSUM);
        metadata[..8].copy_from_slice(&flags.to_ne_bytes());
        metadata[8..10].copy_from_slice(&start.to_ne_bytes());
        metadata[10..12].copy_from_slice(&offset.to_ne_bytes());
        metadata[12..16].fill(0);
        libc::XDP_TX_METADATA
    }

    /// Makes the committed packets visible to the kernel.
    pub(crate) fn publish(&mut self) {
        self.tx.publish();
    }

    /// Returns the number of descriptors that the kernel has not taken from the TX ring.
    pub(crate) fn pending(&mut self) -> u32 {
        self.tx.unconsumed()
    }

    pub(crate) fn needs_wakeup(&self) -> bool {
        self.tx.needs_wakeup()
    }

    /// Takes all entries from the COMPLETION ring. A completed packet returns to the free stack. A
    /// completed lent frame is ready for [`Self::returned`], and one parked packet is free again.
    pub(crate) fn reap(&mut self) {
        let count = self.completion.available(u32::MAX);
        for _ in 0..count {
            let addr = self.completion.pop();
            let Some(number) = self.packet_of(addr) else {
                let frame = addr / u64::from(self.layout.frame_size);
                self.returned.push_back(frame as u32);
                self.free.extend(self.parked.pop());
                continue;
            };
            if self.extra_frames[number] > 0 {
                self.extra_frames[number] -= 1;
                continue;
            }
            let start = self.area_start + number as u64 * self.packet_size;
            self.free.push(start + u64::from(TX_HEADROOM));
        }
        if count > 0 {
            self.completion.release();
        }
    }

    /// Returns the number of free packets.
    pub(crate) fn free_packets(&self) -> usize {
        self.free.len()
    }
}
