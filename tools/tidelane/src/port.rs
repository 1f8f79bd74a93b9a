//! `tidelane port`: shows the mux ports of programs with a network stack of their own.
//!
//! A mux port is not a TCP port. A mux port consists of pairs of packet rings, one pair for each
//! core (polling thread) of the service (`tidelaned`). The program shares the NIC through these
//! rings. The program claims 3-tuples (protocol, local address, local port), and the service passes
//! the packets of these 3-tuples to the program's mux port.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use serde::Deserialize;

use crate::{admin::ServiceName, failure::Failure};

/// Options of `port`.
#[derive(Args, Debug)]
pub struct Options {
    #[command(subcommand)]
    verb: Verb,
}

/// The subcommands of `tidelane port`.
#[derive(Subcommand, Debug)]
enum Verb {
    /// Show the mux ports, their programs and their claims
    List(List),
    /// Show the packet counters of each mux port
    Stat(Stat),
}

/// Options of `port list`.
#[derive(Args, Debug)]
struct List {
    #[command(flatten)]
    service: ServiceName,
    /// Print the service's answer unchanged, as JSON
    #[arg(long)]
    json: bool,
}

/// Options of `port stat`.
#[derive(Args, Debug)]
struct Stat {
    /// Show this mux port alone
    number: Option<u32>,
    #[command(flatten)]
    service: ServiceName,
    /// Print the service's answer, as JSON
    #[arg(long)]
    json: bool,
}

/// The service's answer to the request `ports`.
#[derive(Deserialize, Debug)]
struct Answer {
    ports: Vec<Port>,
}

/// A mux port of a program. The counters are sums over all cores of the service.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
struct Port {
    /// Number by which the service identifies the mux port.
    number: u32,
    /// Name of the program.
    program: String,
    /// Process id of the program, or 0 if the service does not know the process.
    pid: u32,
    /// User id of the program.
    uid: u32,
    /// Size of each packet ring in bytes.
    ring_len: u32,
    /// Protocol and local endpoint of each claim.
    claims: Vec<String>,
    /// Number of packets that the mux port has received.
    received: u64,
    /// Number of packets that the mux port has sent. Each segment of a GSO frame counts.
    sent: u64,
    /// Number of GSO frames that the mux port has sent.
    gso_frames: u64,
    /// Number of packets for the mux port that were lost because the port's ring had no room, or
    /// because they were longer than a frame of the ring.
    overruns: u64,
    /// Number of the packets in `sent` that were lost because the NIC or the service's own stack
    /// had no room.
    lost: u64,
    /// Number of times that packets of the mux port waited because of the port's rate limit.
    delays: u64,
    /// Number of packets of the mux port that the service refused to send, by the name of the
    /// reason.
    refused: BTreeMap<String, u64>,
}

/// Prints the mux ports, or their counters.
pub fn port(options: &Options) -> Result<(), Failure> {
    match &options.verb {
        Verb::List(list) => {
            if list.json {
                println!("{}", list.service.ask::<serde_json::Value>("ports")?);
                return Ok(());
            }
            let answer: Answer = list.service.ask("ports")?;
            print!("{}", list_of(&answer.ports));
        }
        Verb::Stat(stat) => {
            let mut value: serde_json::Value = stat.service.ask("ports")?;
            if let Some(number) = stat.number {
                keep_only(&mut value, number)?;
            }
            if stat.json {
                println!("{value}");
                return Ok(());
            }
            let answer: Answer = serde_json::from_value(value)
                .map_err(|error| Failure::new(format!("unexpected answer: {error}")))?;
            print!("{}", counters_of(&answer.ports));
        }
    }
    Ok(())
}

/// Removes all mux ports except port `number` from an answer. Fails if the answer lacks this port.
fn keep_only(answer: &mut serde_json::Value, number: u32) -> Result<(), Failure> {
    let ports = answer["ports"].as_array_mut();
    let ports = ports.ok_or_else(|| Failure::new("unexpected answer: no mux ports"))?;
    ports.retain(|port| port["number"] == number);
    match ports.is_empty() {
        true => Err(Failure::new(format!("there is no mux port {number}"))),
        false => Ok(()),
    }
}

