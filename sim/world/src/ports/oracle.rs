//! The rules of mux ports, checked independently of the mux. The mux shares a NIC between the
//! service and programs with their own stacks. A mux port is the pair of packet rings between one
//! program and the mux.
//!
//! The oracle sees the frames that a program publishes to its mux port, the frames that the mux
//! publishes to a program, and every frame that leaves or reaches the host's NIC. The oracle may
//! miss frames that a hostile program writes over its own memory. For each 3-tuple (protocol, local
//! address, local port), the oracle records the mux port that owns the 3-tuple ([`Owners`]). The
//! owners change only between two steps of the service, by calls of `driver.rs`, which opens mux
//! ports and moves claims (of 3-tuples for a mux port). A frame that leaves or arrives in a step is
//! therefore checked against the owners during that step.

use std::collections::BTreeMap;

use tidelane_host::Direction;
use tidelane_time::{Duration, Instant};
use tidelane_wire::{IpAddress, MacAddress};

use super::{
    frame::{self, Seen},
    owners::{Owners, PortKey},
    rule_check::RuleCheck,
    rules::PortRulesSpec,
};
use crate::ledger::{Violation, violation};

/// Limit of the time between a frame's arrival at the NIC and its delivery to the mux port.
const WAY_TIME_MAX: Duration = Duration::from_secs(1);

/// The sender of a frame that has left the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sender {
    /// The service itself: its engine has sent the frame, or may have sent the frame.
    Engine,
    /// The mux port of a well-behaved program.
    Good(PortKey),
    /// The mux port of a hostile program.
    Hostile,
}

/// The oracle's record of a mux port.
#[derive(Debug, Default)]
struct Port {
    is_hostile: bool,
    /// Frames that have arrived at the NIC and are not yet delivered to the mux port: time of
    /// arrival by hash.
    on_the_way: BTreeMap<u64, Instant>,
    /// Number of frames that were not delivered within `WAY_TIME_MAX`.
    missing: u64,
}

/// The oracle for the mux ports of one host.
#[derive(Debug)]
pub struct Oracle {
    /// Owners of the 3-tuples.
    pub owners: Owners,
    mac: MacAddress,
    addresses: Vec<IpAddress>,
    rules: RuleCheck,
    /// Open mux ports.
    ports: BTreeMap<PortKey, Port>,
    /// Mux ports that have published a packet, by the packet's fingerprint.
    published: BTreeMap<u64, Vec<PortKey>>,
    /// Mux port that has published a frame without a complete, unfragmented TCP or UDP packet, by
    /// the frame's hash.
    garbage: BTreeMap<u64, PortKey>,
    /// Number of frames of mux ports that have left the host and have passed the checks.
    pub checked_out: u64,
    /// Number of frames that mux ports have received and that have passed the checks.
    pub checked_in: u64,
    /// Number of RST segments of well-behaved mux ports that have left the host.
    pub resets: u64,
}

impl Oracle {
    /// Creates the oracle of a host with the given link address, IP addresses and operator's rules.
    pub fn new(mac: MacAddress, addresses: Vec<IpAddress>, rules: PortRulesSpec) -> Self {
        Self {
            owners: Owners::default(),
            mac,
            addresses,
            rules: RuleCheck::new(rules),
            ports: BTreeMap::new(),
            published: BTreeMap::new(),
            garbage: BTreeMap::new(),
            checked_out: 0,
            checked_in: 0,
            resets: 0,
        }
    }

    /// Records a new mux port.
    pub fn open(&mut self, key: PortKey, is_hostile: bool) {
        let port = Port {
            is_hostile,
            ..Port::default()
        };
        self.ports.insert(key, port);
    }

    /// Records the close of a mux port and the end of its claims.
    pub fn close(&mut self, key: PortKey) {
        self.owners.release_all(key);
        self.ports.remove(&key);
    }

    /// Forgets the frames that are not yet delivered to a mux port, because the port's claims
    /// change.
    pub fn forget_arrivals(&mut self, key: PortKey) {
        if let Some(port) = self.ports.get_mut(&key) {
            port.on_the_way.clear();
        }
    }

