//! A check of the operator's rules for packets of mux ports. A mux port is a pair of packet rings
//! through which a program with a TCP/IP stack of its own shares the NIC.
//!
//! The rules decide by the program's user, by the local port, and by the *opener*: the side that
//! opens the connection. A SYN without ACK may pass if the rules accept its sender as the opener.
//! Any other packet may pass in two cases: if the rules accept each side as the opener, or if a
//! side that the rules accept as the opener has sent a SYN or a UDP datagram between the same
//! endpoints before. The check records the SYNs and datagrams for the whole run. The service
//! forgets some of them, so the service may deny packets that the check permits.

use std::collections::BTreeSet;

use tidelane_host::Direction;
use tidelane_wire::Endpoint;

use super::{frame::Seen, rules::PortRulesSpec};

/// Protocol number, then the address and port of the sender, and of the receiver.
type Directed = (u8, [u8; 16], u16, [u8; 16], u16);

/// The rules, with records of the packets that the mux has had to judge.
#[derive(Debug, Default)]
pub struct RuleCheck {
    rules: PortRulesSpec,
    /// The SYNs without ACK and the UDP datagrams, which may have opened a connection.
    openings: BTreeSet<Directed>,
    /// The packets that the service may have refused by a RST. Empty if no rule has the action
    /// `Refuse`.
    refusals: BTreeSet<Directed>,
}

impl RuleCheck {
    /// Creates the check of a run with these rules.
    pub fn new(rules: PortRulesSpec) -> Self {
        Self {
            rules,
            openings: BTreeSet::new(),
            refusals: BTreeSet::new(),
        }
    }

    /// If a packet that reaches the mux may open a connection, records the packet.
    pub fn sees(&mut self, seen: &Seen<'_>) {
        if !self.rules.is_empty() && seen.may_open() {
            let sent = directed(seen.protocol, seen.src, seen.dst);
            self.openings.insert(sent);
        }
    }

    /// Records a packet that a mux port sends or receives, but only if the service may refuse the
    /// packet by a RST. `is_hostile` is true if the program of the mux port is hostile. `sender` is
    /// `Out` if the program has sent the packet, and `In` if the peer has sent the packet.
    pub fn judges(&mut self, is_hostile: bool, sender: Direction, seen: &Seen<'_>) {
        if self.rules.has_refusals() && !self.is_sure(is_hostile, sender, seen) {
            let sent = directed(seen.protocol, seen.src, seen.dst);
            self.refusals.insert(sent);
        }
    }

    /// Returns true if `reset` is a RST by which the service may have refused a packet of the
    /// opposite direction. `may_be_unseen` is true if the check may have missed the refused packet.
    pub fn may_refuse_by(&self, reset: &Seen<'_>, may_be_unseen: bool) -> bool {
        let refused = directed(reset.protocol, reset.dst, reset.src);
        let is_known = may_be_unseen || self.refusals.contains(&refused);
        reset.is_reset() && self.rules.has_refusals() && is_known
    }

    /// Returns true if the rules permit a packet that a mux port sends or receives. `is_hostile` is
    /// true if the program of the mux port is hostile. `sender` is `Out` if the program has sent
    /// the packet, and `In` if the peer has sent the packet.
    pub fn permits(&self, is_hostile: bool, sender: Direction, seen: &Seen<'_>) -> bool {
        let (local, peer) = ends(sender, seen);
        let has_opened = |(opener, from, to)| {
            self.rules.accepts(is_hostile, opener, local.port)
                && self.openings.contains(&directed(seen.protocol, from, to))
        };
        let openings = [(Direction::Out, local, peer), (Direction::In, peer, local)];
        self.is_sure(is_hostile, sender, seen)
            || (!seen.is_first() && openings.into_iter().any(has_opened))
    }

    /// Returns true if the rules permit a packet regardless of earlier packets.
    fn is_sure(&self, is_hostile: bool, sender: Direction, seen: &Seen<'_>) -> bool {
        let (local, _) = ends(sender, seen);
        let accepts = |opener| self.rules.accepts(is_hostile, opener, local.port);
        match seen.is_first() {
            true => accepts(sender),
            false => accepts(Direction::In) && accepts(Direction::Out),
        }
    }
}

/// Returns the endpoint of the program on the mux port, and then the peer's endpoint.
fn ends(sender: Direction, seen: &Seen<'_>) -> (Endpoint, Endpoint) {
    match sender {
        Direction::Out => (seen.src, seen.dst),
        Direction::In => (seen.dst, seen.src),
    }
}

