//! `XdpPort`: opens a queue of a NIC and implements [`PacketIo`] over the receive half and the
//! transmit half of the queue. The *user* of a port is the TCP/IP stack that opened the port.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::Arc,
};

use tidelane_packet_io::{
    Capabilities, GsoParameters, GsoPayload, LinkFull, PacketIo, SharedFrames, TxChecksum,
};

use crate::{
    XdpError,
    bind::{Binding, Bound, XdpMode},
    config::{MTU_MAX, UmemLayout, XdpConfig},
    gso::GsoSocket,
    rx_unsafe::{RxQueue, XdpBurst},
    shared_memory::SharedMemory,
    sys::{self, XskSocket},
    tx_unsafe::TxQueue,
    umem_unsafe::{Umem, UmemPages},
};

/// Least frame size in bytes with zero-copy. Some drivers (igb, igc) use only whole KiB of the
/// space behind the headroom. In a frame of 2048 bytes, these drivers would use one KiB and
/// truncate longer packets.
const ZERO_COPY_FRAME_SIZE: u32 = 4096;

/// The kernel's counters of a socket (`XDP_STATISTICS`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpStatistics {
    /// Frames dropped for reasons other than a full RX ring, for example because of their length.
    /// In copy mode, the number includes the frames dropped because the FILL ring was empty.
    pub rx_dropped: u64,
    /// Frames dropped because the RX ring was full.
    pub rx_ring_full: u64,
    /// Number of times that the kernel found the FILL ring empty. In copy mode, the kernel drops
    /// one frame each time.
    pub rx_fill_ring_empty: u64,
    /// FILL entries (frames offered for reception) that the kernel refused.
    pub rx_invalid_descs: u64,
    /// TX entries (frames to transmit) that the kernel refused.
    pub tx_invalid_descs: u64,
    /// Number of times that the kernel found the TX ring empty.
    pub tx_ring_empty: u64,
}

/// The port's own counters, since the port was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpCounters {
    /// Packets received.
    pub rx_packets: u64,
    /// Received packets dropped because they were longer than the longest IPv4 packet with its link
    /// header.
    pub rx_too_long: u64,
    /// Packets queued for transmission.
    pub tx_packets: u64,
    /// GSO frames sent.
    pub tx_gso_frames: u64,
    /// `sendmsg` calls made to send GSO frames.
    pub tx_gso_calls: u64,
    /// `sendto` calls made to transmit.
    pub tx_kicks: u64,
    /// `recvfrom` calls made so that the kernel takes frames from the FILL ring, or polls the NIC
    /// (busy polling).
    pub rx_kicks: u64,
    /// Flushes in copy mode that left frames in the TX ring.
    pub tx_stalls: u64,
    /// `sendto` calls that failed with an error other than EAGAIN, EBUSY, ENOBUFS and EINTR.
    pub tx_errors: u64,
}

/// A port: receives and transmits the frames of one NIC queue through an AF_XDP socket.
pub struct XdpPort {
    pub(crate) rx: RxQueue,
    pub(crate) tx: TxQueue,
    /// The memory of all frames. `None` after the user has taken the memory
    /// (`SharedFrames::take_memory`), and always if the port shares no frames.
    pub(crate) shared_memory: Option<SharedMemory>,
    /// True if the user of the port may lend frames to the port.
    shares_frames: bool,
    /// The socket that sends GSO frames. `None` if the port cannot send GSO frames.
    gso: Option<GsoSocket>,
    umem_pages: UmemPages,
    mode: XdpMode,
    /// True if one `sendto` can send the whole TX ring in copy mode.
    long_batches: bool,
    /// True if the configuration has busy polling. A call of `rx_burst` that finds no packet then
    /// polls the NIC.
    busy_poll: bool,
    rx_checksum_may_be_partial: bool,
    ifindex: u32,
    queue: u32,
    counters: XdpCounters,
    /// The most recent transmit error: see [`take_tx_error`](Self::take_tx_error).
    tx_error: Option<io::Error>,
    socket: XskSocket,
}

fn system(call: &'static str) -> impl FnOnce(io::Error) -> XdpError {
    move |error| XdpError::System { call, error }
}

impl XdpPort {
    /// Checks that the kernel has AF_XDP and that this process may open an AF_XDP socket. The check
    /// changes no setting.
    pub fn check_support() -> Result<(), XdpError> {
        XskSocket::new().map(drop).map_err(XdpError::of_socket)
    }

    /// Opens queue `queue` of the interface called `interface`.
    pub fn open(interface: &str, queue: u32, config: &XdpConfig) -> Result<Self, XdpError> {
        let ifindex = sys::interface_index(interface)
            .map_err(|_| XdpError::NoSuchInterface(interface.to_owned()))?;
        Self::open_named(interface, ifindex, queue, config)
    }