    /// Records a frame that a program has published to its mux port. `segment_size` is the number
    /// of payload bytes of a segment, and zero for a frame without GSO. Returns the number of
    /// packets.
    pub fn publishes(&mut self, key: PortKey, frame: &[u8], segment_size: u16) -> u64 {
        let Some(seen) = frame::read(frame) else {
            self.garbage.insert(frame::whole(frame), key);
            return 1;
        };
        self.sees(&seen);
        let is_hostile = self.is_hostile(key);
        self.rules.judges(is_hostile, Direction::Out, &seen);
        let prints = seen.prints(segment_size);
        let count = prints.len() as u64;
        for print in prints {
            let senders = self.published.entry(print).or_default();
            if !senders.contains(&key) {
                senders.push(key);
            }
        }
        count
    }

    /// Records a packet that reaches the mux, for the checks of the operator's rules.
    fn sees(&mut self, seen: &Seen<'_>) {
        self.rules.sees(seen);
        if let Some(owner) = self.owners.owner(seen.protocol, seen.dst) {
            let is_hostile = self.is_hostile(owner);
            self.rules.judges(is_hostile, Direction::In, seen);
        }
    }

    fn is_hostile(&self, key: PortKey) -> bool {
        self.ports.get(&key).is_some_and(|port| port.is_hostile)
    }

    /// Checks a frame that has left the host through its NIC. Returns the sender.
    pub fn leaves(&mut self, now: Instant, frame: &[u8]) -> Result<Sender, Violation> {
        let Some(seen) = frame::read(frame) else {
            return match self.garbage.get(&frame::whole(frame)) {
                Some(key) => {
                    let text = format!("{key:?} sent {:02x?}", &frame[..frame.len().min(60)]);
                    Err(violation(now, "only whole packets leave a port", text))
                }
                None => Ok(Sender::Engine),
            };
        };
        let sender = self.check_sender(now, &seen)?;
        let Some(key) = sender else {
            return Ok(Sender::Engine);
        };
        if !seen.is_intact || frame[6..12] != self.mac.0 {
            let text = describe(&seen, sender, &[]);
            return Err(violation(now, "a port sends only valid packets", text));
        }
        self.check_rules(now, key, Direction::Out, &seen)?;
        self.checked_out += 1;
        if self.is_hostile(key) {
            return Ok(Sender::Hostile);
        }
        self.resets += u64::from(seen.is_reset());
        Ok(Sender::Good(key))
    }

    /// Checks that the owner of the source 3-tuple has sent the packet. Returns the owner, or
    /// `None` if the service itself has, or may have, sent the packet.
    fn check_sender(&self, now: Instant, seen: &Seen<'_>) -> Result<Option<PortKey>, Violation> {
        let owner = self.owners.owner(seen.protocol, seen.src);
        let senders = self.published.get(&seen.print());
        let senders = senders.map(Vec::as_slice).unwrap_or_default();
        let broken = |rule| Err(violation(now, rule, describe(seen, owner, senders)));
        let Some(owner) = owner else {
            // The engine resets the connections of a closed mux port. Such a RST may equal an
            // earlier RST of the port.
            let is_open = |key: &PortKey| self.ports.contains_key(key);
            if senders.is_empty() || (seen.is_reset() && !senders.iter().any(is_open)) {
                return Ok(None);
            }
            return broken("a port sends only from its own 3-tuples");
        };
        if !self.addresses.contains(&seen.src.addr) {
            return broken("a port sends only from the host's addresses");
        }
        let is_unknown = senders.is_empty() && self.is_hostile(owner);
        if senders.is_empty() && self.may_be_refusal(seen) {
            return Ok(None);
        }
        if !senders.contains(&owner) && !is_unknown {
            return broken(match (senders.is_empty(), seen.is_reset()) {
                (false, _) => "a port sends only from its own 3-tuples",
                (true, true) => "only a port's own stack resets its connections",
                (true, false) => "nobody else sends from a port's 3-tuple",
            });
        }
        Ok(Some(owner))
    }

    /// Returns true if the packet may be the RST by which the service refuses another packet. The
    /// oracle does not know the packets that a hostile program has written over its own memory. A
    /// RST to a hostile program may therefore refuse an unknown packet.
    fn may_be_refusal(&self, seen: &Seen<'_>) -> bool {
        let peer = self.owners.owner(seen.protocol, seen.dst);
        let is_hostile = peer.is_some_and(|peer| self.is_hostile(peer));
        self.rules.may_refuse_by(seen, is_hostile)
    }

