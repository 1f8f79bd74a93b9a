//! Effects of one ACK.

/// Effects of one ACK. The check of the ACK field passes these effects to loss detection and to the
/// growth of cwnd.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckEffects {
    /// Bytes by which the ACK advanced SND.UNA.
    pub acked: u32,
    /// True if the SACK blocks of the ACK cover data that no earlier SACK block has covered.
    pub newly_sacked: bool,
    /// True if the ACK is a duplicate ACK. With SACK, a duplicate ACK must also have
    /// `newly_sacked`.
    pub duplicate: bool,
    /// True if the ACK advanced SND.UNA and cwnd was not being reduced, so that cwnd may grow. The
    /// field has no effect if the same ACK starts a reduction of cwnd.
    pub may_grow: bool,
}