/// Returns the table of `tidelane port list`. The line of a mux port shows its first claim. Each
/// further claim has a line of its own.
fn list_of(ports: &[Port]) -> String {
    let mut text = format!(
        "{:>6}  {:<16} {:>8} {:>10} {:>9}  {}\n",
        "Number", "Program", "Pid", "User", "Ring", "Claims"
    );
    for port in ports {
        let mut claims = port.claims.iter().map(String::as_str);
        let first = claims.next().unwrap_or("-");
        let pid = match port.pid {
            0 => "?".to_owned(),
            pid => pid.to_string(),
        };
        text += &format!(
            "{:>6}  {:<16} {pid:>8} {:>10} {:>9}  {first}\n",
            port.number, port.program, port.uid, port.ring_len
        );
        for claim in claims {
            text += &format!("{:>54}  {claim}\n", "");
        }
    }
    text
}

/// Returns the table of `tidelane port stat`. After the line of a mux port, each reason for which
/// packets were refused has a line of its own.
fn counters_of(ports: &[Port]) -> String {
    let mut text = format!(
        "{:>6} {:>16} {:>16} {:>12} {:>12} {:>12} {:>12} {:>12}\n",
        "Number", "Received", "Sent", "GSO frames", "Overruns", "Lost", "Delays", "Refused"
    );
    for port in ports {
        let refused: u64 = port.refused.values().sum();
        text += &format!(
            "{:>6} {:>16} {:>16} {:>12} {:>12} {:>12} {:>12} {refused:>12}\n",
            port.number,
            port.received,
            port.sent,
            port.gso_frames,
            port.overruns,
            port.lost,
            port.delays
        );
        for (reason, count) in &port.refused {
            text += &format!("{:>92} {count:>12}  {reason}\n", "");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer() -> serde_json::Value {
        json!({"ports": [
            {"number": 0, "program": "http", "pid": 7, "uid": 33, "ring_len": 262_144,
             "claims": ["tcp 10.77.0.1:80", "udp 10.77.0.1:443"], "received": 5, "sent": 6,
             "gso_frames": 8, "overruns": 1, "lost": 2, "delays": 9,
             "refused": {"source_port": 3, "bad_checksum": 4}},
            {"number": 9, "program": "new", "pid": 0, "later": "a field of a newer service"},
        ]})
    }

    fn words(text: &str) -> Vec<Vec<&str>> {
        text.lines()
            .map(|line| line.split_whitespace().collect())
            .collect()
    }

    #[test]
    fn each_claim_and_each_reason_has_a_line() {
        let answer: Answer = serde_json::from_value(answer()).expect("an answer");
        let text = list_of(&answer.ports);
        let lines = words(&text);
        let first = ["0", "http", "7", "33", "262144", "tcp", "10.77.0.1:80"];
        assert_eq!(lines[1], first);
        assert_eq!(lines[2], ["udp", "10.77.0.1:443"]);
        assert_eq!(lines[3], ["9", "new", "?", "0", "0", "-"]);
        let columns: Vec<usize> = text
            .lines()
            .take(3)
            .filter_map(|line| line.find("Claims").or_else(|| line.find("p 10.77")))
            .collect();
        assert_eq!(columns, [columns[0], columns[0] + 2, columns[0] + 2]);
        let text = counters_of(&answer.ports);
        let lines = words(&text);
        assert_eq!(lines[1], ["0", "5", "6", "8", "1", "2", "9", "7"]);
        assert_eq!(lines[2], ["4", "bad_checksum"]);
        assert_eq!(lines[3], ["3", "source_port"]);
        assert_eq!(lines[4], ["9", "0", "0", "0", "0", "0", "0", "0"]);
    }

    #[test]
    fn one_port_is_shown_or_missing() {
        let mut value = answer();
        keep_only(&mut value, 9).expect("port 9 exists");
        assert_eq!(value["ports"].as_array().map(Vec::len), Some(1));
        let missing = keep_only(&mut value, 5).expect_err("no port 5");
        assert_eq!(missing.text, "there is no mux port 5");
    }
}