    /// Checks that the operator's rules permit a packet of a mux port. `sender` is `Out` if the
    /// program has sent the packet, and `In` if the program receives the packet.
    fn check_rules(
        &self,
        now: Instant,
        key: PortKey,
        sender: Direction,
        seen: &Seen<'_>,
    ) -> Result<(), Violation> {
        if self.rules.permits(self.is_hostile(key), sender, seen) {
            return Ok(());
        }
        let text = format!("{key:?}, {sender:?}: {seen:?}");
        let rule = "a packet passes only if the operator's rules permit it";
        Err(violation(now, rule, text))
    }

    /// Checks a frame that the mux has published to a mux port.
    pub fn reaches(&mut self, now: Instant, key: PortKey, frame: &[u8]) -> Result<(), Violation> {
        let (protocol, local, is_error) = match (frame::read(frame), frame::quoted_source(frame)) {
            (Some(seen), _) => {
                if self.addresses.contains(&seen.src.addr)
                    && let Some(sender) = self.check_sender(now, &seen)?
                {
                    self.check_rules(now, sender, Direction::Out, &seen)?;
                }
                // Packets of the engine to a mux port of the same host are seen only here.
                self.sees(&seen);
                self.check_rules(now, key, Direction::In, &seen)?;
                (seen.protocol, seen.dst, false)
            }
            (None, Some((protocol, src))) => (protocol, src, true),
            (None, None) => {
                let text = format!("{key:?} got {:02x?}", &frame[..frame.len().min(60)]);
                return Err(violation(now, "only packets reach a port", text));
            }
        };
        let owner = self.owners.owner(protocol, local);
        if owner != Some(key) || !self.addresses.contains(&local.addr) {
            let what = if is_error {
                "an ICMP error"
            } else {
                "a packet"
            };
            let text = format!("{key:?} got {what} for {local}, whose owner is {owner:?}");
            let rule = "a packet reaches only the owner of its 3-tuple";
            return Err(violation(now, rule, text));
        }
        if let Some(port) = self.ports.get_mut(&key) {
            port.on_the_way.remove(&frame::whole(frame));
        }
        self.checked_in += 1;
        Ok(())
    }

    /// Records a frame that has arrived at the host's NIC.
    pub fn arrives(&mut self, now: Instant, frame: &[u8]) {
        let Some(seen) = frame::read(frame) else {
            return;
        };
        self.sees(&seen);
        let is_ours = self.addresses.contains(&seen.dst.addr);
        let is_forged = self.addresses.contains(&seen.src.addr);
        if !seen.is_intact || !is_ours || is_forged {
            return;
        }
        let owner = self.owners.owner(seen.protocol, seen.dst);
        if let Some(port) = owner.and_then(|owner| self.ports.get_mut(&owner)) {
            port.on_the_way.insert(frame::whole(frame), now);
        }
    }

    /// Checks that the frames for a mux port were delivered within `WAY_TIME_MAX`, except at most
    /// `overruns` frames, for which the port's ring had no room. For a hostile program, any number
    /// of frames may be missing.
    pub fn check_arrivals(
        &mut self,
        now: Instant,
        key: PortKey,
        overruns: u64,
    ) -> Result<(), Violation> {
        let Some(port) = self.ports.get_mut(&key) else {
            return Ok(());
        };
        let before = port.on_the_way.len();
        port.on_the_way.retain(|_, at| now - *at < WAY_TIME_MAX);
        port.missing += (before - port.on_the_way.len()) as u64;
        if port.missing > overruns && !port.is_hostile {
            let text = format!("{key:?}: {} lost, {overruns} overruns", port.missing);
            return Err(violation(now, "the mux loses no packet for a port", text));
        }
        Ok(())
    }
}

fn describe(seen: &Seen<'_>, owner: Option<PortKey>, senders: &[PortKey]) -> String {
    format!("{seen:?}; owner {owner:?}, published by {senders:?}")
}

#[cfg(test)]
mod tests;
