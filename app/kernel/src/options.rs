//! Parameters of a [`KernelContext`](crate::KernelContext).

/// Parameters of a [`KernelContext`](crate::KernelContext).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelOptions {
    /// Number of buffers for received data and for data to send, at most 32,768. The kernel
    /// receives into at most half of the buffers, rounded down to a power of two.
    pub buffers: u32,
    /// Length of each buffer in bytes.
    pub buffer_len: u32,
    /// Limit of the buffers that wait for sending on one descriptor. A further send is refused.
    pub send_queue_max: usize,
    /// Time in microseconds for which a wait polls the NAPI instances of the interfaces (Linux
    /// 6.9). Zero disables the polling.
    pub busy_poll_us: u32,
}

impl Default for KernelOptions {
    fn default() -> Self {
        Self {
            buffers: 8192,
            buffer_len: 4096,
            send_queue_max: 256,
            busy_poll_us: 0,
        }
    }
}
