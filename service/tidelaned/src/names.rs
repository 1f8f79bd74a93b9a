//! Names of users and groups in the configuration, and their numbers (uids and gids).
//!
//! Names are looked up in `/etc/passwd` and `/etc/group` only, because a service that has given up
//! its privileges cannot query a network directory such as LDAP. For a user in a network directory,
//! the operator configures the uid.

use std::{collections::HashMap, fmt, fs, io};

use serde::{Deserialize, Deserializer, de};

/// A user or a group in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// `"*"`: every user or group.
    Any,
    /// A uid or a gid.
    Id(u32),
    /// A name in `/etc/passwd` or `/etc/group`.
    Name(String),
}

impl<'de> Deserialize<'de> for Principal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Principal;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name, a number, or \"*\"")
            }

            fn visit_i64<E: de::Error>(self, id: i64) -> Result<Principal, E> {
                let number = u32::try_from(id).ok().filter(|id| *id != u32::MAX);
                number.map(Principal::Id).ok_or_else(|| {
                    E::invalid_value(de::Unexpected::Signed(id), &"the number of a user or group")
                })
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Principal, E> {
                Ok(match name {
                    "*" => Principal::Any,
                    name => Principal::Name(name.to_owned()),
                })
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// A set of uids or gids, which may contain all numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    /// True if the set contains all numbers.
    all: bool,
    /// The numbers in the set. Has no meaning if `all` is true.
    some: Vec<u32>,
}

impl Ids {
    /// Returns the set of all numbers.
    pub fn all() -> Self {
        Self {
            all: true,
            some: Vec::new(),
        }
    }

    /// Returns true if `id` is in the set.
    pub fn contains(&self, id: u32) -> bool {
        self.all || self.some.contains(&id)
    }

    /// Returns true if no number is in the set.
    pub fn is_empty(&self) -> bool {
        !self.all && self.some.is_empty()
    }

    /// Returns the numbers in the set, or `None` if the set contains all numbers.
    pub fn list(&self) -> Option<&[u32]> {
        (!self.all).then_some(&self.some)
    }
}

/// The error for a name that is missing in `/etc/passwd` or `/etc/group`. The field is the error
/// text, which contains the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName(String);

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The names of the host's users and groups, with their uids and gids.
#[derive(Clone, Debug, Default)]
pub struct Names {
    users: HashMap<String, u32>,
    groups: HashMap<String, u32>,
}

impl Names {
    /// Reads the current contents of `/etc/passwd` and `/etc/group`.
    pub fn read() -> io::Result<Self> {
        Ok(Self::parse(
            &fs::read_to_string("/etc/passwd")?,
            &fs::read_to_string("/etc/group")?,
        ))
    }

    /// Parses the texts of `/etc/passwd` and `/etc/group`. A line of either file begins with
    /// `name:password:number`.
    pub fn parse(passwd: &str, group: &str) -> Self {
        Self {
            users: table(passwd),
            groups: table(group),
        }
    }

    /// Returns the uid of a user.
    pub fn user(&self, name: &str) -> Option<u32> {
        self.users.get(name).copied()
    }

    /// Returns the gid of a group.
    pub fn group(&self, name: &str) -> Option<u32> {
        self.groups.get(name).copied()
    }

    /// Returns the uids of the users in a list. Returns an error for an unknown name.
    pub fn users(&self, list: &[Principal]) -> Result<Ids, UnknownName> {
        resolve(list, &self.users, "user")
    }

    /// Returns the gids of the groups in a list. Returns an error for an unknown name.
    pub fn groups(&self, list: &[Principal]) -> Result<Ids, UnknownName> {
        resolve(list, &self.groups, "group")
    }
}

fn table(text: &str) -> HashMap<String, u32> {
    let entries = text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        Some((name.to_owned(), fields.nth(1)?.parse().ok()?))
    });
    entries.collect()
}

fn resolve(
    list: &[Principal],
    table: &HashMap<String, u32>,
    what: &str,
) -> Result<Ids, UnknownName> {
    let mut ids = Ids::default();
    for principal in list {
        match principal {
            Principal::Any => ids.all = true,
            Principal::Id(id) => ids.some.push(*id),
            Principal::Name(name) => {
                let id = table.get(name).ok_or_else(|| {
                    UnknownName(format!("there is no {what} {name:?} on this host"))
                })?;
                ids.some.push(*id);
            }
        }
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn principals_are_names_numbers_or_all() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbroken\nwww:x:33:33::/:/bin/false\n";
        let names = Names::parse(passwd, "adm:x:4:\ntidelane:x:900:www\nbad:x:y:\n");
        let of = |name: &str| Principal::Name(name.to_owned());
        let users = names.users(&[of("www"), Principal::Id(7)]).expect("known");
        assert!(users.contains(33) && users.contains(7) && !users.contains(0));
        assert_eq!(users.list(), Some(&[33, 7][..]));
        assert!(names.users(&[]).expect("nobody").is_empty());
        let all = names.groups(&[Principal::Any]).expect("all");
        assert!(all.contains(12_345) && all.list().is_none());
        assert_eq!(names.group("tidelane"), Some(900));
        assert_eq!(names.group("bad"), None);
        assert_eq!(names.user("www"), Some(33));
        let error = names.users(&[of("wwww")]).expect_err("unknown");
        assert_eq!(error.to_string(), "there is no user \"wwww\" on this host");
    }
}
