//! `tidelane ss`: prints the sockets of the programs that run on the service (`tidelaned`), in a
//! format like that of `ss -tip`, with the further column ACCELERATED.

use std::fmt::Write;

use clap::Args;
use serde::Deserialize;

use crate::{admin::ServiceName, failure::Failure, firewall::Firewall};

/// Options of `ss`.
#[derive(Args, Debug)]
pub struct Options {
    #[command(flatten)]
    service: ServiceName,
    /// Print the service's answer unchanged, as JSON
    #[arg(long)]
    json: bool,
}

/// The service's answer to the request `ss`.
#[derive(Deserialize, Debug)]
struct Answer {
    sockets: Vec<Socket>,
    #[serde(default)]
    firewall: Firewall,
}

/// A socket of a program that runs on the service. The socket is on Tidelane or on the kernel's
/// stack.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
struct Socket {
    /// TCP state in the spelling of RFC 9293.
    state: String,
    /// Number of received bytes that the program has not read. For a listener, the number of
    /// connections in the accept queue.
    recv_q: u64,
    /// Number of bytes that the program has written and the peer has not acknowledged. For an
    /// accelerated listener, the backlog.
    send_q: u64,
    /// Local address and port.
    local: String,
    /// Address and port of the peer; a wildcard for a listener.
    peer: String,
    /// Name of the program.
    program: String,
    /// Process id of the program, or 0 if the service does not know the process.
    pid: u32,
    /// True if the socket is on Tidelane.
    accelerated: bool,
    /// Reason why the socket is not accelerated, or a remark on an accelerated socket.
    reason: String,
    /// TCP variables of an accelerated connection. `None` for a listener, and for a socket that is
    /// not accelerated.
    info: Option<Info>,
}

/// The TCP variables that `ss -i` shows. `cwnd` and `ssthresh` are in segments, and `mss` is in
/// bytes. A variable is `None` if the service's answer lacks the variable.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
struct Info {
    congestion: Option<String>,
    ecn: bool,
    cwnd: Option<u64>,
    ssthresh: Option<u64>,
    rtt_us: Option<u64>,
    rttvar_us: Option<u64>,
    rto_ms: Option<u64>,
    mss: Option<u64>,
    bytes_acked: Option<u64>,
    bytes_received: Option<u64>,
    retrans: Option<u64>,
}

/// Prints a line for each socket. A connection on Tidelane also has a line with its TCP variables.
pub fn ss(options: &Options) -> Result<(), Failure> {
    if options.json {
        println!("{}", options.service.ask::<serde_json::Value>("ss")?);
        return Ok(());
    }
    let mut answer: Answer = options.service.ask("ss")?;
    let rank = |socket: &Socket| (socket.state != "LISTEN", socket.pid);
    answer.sockets.sort_by(|a, b| {
        rank(a)
            .cmp(&rank(b))
            .then_with(|| (&a.local, &a.peer).cmp(&(&b.local, &b.peer)))
    });
    answer.firewall.warn();
    print!("{}", table(&answer.sockets));
    Ok(())
}

/// Headings of the columns.
const HEADINGS: [&str; 7] = [
    "State",
    "Recv-Q",
    "Send-Q",
    "Local Address:Port",
    "Peer Address:Port",
    "Process",
    "ACCELERATED",
];

/// Returns the whole output of `tidelane ss`.
fn table(sockets: &[Socket]) -> String {
    let rows: Vec<[String; 7]> = sockets.iter().map(Socket::columns).collect();
    let mut widths = HEADINGS.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    let mut text = line(&HEADINGS.map(str::to_owned), &widths);
    for (row, socket) in rows.iter().zip(sockets) {
        text += &line(row, &widths);
        if let Some(info) = socket
            .info
            .as_ref()
            .map(Info::text)
            .filter(|info| !info.is_empty())
        {
            let _ = writeln!(text, "\t {info}");
        }
    }
    text
}

