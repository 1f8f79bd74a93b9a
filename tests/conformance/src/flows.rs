//! The connections of a run of a script, and the translation between the numbers in the script and
//! the numbers in packets.
//!
//! The script chooses the sequence numbers of the remote host, but cannot know the ISS and
//! timestamps of the stack under test. The script therefore counts the stack's sequence numbers
//! from the ISS, and has its own number for each of the stack's timestamps. Only these numbers are
//! translated. The payload of a stream is a function of the stream position, so that every byte in
//! both directions is checked.

use std::collections::HashMap;

use crate::{
    ast::{EcnSpec, IcmpSpec, TcpOption, TcpSpec},
    calls::{CONNECT_PORT, Fd, LISTEN_PORT},
    ip::Version,
    wire::{ACK, PUSH, Packet, SYN, URG, icmp_error},
};

/// Remote port of a connection to the listener if the script names no port.
const REMOTE_PORT: u16 = 40_000;
/// Period of the payload pattern in bytes.
const PATTERN_LEN: u32 = 251;

/// One connection of the script.
#[derive(Clone, Debug, Default)]
struct Flow {
    /// Initial send sequence number of the stack. `None` before the stack's SYN.
    iss: Option<u32>,
    /// Initial sequence number of the remote host. `None` before the remote host's SYN.
    irs: Option<u32>,
    /// True after the remote host has sent a second SYN, with another sequence number than the
    /// first, until the stack sends its SYN.
    reopened: bool,
    /// Timestamps that the stack has sent: the script's number, and the TSval on the wire.
    timestamps: Vec<(u32, u32)>,
}

/// The stack's port, and the remote host's port.
type Ports = (u16, u16);

/// The connections of a run.
#[derive(Debug, Default)]
pub struct Flows {
    version: Version,
    flows: HashMap<Ports, Flow>,
    /// The current connection: the connection of packets for which the script names no ports.
    current: Option<Ports>,
    /// True if PSH of sent segments is not compared.
    push_ignored: bool,
    /// Numbers of bytes that the program has read and written, by descriptor.
    positions: HashMap<Fd, (u32, u32)>,
    /// Stream positions of the urgent bytes that the script has announced.
    urgent_positions: Vec<u32>,
}

/// Returns `len` bytes of a stream's payload from the stream position `from` on.
fn pattern(from: u32, len: usize) -> Vec<u8> {
    let byte = |at: u32| (from.wrapping_add(at) % PATTERN_LEN) as u8;
    (0..len as u32).map(byte).collect()
}

impl Flows {
    /// Returns the connections of a new run over `version`.
    pub fn new(version: Version) -> Self {
        Self {
            version,
            ..Self::default()
        }
    }

    /// Makes [`Self::check_outbound`] ignore PSH. Only the last segment of a write must have PSH
    /// (RFC 9293 §3.9.1), and stacks differ in the other segments.
    pub fn ignore_push(&mut self) {
        self.push_ignored = true;
    }

    /// Returns the next `len` bytes that the program writes to `fd`.
    pub fn pattern(&self, fd: Fd, len: usize) -> Vec<u8> {
        let (_, written) = self.positions.get(&fd).copied().unwrap_or_default();
        pattern(written, len)
    }

    /// Handles a finished transfer of `count` bytes on `fd`. Checks `bytes`, the data that the
    /// program has read. If `bytes` is empty, the transfer was a write, or a read at the end of the
    /// stream.
    pub fn on_transfer(&mut self, fd: Fd, count: i64, bytes: &[u8]) -> Result<(), String> {
        let (read, written) = self.positions.entry(fd).or_default();
        if bytes.is_empty() {
            *written = written.wrapping_add(count as u32);
            return Ok(());
        }
        // Without SO_OOBINLINE, `recv` skips the urgent byte.
        if bytes != pattern(*read, bytes.len()) && self.urgent_positions.contains(read) {
            *read = read.wrapping_add(1);
        }
        if bytes != pattern(*read, bytes.len()) {
            return Err("the bytes are not those that were sent".to_owned());
        }
        *read = read.wrapping_add(bytes.len() as u32);
        Ok(())
    }

