//! The receiving half: FILL ring, RX ring, and which frames the caller holds.

use std::sync::Arc;

use tidelane_packet_io::Frame;

use crate::{
    config::XdpConfig,
    ring_unsafe::{Descriptor, Ring},
    umem_unsafe::Umem,
};

pub(crate) struct RxQueue {
    umem: Arc<Umem>,
    fill: Ring<u64>,
    rx: Ring<Descriptor>,
    frame_size: u32,
    /// By frame number: the caller has it. This makes `bytes` and `release` safe to call with any
    /// token, at the price of one byte's load.
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
        let frame_size = config.frame_size;
        let mut queue = Self {
            umem,
            fill,
            rx,
            frame_size,
            held,
            received: 0,
        };
        for number in 0..config.rx_frames {
            queue.fill.push(u64::from(number) * u64::from(frame_size));
        }
        queue.fill.publish();
        queue
    }

    /// Frames received so far.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    fn number(&self, addr: u64) -> usize {
        (addr / u64::from(self.frame_size)) as usize
    }

    pub(crate) fn burst(&mut self, frames: &mut Vec<Frame>, max: usize) -> usize {
        let max = max.min(self.held.len()) as u32;
        let count = self.rx.available(max).min(max);
        for _ in 0..count {
            let Descriptor { addr, len, options } = self.rx.pop();
            self.umem.prefetch(addr);
            let number = self.number(addr);
            assert!(!self.held[number], "the kernel gave a frame twice");
            self.held[number] = true;
            let continues = options & libc::XDP_PKT_CONTD != 0;
            frames.push(Frame {
                token: addr,
                len,
                continues,
            });
        }
        if count > 0 {
            self.rx.release();
            self.received += u64::from(count);
        }
        count as usize
    }

    pub(crate) fn bytes(&self, frame: &Frame) -> &[u8] {
        let number = self.number(frame.token);
        assert!(self.held[number], "the frame was released");
        let within = frame.token % u64::from(self.frame_size);
        assert!(within + u64::from(frame.len) <= u64::from(self.frame_size));
        // SAFETY: the frame is in the caller's hands, so the kernel does not write to it; the
        // bytes lie within that frame, and this type gives no mutable access to received frames.
        unsafe { self.umem.bytes(frame.token, frame.len as usize) }
    }

    pub(crate) fn release(&mut self, frames: &[Frame]) {
        for frame in frames {
            let number = self.number(frame.token);
            assert!(self.held[number], "a frame is released once");
            self.held[number] = false;
            self.fill.push(number as u64 * u64::from(self.frame_size));
        }
        if !frames.is_empty() {
            self.fill.publish();
        }
    }

    pub(crate) fn needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }
}
