//! The operator's rules: which connections may open.
//!
//! A rule is looked at when a connection opens, and once more when the rules change: never for a
//! segment of a connection that is established. The first rule that fits decides; if none does,
//! the default decides. Without rules, the cost is one branch where a connection opens.

use std::{error::Error, fmt, net::IpAddr, ops::RangeInclusive, str::FromStr};

use tidelane_wire::{Endpoint, IpAddress};

/// Whose a program is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Its user.
    pub uid: u32,
    /// Its groups, the first one included.
    pub groups: Vec<u32>,
}

/// The verdict on a connection that opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// The connection opens.
    #[default]
    Accept,
    /// The connection is refused by a reset, or by ECONNREFUSED.
    Refuse,
    /// The connection gets no answer: its opener waits until it gives up.
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
    /// The peer: a SYN came for a listener.
    In,
    /// A program of this host.
    Out,
}

/// A connection that is about to open.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// The side that opens it.
    pub direction: Direction,
    /// This host's end.
    pub local: Endpoint,
    /// The other end.
    pub peer: Endpoint,
    /// Whose the program here is: that of the listener, or that which connects.
    pub owner: &'a Credentials,
}

/// Addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    addr: IpAddress,
    /// On the 128-bit form.
    len: u8,
}

impl Prefix {
    /// Returns true if `addr` is in it.
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

/// A text that is no prefix.
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

    /// `10.0.0.0/8`, `fd00::/8`, or one address. No bit may be set beyond the length: a rule that
    /// says something else than it seems to is a mistake.
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

/// Which connections a rule is about, and what becomes of them. All conditions must hold; an empty
/// list is no condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The verdict on them.
    pub action: Action,
    /// The side that opens them; either if there is none.
    pub direction: Option<Direction>,
    /// Ports of this host's end.
    pub local_ports: Vec<RangeInclusive<u16>>,
    /// Ports of the other end.
    pub peer_ports: Vec<RangeInclusive<u16>>,
    /// Addresses of the other end.
    pub peers: Vec<Prefix>,
    /// Users of the program here.
    pub users: Vec<u32>,
    /// Groups of the program here.
    pub groups: Vec<u32>,
}

impl Rule {
    /// Returns true if the rule is about this connection.
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
    /// As the configuration has it, in one line.
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

/// Rules in their order, with what they decided.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    rules: Vec<(Rule, u64)>,
    /// The verdict on connections that no rule is about.
    default: Action,
    default_hits: u64,
}

impl RuleSet {
    /// Rules in the order in which they are looked at.
    pub fn new(rules: Vec<Rule>, default: Action) -> Self {
        Self {
            rules: rules.into_iter().map(|rule| (rule, 0)).collect(),
            default,
            default_hits: 0,
        }
    }

    /// Returns true if every connection may open: nothing is counted then.
    #[inline]
    pub fn accepts_all(&self) -> bool {
        self.rules.is_empty() && self.default == Action::Accept
    }

    /// Decides on a connection that opens, and counts the decision.
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

    /// Decides on a connection that is open. Nothing is counted.
    pub fn opinion(&self, opening: &Opening<'_>) -> Action {
        let found = self.rules.iter().find(|(rule, _)| rule.fits(opening));
        found.map_or(self.default, |(rule, _)| rule.action)
    }

    /// Each rule in words, and the default at the end.
    pub fn descriptions(&self) -> Vec<String> {
        let rules = self.rules.iter().map(|(rule, _)| rule.to_string());
        rules
            .chain([format!("default: {}", self.default)])
            .collect()
    }

    /// How many connections each rule decided on, and the default at the end.
    pub fn hits(&self) -> Vec<u64> {
        let hits = self.rules.iter().map(|(_, hits)| *hits);
        hits.chain([self.default_hits]).collect()
    }
}

#[cfg(test)]
mod tests;
