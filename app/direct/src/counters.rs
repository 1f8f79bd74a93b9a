//! Counters of a [`DirectContext`](crate::DirectContext), which has the TCP and UDP sockets of one
//! thread.

/// Counters of a [`DirectContext`](crate::DirectContext). The counters report the copies of
/// payloads between the program's buffers and the frames of the port (the packet interface of the
/// context), the payloads that moved without a copy, and the waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectCounters {
    /// Number of copies of received payloads to buffers. A payload counts once for each buffer that
    /// receives a part of the payload, and again for each copy that joins small buffers.
    pub rx_copies: u64,
    /// Number of received payloads that needed no copy, because the context exchanged their frame
    /// for a free buffer. The frame then serves as the buffer.
    pub rx_exchanges: u64,
    /// Number of received TCP payloads that were dropped for lack of a buffer, or because the
    /// connection held too many out-of-order buffers. The peer retransmits the payloads.
    pub rx_no_buffer: u64,
    /// Number of sent payloads that were copied to a transmit frame. A retransmission counts again.
    pub tx_copies: u64,
    /// Number of payloads that the port sent directly from their buffer, without a copy. A
    /// retransmission counts again.
    pub tx_lent: u64,
    /// Number of times that the context waited for a packet on the port or for a timeout.
    pub waits: u64,
}
