//! The operator's rules for packets of mux ports. A mux port is a pair of packet rings through
//! which a program with a TCP/IP stack of its own shares the NIC. See `docs/design/mux.md`.
//!
//! The decision of the rules on a connection depends on the side that opens the connection (the
//! *opener*). The service does not know the connections of a mux port, so the rules judge each
//! packet. The filter finds the opener of a segment's connection as follows:
//!
//! ```text
//!   segment                                 opener
//!   SYN without ACK                         the sender of the segment
//!   acknowledgment of a SYN                 the receiver, which sent the SYN
//!   acknowledgment of a SYN-ACK             the sender; the filter then records the opener
//!   RST after a SYN of the same sender      the sender
//!   RST after a SYN-ACK of the same sender  the receiver, which sent the SYN
//!   any other                               the recorded opener
//! ```
//!
//! If no opener is recorded for a segment of the last line, the rules must accept both sides as the
//! opener. A program therefore cannot evade a rule by sending segments before a handshake. The
//! rules judge the program that has the mux port at present, even if another program opened the
//! connection.

mod action_cache;
mod associations;

use std::sync::Arc;

use tidelane_mux::{Filter, PortId, Verdict, Way};
use tidelane_time::Instant;
use tidelane_wire::{
    DropReason, Endpoint, Packet, Segment, SeqNumber, TcpFlags, parse_frame, parse_quoted_packet,
    parse_tcp, protocol,
};

pub use self::associations::Associations;
use self::{
    action_cache::{ActionCache, CachedActions},
    associations::{Expected, FiveTuple, FiveTupleHash},
};
use crate::{
    counters::HostCounters,
    credentials::Credentials,
    icmp_error::icmp_error,
    rules::{Action, Direction, Opening, RuleSet},
};

/// The program of a mux port, as the rules see the program.
#[derive(Clone, Debug)]
pub struct PortOwner {
    /// The program's user and groups.
    pub credentials: Arc<Credentials>,
    /// The table of the connections of all mux ports of the user.
    pub associations: Arc<Associations>,
}

/// The owners of the mux ports of one core.
#[derive(Debug, Default)]
pub struct PortOwners {
    /// The owners, by mux port number.
    owners: Vec<Option<PortOwner>>,
    cached_actions: ActionCache,
}

impl PortOwners {
    /// Sets the owner of a mux port.
    pub fn set(&mut self, port: PortId, owner: PortOwner) {
        let at = port.0 as usize;
        if at >= self.owners.len() {
            self.owners.resize(at + 1, None);
        }
        self.owners[at] = Some(owner);
        // The cache may have actions for a port of another owner that had this number before.
        self.cached_actions.clear();
    }

    /// Removes the owner of a mux port.
    pub fn remove(&mut self, port: PortId) {
        if let Some(owner) = self.owners.get_mut(port.0 as usize) {
            *owner = None;
        }
    }

    /// Empties the cache of actions, because the rules have changed.
    pub fn rules_have_changed(&mut self) {
        self.cached_actions.clear();
    }
}

/// The filter for packets of mux ports, by the operator's rules. A filter lives for a part of one
/// step of the host (the TCP/IP stack of one core, which the service runs step by step).
pub struct PortRules<'a> {
    /// The operator's rules.
    pub rules: &'a mut RuleSet,
    /// The owners of the mux ports.
    pub owners: &'a mut PortOwners,
    /// Counters of the host, which count the packets that the rules deny.
    pub counters: &'a mut HostCounters,
    /// The time of the host's step.
    pub now: Instant,
}

impl Filter for PortRules<'_> {
    #[inline]
    fn passes_all(&self) -> bool {
        self.rules.accepts_all()
    }

    #[cold]
    #[inline(never)]
    fn judge(&mut self, port: PortId, way: Way, frame: &[u8]) -> Verdict {
        let PortOwners {
            owners,
            cached_actions,
        } = &mut *self.owners;
        let owner = owners.get(port.0 as usize).and_then(Option::as_ref);
        let (Ok(packet), Some(owner)) = (parse_frame(frame), owner) else {
            return Verdict::Drop;
        };
        let mut judge = Judge {
            rules: self.rules,
            cached_actions,
            owner,
            port,
            now: self.now,
        };
        let verdict = match judge.judge_packet(way, &packet) {
            Action::Accept => return Verdict::Pass,
            Action::Refuse => Verdict::Refuse,
            Action::Drop => Verdict::Drop,
        };
        self.counters.drops[DropReason::RuleDenied.index()] += 1;
        verdict
    }
}

