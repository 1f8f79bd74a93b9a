//! The admin socket of the Tidelane service: a client, such as the command `tidelane ss`, sends one
//! line of JSON as a request, and gets one line of JSON as the answer. After the answer to a
//! request about a capture, bytes of the capture file may follow. The control thread serves the
//! socket.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tidelane_abi::not_accelerated;
use tidelane_host::{
    SocketReport, SocketState,
    accounts::{Line, Resource, User, UserId},
};

use crate::{
    confine::Confinement,
    core_link::NicPort,
    kernel_sockets::{ProcNetSocket, SocketTables, tables_of_process},
    rules,
    service_state::ServiceState,
    session::Session,
};

mod ports;

/// Longest time for which the service waits for a request, and for which one write of an answer
/// waits for the client.
const CLIENT_MAX: Duration = Duration::from_millis(500);
/// Length in bytes of the longest request line.
const REQUEST_LEN_MAX: usize = 4096;

/// A request of an administrator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminRequest {
    /// The service has to end. The request is already answered.
    Down,
    /// The service has to read its configuration again. The caller sends the result by [`answer`].
    Reload,
    /// A request about captures of frames, which
    /// [`Captures::handle`](crate::captures::Captures::handle) handles. The caller sends the
    /// answer.
    Capture(Value),
    /// The request is already answered, or the client has sent no request. The caller has nothing
    /// to do.
    Other,
}

/// Reads the request of one client, and answers the request unless it is a reload or a capture.
/// Returns the request that the caller has to carry out. `firewall` describes the host's firewall
/// rules, which connections of the service bypass.
pub fn serve<P: NicPort>(
    stream: &UnixStream,
    shared: &ServiceState<P>,
    sessions: &[&Session],
    firewall: Value,
) -> io::Result<AdminRequest> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(CLIENT_MAX))?;
    let line = read_request(stream, CLIENT_MAX)?;
    if line.is_empty() {
        return Ok(AdminRequest::Other);
    }
    let request: Value = serde_json::from_slice(&line).unwrap_or_default();
    let (asked, mut shown) = match request["op"].as_str() {
        Some("status") => (AdminRequest::Other, status(shared, sessions)),
        Some("ss") => (AdminRequest::Other, sockets(shared, sessions)),
        Some("stat") => (AdminRequest::Other, counters(shared)),
        Some("ports") => (AdminRequest::Other, ports::list(shared, sessions)),
        Some("users") => (AdminRequest::Other, users(shared)),
        Some("rules") => {
            let rules = rules::hits(&shared.cores, &shared.rules);
            (AdminRequest::Other, json!({ "rules": rules }))
        }
        Some("capture") => return Ok(AdminRequest::Capture(request)),
        Some("reload") => return Ok(AdminRequest::Reload),
        Some("down") => (AdminRequest::Down, json!({"ok": true})),
        _ => (AdminRequest::Other, json!({"error": "unknown request"})),
    };
    if asked == AdminRequest::Other && shown.get("error").is_none() {
        shown["firewall"] = firewall;
    }
    answer(stream, &shown)?;
    Ok(asked)
}

/// Reads bytes up to the end of a line, to the end of the stream, or to [`REQUEST_LEN_MAX`] bytes.
///
/// # Errors
///
/// `TimedOut` or `WouldBlock` if the line is not complete after `limit`, even if the client sends
/// byte by byte.
fn read_request(mut stream: &UnixStream, limit: Duration) -> io::Result<Vec<u8>> {
    let end = Instant::now() + limit;
    let mut line = vec![0; REQUEST_LEN_MAX];
    let mut len = 0;
    while len < REQUEST_LEN_MAX {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let count = match stream.read(&mut line[len..]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        let new = &line[len..len + count];
        let end_of_line = new.iter().position(|byte| *byte == b'\n');
        len += end_of_line.map_or(count, |at| at + 1);
        if count == 0 || end_of_line.is_some() {
            break;
        }
    }
    line.truncate(len);
    Ok(line)
}

/// Sends an answer, in one line.
pub fn answer(mut stream: &UnixStream, answer: &Value) -> io::Result<()> {
    stream.write_all(format!("{answer}\n").as_bytes())
}

fn status<P: NicPort>(shared: &ServiceState<P>, sessions: &[&Session]) -> Value {
    let Some(cores) = shared.cores.call_each(|_| |host, _| host.usage()) else {
        return json!({"error": "a core (polling thread) does not answer"});
    };
    // Every core has every program, so the cores' numbers must not be added.
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
        "confinement": shared.confinement.as_ref().map(Confinement::to_json),
    })
}

