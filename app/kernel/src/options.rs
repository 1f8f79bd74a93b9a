//! Parameters of a [`KernelContext`](crate::KernelContext).

/// Parameters of a [`KernelContext`](crate::KernelContext).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelOptions {
    /// Number of buffers for received data and for data to send, from 2 to 32,768. The kernel
    /// receives into at most half of the buffers, rounded down to a power of two.
    pub buffers: u32,
    /// Length of each buffer in bytes.
    pub buffer_len: u32,
    /// Largest number of buffers that one descriptor may have in its send queue and in zero-copy
    /// sends, both together. The context refuses a send beyond this number.
    pub send_queue_max: usize,
    /// Longest time in microseconds for which a wait polls the NAPI instances of the network
    /// interfaces. Needs Linux 6.9. Zero disables the polling.
    pub busy_poll_us: u32,
    /// Selects the stream sends for which the kernel reads the buffers instead of copying them.
    pub zero_copy: ZeroCopy,
}

/// Selects the stream sends for which the kernel reads the buffers instead of copying them
/// (IORING_OP_SENDMSG_ZC with IORING_SEND_ZC_REPORT_USAGE, Linux 6.2). All other sends copy, and so
/// do all sends on older kernels. One send carries up to 64 queued buffers of a connection.
///
/// A buffer that the kernel reads returns to the pool once the NIC has sent the data and the peer
/// has acknowledged the data. For one descriptor, the kernel reads at most half of
/// [`send_queue_max`](KernelOptions::send_queue_max) buffers (rounded up) at a time. These buffers
/// count towards `send_queue_max`.
///
/// The default is [`ZeroCopy::Never`]. Over loopback and veth, the kernel copies all the same, and
/// zero-copy sends of 64 KiB took 21 to 50 % more CPU time (`docs/design/rings.md`). No NIC was
/// measured. Measure [`ZeroCopy::WhereItPays`] on the NIC before its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroCopy {
    /// None: all sends copy.
    Never,
    /// Each send of at least `min` bytes on a connection for which the kernel has neither reported
    /// a copy nor refused a zero-copy send. Loopback, packet captures and most virtual devices make
    /// the kernel copy.
    WhereItPays {
        /// Smallest length of a send in bytes.
        min: u32,
    },
    /// Each send of at least `min` bytes on a connection for which the kernel has not refused a
    /// zero-copy send, even after the kernel has reported copies. For tests and measurements.
    Always {
        /// Smallest length of a send in bytes.
        min: u32,
    },
}

impl Default for KernelOptions {
    fn default() -> Self {
        Self {
            buffers: 8192,
            buffer_len: 4096,
            send_queue_max: 256,
            busy_poll_us: 0,
            zero_copy: ZeroCopy::Never,
        }
    }
}
