//! The operator's rules, which decide whether a connection may open.
//!
//! The first rule that matches decides. If no rule matches, the default action decides.
//!
//! For a connection of its TCP engine, the host (the TCP/IP stack of one core) checks the rules
//! when the connection opens and when the rules change, but not for each segment. Without rules,
//! the cost is one branch per new connection. For a *mux port* (packet rings of a program with a
//! TCP/IP stack of its own), the rules judge each packet (`port_rules.rs`).

use std::{error::Error, fmt, net::IpAddr, ops::RangeInclusive, str::FromStr};

use tidelane_wire::{Endpoint, IpAddress};

use crate::credentials::Credentials;

/// The verdict on a connection that opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// The connection opens.
    #[default]
    Accept,
    /// A peer that opens the connection gets a RST. A program that opens the connection with a
    /// socket of the service gets ECONNREFUSED. A mux port that opens the connection gets no
    /// answer.
    Refuse,
    /// The opener gets no answer, and waits until its SYN retransmissions are used up.
    Drop,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accept => "accept",
            Self::Refuse => "refuse",
            Self::Drop => "drop",
        })
    }
}

/// The side that opens a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The peer opens the connection: a SYN arrived for a listener or for a mux port.
    In,
    /// A program of this host opens the connection.
    Out,
}

/// A connection that opens.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// The side that opens the connection.
    pub direction: Direction,
    /// Local address and port.
    pub local: Endpoint,
    /// Peer's address and port.
    pub peer: Endpoint,
    /// Credentials of the program on this host that listens, connects or has the mux port.
    pub owner: &'a Credentials,
}

/// An address prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    addr: IpAddress,
    /// Length in bits, in the 128-bit form of addresses. For an IPv4 prefix, the length includes
    /// the 96 bits of the mapped form: the length of `10.0.0.0/8` is 104.
    len: u8,
}

impl Prefix {
    /// Returns true if the prefix contains `addr`.
    pub fn contains(&self, addr: IpAddress) -> bool {
        addr.shares_prefix(self.addr, self.len)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let beyond = if self.addr.is_v4() { 96 } else { 0 };
        write!(f, "{}/{}", self.addr, self.len.saturating_sub(beyond))
    }
}

/// The error for a text that is not a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadPrefix;

impl fmt::Display for BadPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an address or a prefix such as 10.0.0.0/8 or fd00::/8")
    }
}

impl Error for BadPrefix {}

impl FromStr for Prefix {
    type Err = BadPrefix;

    /// Parses a prefix, for example `10.0.0.0/8` or `fd00::/8`, or one address. Returns an error if
    /// a bit after the prefix length is set, because the operator may have meant another prefix.
    fn from_str(text: &str) -> Result<Self, BadPrefix> {
        let (addr, len) = match text.split_once('/') {
            Some((addr, len)) => (addr, Some(len)),
            None => (text, None),
        };
        let ip: IpAddr = addr.parse().map_err(|_| BadPrefix)?;
        let bits: u8 = if ip.is_ipv4() { 32 } else { 128 };
        let len = match len {
            Some(len) => len.parse().ok().filter(|len| *len <= bits),
            None => Some(bits),
        };
        let addr = IpAddress::from(ip);
        let len = len.ok_or(BadPrefix)? + (128 - bits);
        let beyond = u128::MAX.checked_shr(len.into()).unwrap_or(0);
        if u128::from_be_bytes(addr.0) & beyond != 0 {
            return Err(BadPrefix);
        }
        Ok(Self { addr, len })
    }
}

/// Conditions on a connection, and the action for connections that match. A rule matches if all
/// conditions hold. A list is a condition that holds if the list is empty, or if an entry of the
/// list fits the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The verdict on matching connections.
    pub action: Action,
    /// The side that opens the connection; `None` for both sides.
    pub direction: Option<Direction>,
    /// Local ports.
    pub local_ports: Vec<RangeInclusive<u16>>,
    /// Peer ports.
    pub peer_ports: Vec<RangeInclusive<u16>>,
    /// Peer addresses.
    pub peers: Vec<Prefix>,
    /// User ids of the program on this host.
    pub users: Vec<u32>,
    /// Group ids of the program on this host.
    pub groups: Vec<u32>,
}

