//! The receiving half: FILL ring, RX ring, and which frames are in bursts.

use std::sync::Arc;

use tidelane_packet_io::{BURST_MAX, Burst};

use crate::{
    config::XdpConfig,
    ring_unsafe::{Descriptor, Ring},
    umem_unsafe::Umem,
};

/// Frames that a port received. The kernel has none of them: they are taken from the RX ring, and
/// go to the FILL ring when the burst is released. There is no copy of a burst, so nobody else has
/// them either.
pub struct XdpBurst {
    umem: Arc<Umem>,
    frames: Vec<Descriptor>,
}

impl Burst for XdpBurst {
    #[inline]
    fn len(&self) -> usize {
        self.frames.len()
    }

    #[inline]
    fn frame(&self, at: usize) -> Option<&[u8]> {
        let frame = self.frames.get(at)?;
        // SAFETY: the kernel does not write to frames of a burst, and there is no mutable access to
        // received ones.
        Some(unsafe { self.umem.bytes(frame.addr, frame.len as usize) })
    }

    fn continues(&self, at: usize) -> bool {
        let options = self.frames.get(at).map_or(0, |frame| frame.options);
        options & libc::XDP_PKT_CONTD != 0
    }
}

pub(crate) struct RxQueue {
    umem: Arc<Umem>,
    fill: Ring<u64>,
    rx: Ring<Descriptor>,
    /// Logarithm of a frame's size.
    frame_log2: u32,
    /// By frame number: it is in a burst.
    held: Box<[bool]>,
    received: u64,
}

impl RxQueue {
    pub(crate) fn new(
        umem: Arc<Umem>,
        fill: Ring<u64>,
        rx: Ring<Descriptor>,
        config: &XdpConfig,
    ) -> Self {
        let held = vec![false; config.rx_frames as usize].into_boxed_slice();
        let mut queue = Self {
            umem,
            fill,
            rx,
            frame_log2: config.frame_size.trailing_zeros(),
            held,
            received: 0,
        };
        for number in 0..config.rx_frames {
            queue.fill.push(u64::from(number) << queue.frame_log2);
        }
        queue.fill.publish();
        queue
    }

    /// Frames received so far.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    #[inline]
    fn number(&self, addr: u64) -> usize {
        (addr >> self.frame_log2) as usize
    }

    pub(crate) fn new_burst(&self) -> XdpBurst {
        XdpBurst {
            umem: Arc::clone(&self.umem),
            frames: Vec::with_capacity(BURST_MAX),
        }
    }

    pub(crate) fn burst(&mut self, burst: &mut XdpBurst, max: usize) -> usize {
        self.check(burst);
        let max = max.min(self.held.len()) as u32;
        let count = self.rx.available(max).min(max);
        for _ in 0..count {
            let frame = self.rx.pop();
            self.umem.prefetch(frame.addr);
            let number = self.number(frame.addr);
            assert!(!self.held[number], "the kernel gave a frame twice");
            self.held[number] = true;
            let end = (frame.addr + u64::from(frame.len)).saturating_sub(1);
            assert_eq!(self.number(end), number, "bytes of one frame");
            burst.frames.push(frame);
        }
        if count > 0 {
            self.rx.release();
            self.received += u64::from(count);
        }
        count as usize
    }

    /// A burst of another port would get its frames from there, or give them away.
    fn check(&self, burst: &XdpBurst) {
        let ours = Arc::ptr_eq(&self.umem, &burst.umem);
        assert!(ours, "a burst belongs to the port that made it");
    }

    pub(crate) fn release(&mut self, burst: &mut XdpBurst) {
        self.check(burst);
        for frame in &burst.frames {
            let number = self.number(frame.addr);
            self.held[number] = false;
            self.fill.push((number as u64) << self.frame_log2);
        }
        if !burst.frames.is_empty() {
            burst.frames.clear();
            self.fill.publish();
        }
    }

    pub(crate) fn needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }
}