/// The rules, and the mux port whose packet the rules judge.
struct Judge<'a> {
    rules: &'a mut RuleSet,
    cached_actions: &'a mut ActionCache,
    owner: &'a PortOwner,
    port: PortId,
    now: Instant,
}

/// A packet between a mux port and a peer. For an ICMP error, the 5-tuple is the 5-tuple of the
/// quoted packet.
struct Case<'a> {
    table: &'a Associations,
    five_tuple: FiveTuple,
    hash: FiveTupleHash,
    /// Side that has sent the packet: the peer (`In`) or the mux port (`Out`).
    sender: Direction,
    /// The actions of the rules for a connection with the 5-tuple, one action for each opener.
    cached_actions: CachedActions,
    now: Instant,
}

impl<'a> Judge<'a> {
    /// Returns the decision on a packet. Drops a malformed packet, and a packet that is neither TCP
    /// nor UDP nor an ICMP error about TCP or UDP.
    fn judge_packet(&mut self, way: Way, packet: &Packet<'_>) -> Action {
        let sender = match way {
            Way::In => Direction::In,
            Way::Out => Direction::Out,
        };
        let five_tuple = |src_port: u16, dst_port: u16| {
            let src = Endpoint::new(packet.src, src_port);
            let dst = Endpoint::new(packet.dst, dst_port);
            let (local, peer) = match sender {
                Direction::In => (dst, src),
                Direction::Out => (src, dst),
            };
            FiveTuple {
                protocol: packet.protocol,
                local,
                peer,
            }
        };
        match packet.protocol {
            protocol::TCP => {
                let Ok(segment) = parse_tcp(packet.payload) else {
                    return Action::Drop;
                };
                let case = self.case(five_tuple(segment.src_port, segment.dst_port), sender);
                self.judge_segment(&case, &segment)
            }
            protocol::UDP => {
                let Some(&[a, b, c, d]) = packet.payload.first_chunk() else {
                    return Action::Drop;
                };
                let five_tuple = five_tuple(u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
                let case = self.case(five_tuple, sender);
                self.judge_datagram(&case)
            }
            _ => {
                let Ok(quoted) = parse_quoted_packet(packet) else {
                    return Action::Drop;
                };
                let five_tuple = FiveTuple {
                    protocol: quoted.protocol,
                    local: quoted.key.local,
                    peer: quoted.key.peer,
                };
                let case = self.case(five_tuple, sender);
                let action = match icmp_error(packet) {
                    Ok(error) => self.judge_error(&case, error.seq),
                    Err(_) => self.judge_error_about_datagram(&case),
                };
                match action {
                    Action::Accept => Action::Accept,
                    // No host answers an ICMP error (RFC 1122 §3.2.2).
                    _ => Action::Drop,
                }
            }
        }
    }

    fn case(&mut self, five_tuple: FiveTuple, sender: Direction) -> Case<'a> {
        let (owner, rules) = (self.owner, &*self.rules);
        let hash = owner.associations.hash(&five_tuple);
        let cached_actions = self.cached_actions.get(hash, (self.port, five_tuple), || {
            let action =
                |direction| rules.uncounted_action(&opening(owner, &five_tuple, direction));
            CachedActions {
                inbound: action(Direction::In),
                outbound: action(Direction::Out),
            }
        });
        Case {
            table: &owner.associations,
            five_tuple,
            hash,
            sender,
            cached_actions,
            now: self.now,
        }
    }

    /// Returns the decision on a connection that `opener` opens, and counts the decision for the
    /// rule that decides.
    fn decide(&mut self, case: &Case<'_>, opener: Direction) -> Action {
        self.rules
            .verdict(&opening(self.owner, &case.five_tuple, opener))
    }