    /// Opens queue `queue` of the interface with index `ifindex`.
    pub fn open_index(ifindex: u32, queue: u32, config: &XdpConfig) -> Result<Self, XdpError> {
        let interface = sys::interface_name(ifindex)
            .map_err(|_| XdpError::NoSuchInterface(format!("with index {ifindex}")))?;
        Self::open_named(&interface, ifindex, queue, config)
    }

    fn open_named(
        interface: &str,
        ifindex: u32,
        queue: u32,
        config: &XdpConfig,
    ) -> Result<Self, XdpError> {
        let port = Self::open_as(interface, ifindex, queue, config)?;
        if port.mode == XdpMode::Copy || config.frame_size >= ZERO_COPY_FRAME_SIZE {
            return Ok(port);
        }
        // Only the driver knows whether it supports zero-copy. The port was opened with frames that
        // are too small for zero-copy, so open it again with larger frames.
        drop(port);
        let config = XdpConfig {
            frame_size: ZERO_COPY_FRAME_SIZE,
            ..*config
        };
        Self::open_as(interface, ifindex, queue, &config)
    }

    fn open_as(
        interface: &str,
        ifindex: u32,
        queue: u32,
        config: &XdpConfig,
    ) -> Result<Self, XdpError> {
        config.validate()?;
        let mtu = sys::interface_mtu(interface).map_err(system("ioctl SIOCGIFMTU"))?;
        if mtu > MTU_MAX {
            let (interface, mtu_max) = (interface.to_owned(), MTU_MAX);
            return Err(XdpError::MtuTooLarge {
                interface,
                mtu,
                mtu_max,
            });
        }
        let layout = UmemLayout::new(config, mtu);
        let umem = Umem::new(&layout, config.huge_pages);
        let umem = Arc::new(umem.map_err(system("mmap of the frames"))?);
        let binding = Binding {
            umem: &umem,
            layout,
            interface,
            ifindex,
            queue,
            config,
        };
        let Bound {
            socket,
            rings,
            metadata,
            long_batches,
            mode,
        } = binding.bind_best()?;
        let umem_pages = umem.pages();
        let shares_frames = layout.shared_frames > 0;
        Ok(Self {
            shared_memory: shares_frames.then(|| SharedMemory::new(Arc::clone(&umem), layout)),
            shares_frames,
            rx: RxQueue::new(Arc::clone(&umem), rings.fill, rings.rx, &layout),
            tx: TxQueue::new(umem, rings.tx, rings.completion, &layout, metadata),
            gso: (config.gso && config.tx_checksum && mode == XdpMode::Copy)
                .then(|| GsoSocket::open(ifindex).ok())
                .flatten(),
            umem_pages,
            mode,
            long_batches,
            busy_poll: config.busy_poll.is_some(),
            rx_checksum_may_be_partial: config.rx_checksum_may_be_partial,
            ifindex,
            queue,
            counters: XdpCounters::default(),
            tx_error: None,
            socket,
        })
    }

    /// Returns the socket for polling and for `Demux::register_xsk` (crate `tidelane-steering`).
    /// The socket is readable while frames wait, and writable while the TX ring is at most half
    /// full.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the index of the interface.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Returns the queue number.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Returns the path of frames between the NIC and the UMEM (the memory of the frames).
    pub fn mode(&self) -> XdpMode {
        self.mode
    }

    /// Returns true if the port leaves partial checksums (the checksum field holds only the sum of
    /// the pseudo-header) to the device or the peer's kernel. Otherwise, the port completes partial
    /// checksums in software.
    pub fn leaves_partial_checksums(&self) -> bool {
        self.tx.has_metadata()
    }

    /// Returns true if the port can send GSO frames.
    pub fn has_gso(&self) -> bool {
        self.gso.is_some()
    }

    /// Returns true if one system call transmits all queued frames: zero-copy has no limit, and
    /// copy mode has a limit of 32 frames before Linux 6.17.
    pub fn sends_long_batches(&self) -> bool {
        self.long_batches || self.mode == XdpMode::ZeroCopy
    }

    /// Returns the kind of pages of the UMEM.
    pub fn umem_pages(&self) -> UmemPages {
        self.umem_pages
    }

    /// Returns the number of descriptors that the kernel has not taken from the TX ring. If the
    /// number is not zero after a flush, the link is busy and the caller should flush again soon.
    pub fn tx_pending(&mut self) -> u32 {
        self.tx.pending()
    }

    /// Returns the number of packets that can be filled before [`PacketIo::tx_frame`] has to take
    /// completed packets from the COMPLETION ring.
    pub fn tx_free(&self) -> usize {
        self.tx.free_packets()
    }

    /// Reads the kernel's counters.
    pub fn statistics(&self) -> io::Result<XdpStatistics> {
        let raw: libc::xdp_statistics = self.socket.get_xdp(libc::XDP_STATISTICS)?;
        Ok(XdpStatistics {
            rx_dropped: raw.rx_dropped,
            rx_ring_full: raw.rx_ring_full,
            rx_fill_ring_empty: raw.rx_fill_ring_empty_descs,
            rx_invalid_descs: raw.rx_invalid_descs,
            tx_invalid_descs: raw.tx_invalid_descs,
            tx_ring_empty: raw.tx_ring_empty_descs,
        })
    }

