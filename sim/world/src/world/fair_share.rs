//! Compares a run that has hostile programs on mux ports with the same run without these programs.
//! A mux port is a pair of packet rings through which a program with a TCP/IP stack of its own
//! shares the NIC.
//!
//! Each hostile program gets the share of one mux port. With `n` hostile programs, a connection may
//! therefore last `n + 1` times its duration in the run without them, plus some slack.

use tidelane_time::{Duration, Instant};

use crate::{
    ledger::{Entry, Violation, violation},
    scenario::Scenario,
};

/// Time by which a connection may exceed `n + 1` times its duration. Delayed ACKs and the order in
/// which the mux serves its mux ports depend on chance. The slack is shorter than the minimum RTO.
const SLACK: Duration = Duration::from_millis(150);

/// Start and end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Planned time of the active open.
    pub start: Instant,
    /// Time of the last progress of either end.
    pub end: Instant,
}

/// Spans of the compared connections, by number. `None` for other connections.
pub type Spans = Vec<Option<Span>>;

/// Returns the spans of the complete connections that share the mux or its NIC with hostile
/// programs.
pub fn spans(scenario: &Scenario, entries: &[Entry]) -> Spans {
    let shares = |entry: &Entry| {
        let ports = scenario.ports.as_ref()?;
        let server = scenario.listeners[entry.plan.listener].programs[0];
        let ends = [entry.plan.client, server];
        let has_port = ends.iter().any(|end| ports.index_of(*end).is_some());
        let hosts = ends.map(|end| scenario.programs[end].host);
        let uses_nic = hosts[0] != hosts[1] && hosts.contains(&ports.host);
        Some(has_port || uses_nic)
    };
    let span = |entry: &Entry| {
        let is_compared = entry.is_complete() && shares(entry) == Some(true);
        is_compared.then_some(Span {
            start: entry.plan.start,
            end: entry.last_progress,
        })
    };
    entries.iter().map(span).collect()
}

/// Checks that no connection lasts longer than its fair share permits. `spans` belongs to the run
/// with `hostile` hostile programs, and `alone` to the run without them. Compares the connections
/// that have a span in both runs, and returns their number.
pub fn check(
    spans: &[Option<Span>],
    alone: &[Option<Span>],
    hostile: usize,
) -> Result<u64, Violation> {
    let mut compared = 0;
    for (id, both) in spans.iter().zip(alone).enumerate() {
        let (Some(span), Some(alone)) = both else {
            continue;
        };
        let (lasts, alone) = (span.end - span.start, alone.end - alone.start);
        let most = Duration(alone.0 * (hostile as u64 + 1)) + SLACK;
        if lasts > most {
            let text = format!("connection {id} lasts {lasts:?}, and alone {alone:?}");
            let rule = "a hostile port takes no more than its share";
            return Err(violation(span.end, rule, text));
        }
        compared += 1;
    }
    Ok(compared)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lasting(ms: u64) -> Option<Span> {
        let start = Instant::from_secs(3);
        let end = start + Duration::from_millis(ms);
        Some(Span { start, end })
    }

    #[test]
    fn a_connection_may_last_its_share_and_no_longer() {
        let alone = [lasting(100), None, lasting(1)];
        let spans = [lasting(450), lasting(9000), lasting(1)];
        assert_eq!(check(&spans, &alone, 2), Ok(2));
        let rule = check(&spans, &alone, 1).expect_err("too long").rule;
        assert_eq!(rule, "a hostile port takes no more than its share");
        // The minimum RTO (200 ms) is longer than the slack, so a timeout of a short connection
        // breaks the rule.
        assert!(check(&[lasting(201)], &[lasting(1)], 4).is_err());
    }
}
