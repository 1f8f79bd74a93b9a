//! Rules of congestion control. The rules check cwnd, ssthresh and FlightSize of a sender after
//! each step. A *step* is one run of the sender's host, in which the host may receive and send.

use std::collections::BTreeMap;

use tidelane_engine::{CaState, FlowInfo, LinkId};
use tidelane_time::Instant;
use tidelane_wire::FlowKey;

use crate::{
    ledger::{Violation, violation},
    wire_rules::Advance,
};

/// Number of full segments by which FlightSize may exceed cwnd: two of limited transmit (RFC 3042),
/// one tail loss probe (RFC 8985 §7.3), and one because cwnd is not a multiple of the segment size.
const ABOVE_CWND_MAX: u32 = 4;
/// Number of full segments that a sender may send in one step while cwnd permits none: segments of
/// limited transmit, and probes.
const PROBES_MAX: u32 = 2;
/// Largest number of checks in a run. The number is limited because each check lists all sockets of
/// a host.
const CHECKS_MAX: u64 = 20_000;

/// Link number of the local path between two programs of one service. Segments on this path are not
/// frames on a link, so the number of bytes that a step has sent on this path is unknown.
const LOCAL_PATH: LinkId = LinkId(0);
/// Link number of the mux ports. A mux port is a pair of packet rings, through which the service
/// exchanges packets with a program that has its own stack. Packets on a mux port are not frames on
/// a link, either.
const MUX_LINK: LinkId = LinkId(u16::MAX);

/// State of a sender at its most recent check. Quantities are in bytes.
#[derive(Clone, Copy, Debug)]
struct Sender {
    ssthresh: u32,
    cwnd: u32,
    /// Bytes acknowledged since the start of the connection.
    acked: u64,
    /// SND.NXT in bytes since the start of the connection.
    snd_nxt: u64,
    /// Two values at the most recent reduction of ssthresh: SND.NXT in bytes since the start of the
    /// connection, and [`SenderFigures::spurious_signals`] of the host. `None` if no reduction is
    /// known, or if ssthresh has since increased or been restored.
    lowered_at: Option<(u64, u64)>,
}

/// Source of the congestion variables of one host's senders.
pub trait SenderFigures {
    /// Returns the state of the host's connections.
    fn flows(&self) -> Vec<FlowInfo>;
    /// Returns the number of signals so far that a retransmission was spurious: spurious timeouts
    /// and DSACKs. Such a signal may undo a reduction of cwnd.
    fn spurious_signals(&self) -> u64;
}

/// Checks the congestion control of all hosts. Stores the state of each sender at its most recent
/// check.
#[derive(Debug, Default)]
pub struct CwndRules {
    senders: BTreeMap<(usize, FlowKey), Sender>,
    /// Number of checks so far.
    pub checks: u64,
}

impl CwndRules {
    /// Returns true if the run may make further checks.
    pub fn has_checks_left(&self) -> bool {
        self.checks < CHECKS_MAX
    }

    /// Removes the connections of a host when its service restarts.
    pub fn forget(&mut self, host: usize) {
        self.senders.retain(|(of, _), _| *of != host);
    }

    /// Checks the flows of `host` after a step. `advances` lists the new bytes that the host has
    /// sent on its connections in this step.
    pub fn check(
        &mut self,
        now: Instant,
        host: usize,
        advances: &[Advance],
        figures: &impl SenderFigures,
    ) -> Result<(), Violation> {
        self.checks += 1;
        for info in &figures.flows() {
            let own = advances.iter().filter(|advance| advance.key == info.key);
            let sent = own.map(|advance| advance.bytes).sum();
            let broken = self.check_flow(host, info, sent, figures);
            broken.map_err(|(rule, text)| {
                violation(now, rule, format!("host {host}: {text}; {info:?}"))
            })?;
        }
        Ok(())
    }