fn counters<P: NicPort>(shared: &ServiceState<P>) -> Value {
    let Some(cores) = shared.cores.call_each(|_| |host, _| host.counters()) else {
        return json!({"error": "a core (polling thread) does not answer"});
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
        all.insert("demux_no_heartbeat".to_owned(), demux.no_heartbeat.into());
        all.insert("demux_kernel_socket".to_owned(), demux.kernel_socket.into());
    }
    all.insert("claims".to_owned(), shared.claims.count().into());
    all.insert("core_boosts".to_owned(), shared.cores.boosts().into());
    json!({
        "counters": all,
        "missing_features": shared.missing_features,
        "rules": rules::hits(&shared.cores, &shared.rules),
    })
}

/// Returns each user's usage, limit and number of refusals, for each resource.
fn users<P: NicPort>(shared: &ServiceState<P>) -> Value {
    let line = |line: Line| {
        let limit = (line.limit != u64::MAX).then_some(line.limit);
        let shown = json!({"used": line.used, "limit": limit, "refused": line.refused});
        (line.resource.name().to_owned(), shown)
    };
    let user = |user: &User| {
        let lines: serde_json::Map<String, Value> = user.lines().map(line).collect();
        json!({"uid": user.id().0, "resources": lines})
    };
    let all: Vec<Value> = shared.accounts.users().map(user).collect();
    json!({"users": all})
}

fn sockets<P: NicPort>(shared: &ServiceState<P>, sessions: &[&Session]) -> Value {
    let Some(cores) = shared.cores.call_each(|_| |host, _| host.sockets()) else {
        return json!({"error": "a core (polling thread) does not answer"});
    };
    let reports = joined(cores.into_iter().flatten());
    let mut sockets: Vec<Value> = reports.iter().map(accelerated).collect();
    let mut tables = SocketTables::new(shared.access.own_namespace(), tables_of_process);
    let not_accelerated = sessions.iter().flat_map(|session| &session.not_accelerated);
    let mut listed: HashSet<u64> = not_accelerated.map(|(inode, _)| *inode).collect();
    for session in sessions {
        sockets.extend(kernel_sockets(session, &mut tables, &mut listed));
    }
    json!({"sockets": sockets})
}