    /// Returns the port's own counters.
    pub fn counters(&self) -> XdpCounters {
        XdpCounters {
            rx_packets: self.rx.received(),
            rx_too_long: self.rx.too_long(),
            tx_packets: self.tx.committed(),
            ..self.counters
        }
    }

    /// Returns the most recent transmit error, and clears it. ENETDOWN means that the interface is
    /// down, and ENXIO that the interface was removed.
    pub fn take_tx_error(&mut self) -> Option<io::Error> {
        self.tx_error.take()
    }

    /// Calls `sendto` while the TX ring needs a wake-up. Stops when the kernel has taken all
    /// descriptors, takes no more, or returns an error that is not temporary.
    fn kick_tx(&mut self) {
        let mut pending = self.tx.pending();
        // Each round except the last makes the kernel take at least one descriptor, so the number
        // of rounds is bounded.
        while pending > 0 && self.tx.needs_wakeup() {
            self.counters.tx_kicks += 1;
            let outcome = self.socket.kick_tx();
            let left = self.tx.pending();
            if let Err(error) = outcome {
                let code = error.raw_os_error().unwrap_or(0);
                // These errors are temporary. EAGAIN: the call has sent as many frames as it may,
                // or the send buffer or the device's queue is full. EBUSY: the link dropped a
                // frame. ENOBUFS: temporarily no memory. EINTR: a signal interrupted the call.
                if !matches!(
                    code,
                    libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR
                ) {
                    self.counters.tx_errors += 1;
                    self.tx_error = Some(error);
                    break;
                }
            }
            if left == pending {
                break;
            }
            pending = left;
        }
        if pending > 0 && self.mode == XdpMode::Copy {
            self.counters.tx_stalls += 1;
        }
    }
}

impl AsFd for XdpPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

impl AsRawFd for XdpPort {
    fn as_raw_fd(&self) -> RawFd {
        self.fd().as_raw_fd()
    }
}

impl PacketIo for XdpPort {
    type Burst = XdpBurst;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            tx_frame_len_max: self.tx.packet_len_max(),
            tx_checksum: self.tx.has_metadata(),
            rx_checksum_may_be_partial: self.rx_checksum_may_be_partial,
            tx_gso_len_max: self.gso.as_ref().map_or(0, GsoSocket::len_max),
        }
    }

    fn new_burst(&self) -> XdpBurst {
        self.rx.new_burst()
    }

    fn rx_burst(&mut self, burst: &mut XdpBurst, max: usize) -> usize {
        let count = self.rx.burst(burst, max);
        if count == 0 && (self.busy_poll || self.rx.needs_wakeup()) {
            self.counters.rx_kicks += 1;
            self.socket.kick_rx();
            return self.rx.burst(burst, max);
        }
        count
    }

    fn rx_release(&mut self, burst: &mut XdpBurst) {
        self.rx.release(burst);
    }

    fn tx_frame(&mut self) -> Option<&mut [u8]> {
        self.tx.packet()
    }

    fn tx_commit(&mut self, len: usize, checksum: TxChecksum) {
        self.tx.commit(len, checksum);
    }

    fn tx_gso_headers(&mut self) -> &mut [u8] {
        match &mut self.gso {
            Some(frames) => frames.headers(),
            None => &mut [],
        }
    }

    fn tx_gso_send(&mut self, payload: GsoPayload<'_>, gso: GsoParameters) -> Result<(), LinkFull> {
        self.tx_flush();
        // A GSO frame does not pass the TX ring, and would overtake frames that wait in the ring.
        if self.tx.pending() > 0 {
            return Err(LinkFull);
        }
        let socket = self.gso.as_mut().ok_or(LinkFull)?;
        self.counters.tx_gso_calls += 1;
        socket.send(payload, gso)?;
        self.counters.tx_gso_frames += 1;
        Ok(())
    }

    fn rx_overruns(&self) -> u64 {
        let lost = |seen: XdpStatistics| seen.rx_ring_full + seen.rx_fill_ring_empty;
        self.statistics().map_or(0, lost)
    }

    fn tx_flush(&mut self) {
        self.tx.publish();
        self.kick_tx();
        self.tx.reap();
    }

    fn tx_pending(&mut self) -> bool {
        XdpPort::tx_pending(self) > 0
    }

    fn shared_frames(&mut self) -> Option<&mut dyn SharedFrames<XdpBurst>> {
        self.shares_frames.then_some(())?;
        Some(self)
    }

    fn system_calls(&self) -> u64 {
        self.counters.tx_kicks + self.counters.rx_kicks + self.counters.tx_gso_calls
    }
}
