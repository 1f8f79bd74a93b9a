//! Contents of the peer's SYN.

use tidelane_flow::{EcnPolicy, EngineConfig, SocketOptions};
use tidelane_wire::{Ecn, Segment, SeqNumber, TcpFlags, TcpOptions};

/// Contents of the peer's SYN or SYN,ACK, for the new flow (connection).
#[derive(Clone, Copy, Debug)]
pub struct PeerSyn {
    /// IRS: sequence number of the SYN.
    pub irs: SeqNumber,
    /// Options of the SYN.
    pub options: TcpOptions,
    /// Window field of the SYN, which is never scaled.
    pub wnd: u16,
    /// True if the SYN requests ECN, or if the SYN,ACK agrees to ECN (RFC 3168 §6.1.1).
    pub ecn: bool,
    /// True if the segment is a SYN without ACK, and its IP packet was ECT or CE.
    pub ect: bool,
}

impl PeerSyn {
    /// Reads a SYN or SYN,ACK. `ecn` is the ECN field of its IP packet. A SYN,ACK with both ECE and
    /// CWR does not agree to ECN, because its sender only reflects the bits of our SYN.
    pub fn of(segment: &Segment<'_>, ecn: Ecn) -> Self {
        let both = TcpFlags::ECE | TcpFlags::CWR;
        let set = segment.flags.0 & both.0;
        let answer = segment.flags.contains(TcpFlags::ACK);
        let wanted = if answer { TcpFlags::ECE } else { both };
        Self {
            irs: segment.seq,
            options: segment.options,
            wnd: segment.wnd,
            ecn: set == wanted.0,
            ect: !answer && ecn != Ecn::NotEct,
        }
    }

    /// Returns true if this end agrees to ECN. This end agrees if the peer's SYN requests ECN, the
    /// configuration permits ECN, and the SYN was not ECT (RFC 3168 forbids an ECT SYN). If the
    /// congestion control of this end needs ECN (DCTCP), this end agrees to every request, as in
    /// Linux.
    pub fn agrees_to_ecn(&self, config: &EngineConfig, options: &SocketOptions) -> bool {
        let algorithm = options.congestion.unwrap_or(config.congestion);
        let allowed = config.ecn != EcnPolicy::Off && !self.ect;
        self.ecn && (allowed || algorithm.needs_ecn())
    }
}