    /// Checks `bytes`, the result of a read with MSG_OOB. The result must be empty, or must be the
    /// urgent byte at the highest stream position.
    pub fn check_urgent(&self, bytes: &[u8]) -> Result<(), String> {
        let last = self
            .urgent_positions
            .iter()
            .max()
            .copied()
            .unwrap_or_default();
        if bytes.is_empty() || bytes == pattern(last, 1) {
            return Ok(());
        }
        Err("this is not the last urgent byte".to_owned())
    }

    /// Returns the packet for a segment that the script injects, with the numbers on the wire.
    pub fn inbound(&mut self, spec: &TcpSpec) -> Result<Packet, String> {
        let ports = match spec.ports {
            Some((from, to)) => (to, from),
            None => self.current.unwrap_or((LISTEN_PORT, REMOTE_PORT)),
        };
        let opens = spec.flags & SYN != 0;
        if opens || self.current.is_none() {
            self.current = Some(ports);
        }
        let flow = self.flows.entry(ports).or_default();
        if opens {
            flow.reopened = flow.irs.is_some_and(|irs| irs != spec.seq);
            flow.irs = Some(spec.seq);
        }
        let iss = flow.iss.unwrap_or(0);
        let first = flow.irs.map_or(0, |irs| irs.wrapping_add(1));
        if spec.flags & URG != 0 {
            let before = u32::from(spec.urgent).saturating_sub(1);
            self.urgent_positions
                .push(spec.seq.wrapping_sub(first).wrapping_add(before));
        }
        let translate = |option: &TcpOption| flow.inbound_option(option, iss);
        let options = spec.options.iter().flatten().map(translate);
        Ok(Packet {
            ecn: match spec.ecn {
                Some(EcnSpec::Bits(bits)) => bits,
                _ => 0,
            },
            dont_fragment: true,
            from_port: ports.1,
            to_port: ports.0,
            seq: spec.seq,
            ack: spec.ack.map_or(0, |ack| ack.wrapping_add(iss)),
            flags: spec.flags,
            win: spec.win.unwrap_or(0),
            urgent: spec.urgent,
            options: options.collect::<Result<_, _>>()?,
            // Data in a SYN starts at stream position 0.
            payload: pattern(
                spec.seq.wrapping_sub(first).wrapping_add(opens.into()),
                spec.len as usize,
            ),
        })
    }

    /// Returns the packet for an ICMP error that the script injects, with the numbers on the wire.
    pub fn inbound_icmp(&mut self, spec: &IcmpSpec) -> Result<Vec<u8>, String> {
        let ports = self
            .current
            .ok_or("there is no connection for the ICMP error")?;
        let kind = if self.version.is_v6() {
            spec.v6
        } else {
            spec.v4
        };
        let (kind, code) = kind.ok_or(format!("there is no such error over {}", self.version))?;
        let flow = self.flows.entry(ports).or_default();
        let seq = spec.about.0.wrapping_add(flow.iss.unwrap_or(0));
        let error = (kind, code, spec.mtu.unwrap_or(0));
        Ok(icmp_error(self.version, error, ports, (seq, spec.about.1)))
    }

    /// Compares `bytes`, a packet that the stack sent, with `spec`, the packet in the script. Fails
    /// with a message that names the difference.
    pub fn check_outbound(&mut self, spec: &TcpSpec, bytes: &[u8]) -> Result<(), String> {
        let packet =
            Packet::parse(self.version, bytes).ok_or("not a packet to the remote host")??;
        let ports = (packet.from_port, packet.to_port);
        let opens = packet.flags & (SYN | ACK) == SYN && !self.flows.contains_key(&ports);
        let next = opens && spec.flags & SYN != 0 && spec.ports.is_none();
        if (self.current.is_none() || next) && packet.to_port == CONNECT_PORT {
            self.current = Some(ports);
        }
        let wanted = match spec.ports {
            Some(wanted) => wanted,
            None => self.current.unwrap_or(ports),
        };
        let flow = self.flows.entry(ports).or_default();
        if spec.flags & packet.flags & SYN != 0 && (flow.iss.is_none() || flow.reopened) {
            flow.iss = Some(packet.seq.wrapping_sub(spec.seq));
            flow.reopened = false;
        }
        flow.learn_timestamp(spec, &packet);
        let relative = flow.relative(&packet);
        if wanted != ports {
            return Err(format!(
                "a packet of another connection, {ports:?}: > {relative}"
            ));
        }
        let flag_mask = if self.push_ignored { !PUSH } else { !0 };
        if let Some(what) = difference(spec, &relative, flag_mask) {
            return Err(format!(
                "the {what} differs from the script; the stack sent > {relative}"
            ));
        }
        if let Some(iss) = flow.iss {
            let from = packet.seq.wrapping_sub(iss).wrapping_sub(1);
            let from = from.wrapping_add(u32::from(packet.flags & SYN != 0));
            if packet.payload != pattern(from, packet.payload.len()) {
                return Err(format!("the payload is not what was written: > {relative}"));
            }
        }
        Ok(())
    }
}