    /// Returns the decision on a segment, and records the progress of the connection's handshake.
    fn judge_segment(&mut self, case: &Case<'_>, segment: &Segment<'_>) -> Action {
        let opens = segment.flags.contains(TcpFlags::SYN);
        if opens && !segment.flags.contains(TcpFlags::ACK) {
            let action = self.decide(case, case.sender);
            if action == Action::Accept {
                case.expect_answers(case.sender, segment);
            }
            return action;
        }
        let known = match opens {
            true => None,
            false => case.accepted_opener(),
        };
        if known.is_some() || case.continues_handshake(segment) || case.resets_handshake(segment) {
            return Action::Accept;
        }
        self.judge_unknown(case)
    }

    /// Returns the decision on a packet by the recorded opener of its connection. Without a
    /// recorded opener, the rules must accept both sides as the opener.
    fn judge_unknown(&mut self, case: &Case<'_>) -> Action {
        let opener = case.table.opener(case.hash, self.now);
        let suspects = match opener {
            Some(opener) => [opener, opener],
            None => [case.sender, other(case.sender)],
        };
        self.judge_suspects(case, suspects)
    }

    /// Returns the decision on a packet of a connection that one of `suspects` has opened. The
    /// packet passes only if the rules accept both suspects as the opener.
    fn judge_suspects(&mut self, case: &Case<'_>, suspects: [Direction; 2]) -> Action {
        let denied = suspects.into_iter().find(|opener| !case.accepts(*opener));
        match denied {
            Some(opener) => self.decide(case, opener),
            None => Action::Accept,
        }
    }

    /// Returns the decision on a UDP datagram. The datagram passes if the rules accept its sender
    /// as the opener. The datagram also passes if it answers a recent datagram of the other side,
    /// and if the rules accept the other side as the opener.
    fn judge_datagram(&mut self, case: &Case<'_>) -> Action {
        let table = case.table;
        let recent = table.recent_opener(case.hash, self.now);
        if let Some(opener) = recent.filter(|opener| case.accepts(*opener)) {
            // Only datagrams of the opener prolong the time in which answers pass.
            match opener == case.sender {
                true => table.prolong(case.hash, self.now),
                false => table.mark_answered(case.hash),
            }
            return Action::Accept;
        }
        let action = self.decide(case, case.sender);
        if action == Action::Accept {
            table.record(case.hash, case.sender, false, self.now);
        }
        action
    }

    /// Returns the decision on an ICMP error that quotes a segment of the mux port. `seq` is the
    /// sequence number of the quoted segment. The error passes if the segment is a recent SYN or
    /// SYN-ACK of a connection that the rules accept. Otherwise, the recorded opener decides, as
    /// for a segment.
    fn judge_error(&mut self, case: &Case<'_>, seq: SeqNumber) -> Action {
        let of_handshake = [Direction::Out, Direction::In].into_iter().any(|opener| {
            let expected = Expected {
                opener,
                waits: Direction::Out,
                ack: seq.add(1),
            };
            let expects = case.table.expects(case.hash, &expected, self.now);
            expects && case.accepts(opener)
        });
        if of_handshake || case.accepted_opener().is_some() {
            return Action::Accept;
        }
        self.judge_unknown(case)
    }

    /// Returns the decision on an ICMP error that quotes a UDP datagram of the mux port. The error
    /// passes if the rules accept the opener of the recent datagrams with the same 5-tuple. Without
    /// a recent datagram, the rules must accept both sides as the opener.
    fn judge_error_about_datagram(&mut self, case: &Case<'_>) -> Action {
        // Do not use `opener`, which renews the entry: an ICMP error must not prolong the time in
        // which answers pass.
        let suspects = match case.table.recent_opener(case.hash, self.now) {
            Some(opener) => [opener, opener],
            None => [case.sender, other(case.sender)],
        };
        self.judge_suspects(case, suspects)
    }
}

