//! The tables `[[rule]]` of the configuration, and their conversion to the [`RuleSet`] that the
//! cores (polling threads) apply to new connections.

use std::fmt;

use serde::{Deserialize, Deserializer, de};
use serde_json::{Value, json};
use tidelane_host::{Action, Direction, Prefix, Rule, RuleSet};

use crate::{
    core_link::NicPort,
    cores::Cores,
    names::{Ids, Names, Principal, UnknownName},
};

/// The verdict on a connection, as the configuration spells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActionWord {
    /// The connection opens.
    #[default]
    Accept,
    /// A peer that opens the connection gets a RST. A program that opens the connection with a
    /// socket of the service gets ECONNREFUSED.
    Refuse,
    /// The opener gets no answer.
    Drop,
}

impl From<ActionWord> for Action {
    fn from(word: ActionWord) -> Action {
        match word {
            ActionWord::Accept => Action::Accept,
            ActionWord::Refuse => Action::Refuse,
            ActionWord::Drop => Action::Drop,
        }
    }
}

/// The side that opens a connection, as the configuration spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DirectionWord {
    /// The peer.
    In,
    /// A program of this host.
    Out,
}

/// One value, or a list of values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Several<T>(Vec<T>);

/// A port (`80` or `"80"`), or a range of ports (`"8000-8100"`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports(std::ops::RangeInclusive<u16>);

/// A prefix of peer addresses, which the configuration spells as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerPrefix(Prefix);

/// A table `[[rule]]`. Every field except `action` is a condition. An absent condition matches
/// everything.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleConfig {
    action: ActionWord,
    direction: Option<DirectionWord>,
    local_port: Option<Several<Ports>>,
    peer_port: Option<Several<Ports>>,
    peer: Option<Several<PeerPrefix>>,
    user: Option<Several<Principal>>,
    group: Option<Several<Principal>>,
}

impl RuleConfig {
    fn resolve(&self, names: &Names) -> Result<Rule, UnknownName> {
        let ports = |ports: &Option<Several<Ports>>| {
            let several = ports.iter().flat_map(|several| &several.0);
            several.map(|ports| ports.0.clone()).collect()
        };
        // In a `Rule`, an empty list of ids matches every user or group.
        let all = |ids: Ids| ids.list().map(<[u32]>::to_vec).unwrap_or_default();
        let users = self.user.as_ref().map(|several| names.users(&several.0));
        let groups = self.group.as_ref().map(|several| names.groups(&several.0));
        Ok(Rule {
            action: self.action.into(),
            direction: self.direction.map(|word| match word {
                DirectionWord::In => Direction::In,
                DirectionWord::Out => Direction::Out,
            }),
            local_ports: ports(&self.local_port),
            peer_ports: ports(&self.peer_port),
            peers: {
                let several = self.peer.iter().flat_map(|several| &several.0);
                several.map(|prefix| prefix.0).collect()
            },
            users: users.transpose()?.map(all).unwrap_or_default(),
            groups: groups.transpose()?.map(all).unwrap_or_default(),
        })
    }
}

/// Returns the rules of a configuration. `default` is the verdict on a connection that matches no
/// rule.
pub fn rule_set(
    rules: &[RuleConfig],
    default: ActionWord,
    names: &Names,
) -> Result<RuleSet, UnknownName> {
    let rules: Result<Vec<Rule>, _> = rules.iter().map(|rule| rule.resolve(names)).collect();
    Ok(RuleSet::new(rules?, default.into()))
}

