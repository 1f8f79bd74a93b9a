//! The name of a service (a process `tidelaned`). Several services can run on one host under
//! different names.

use std::{fmt, str::FromStr};

/// Largest length of a name in bytes. The paths of the service's sockets contain the name, and must
/// fit into `sockaddr_un`.
pub const NAME_LEN_MAX: usize = 64;

/// The name of a service. The name is one path component, because it names a directory and a log
/// file.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ServiceName(String);

impl ServiceName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ServiceName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.len() > NAME_LEN_MAX {
            return Err(format!("a name has at most {NAME_LEN_MAX} characters"));
        }
        if name.is_empty() || name.starts_with(['.', '-']) || !name.chars().all(fits) {
            return Err(
                "a name has letters, digits, '-', '_' and '.', and begins with none of '-' and '.'"
                    .to_owned(),
            );
        }
        Ok(Self(name.to_owned()))
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Writes the name in quotes.
impl fmt::Debug for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_path_component() {
        for good in ["default", "a", "eth1.10", "web_2-blue", &"x".repeat(64)] {
            assert_eq!(good.parse::<ServiceName>().unwrap().as_str(), good);
        }
        for bad in [
            "",
            ".",
            "..",
            "../etc",
            "a/b",
            "/a",
            ".hidden",
            "-option",
            "a b",
            "a\0b",
            "a\n",
            "\u{e4}",
            &"x".repeat(65),
        ] {
            assert!(bad.parse::<ServiceName>().is_err(), "{bad:?}");
        }
    }
}
