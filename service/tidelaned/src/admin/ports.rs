//! The list of mux ports for the admin socket: their programs, claims and counters. A mux port
//! connects a program with a TCP/IP stack of its own to the NIC. A claim of a mux port is a 3-tuple
//! (protocol, local address, local port) whose packets go to the mux port. Each core (polling
//! thread of the service) has counters of its own, and the list shows the sums over the cores.

use serde_json::{Map, Value, json};
use tidelane_host::Host;
use tidelane_mux::{PortCounters, SendRefusal};
use tidelane_wire::protocol;

use crate::{
    core_link::NicPort,
    port_book::Claimed,
    service_state::ServiceState,
    session::{OpenPort, Session},
};

/// Returns all mux ports, in the order of their numbers.
pub(super) fn list<P: NicPort>(shared: &ServiceState<P>, sessions: &[&Session]) -> Value {
    let opened = |session: &&'_ Session| session.port.is_some();
    let mut sessions: Vec<&Session> = sessions.iter().copied().filter(opened).collect();
    sessions.sort_by_key(|session| session.port.as_ref().map(OpenPort::id));
    let ids: Vec<_> = sessions
        .iter()
        .filter_map(|s| s.port.as_ref())
        .map(OpenPort::id)
        .collect();
    let cores = shared.cores.call_each(|_| {
        let ids = ids.clone();
        move |host: &mut Host<P>, _| {
            let ports = host.mux_ports_mut();
            let counters = |id| ports.port_counters(id).cloned().unwrap_or_default();
            ids.into_iter().map(counters).collect::<Vec<PortCounters>>()
        }
    });
    let Some(cores) = cores else {
        return json!({"error": "a core (polling thread) does not answer"});
    };
    let mut sums = vec![PortCounters::default(); ids.len()];
    for counters in cores {
        for (sum, counters) in sums.iter_mut().zip(counters) {
            add(sum, &counters);
        }
    }
    let shown = sessions.iter().zip(&sums);
    let shown = shown.filter_map(|(session, counters)| {
        let port = session.port.as_ref()?;
        Some(port_to_json(
            shared.ports.claims(port.id()),
            session,
            port,
            counters,
        ))
    });
    json!({"ports": shown.collect::<Vec<Value>>()})
}

/// Adds the counters of one core to `sum`.
fn add(sum: &mut PortCounters, counters: &PortCounters) {
    sum.received += counters.received;
    sum.sent += counters.sent;
    sum.gso_frames += counters.gso_frames;
    sum.overruns += counters.overruns;
    sum.lost += counters.lost;
    sum.delays += counters.delays;
    for (reason, count) in &counters.refused {
        *sum.refused.entry(*reason).or_default() += count;
    }
}

fn port_to_json(
    claims: &[Claimed],
    session: &Session,
    port: &OpenPort,
    counters: &PortCounters,
) -> Value {
    let refused: Map<String, Value> = counters
        .refused
        .iter()
        .map(|(reason, count)| (reason_name(*reason).to_owned(), (*count).into()))
        .collect();
    json!({
        "number": port.id().0,
        "program": session.name,
        "pid": session.peer.pid_number(),
        "uid": session.user().id().0,
        "ring_len": port.ring_len(),
        "claims": claims.iter().map(claim_text).collect::<Vec<String>>(),
        "received": counters.received,
        "sent": counters.sent,
        "gso_frames": counters.gso_frames,
        "overruns": counters.overruns,
        "lost": counters.lost,
        "delays": counters.delays,
        "refused": refused,
    })
}

/// Returns the protocol and the local endpoint of a claim.
fn claim_text(claimed: &Claimed) -> String {
    let protocol = match claimed.tuple.protocol {
        protocol::TCP => "tcp",
        _ => "udp",
    };
    format!("{protocol} {}", claimed.tuple.local)
}

/// Returns the name of the reason why the mux does not send a packet of a mux port.
fn reason_name(reason: SendRefusal) -> &'static str {
    match reason {
        SendRefusal::Malformed(reason) => reason.name(),
        SendRefusal::SourceMac => "source_mac",
        SendRefusal::SourceAddress => "source_address",
        SendRefusal::SourcePort => "source_port",
        SendRefusal::Destination => "destination",
        SendRefusal::Segmentation => "segmentation",
        SendRefusal::Rule => "rule",
        SendRefusal::TooLong => "too_long",
    }
}