    fn check_flow(
        &mut self,
        host: usize,
        info: &FlowInfo,
        sent: u32,
        figures: &impl SenderFigures,
    ) -> Result<(), (&'static str, String)> {
        let key = (host, info.key);
        let snd_nxt = info.bytes_acked + u64::from(info.flight_size);
        let fresh = Sender {
            ssthresh: info.ssthresh,
            cwnd: info.cwnd,
            acked: info.bytes_acked,
            snd_nxt,
            lowered_at: None,
        };
        let sender = self.senders.entry(key).or_insert(fresh);
        if info.bytes_acked < sender.acked {
            // The 4-tuple belongs to a new connection.
            *sender = fresh;
        }
        let before = std::mem::replace(&mut sender.ssthresh, info.ssthresh);
        let cwnd_before = std::mem::replace(&mut sender.cwnd, info.cwnd);
        let known = std::mem::replace(&mut sender.snd_nxt, snd_nxt);
        // `reduced_until` is SND.NXT at the reduction of ssthresh, if this step has reduced
        // ssthresh. The value excludes the bytes of this step, which may have been sent after the
        // reduction. On the local path and on mux ports, the number of these bytes is unknown, so
        // the value is SND.NXT of the previous check.
        let reduced_until = match info.link {
            LOCAL_PATH | MUX_LINK => known.min(snd_nxt),
            _ => snd_nxt
                .saturating_sub(u64::from(sent))
                .max(info.bytes_acked),
        };
        // An undo of a reduction restores the ssthresh before the reduction. If ssthresh has risen
        // since the reduction, the undo lowers ssthresh.
        let restored = info.ssthresh != before && info.cwnd > cwnd_before;

        if info.ssthresh >= before {
            check_in_flight(info, sent)?;
        }
        let timed_out = info.ca_state == CaState::Loss || info.timeouts > 0;
        sender.acked = info.bytes_acked;
        // The rule ignores a reduction of ssthresh to a value of cwnd or more, because such a
        // reduction only ends slow start (RFC 9438 §4.10).
        if info.ssthresh > before || restored {
            sender.lowered_at = None;
        } else if info.ssthresh < before && info.ssthresh < cwnd_before {
            let signals = figures.spurious_signals();
            // FlightSize counts a SYN or FIN, but `bytes_acked` counts only payload. The added 1
            // makes up for the difference.
            let early = sender
                .lowered_at
                .filter(|(at, _)| info.bytes_acked + 1 < *at);
            sender.lowered_at = Some((reduced_until, signals));
            // The earlier reduction does not count after a timeout. The earlier reduction does not
            // count either if a spurious retransmission was signalled since, because the signal may
            // have undone the reduction.
            let early = early.filter(|(_, then)| !timed_out && *then == signals);
            if let Some((at, _)) = early {
                let text = format!(
                    "lowered again {} bytes before the end of the round trip",
                    at - info.bytes_acked
                );
                return Err(("cwnd is lowered once per round trip", text));
            }
        }
        Ok(())
    }
}

/// Checks that FlightSize without SACKed bytes exceeds cwnd by at most [`ABOVE_CWND_MAX`] segments
/// (RFC 5681 §3.1). The check applies to a sender in the state Open or Disorder that has sent more
/// than [`PROBES_MAX`] segments in this step. The caller skips the check for a step that has
/// reduced ssthresh, because the segments may have been sent before the reduction.
fn check_in_flight(info: &FlowInfo, sent: u32) -> Result<(), (&'static str, String)> {
    let not_reducing = matches!(info.ca_state, CaState::Open | CaState::Disorder);
    let in_flight = info.flight_size.saturating_sub(info.sacked);
    let allowed = info.cwnd.saturating_add(ABOVE_CWND_MAX * info.mss);
    if sent > PROBES_MAX * info.mss && not_reducing && in_flight > allowed {
        let text = format!("{in_flight} bytes in flight, cwnd {}", info.cwnd);
        return Err(("no more is in flight than cwnd allows", text));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