/// Merges the reports of a listener from all cores (polling threads), because each core has every
/// listener. The receive queue of the result is the sum over the cores.
fn joined(reports: impl Iterator<Item = SocketReport>) -> Vec<SocketReport> {
    let mut joined: Vec<SocketReport> = Vec::new();
    let mut listeners: HashMap<u32, usize> = HashMap::new();
    for report in reports {
        if let Some(number) = report.listener {
            if let Some(known) = listeners.get(&number) {
                joined[*known].recv_q += report.recv_q;
                continue;
            }
            listeners.insert(number, joined.len());
        }
        joined.push(report);
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
        SocketState::Listen if report.local.addr.is_v4() => "0.0.0.0:*".to_owned(),
        SocketState::Listen => "[::]:*".to_owned(),
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

/// Returns the program's sockets that are not accelerated (sockets that the kernel's stack serves)
/// and that still exist.
///
/// The program reports its sockets that are not accelerated, each with its inode and the reason. If
/// a listener is not accelerated, the program does not report the listener's connections. The list
/// shows these connections with the reason of their listener. `listed` contains the inodes that
/// have a report or are already listed.
fn kernel_sockets<R: FnMut(u32) -> String>(
    session: &Session,
    tables: &mut SocketTables<R>,
    listed: &mut HashSet<u64>,
) -> Vec<Value> {
    let (namespace, pid) = (session.peer.namespace, session.peer.pid_number());
    let mut shown = Vec::new();
    for (inode, reason) in &session.not_accelerated {
        let Some(socket) = tables.find(namespace, pid, *inode).cloned() else {
            continue;
        };
        if socket.is_listener() && *reason != not_accelerated::KERNEL_PEER {
            for (inode, connection) in tables.connections_of(namespace, &socket) {
                if listed.insert(inode) {
                    shown.push(on_kernel(session, &connection, *reason));
                }
            }
        }
        shown.push(on_kernel(session, &socket, *reason));
    }
    shown
}

fn on_kernel(session: &Session, socket: &ProcNetSocket, reason: u32) -> Value {
    json!({
        "state": socket.state,
        "recv_q": socket.recv_q,
        "send_q": socket.send_q,
        "local": socket.local,
        "peer": socket.peer,
        "program": session.name,
        "pid": session.peer.pid_number(),
        "accelerated": false,
        "reason": reason_text(reason, session.user()),
        "info": null,
    })
}

fn reason_text(reason: u32, user: &User) -> String {
    if let Some(resource) = Resource::from_code(reason >> not_accelerated::REASON_BITS) {
        let (UserId(uid), limit) = (user.id(), user.limit(resource));
        return match limit {
            u64::MAX => format!(
                "limit: {} of user {uid} (capacity of the service)",
                resource.name()
            ),
            limit => format!("limit: {} of user {uid} ({limit})", resource.name()),
        };
    }
    let text = match not_accelerated::kind(reason) {
        not_accelerated::NAMESPACE => "its network namespace is not admitted ([access])",
        not_accelerated::USER => "its user is not admitted ([access])",
        not_accelerated::CGROUP => "its cgroup has BPF programs that would be bypassed",
        not_accelerated::UNCONNECTED => "not connected",
        not_accelerated::ROUTE => "route: destination is not behind the interface",
        not_accelerated::LOCAL_ADDRESS => "bound to an address of another interface",
        not_accelerated::KERNEL_PEER => "connection came over the kernel",
        not_accelerated::OPTION => "an option that is not implemented",
        not_accelerated::LIMIT => "a limit of the service",
        not_accelerated::FORKED => "inherited over fork",
        not_accelerated::SERVICE_GONE => "the service is gone",
        not_accelerated::CHOSEN => "left to the kernel by an option of tidelane run",
        not_accelerated::PASSED_ON => {
            "its program hands connections to other programs (exec, message)"
        }
        not_accelerated::FORKS => "its program forks for each connection",
        _ => "unknown",
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use super::*;

    #[test]
    fn a_request_ends_with_its_line_or_with_the_stream() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"{}\n").unwrap();
        assert_eq!(read_request(&ours, CLIENT_MAX).unwrap(), b"{}\n");
        theirs.write_all(b"{}\nrest").unwrap();
        assert_eq!(read_request(&ours, CLIENT_MAX).unwrap(), b"{}\n");
        theirs.write_all(b"{").unwrap();
        drop(theirs);
        assert_eq!(read_request(&ours, CLIENT_MAX).unwrap(), b"{");
        assert_eq!(read_request(&ours, CLIENT_MAX).unwrap(), b"");
    }

    #[test]
    fn a_client_that_sends_byte_by_byte_does_not_hold_the_service_up() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let refused = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                // Each byte arrives within the time limit that a single read would have.
                while !refused.load(Ordering::Relaxed) {
                    theirs.write_all(b"x").unwrap();
                    thread::sleep(Duration::from_millis(5));
                }
            });
            let read = read_request(&ours, Duration::from_millis(100));
            refused.store(true, Ordering::Relaxed);
            let error = read.expect_err("the line does not end");
            assert!(matches!(
                error.kind(),
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
            ));
        });
    }

    #[test]
    fn a_request_has_a_limited_length() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&[b'x'; 2 * REQUEST_LEN_MAX]).unwrap();
        let request = read_request(&ours, CLIENT_MAX).unwrap();
        assert_eq!(request.len(), REQUEST_LEN_MAX);
    }
}
