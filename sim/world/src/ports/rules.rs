//! The operator's rules for the mux ports of a run, and the users of the programs on these ports.
//! The rules distinguish the programs by their users. A mux port is a pair of packet rings through
//! which a program with a TCP/IP stack of its own shares the NIC.

use std::{ops::RangeInclusive, sync::Arc};

use tidelane_host::{Action, Associations, Credentials, Direction, PortOwner, Rule, RuleSet};

/// User id of the well-behaved programs on mux ports. No program on the service has this user.
const GOOD_USER: u32 = 60_001;
/// User id of the hostile programs.
const HOSTILE_USER: u32 = 60_002;
/// Local TCP ports of the listeners of well-behaved programs on mux ports.
const LISTENING: RangeInclusive<u16> = 1000..=1999;
/// Local TCP ports of the connections that well-behaved programs on mux ports open.
const OPENING: RangeInclusive<u16> = 20_000..=u16::MAX;

/// The operator's rules. The rules deny only connections that the scenario does not plan. `None` in
/// a field means that the rule does not exist.
#[derive(Clone, Copy, Debug, Default)]
pub struct PortRulesSpec {
    /// The action on a connection that a peer opens to a local port from which a well-behaved
    /// program opens connections.
    pub opened_by_peer: Option<Action>,
    /// The action on a connection that a well-behaved program opens from the local port of a
    /// listener.
    pub opened_by_listener: Option<Action>,
    /// The action on a connection of a hostile program, and the side that opens the connection: the
    /// peer (`In`) or the program (`Out`). If the side is `None`, the rule applies to both sides.
    pub hostile: Option<(Action, Option<Direction>)>,
}

impl PortRulesSpec {
    /// Returns true if no rule exists.
    pub fn is_empty(&self) -> bool {
        self.actions().all(|action| action.is_none())
    }

    /// Returns true if the service may answer denied packets with a RST.
    pub fn has_refusals(&self) -> bool {
        self.actions().any(|action| action == Some(Action::Refuse))
    }

    fn actions(&self) -> impl Iterator<Item = Option<Action>> {
        let hostile = self.hostile.map(|(action, _)| action);
        [self.opened_by_peer, self.opened_by_listener, hostile].into_iter()
    }

    /// Returns the rules, in the order in which the service checks them.
    fn rules(&self) -> Vec<Rule> {
        let of_good = |direction, ports: &RangeInclusive<u16>, action| Rule {
            action,
            direction: Some(direction),
            local_ports: vec![ports.clone()],
            users: vec![GOOD_USER],
            ..Rule::default()
        };
        let by_peer = self.opened_by_peer;
        let by_peer = by_peer.map(|action| of_good(Direction::In, &OPENING, action));
        let by_listener = self.opened_by_listener;
        let by_listener = by_listener.map(|action| of_good(Direction::Out, &LISTENING, action));
        let hostile = self.hostile.map(|(action, direction)| Rule {
            action,
            direction,
            users: vec![HOSTILE_USER],
            ..Rule::default()
        });
        [by_peer, by_listener, hostile]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Returns the rules for the service. The service accepts a connection to which no rule
    /// applies.
    pub fn rule_set(&self) -> RuleSet {
        RuleSet::new(self.rules(), Action::Accept)
    }

    /// Returns true if the rules accept a connection that `opener` opens. `is_hostile` is true if
    /// the program on the mux port is hostile. `local_port` is the program's TCP or UDP port
    /// number. The function shares no code with the rules of the service.
    pub fn accepts(&self, is_hostile: bool, opener: Direction, local_port: u16) -> bool {
        if is_hostile {
            let denied = self.hostile;
            return denied.is_none_or(|(_, side)| side.is_some_and(|side| side != opener));
        }
        match opener {
            Direction::In => self.opened_by_peer.is_none() || !OPENING.contains(&local_port),
            Direction::Out => self.opened_by_listener.is_none() || !LISTENING.contains(&local_port),
        }
    }
}

/// The users of the programs on mux ports.
#[derive(Debug)]
pub struct ProgramOwners {
    good: PortOwner,
    hostile: PortOwner,
}

impl ProgramOwners {
    /// Creates the users. Each user has an empty table of connections.
    pub fn new() -> Self {
        let owner = |uid: u32| {
            let credentials = Credentials {
                uid,
                groups: vec![uid],
            };
            let associations = Associations::new([uid as u8; 16]);
            associations.prepare();
            PortOwner {
                credentials: Arc::new(credentials),
                associations: Arc::new(associations),
            }
        };
        Self {
            good: owner(GOOD_USER),
            hostile: owner(HOSTILE_USER),
        }
    }

    /// Returns the owner of the mux port of a hostile or a well-behaved program.
    pub fn of(&self, is_hostile: bool) -> PortOwner {
        match is_hostile {
            true => self.hostile.clone(),
            false => self.good.clone(),
        }
    }
}