impl Rule {
    /// Returns true if the rule matches this connection.
    fn fits(&self, opening: &Opening<'_>) -> bool {
        let Opening {
            direction,
            local,
            peer,
            owner,
        } = opening;
        let in_ranges = |ranges: &[RangeInclusive<u16>], port: u16| {
            ranges.is_empty() || ranges.iter().any(|range| range.contains(&port))
        };
        let of_groups = || self.groups.iter().any(|group| owner.groups.contains(group));
        self.direction.is_none_or(|only| only == *direction)
            && in_ranges(&self.local_ports, local.port)
            && in_ranges(&self.peer_ports, peer.port)
            && (self.peers.is_empty() || self.peers.iter().any(|p| p.contains(peer.addr)))
            && (self.users.is_empty() || self.users.contains(&owner.uid))
            && (self.groups.is_empty() || of_groups())
    }
}

impl fmt::Display for Rule {
    /// Formats the rule on one line, with the key names of the configuration file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.action)?;
        match self.direction {
            Some(Direction::In) => write!(f, " in")?,
            Some(Direction::Out) => write!(f, " out")?,
            None => {}
        }
        let mut list = |name: &str, items: Vec<String>| match items.is_empty() {
            true => Ok(()),
            false => write!(f, " {name} {}", items.join(",")),
        };
        let range = |range: &RangeInclusive<u16>| match range.start() == range.end() {
            true => range.start().to_string(),
            false => format!("{}-{}", range.start(), range.end()),
        };
        list("local_port", self.local_ports.iter().map(range).collect())?;
        list("peer_port", self.peer_ports.iter().map(range).collect())?;
        list("peer", self.peers.iter().map(Prefix::to_string).collect())?;
        list("user", self.users.iter().map(u32::to_string).collect())?;
        list("group", self.groups.iter().map(u32::to_string).collect())
    }
}

/// Rules in the order of the checks, with the number of decisions of each rule.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    /// The rules, each with the number of its decisions.
    rules: Vec<(Rule, u64)>,
    /// The verdict on connections that match no rule.
    default: Action,
    /// Number of decisions of the default.
    default_hits: u64,
}

impl RuleSet {
    /// Makes a set from `rules`, which are in the order of the checks.
    pub fn new(rules: Vec<Rule>, default: Action) -> Self {
        Self {
            rules: rules.into_iter().map(|rule| (rule, 0)).collect(),
            default,
            default_hits: 0,
        }
    }

    /// Returns true if the set has no rules, and the default accepts every connection. The set then
    /// counts no decisions.
    #[inline]
    pub fn accepts_all(&self) -> bool {
        self.rules.is_empty() && self.default == Action::Accept
    }

    /// Returns the verdict on a connection that opens, and counts the decision for the rule (or the
    /// default) that decides.
    #[inline]
    pub fn verdict(&mut self, opening: &Opening<'_>) -> Action {
        if self.accepts_all() {
            return Action::Accept;
        }
        self.first_hit(opening)
    }

    #[inline(never)]
    fn first_hit(&mut self, opening: &Opening<'_>) -> Action {
        match self.rules.iter_mut().find(|(rule, _)| rule.fits(opening)) {
            Some((rule, hits)) => {
                *hits += 1;
                rule.action
            }
            None => {
                self.default_hits += 1;
                self.default
            }
        }
    }

    /// Returns the verdict on a connection, and counts no decision.
    pub fn uncounted_action(&self, opening: &Opening<'_>) -> Action {
        let found = self.rules.iter().find(|(rule, _)| rule.fits(opening));
        found.map_or(self.default, |(rule, _)| rule.action)
    }

    /// Returns each rule as text, with the default at the end.
    pub fn descriptions(&self) -> Vec<String> {
        let rules = self.rules.iter().map(|(rule, _)| rule.to_string());
        rules
            .chain([format!("default: {}", self.default)])
            .collect()
    }

    /// Returns the number of decisions of each rule, with the default at the end.
    pub fn hits(&self) -> Vec<u64> {
        let hits = self.rules.iter().map(|(_, hits)| *hits);
        hits.chain([self.default_hits]).collect()
    }
}

#[cfg(test)]
mod tests;