impl Flow {
    /// Translates an option of an injected segment to the numbers on the wire.
    fn inbound_option(&self, option: &TcpOption, iss: u32) -> Result<TcpOption, String> {
        Ok(match option {
            TcpOption::Sack(blocks) => {
                let live =
                    |(left, right): &(u32, u32)| (left.wrapping_add(iss), right.wrapping_add(iss));
                TcpOption::Sack(blocks.iter().map(live).collect())
            }
            TcpOption::Timestamps(value, echo) => {
                TcpOption::Timestamps(*value, self.live_timestamp(*echo))
            }
            other => other.clone(),
        })
    }

    /// Translates the TSecr `echo` of an injected segment to the number on the wire. If the stack
    /// has not sent the timestamp `echo`, the result is relative to the most recent timestamp that
    /// the stack has sent, with the distance that the script has. Zero stays zero.
    fn live_timestamp(&self, echo: u32) -> u32 {
        let known = self
            .timestamps
            .iter()
            .rev()
            .find(|(scripted, _)| *scripted == echo);
        match known.or(self.timestamps.last()) {
            Some((scripted, live)) if echo != 0 => live.wrapping_add(echo.wrapping_sub(*scripted)),
            _ => echo,
        }
    }

    /// Records the TSval of a sent packet, with the script's number for it.
    fn learn_timestamp(&mut self, spec: &TcpSpec, packet: &Packet) {
        let value = |options: &[TcpOption]| {
            options.iter().find_map(|option| match option {
                TcpOption::Timestamps(value, _) => Some(*value),
                _ => None,
            })
        };
        let scripted = spec.options.as_deref().and_then(value);
        if let (Some(scripted), Some(live)) = (scripted, value(&packet.options)) {
            self.timestamps.push((scripted, live));
        }
    }

    /// Translates `packet` to the script's numbers.
    fn relative(&self, packet: &Packet) -> Packet {
        let mut relative = packet.clone();
        // If the ISS is unknown, as in a RST for no connection, keep the number on the wire.
        relative.seq = packet.seq.wrapping_sub(self.iss.unwrap_or(0));
        for option in &mut relative.options {
            if let TcpOption::Timestamps(value, _) = option {
                let known = self.timestamps.iter().rev().find(|(_, live)| live == value);
                *value = known.map_or(*value, |(scripted, _)| *scripted);
            }
        }
        relative
    }
}

/// Returns the name of the first field in which `packet` differs from `spec`, if there is one.
/// Ignores control bits that are not in `flag_mask`.
fn difference(spec: &TcpSpec, packet: &Packet, flag_mask: u8) -> Option<&'static str> {
    let ecn_differs = match spec.ecn {
        Some(EcnSpec::Bits(bits)) => bits != packet.ecn,
        Some(EcnSpec::Capable) => !matches!(packet.ecn, 1 | 2),
        None => false,
    };
    let with_ack = spec.flags & ACK != 0;
    let checks = [
        ((spec.flags ^ packet.flags) & flag_mask != 0, "flags"),
        (spec.seq != packet.seq, "sequence number"),
        (spec.len as usize != packet.payload.len(), "length"),
        (
            with_ack && spec.ack.unwrap_or(0) != packet.ack,
            "acknowledgment number",
        ),
        (!with_ack && packet.ack != 0, "acknowledgment number"),
        (spec.win.is_some_and(|win| win != packet.win), "window"),
        (spec.urgent != packet.urgent, "urgent pointer"),
        (
            spec.options
                .as_ref()
                .is_some_and(|options| *options != packet.options),
            "options",
        ),
        (ecn_differs, "ECN field"),
    ];
    checks
        .iter()
        .find(|(differs, _)| *differs)
        .map(|(_, what)| *what)
}
