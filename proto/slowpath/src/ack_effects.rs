//! Effects of one ACK.

/// Effects of one ACK, which the ACK check passes to loss detection and window growth.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckEffects {
    /// Bytes by which the ACK advanced SND.UNA.
    pub acked: u32,
    /// True if the SACK blocks of the ACK cover data that no earlier SACK block has covered.
    pub newly_sacked: bool,
    /// True if the ACK is a duplicate ACK. With SACK, a duplicate ACK must also have
    /// `newly_sacked`.
    pub duplicate: bool,
    /// True if cwnd may grow, unless the ACK signals congestion.
    pub may_grow: bool,
}
