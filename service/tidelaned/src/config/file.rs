//! The configuration file of a Tidelane service: `/etc/tidelane/NAME.toml`.
//!
//! The file is optional. Each table belongs to the module that implements it. An unknown key is an
//! error with line and column, so that a misspelt rule is never ignored.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::{
    access::AccessConfig,
    accounts::LimitsConfig,
    firewall::FirewallConfig,
    memory::MemoryConfig,
    rules::{ActionWord, RuleConfig},
};

/// Directory of the configuration files.
const DIRECTORY: &str = "/etc/tidelane";

/// The contents of a configuration file. A table that is absent has its documented default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FileConfig {
    /// Programs that may use the service.
    pub access: AccessConfig,
    /// The action if the host has firewall rules that connections of the service would bypass. A
    /// change applies at the next start.
    pub firewall: FirewallConfig,
    /// Limits of the resources that each user's programs may use.
    pub limits: LimitsConfig,
    /// Thresholds of the memory for received data, for the connections of all users together. A
    /// change applies at the next start.
    pub memory: MemoryConfig,
    /// True if the service accelerates the loopback connections of programs that were started with
    /// neither `tidelane run --loopback` nor `tidelane run --no-loopback`.
    pub loopback: bool,
    /// The verdict on connections that match no rule.
    pub default: ActionWord,
    /// The rules, in the order in which they are checked: the first rule that matches decides.
    pub rule: Vec<RuleConfig>,
}

/// The reason why the configuration file was not loaded.
#[derive(Debug)]
pub enum FileError {
    /// The file cannot be read.
    Read(PathBuf, io::Error),
    /// The file is invalid; the text names the line and the column.
    Parse(PathBuf, String),
}

impl std::fmt::Display for FileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FileError::Read(path, error) => write!(f, "cannot read {}: {error}", path.display()),
            FileError::Parse(path, text) => write!(f, "{}: {text}", path.display()),
        }
    }
}

impl FileConfig {
    /// Returns the path of the file of service `name`.
    pub fn path_of(name: &str) -> PathBuf {
        Path::new(DIRECTORY).join(format!("{name}.toml"))
    }

    /// Reads the file at `path`. If there is no file, returns the defaults.
    pub fn load(path: &Path) -> Result<Self, FileError> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).map_err(|text| FileError::Parse(path.to_owned(), text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(FileError::Read(path.to_owned(), error)),
        }
    }

    /// Parses the text of a file. The error has line and column.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_the_default() {
        let path = FileConfig::path_of("there-is-no-such-service");
        assert_eq!(
            FileConfig::load(&path).expect("defaults"),
            FileConfig::default()
        );
    }

    #[test]
    fn an_unknown_key_is_named_with_its_place() {
        let error = FileConfig::parse("\nacces = {}\n").expect_err("a misspelt key");
        assert!(
            error.contains("acces") && error.contains("line 2"),
            "{error}"
        );
    }
}