impl Case<'_> {
    /// Returns true if the rules accept a connection that `opener` opens.
    fn accepts(&self, opener: Direction) -> bool {
        let action = match opener {
            Direction::In => self.cached_actions.inbound,
            Direction::Out => self.cached_actions.outbound,
        };
        action == Action::Accept
    }

    /// Returns the recorded opener of the connection, if the rules accept this opener.
    fn accepted_opener(&self) -> Option<Direction> {
        let opener = self.table.opener(self.hash, self.now)?;
        self.accepts(opener).then_some(opener)
    }

    /// Records the answers that the sender of `segment` expects. The segment is a SYN, a SYN-ACK,
    /// or data that the receiver of the SYN sends before the handshake ends. The answer to a SYN
    /// acknowledges the SYN with or without its data (RFC 7413).
    fn expect_answers(&self, opener: Direction, segment: &Segment<'_>) {
        let mut expected = Expected {
            opener,
            waits: self.sender,
            ack: segment.seq.add(1),
        };
        self.table.expect(self.hash, &expected, self.now);
        if segment.len() > 1 {
            expected.ack = segment.seq.add(segment.len());
            self.table.expect(self.hash, &expected, self.now);
        }
    }

    /// Returns true if a segment answers a SYN or a SYN-ACK of a connection that the rules accept.
    /// In this case, the function also records the progress of the handshake.
    fn continues_handshake(&self, segment: &Segment<'_>) -> bool {
        if !segment.flags.contains(TcpFlags::ACK) {
            return false;
        }
        let waits = other(self.sender);
        // If the other side is the opener, it waits for the answer to its SYN. Otherwise, it waits
        // for the answer to its SYN-ACK.
        for opener in [waits, self.sender] {
            let expected = Expected {
                opener,
                waits,
                ack: segment.ack,
            };
            if self.accepts(opener) && self.table.expects(self.hash, &expected, self.now) {
                self.advance(opener, segment);
                return true;
            }
        }
        false
    }

    /// Returns true if a segment is a RST without ACK, and if its sequence number follows a recent
    /// SYN or SYN-ACK of its sender, in a connection that the rules accept. A sender that has
    /// restarted sends this RST when the acknowledgment of its earlier SYN or SYN-ACK arrives
    /// (RFC 9293 §3.10.7.1).
    fn resets_handshake(&self, segment: &Segment<'_>) -> bool {
        let flags = segment.flags;
        if !flags.contains(TcpFlags::RST) || flags.contains(TcpFlags::ACK) {
            return false;
        }
        [Direction::In, Direction::Out].into_iter().any(|opener| {
            let expected = Expected {
                opener,
                waits: self.sender,
                ack: segment.seq,
            };
            self.accepts(opener) && self.table.expects(self.hash, &expected, self.now)
        })
    }

    /// Records the progress of a handshake. If `opener` has sent the segment, the segment
    /// acknowledges the SYN-ACK, and the function records the opener. Otherwise, the segment
    /// acknowledges the SYN, and the function records the expected answers. The function records
    /// nothing for a RST.
    fn advance(&self, opener: Direction, segment: &Segment<'_>) {
        let (table, now) = (self.table, self.now);
        if segment.flags.contains(TcpFlags::RST) {
            return;
        }
        if opener == self.sender {
            table.record(self.hash, opener, true, now);
            return;
        }
        // Forget a recorded opener that differs from `opener`: an earlier connection of the 5-tuple
        // has ended, or a host has restarted.
        if table
            .opener(self.hash, now)
            .is_some_and(|old| old != opener)
        {
            table.forget(self.hash);
        }
        if segment.len() > 0 {
            self.expect_answers(opener, segment);
        }
    }
}

fn opening<'a>(owner: &'a PortOwner, five_tuple: &FiveTuple, direction: Direction) -> Opening<'a> {
    Opening {
        direction,
        local: five_tuple.local,
        peer: five_tuple.peer,
        owner: &owner.credentials,
    }
}

fn other(side: Direction) -> Direction {
    match side {
        Direction::In => Direction::Out,
        Direction::Out => Direction::In,
    }
}

#[cfg(test)]
mod tests;
