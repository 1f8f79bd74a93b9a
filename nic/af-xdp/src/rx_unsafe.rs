//! The receive half of an AF_XDP port: FILL ring, RX ring, and the frames that are lent to the
//! caller in bursts.
//!
//! A packet in several frames (multi-buffer) is copied into one buffer, and its frames immediately
//! return to the FILL ring. A packet in one frame is lent out, and stays in the UMEM (the memory of
//! all frames).

use std::sync::Arc;

use tidelane_packet_io::{BURST_MAX, Burst, FrameData};

use crate::{
    config::{LINK_HEADER_LEN_MAX, UmemLayout},
    ring_unsafe::{Descriptor, Ring},
    umem_unsafe::Umem,
};

/// Length in bytes of the longest packet: an Ethernet header with a VLAN tag, and the longest IPv4
/// packet. The kernel at the other end of a veth may send GSO packets above the MTU unsegmented.
const PACKET_LEN_MAX: usize = LINK_HEADER_LEN_MAX as usize + 65_535;
/// Option of a descriptor in a burst: `addr` is an offset in the burst's own buffer instead of the
/// UMEM. The kernel does not use this bit.
const ASSEMBLED: u32 = 1 << 31;

/// Packets that a port has received and lends to its caller.
///
/// The frames of the packets come from the RX ring, and return to the FILL ring when the caller
/// releases the burst. Until then, the kernel does not write to the frames. A burst cannot be
/// copied, so each frame has one owner.
pub struct XdpBurst {
    umem: Arc<Umem>,
    /// Places of the packets in the UMEM, or in `assembled` (option [`ASSEMBLED`]).
    packets: Vec<Descriptor>,
    /// Bytes of the packets that took several frames, one packet after another.
    assembled: Vec<u8>,
}

impl Burst for XdpBurst {
    #[inline]
    fn len(&self) -> usize {
        self.packets.len()
    }

    #[inline]
    fn frame(&self, at: usize) -> Option<&[u8]> {
        let packet = self.packets.get(at)?;
        if packet.options & ASSEMBLED != 0 {
            let start = packet.addr as usize;
            return self.assembled.get(start..start + packet.len as usize);
        }
        // SAFETY: the kernel does not write to frames of a burst, and there is no mutable access to
        // received frames.
        Some(unsafe { self.umem.bytes(packet.addr, packet.len as usize) })
    }
}

/// The receive half of a port.
pub(crate) struct RxQueue {
    umem: Arc<Umem>,
    /// FILL ring: UMEM offsets of frames that the kernel may write.
    fill: Ring<u64>,
    rx: Ring<Descriptor>,
    /// Binary logarithm of the frame size.
    frame_log2: u32,
    /// For each frame of the UMEM: true if the frame is in a burst.
    lent: Box<[bool]>,
    /// Bytes received so far of a packet whose final frame has not arrived.
    incomplete: Vec<u8>,
    /// Number of packets received since the port was opened.
    received: u64,
    /// Number of packets dropped because they were longer than [`PACKET_LEN_MAX`].
    too_long: u64,
}

impl RxQueue {
    pub(crate) fn new(
        umem: Arc<Umem>,
        fill: Ring<u64>,
        rx: Ring<Descriptor>,
        layout: &UmemLayout,
    ) -> Self {
        // The list covers all frames of the UMEM, because the caller of `exchange` may replace a
        // received frame by any frame that the caller owns.
        let lent = vec![false; layout.frames() as usize].into_boxed_slice();
        let mut queue = Self {
            umem,
            fill,
            rx,
            frame_log2: layout.frame_size.trailing_zeros(),
            lent,
            incomplete: Vec::new(),
            received: 0,
            too_long: 0,
        };
        for number in 0..layout.rx_frames {
            queue.fill.push(u64::from(number) << queue.frame_log2);
        }
        queue.fill.publish();
        queue
    }

    /// Returns the number of packets received since the port was opened.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Returns the number of packets dropped because they were longer than [`PACKET_LEN_MAX`].
    pub(crate) fn too_long(&self) -> u64 {
        self.too_long
    }

    /// Returns the number of the frame (UMEM chunk) that contains the UMEM offset `addr`.
    #[inline]
    fn chunk_index(&self, addr: u64) -> usize {
        (addr >> self.frame_log2) as usize
    }

    pub(crate) fn new_burst(&self) -> XdpBurst {
        XdpBurst {
            umem: Arc::clone(&self.umem),
            packets: Vec::with_capacity(BURST_MAX),
            assembled: Vec::new(),
        }
    }