fn directed(protocol: u8, from: Endpoint, to: Endpoint) -> Directed {
    (protocol, from.addr.0, from.port, to.addr.0, to.port)
}

#[cfg(test)]
mod tests {
    use tidelane_host::Action;
    use tidelane_netem::Rng;
    use tidelane_wire::{MacAddress, TcpFlags};

    use super::*;
    use crate::ports::{
        forge::Draft,
        frame::{TCP, UDP, read},
    };

    const PEER: Endpoint = Endpoint::v4([10, 0, 0, 2], 9);

    fn local(port: u16) -> Endpoint {
        Endpoint::v4([10, 0, 0, 1], port)
    }

    fn frame(protocol: u8, src: Endpoint, dst: Endpoint, flags: TcpFlags) -> Vec<u8> {
        let mac = MacAddress::default();
        let draft = Draft {
            mac,
            dst_mac: mac,
            src: (protocol, src),
            dst,
            flags,
            payload_len: 5,
        };
        draft
            .frame(&mut Rng::new(1))
            .expect("both endpoints have one IP version")
    }

    /// Shows a packet of a mux port to the check. Returns true if the check then permits the
    /// packet.
    fn permits(check: &mut RuleCheck, is_hostile: bool, sender: Direction, frame: &[u8]) -> bool {
        let seen = read(frame).expect("a packet");
        check.sees(&seen);
        check.permits(is_hostile, sender, &seen)
    }

    #[test]
    fn a_segment_passes_after_a_syn_of_an_accepted_side() {
        let (syn, ack) = (TcpFlags::SYN, TcpFlags::ACK);
        let rules = PortRulesSpec {
            opened_by_peer: Some(Action::Drop),
            ..PortRulesSpec::default()
        };
        let mut check = RuleCheck::new(rules);
        let from_peer = |flags| frame(TCP, PEER, local(20_000), flags);
        let from_port = |flags| frame(TCP, local(20_000), PEER, flags);
        let (inbound, outbound) = (Direction::In, Direction::Out);
        assert!(!permits(&mut check, false, inbound, &from_peer(syn)));
        assert!(!permits(&mut check, false, inbound, &from_peer(ack)));
        assert!(!permits(&mut check, false, outbound, &from_port(ack)));
        assert!(permits(&mut check, false, outbound, &from_port(syn)));
        assert!(permits(&mut check, false, inbound, &from_peer(ack)));
        assert!(permits(&mut check, false, inbound, &from_peer(syn | ack)));
        assert!(permits(&mut check, false, outbound, &from_port(ack)));
        assert!(!permits(&mut check, false, inbound, &from_peer(syn)));
        // The rule does not apply to the local port of a listener. The rule does not apply to the
        // user of the hostile programs either.
        let to_listener = frame(TCP, PEER, local(1000), syn);
        assert!(permits(&mut check, false, inbound, &to_listener));
        assert!(permits(&mut check, true, inbound, &from_peer(syn)));
    }

    #[test]
    fn a_listener_answers_but_opens_nothing() {
        let rules = PortRulesSpec {
            opened_by_listener: Some(Action::Refuse),
            ..PortRulesSpec::default()
        };
        let mut check = RuleCheck::new(rules);
        let (syn, ack) = (TcpFlags::SYN, TcpFlags::ACK);
        let (inbound, outbound) = (Direction::In, Direction::Out);
        let out = |flags| frame(TCP, local(1000), PEER, flags);
        assert!(!permits(&mut check, false, outbound, &out(syn)));
        assert!(!permits(&mut check, false, outbound, &out(syn | ack)));
        let opens = frame(TCP, PEER, local(1000), syn);
        assert!(permits(&mut check, false, inbound, &opens));
        assert!(permits(&mut check, false, outbound, &out(syn | ack)));
        assert!(!permits(&mut check, false, outbound, &out(syn)));
    }

    #[test]
    fn a_denied_user_sends_only_answers() {
        for side in [None, Some(Direction::Out)] {
            let rules = PortRulesSpec {
                hostile: Some((Action::Drop, side)),
                ..PortRulesSpec::default()
            };
            let mut check = RuleCheck::new(rules);
            let out = frame(UDP, local(3000), PEER, TcpFlags::ACK);
            let back = frame(UDP, PEER, local(3000), TcpFlags::ACK);
            assert!(!permits(&mut check, true, Direction::Out, &out));
            let is_open = side.is_some();
            assert_eq!(permits(&mut check, true, Direction::In, &back), is_open);
            assert_eq!(permits(&mut check, true, Direction::Out, &out), is_open);
            assert!(permits(&mut check, false, Direction::Out, &out));
        }
    }
}
