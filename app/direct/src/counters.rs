//! Counters of a direct context.

/// Counters of a context: how payloads moved between frames and buffers, and waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectCounters {
    /// Number of copies of received payloads to a buffer.
    pub rx_copies: u64,
    /// Number of received payloads that were not copied, because their frame became a buffer.
    pub rx_exchanges: u64,
    /// Number of received TCP payloads dropped for lack of a buffer. The peer retransmits the
    /// payloads.
    pub rx_no_buffer: u64,
    /// Number of payloads that were copied to a transmit frame.
    pub tx_copies: u64,
    /// Number of payloads that the port sent directly from their buffer.
    pub tx_lent: u64,
    /// Number of times the context waited for the port.
    pub waits: u64,
}