    /// Appends up to `max` packets to `burst`, and returns their number. If `max` is not zero, the
    /// result zero means that the RX ring is empty. The function keeps the bytes of an incomplete
    /// packet for a later call.
    pub(crate) fn burst(&mut self, burst: &mut XdpBurst, max: usize) -> usize {
        self.check(burst);
        let max = max.min(self.lent.len()) as u32;
        let before = burst.packets.len();
        while self.take(burst, max) > 0 && burst.packets.len() == before {}
        let packets = burst.packets.len() - before;
        self.received += packets as u64;
        packets
    }

    /// Takes up to `max` frames from the RX ring, into `burst` or into the incomplete packet.
    /// Returns the number of frames.
    fn take(&mut self, burst: &mut XdpBurst, max: u32) -> u32 {
        let count = self.rx.available(max).min(max);
        for _ in 0..count {
            let mut frame = self.rx.pop();
            self.umem.prefetch(frame.addr);
            let number = self.chunk_index(frame.addr);
            assert!(!self.lent[number], "the kernel gave a frame twice");
            let end = (frame.addr + u64::from(frame.len)).saturating_sub(1);
            assert_eq!(self.chunk_index(end), number, "data beyond the frame");
            let continues = frame.options & libc::XDP_PKT_CONTD != 0;
            if continues || !self.incomplete.is_empty() {
                self.assemble(burst, frame, continues);
                continue;
            }
            self.lent[number] = true;
            frame.options = 0;
            burst.packets.push(frame);
        }
        if count > 0 {
            self.rx.release();
        }
        count
    }

    /// Appends the bytes of `frame` to the incomplete packet, and returns the frame to the FILL
    /// ring. If `continues` is false, the packet is complete: the function moves the packet to the
    /// burst, or drops a packet that is too long.
    #[cold]
    fn assemble(&mut self, burst: &mut XdpBurst, frame: Descriptor, continues: bool) {
        // SAFETY: the frame was taken from the RX ring and is not in the FILL ring yet, so the
        // kernel does not write to the frame. Received frames are never borrowed mutably.
        let bytes = unsafe { self.umem.bytes(frame.addr, frame.len as usize) };
        // One byte above the limit shows that the packet is too long.
        let room = (PACKET_LEN_MAX + 1).saturating_sub(self.incomplete.len());
        self.incomplete.extend(bytes.iter().take(room));
        let number = self.chunk_index(frame.addr) as u64;
        self.fill.push(number << self.frame_log2);
        self.fill.publish();
        if continues {
            return;
        }
        if self.incomplete.len() > PACKET_LEN_MAX {
            self.too_long += 1;
        } else {
            burst.packets.push(Descriptor {
                addr: burst.assembled.len() as u64,
                len: self.incomplete.len() as u32,
                options: ASSEMBLED,
            });
            burst.assembled.extend_from_slice(&self.incomplete);
        }
        self.incomplete.clear();
    }

    /// Panics unless this port made the burst. The release of another port's burst would give the
    /// kernel frames of the wrong UMEM.
    fn check(&self, burst: &XdpBurst) {
        let ours = Arc::ptr_eq(&self.umem, &burst.umem);
        assert!(ours, "the burst belongs to another port");
    }

    pub(crate) fn release(&mut self, burst: &mut XdpBurst) {
        self.check(burst);
        for packet in &burst.packets {
            if packet.options & ASSEMBLED != 0 {
                continue;
            }
            let number = self.chunk_index(packet.addr);
            self.lent[number] = false;
            self.fill.push((number as u64) << self.frame_log2);
        }
        if !burst.packets.is_empty() {
            burst.packets.clear();
            burst.assembled.clear();
            self.fill.publish();
        }
    }

    /// Takes the frame of packet `at` out of `burst`. An empty packet in the frame `free` replaces
    /// the packet. Returns `None`, without any effect, if the burst has no packet `at`, if the
    /// packet took several frames, or if the packet is empty (for example, already exchanged).
    pub(crate) fn exchange(
        &mut self,
        burst: &mut XdpBurst,
        at: usize,
        free: u32,
    ) -> Option<FrameData> {
        self.check(burst);
        let packet = burst.packets.get_mut(at)?;
        if packet.options & ASSEMBLED != 0 || packet.len == 0 {
            return None;
        }
        let taken = (packet.addr >> self.frame_log2) as usize;
        let start = (packet.addr - ((taken as u64) << self.frame_log2)) as u32;
        let range = start..start + packet.len;
        (packet.addr, packet.len) = (u64::from(free) << self.frame_log2, 0);
        assert!(!self.lent[free as usize], "the frame is in a burst");
        self.lent[free as usize] = true;
        self.lent[taken] = false;
        let number = taken as u32;
        Some(FrameData { number, range })
    }

    pub(crate) fn needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }
}
