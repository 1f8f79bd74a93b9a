//! The admin socket: one line of JSON there, one line back.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use serde_json::{Value, json};
use tidelane_abi::not_accelerated;
use tidelane_host::{SocketReport, SocketState};

use crate::{control::Shared, session::Session};

/// How long a client may take to ask and to read its answer.
const CLIENT_MAX: Duration = Duration::from_millis(500);
/// Longest request line.
const REQUEST_MAX: u64 = 4096;

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The service shall end.
    Down,
    /// Anything else.
    Other,
}

/// Answers one client.
pub fn serve(stream: UnixStream, shared: &Shared, sessions: &[&Session]) -> io::Result<Asked> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(CLIENT_MAX))?;
    stream.set_write_timeout(Some(CLIENT_MAX))?;
    let mut line = String::new();
    if BufReader::new((&stream).take(REQUEST_MAX)).read_line(&mut line)? == 0 {
        return Ok(Asked::Other);
    }
    let request: Value = serde_json::from_str(&line).unwrap_or_default();
    let (asked, answer) = match request["op"].as_str() {
        Some("status") => (Asked::Other, status(shared, sessions)),
        Some("ss") => (Asked::Other, sockets(shared, sessions)),
        Some("stat") => (Asked::Other, counters(shared)),
        Some("down") => (Asked::Down, json!({"ok": true})),
        _ => (Asked::Other, json!({"error": "unknown request"})),
    };
    let mut stream = &stream;
    stream.write_all(format!("{answer}\n").as_bytes())?;
    Ok(asked)
}

fn status(shared: &Shared, sessions: &[&Session]) -> Value {
    let Some(cores) = shared.cores.call_each(|_| |host, _| host.usage()) else {
        return json!({"error": "the fast path does not answer"});
    };
    // Every core knows every program.
    let programs = cores.iter().map(|(programs, ..)| *programs).max();
    let flows: usize = cores.iter().map(|(_, flows, _)| *flows).sum();
    let rx_bytes: u64 = cores.iter().map(|(.., bytes)| *bytes).sum();
    json!({
        "pid": std::process::id(),
        "sessions": sessions.len(),
        "programs": programs,
        "connections": flows,
        "receive_buffer_bytes": rx_bytes,
        "cores": shared.cores.len(),
        "boosts": shared.cores.boosts(),
    })
}

fn counters(shared: &Shared) -> Value {
    let Some(cores) = shared.cores.call_each(|_| |host, _| host.counters()) else {
        return json!({"error": "the fast path does not answer"});
    };
    let mut sums = BTreeMap::<String, u64>::new();
    for (name, value) in cores.into_iter().flatten() {
        *sums.entry(name).or_default() += value;
    }
    let mut all: serde_json::Map<String, Value> = sums
        .into_iter()
        .map(|(name, value)| (name, value.into()))
        .collect();
    if let Ok(demux) = shared.claims.demux().counters() {
        all.insert("demux_passed".to_owned(), demux.passed().into());
    }
    all.insert("core_boosts".to_owned(), shared.cores.boosts().into());
    json!({"counters": all})
}

fn sockets(shared: &Shared, sessions: &[&Session]) -> Value {
    let Some(cores) = shared.cores.call_each(|_| |host, _| host.sockets()) else {
        return json!({"error": "the fast path does not answer"});
    };
    let reports = joined(cores.into_iter().flatten());
    let mut sockets: Vec<Value> = reports.iter().map(accelerated).collect();
    for session in sessions {
        sockets.extend(kernel_sockets(session));
    }
    json!({"sockets": sockets})
}

/// Listeners are on all cores: one line for each.
fn joined(reports: impl Iterator<Item = SocketReport>) -> Vec<SocketReport> {
    let mut joined: Vec<SocketReport> = Vec::new();
    for report in reports {
        let same = |other: &&mut SocketReport| {
            other.state == SocketState::Listen && other.listener == report.listener
        };
        match joined.iter_mut().find(same) {
            Some(known) if report.state == SocketState::Listen => known.recv_q += report.recv_q,
            _ => joined.push(report),
        }
    }
    joined
}

