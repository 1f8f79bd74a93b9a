//! Binding of an AF_XDP socket to a queue of a NIC, with the most features that the kernel and the
//! driver have.

use std::{io, thread, time::Duration};

use crate::{
    XdpError,
    config::{UmemLayout, XdpConfig},
    queues::queue_counts,
    ring_unsafe::{Descriptor, Ring},
    sys::{self, XDP_MAX_TX_SKB_BUDGET, XskSocket},
    tx_unsafe::TX_METADATA_LEN,
    umem_unsafe::Umem,
};

/// Socket memory in bytes that the kernel charges for one frame in flight, rounded up.
const SEND_BUFFER_PER_FRAME: usize = 4096;
/// Smallest number of frames that the kernel accepts as the budget of one copy-mode `sendto`.
const TX_BUDGET_MIN: u32 = 32;
/// Number of attempts to bind to a busy queue, and the pause between two attempts. Half a second is
/// ample for the kernel to free the queue of a socket that was just closed.
const BIND_TRIES_MAX: u32 = 50;
const BIND_PAUSE: Duration = Duration::from_millis(10);

/// Path of frames between the NIC and the UMEM (the memory of the port's frames).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// The NIC reads and writes the UMEM directly.
    ZeroCopy,
    /// The kernel copies each frame, and transmits only within a system call.
    Copy,
}

/// A bound AF_XDP socket, its rings, and the features that the kernel granted.
pub(crate) struct Bound {
    pub(crate) socket: XskSocket,
    pub(crate) rings: Rings,
    /// True if the UMEM has transmit metadata. With metadata, the [`XdpPort`](crate::XdpPort)
    /// leaves partial checksums (the checksum field holds only the sum of the pseudo-header) to the
    /// kernel or the device.
    pub(crate) metadata: bool,
    /// True if the kernel accepted the length of the TX ring as the budget of one copy-mode
    /// `sendto`.
    pub(crate) long_batches: bool,
    pub(crate) mode: XdpMode,
}

/// The four rings of a socket. The rings are mapped before `bind`, because kernels up to 6.1 refuse
/// an mmap after `bind` with EBUSY.
pub(crate) struct Rings {
    pub(crate) fill: Ring<u64>,
    pub(crate) completion: Ring<u64>,
    pub(crate) rx: Ring<Descriptor>,
    pub(crate) tx: Ring<Descriptor>,
}

impl Rings {
    fn map(socket: &XskSocket, layout: &UmemLayout) -> Result<Self, (&'static str, io::Error)> {
        let at = |call: &'static str| move |error: io::Error| (call, error);
        let offsets: libc::xdp_mmap_offsets = socket
            .get_xdp(libc::XDP_MMAP_OFFSETS)
            .map_err(at("XDP_MMAP_OFFSETS"))?;
        let (rx_len, tx_len) = (layout.rx_frames, layout.tx_ring_len());
        let (rx, tx) = (libc::XDP_PGOFF_RX_RING, libc::XDP_PGOFF_TX_RING);
        let fill = libc::XDP_UMEM_PGOFF_FILL_RING;
        let completion = libc::XDP_UMEM_PGOFF_COMPLETION_RING;
        let map = "mmap of a ring";
        Ok(Self {
            fill: Ring::map(socket, rx_len, fill, offsets.fr).map_err(at(map))?,
            completion: Ring::map(socket, tx_len, completion, offsets.cr).map_err(at(map))?,
            rx: Ring::map(socket, rx_len, rx as u64, offsets.rx).map_err(at(map))?,
            tx: Ring::map(socket, tx_len, tx as u64, offsets.tx).map_err(at(map))?,
        })
    }
}

/// The optional features that one attempt to bind requests from the kernel.
#[derive(Clone, Copy)]
struct Attempt {
    mode: XdpMode,
    /// True if the attempt requests transmit metadata.
    metadata: bool,
}