/// Returns each rule and the number of connections that the rule has accepted, refused or dropped,
/// summed over all cores. The last entry is the default verdict. The admin socket sends this list.
pub fn hits<P: NicPort>(cores: &Cores<P>, rules: &RuleSet) -> Value {
    let counted = cores.call_each(|_| |host, _| host.rule_hits());
    let counted = counted.unwrap_or_default();
    let sum = |number: usize| -> u64 {
        let of_cores = counted.iter().filter_map(|hits| hits.get(number));
        of_cores.sum()
    };
    let descriptions = rules.descriptions();
    let numbered = descriptions.into_iter().enumerate();
    numbered
        .map(|(number, rule)| json!({ "rule": rule, "hits": sum(number) }))
        .collect()
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Several<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Visitor<T> {
            type Value = Several<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value, or a list of values")
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Several<T>, E> {
                let one = de::value::I64Deserializer::new(value);
                T::deserialize(one).map(|one| Several(vec![one]))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Several<T>, E> {
                let one = de::value::StrDeserializer::new(value);
                T::deserialize(one).map(|one| Several(vec![one]))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Several<T>, A::Error> {
                let mut several = Vec::new();
                while let Some(next) = list.next_element()? {
                    several.push(next);
                }
                if several.is_empty() {
                    // An empty list would look as if it matched nothing, but would match
                    // everything. Refuse the list.
                    return Err(de::Error::invalid_length(0, &"at least one value"));
                }
                Ok(Several(several))
            }
        }
        deserializer.deserialize_any(Visitor(std::marker::PhantomData))
    }
}

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Ports;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a port, or ports such as \"8000-8100\"")
            }

            fn visit_i64<E: de::Error>(self, port: i64) -> Result<Ports, E> {
                let port = u16::try_from(port)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(port), &self))?;
                Ok(Ports(port..=port))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Ports, E> {
                let (first, last) = text.split_once('-').unwrap_or((text, text));
                let port = |text: &str| text.trim().parse::<u16>().ok();
                match (port(first), port(last)) {
                    (Some(first), Some(last)) if first <= last => Ok(Ports(first..=last)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl<'de> Deserialize<'de> for PeerPrefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let prefix = text.parse();
        prefix
            .map(PeerPrefix)
            .map_err(|error| de::Error::custom(format!("{text:?}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::FileConfig;

    fn rules(text: &str) -> Result<RuleSet, String> {
        let config = FileConfig::parse(text)?;
        let names = Names::parse("www:x:33:33::/:\n", "adm:x:4:\n");
        rule_set(&config.rule, config.default, &names).map_err(|error| error.to_string())
    }

    #[test]
    fn rules_are_read_in_their_order_with_all_conditions() {
        let text = "
            default = 'refuse'
            [[rule]]
            action = 'accept'
            direction = 'in'
            local_port = [22, 80, '8000-8100']
            peer = ['10.0.0.0/8', 'fd00::/8']
            [[rule]]
            action = 'drop'
            direction = 'out'
            peer_port = 25
            user = 'www'
            group = [4, 'adm']
            [[rule]]
            action = 'accept'
            user = '*'
        ";
        let set = rules(text).expect("rules");
        assert_eq!(
            set.descriptions(),
            [
                "accept in local_port 22,80,8000-8100 peer 10.0.0.0/8,fd00::/8",
                "drop out peer_port 25 user 33 group 4,4",
                "accept",
                "default: refuse",
            ]
        );
        assert!(rules("").expect("none").accepts_all());
    }

    #[test]
    fn an_invalid_rule_is_refused_with_its_line() {
        for bad in [
            "direction = 'in'",
            "action = 'reject'",
            "action = 'drop'\nlocal_port = 65536",
            "action = 'drop'\nlocal_port = '90-80'",
            "action = 'drop'\nlocal_port = []",
            "action = 'drop'\npeer = '10.0.0.1/8'",
            "action = 'drop'\nports = 80",
            "action = 'drop'\nuser = []",
        ] {
            let error = rules(&format!("[[rule]]\n{bad}\n")).expect_err(bad);
            assert!(error.contains("line "), "{bad}: {error}");
        }
        assert!(rules("[[rule]]\naction = 'drop'\nuser = 'w3'\n").is_err());
        assert!(rules("default = 'reject'\n").is_err());
    }
}