fn accelerated(report: &SocketReport) -> Value {
    let state = match &report.state {
        SocketState::Listen => "LISTEN",
        SocketState::Connection(state) => state,
    };
    let (program, pid) = report.programs.first().cloned().unwrap_or_default();
    let info = report.info.as_ref().map(|info| {
        json!({
            "congestion": info.congestion,
            "ecn": info.ecn,
            "cwnd": info.cwnd / info.mss.max(1),
            "ssthresh": (info.ssthresh != u32::MAX).then(|| info.ssthresh / info.mss.max(1)),
            "rtt_us": info.srtt.0 / 1000,
            "rttvar_us": info.rttvar.0 / 1000,
            "rto_ms": info.rto.0 / 1_000_000,
            "mss": info.mss,
            "bytes_acked": info.bytes_acked,
            "bytes_received": info.bytes_received,
            "retrans": info.retrans,
        })
    });
    let peer = match report.state {
        SocketState::Listen => "0.0.0.0:*".to_owned(),
        SocketState::Connection(_) => report.peer.to_string(),
    };
    json!({
        "state": state,
        "recv_q": report.recv_q,
        "send_q": report.send_q,
        "local": report.local.to_string(),
        "peer": peer,
        "program": program,
        "pid": pid,
        "accelerated": true,
        "reason": "",
        "info": info,
    })
}

/// The sockets of a program that stayed with the kernel, as far as they still exist.
fn kernel_sockets(session: &Session) -> Vec<Value> {
    let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", session.pid));
    let table = table.unwrap_or_default();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect())
        .collect();
    let describe = |(inode, reason): &(u64, u32)| {
        let row = rows
            .iter()
            .find(|row| row.get(9).is_some_and(|i| *i == inode.to_string()))?;
        let (send_q, recv_q) = row.get(4)?.split_once(':')?;
        Some(json!({
            "state": kernel_state(row.get(3)?),
            "recv_q": u32::from_str_radix(recv_q, 16).ok()?,
            "send_q": u32::from_str_radix(send_q, 16).ok()?,
            "local": kernel_address(row.get(1)?)?,
            "peer": kernel_address(row.get(2)?)?,
            "program": session.name,
            "pid": session.pid,
            "accelerated": false,
            "reason": reason_text(*reason),
            "info": null,
        }))
    };
    session.notes.iter().filter_map(describe).collect()
}

/// `/proc/net/tcp` has addresses as the hexadecimal of a native word.
fn kernel_address(text: &str) -> Option<String> {
    let (addr, port) = text.split_once(':')?;
    let addr = u32::from_str_radix(addr, 16).ok()?.to_ne_bytes();
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(format!("{}:{port}", std::net::Ipv4Addr::from(addr)))
}

fn kernel_state(code: &str) -> &'static str {
    match code {
        "01" => "ESTABLISHED",
        "02" => "SYN-SENT",
        "03" => "SYN-RECEIVED",
        "04" => "FIN-WAIT-1",
        "05" => "FIN-WAIT-2",
        "06" => "TIME-WAIT",
        "07" => "CLOSED",
        "08" => "CLOSE-WAIT",
        "09" => "LAST-ACK",
        "0A" => "LISTEN",
        "0B" => "CLOSING",
        _ => "UNKNOWN",
    }
}

fn reason_text(reason: u32) -> &'static str {
    match reason {
        not_accelerated::UNCONNECTED => "not connected",
        not_accelerated::ROUTE => "route: destination is not behind the interface",
        not_accelerated::LOCAL_ADDRESS => "bound to an address of another interface",
        not_accelerated::KERNEL_PEER => "connection came over the kernel",
        not_accelerated::OPTION => "an option that is not implemented",
        not_accelerated::LIMIT => "a limit of the service",
        not_accelerated::FORKED => "inherited over fork",
        not_accelerated::SERVICE_GONE => "the service is gone",
        _ => "unknown",
    }
}
