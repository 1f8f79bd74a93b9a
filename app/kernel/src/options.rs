//! Parameters of a context.

/// Parameters of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelOptions {
    /// Number of buffers for received data and for data to send, at most 32,768. Half of them, a
    /// power of two, are for received data.
    pub buffers: u32,
    /// Length of each buffer in bytes.
    pub buffer_len: u32,
    /// Limit of buffers that wait for sending on one descriptor.
    pub send_queue_max: usize,
    /// Microseconds for which a wait polls the NAPI instances of the interfaces. Zero does not
    /// poll.
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