/// Returns one line of the table, padded to the widths of the columns.
fn line(cells: &[String; 7], widths: &[usize; 7]) -> String {
    let mut text = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        let _ = write!(text, "{cell:<width$}  ");
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

impl Socket {
    /// Returns the program and its process id in the format of `ss -p`. If the service knows no
    /// program of the socket, the text is empty. If the program is outside of the service's PID
    /// namespace, `?` stands for the process id.
    fn users(&self) -> String {
        if self.program.is_empty() && self.pid == 0 {
            return String::new();
        }
        let pid = match self.pid {
            0 => "?".to_owned(),
            pid => pid.to_string(),
        };
        format!("users:((\"{}\",pid={pid}))", self.program)
    }

    /// Returns the texts of the columns, in the order of [`HEADINGS`].
    fn columns(&self) -> [String; 7] {
        let accelerated = match (self.accelerated, self.reason.as_str()) {
            (true, "") => "yes".to_owned(),
            (true, reason) => format!("yes ({reason})"),
            (false, "") => "no: no reason given".to_owned(),
            (false, reason) => format!("no: {reason}"),
        };
        [
            short_state(&self.state).to_owned(),
            self.recv_q.to_string(),
            self.send_q.to_string(),
            self.local.clone(),
            self.peer.clone(),
            self.users(),
            accelerated,
        ]
    }
}

/// Returns the name that `ss` uses for a TCP state. `state` is in the spelling of RFC 9293.
fn short_state(state: &str) -> &str {
    match state {
        "ESTABLISHED" => "ESTAB",
        "SYN-RECEIVED" => "SYN-RECV",
        "FIN-WAIT-1" => "FIN-WAIT-1",
        "CLOSED" => "UNCONN",
        other => other,
    }
}

impl Info {
    /// Returns the variables in the format of `ss -i`.
    fn text(&self) -> String {
        let mut parts: Vec<String> = Vec::new();
        parts.extend(self.congestion.clone());
        if self.ecn {
            parts.push("ecn".to_owned());
        }
        let mut add = |name: &str, value: Option<String>| {
            parts.extend(value.map(|value| format!("{name}:{value}")));
        };
        let number = |value: Option<u64>| value.map(|value| value.to_string());
        add("rto", number(self.rto_ms));
        let millis = |us: u64| format!("{}.{:03}", us / 1000, us % 1000);
        let rtt = self.rtt_us.map(|rtt| match self.rttvar_us {
            Some(var) => format!("{}/{}", millis(rtt), millis(var)),
            None => millis(rtt),
        });
        add("rtt", rtt);
        add("mss", number(self.mss));
        add("cwnd", number(self.cwnd));
        add("ssthresh", number(self.ssthresh));
        add("bytes_acked", number(self.bytes_acked));
        add("bytes_received", number(self.bytes_received));
        add("retrans", number(self.retrans.filter(|count| *count > 0)));
        parts.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of a service. The answer contains the field `later`, which this command does not
    /// know, because a newer service may send further fields.
    const ANSWER: &str = r#"{"sockets":[
        {"state":"LISTEN","recv_q":0,"send_q":511,"local":"0.0.0.0:80","peer":"0.0.0.0:*",
         "program":"nginx","pid":123,"accelerated":true,"reason":"","info":null},
        {"state":"ESTABLISHED","recv_q":0,"send_q":10,"local":"10.0.0.1:80",
         "peer":"10.0.0.2:4242","program":"nginx","pid":123,"accelerated":true,"reason":"",
         "info":{"cwnd":10,"ssthresh":null,"rtt_us":1234,"rttvar_us":56,"rto_ms":200,"mss":1448,
                 "bytes_acked":5,"bytes_received":6,"retrans":0},"later":1},
        {"state":"ESTABLISHED","local":"127.0.0.1:80","peer":"127.0.0.1:9","program":"nginx",
         "pid":123,"accelerated":false,"reason":"loopback is the kernel's"}]}"#;

    #[test]
    fn the_table_looks_like_ss() {
        let answer: Answer = serde_json::from_str(ANSWER).expect("the service's answer");
        let text = table(&answer.sockets);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("State   Recv-Q  Send-Q  Local Address:Port"));
        assert!(lines[1].starts_with("LISTEN  0       511     0.0.0.0:80"));
        assert!(lines[1].ends_with("users:((\"nginx\",pid=123))  yes"));
        assert!(lines[2].starts_with("ESTAB   0       10      10.0.0.1:80"));
        let info = "\t rto:200 rtt:1.234/0.056 mss:1448 cwnd:10 bytes_acked:5 bytes_received:6";
        assert_eq!(lines[3], info);
        assert!(lines[4].ends_with("no: loopback is the kernel's"));
        assert_eq!(lines.len(), 5);
    }
}
