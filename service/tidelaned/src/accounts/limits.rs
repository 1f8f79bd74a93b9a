//! Section `[limits]` of the configuration file: the limits of users.
//!
//! ```toml
//! [limits]                 # of every user except root
//! connections = 20000
//!
//! [limits.user.www-data]   # of one user, by name or number
//! connections = 100000
//! ```

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Deserializer, de};
use tidelane_host::accounts::{Resource, User, UserId};

/// Default limits: the resource, the limit of every user except root, and the limit of root.
/// `u64::MAX` is no limit: only the capacity for all users then bounds the resource.
const DEFAULTS: &[(Resource, u64, u64)] = &[
    (Resource::Registrations, 1024, 4096),
    (Resource::Programs, 1024, 2048),
    (Resource::Contexts, 1024, 4096),
    (Resource::Listeners, 4096, 32_768),
    (Resource::Ports, 16_384, 65_536),
    (Resource::Descriptors, 32_768, 262_144),
    (Resource::Connections, 65_536, u64::MAX),
    (Resource::HalfOpen, 4096, u64::MAX),
    (Resource::ParkedOpens, 4096, 32_768),
    (Resource::Holds, 262_144, 1_048_576),
    (Resource::StreamBytes, u64::MAX, u64::MAX),
    (Resource::Messages, 10_000, 50_000),
    (Resource::StagedBytes, u64::MAX, u64::MAX),
    (Resource::RingBytes, 268_435_456, 1_073_741_824),
    (Resource::PortPackets, u64::MAX, u64::MAX),
    (Resource::PortBytes, u64::MAX, u64::MAX),
];

/// The limits of one user, or of every user except root, by resource. A resource is missing if the
/// file does not set its limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserLimits(BTreeMap<Resource, u64>);

/// Section `[limits]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitsConfig {
    /// Limits of every user except root.
    all: UserLimits,
    /// Limits of single users, by the name or number in the file.
    named: BTreeMap<String, UserLimits>,
    /// Limits of single users, by uid. The map is empty before [`resolve`](Self::resolve).
    users: BTreeMap<UserId, UserLimits>,
}

/// The error for a user that the file names and the host does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsError(String);

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name) = self;
        write!(f, "[limits.user.{name}]: there is no user of this name")
    }
}

impl std::error::Error for LimitsError {}

impl LimitsConfig {
    /// Resolves the users that the file names. A number is the uid, and `number_of` returns the uid
    /// of a name. Returns an error for an unknown name.
    pub fn resolve(mut self, number_of: impl Fn(&str) -> Option<u32>) -> Result<Self, LimitsError> {
        for (name, limits) in &self.named {
            let id = name.parse().ok().or_else(|| number_of(name));
            let id = id.ok_or_else(|| LimitsError(name.clone()))?;
            self.users.insert(UserId(id), limits.clone());
        }
        Ok(self)
    }

    /// Sets all limits of `user`. A limit that the file does not set gets its default.
    pub(super) fn apply(&self, user: &User) {
        let own = self.users.get(&user.id());
        for (resource, of_users, of_root) in DEFAULTS {
            let is_root = user.id() == UserId::ROOT;
            let of_all = self.all.0.get(resource).filter(|_| !is_root);
            let set = own.and_then(|own| own.0.get(resource)).or(of_all);
            let default = if is_root { *of_root } else { *of_users };
            user.set_limit(*resource, set.copied().unwrap_or(default));
        }
    }
}

impl<'de> Deserialize<'de> for UserLimits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let named = BTreeMap::<Name, u64>::deserialize(deserializer)?;
        let limits = named
            .into_iter()
            .map(|(Name(resource), limit)| (resource, limit));
        Ok(Self(limits.collect()))
    }
}

impl<'de> Deserialize<'de> for LimitsConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// The section as the file has it.
        #[derive(Deserialize)]
        struct Section {
            #[serde(default)]
            user: BTreeMap<String, UserLimits>,
            #[serde(flatten)]
            all: UserLimits,
        }
        let Section { user, all } = Section::deserialize(deserializer)?;
        Ok(Self {
            all,
            named: user,
            users: BTreeMap::new(),
        })
    }
}

/// A resource, which deserializes from its name in the file.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Name(Resource);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Resource::named(&name).map(Self).ok_or_else(|| {
            let known: Vec<&str> = Resource::ALL.iter().map(|known| known.name()).collect();
            de::Error::custom(format!(
                "there is no limit {name:?}; there are: user, {}",
                known.join(", ")
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_for_operators_has_the_defaults() {
        let page = include_str!("../../../../docs/limits.md");
        let shown = |limit: u64| match limit {
            u64::MAX => "no limit".to_owned(),
            limit => limit.to_string(),
        };
        for resource in Resource::ALL {
            let known = DEFAULTS.iter().find(|(known, ..)| known == resource);
            let (_, of_users, of_root) = known.expect("a default for each");
            let row = page
                .lines()
                .find(|line| line.starts_with(&format!("| `{}` |", resource.name())));
            let row = row.unwrap_or_else(|| panic!("no row for {}", resource.name()));
            let columns: Vec<&str> = row.split('|').map(str::trim).collect();
            assert_eq!(columns[3..5], [shown(*of_users), shown(*of_root)], "{row}");
        }
    }
}