/// Parameters of a socket before `bind`.
pub(crate) struct Binding<'a> {
    pub(crate) umem: &'a Umem,
    pub(crate) layout: UmemLayout,
    pub(crate) interface: &'a str,
    pub(crate) ifindex: u32,
    pub(crate) queue: u32,
    pub(crate) config: &'a XdpConfig,
}

impl Binding<'_> {
    /// Binds with the most features that the kernel and the driver have.
    pub(crate) fn bind_best(&self) -> Result<Bound, XdpError> {
        let mut failure = None;
        for attempt in self.attempts() {
            match self.bind_with_retries(attempt) {
                Ok(bound) => return Ok(bound),
                Err((call, error)) => {
                    let code = error.raw_os_error().unwrap_or(0);
                    // Only EOPNOTSUPP and EINVAL stand for a missing feature. EINVAL also stands
                    // for an unknown queue or flag. If the queue is unknown, the last attempt fails
                    // with EINVAL, too.
                    let again = matches!(code, libc::EOPNOTSUPP | libc::EINVAL);
                    failure = Some((call, error));
                    if !again {
                        break;
                    }
                }
            }
        }
        let (call, error) = failure.expect("there is at least one attempt");
        Err(self.explain(call, error))
    }

    /// Returns the attempts to make, the preferred attempt first. The last attempt requests neither
    /// zero-copy nor metadata.
    fn attempts(&self) -> Vec<Attempt> {
        let mut attempts = Vec::with_capacity(3);
        if self.config.prefer_zero_copy {
            // The zero-copy attempt requests no metadata, because a zero-copy driver may lack the
            // checksum offload.
            attempts.push(Attempt {
                mode: XdpMode::ZeroCopy,
                metadata: false,
            });
        }
        // Request metadata only with a checksum offload. Without the offload, the kernel would
        // compute the checksum in software, or not at all (Linux 6.12 on virtio-net).
        let offload = || sys::interface_finishes_checksums(self.interface).unwrap_or(false);
        // With metadata, the kernel needs space before the data of each descriptor. Multi-buffer
        // (packets of several frames) excludes metadata, because the frames of a long packet are
        // adjacent without gaps.
        let asks = self.config.tx_checksum && self.config.tx_metadata;
        if asks && !self.layout.multi_buffer && offload() {
            attempts.push(Attempt {
                mode: XdpMode::Copy,
                metadata: true,
            });
        }
        attempts.push(Attempt {
            mode: XdpMode::Copy,
            metadata: false,
        });
        attempts
    }

    /// Returns the error for the failed system call `call`, with the cause that the errno stands
    /// for.
    fn explain(&self, call: &'static str, error: io::Error) -> XdpError {
        let interface = self.interface.to_owned();
        let queue = self.queue;
        match (call, error.raw_os_error().unwrap_or(0)) {
            ("socket", _) => XdpError::of_socket(error),
            (_, libc::EPERM | libc::EACCES) => XdpError::NotPermitted,
            ("XDP_UMEM_REG", libc::ENOBUFS | libc::ENOMEM) => XdpError::MemoryLimit {
                bytes: self.umem.len(),
            },
            ("bind", libc::EBUSY) => XdpError::QueueBusy { interface, queue },
            ("bind", libc::EINVAL) if self.layout.multi_buffer && self.queue_exists() => {
                let mtu_max = self.config.sized_for(u32::MAX).single_frame_mtu();
                XdpError::NoMultiBuffer { interface, mtu_max }
            }
            ("bind", libc::EINVAL) => XdpError::NoSuchQueue { interface, queue },
            ("bind", libc::ENODEV) => XdpError::NoSuchInterface(interface),
            _ => XdpError::System { call, error },
        }
    }

    fn queue_exists(&self) -> bool {
        let counts = queue_counts(self.interface);
        counts.is_ok_and(|counts| self.queue < counts.rx)
    }

    /// Calls [`bind_once`](Self::bind_once) while the queue is busy, at most [`BIND_TRIES_MAX`]
    /// times. The kernel frees the NIC queue of a closed socket only some milliseconds after
    /// `close` or the death of the socket's process.
    fn bind_with_retries(&self, attempt: Attempt) -> Result<Bound, (&'static str, io::Error)> {
        for _ in 1..BIND_TRIES_MAX {
            match self.bind_once(attempt) {
                Err((_, error)) if error.raw_os_error() == Some(libc::EBUSY) => {
                    thread::sleep(BIND_PAUSE);
                }
                outcome => return outcome,
            }
        }
        self.bind_once(attempt)
    }

    fn bind_once(&self, attempt: Attempt) -> Result<Bound, (&'static str, io::Error)> {
        let at = |call: &'static str| move |error: io::Error| (call, error);
        let socket = XskSocket::new().map_err(at("socket"))?;
        let layout = &self.layout;
        self.register(&socket, attempt)
            .map_err(at("XDP_UMEM_REG"))?;
        let lengths = [
            (libc::XDP_UMEM_FILL_RING, layout.rx_frames),
            (libc::XDP_UMEM_COMPLETION_RING, layout.tx_ring_len()),
            (libc::XDP_RX_RING, layout.rx_frames),
            (libc::XDP_TX_RING, layout.tx_ring_len()),
        ];
        for (ring, len) in lengths {
            socket
                .set_xdp(ring, &(len as i32))
                .map_err(at("setsockopt of a ring"))?;
        }
        let rings = Rings::map(&socket, layout)?;
        // An older kernel may refuse the budget, and a process without CAP_NET_ADMIN may get a
        // smaller send buffer. The socket then transmits in smaller batches.
        let send_buffer = layout.tx_ring_len() as usize * SEND_BUFFER_PER_FRAME;
        let _ = socket.set_send_buffer(send_buffer);
        let budget = layout.tx_ring_len().max(TX_BUDGET_MIN);
        let long_batches = socket.set_xdp(XDP_MAX_TX_SKB_BUDGET, &(budget as i32));
        if let Some(busy_poll) = self.config.busy_poll {
            let set = socket.set_busy_poll(busy_poll.timeout_us, busy_poll.budget);
            set.map_err(at("SO_BUSY_POLL"))?;
        }
        let mut flags = libc::XDP_USE_NEED_WAKEUP;
        flags |= match attempt.mode {
            XdpMode::ZeroCopy => libc::XDP_ZEROCOPY,
            XdpMode::Copy => libc::XDP_COPY,
        };
        if layout.multi_buffer {
            flags |= libc::XDP_USE_SG;
        }
        socket
            .bind(self.ifindex, self.queue, flags)
            .map_err(at("bind"))?;
        let options: libc::xdp_options = socket
            .get_xdp(libc::XDP_OPTIONS)
            .map_err(at("XDP_OPTIONS"))?;
        let zero_copy = options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0;
        let mode = if zero_copy {
            XdpMode::ZeroCopy
        } else {
            XdpMode::Copy
        };
        Ok(Bound {
            socket,
            rings,
            metadata: attempt.metadata,
            long_batches: long_batches.is_ok(),
            mode,
        })
    }

    /// Registers the UMEM with the socket.
    fn register(&self, socket: &XskSocket, attempt: Attempt) -> io::Result<()> {
        let (flags, tx_metadata_len) = if attempt.metadata {
            (libc::XDP_UMEM_TX_METADATA_LEN, TX_METADATA_LEN)
        } else {
            (0, 0)
        };
        let registration = libc::xdp_umem_reg {
            addr: self.umem.start() as u64,
            len: self.umem.len() as u64,
            chunk_size: self.layout.frame_size,
            headroom: 0,
            flags,
            tx_metadata_len,
        };
        socket.set_xdp(libc::XDP_UMEM_REG, &registration)
    }
}
