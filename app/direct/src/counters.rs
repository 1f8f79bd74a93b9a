//! Counters of a context.

/// Counters of a context: copies of payload, and reasons for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectCounters {
    /// Received payloads that were copied to a buffer.
    pub rx_copies: u64,
    /// Received payloads whose frame became a buffer.
    pub rx_exchanges: u64,
    /// Received payloads that were dropped because there was no buffer. The peers send them again.
    pub rx_no_buffer: u64,
    /// Sent payloads that were copied to a frame.
    pub tx_copies: u64,
    /// Sent payloads that the port sent from their buffer.
    pub tx_lent: u64,
    /// Waits for the port.
    pub waits: u64,
}
