//! The settings of the Tidelane service's configuration file, in the form in which the service
//! applies them.

use std::path::Path;

use tidelane_host::{MemoryLimits, RuleSet};

use crate::{
    access::{AccessPolicy, GROUP},
    accounts::LimitsConfig,
    config::FileConfig,
    firewall::Mode,
    memory,
    names::Names,
    netns::NetNs,
    rules::rule_set,
};

/// The settings of a service. The start of the service applies all settings. A reload of the
/// configuration applies all settings except `firewall` and `memory`.
#[derive(Debug)]
pub struct Settings {
    /// Programs that may use the service.
    pub policy: AccessPolicy,
    /// The rules for connections.
    pub rules: RuleSet,
    /// The action if the host has firewall rules that connections of the service would bypass. The
    /// setting applies at the start only.
    pub firewall: Mode,
    /// Limits of the resources that each user may hold.
    pub limits: LimitsConfig,
    /// Limits of the memory for received data. The limits hold for all users together. The setting
    /// applies at the start only.
    pub memory: MemoryLimits,
    /// True if the service accelerates the loopback connections of programs that were started with
    /// neither `tidelane run --loopback` nor `tidelane run --no-loopback`.
    pub loopback: bool,
}

/// Log lines about the settings. The caller writes the lines once the settings are in force.
#[derive(Debug)]
pub struct Notices(Vec<String>);

impl Notices {
    /// Writes the lines.
    pub fn log(&self) {
        for notice in &self.0 {
            eprintln!("tidelaned: {notice}");
        }
    }
}

impl Settings {
    /// Reads the configuration file `path` of a service. The calling thread must be in the
    /// service's network namespace.
    pub fn load(path: &Path) -> Result<(Self, Notices), String> {
        let config = FileConfig::load(path).map_err(|error| error.to_string())?;
        let in_file = |text: String| format!("{}: {text}", path.display());
        let names = Names::read()
            .map_err(|error| format!("cannot read the names of users and groups: {error}"))?;
        let own = NetNs::current().map_err(|error| {
            format!("cannot find the network namespace of the service: {error}")
        })?;
        let (policy, missing) = AccessPolicy::of(&config.access, &names, own)
            .map_err(|error| in_file(format!("[access]: {error}")))?;
        let mut notices: Vec<String> = missing
            .into_iter()
            .map(|missing| in_file(format!("[access]: cannot admit namespace {missing}")))
            .collect();
        if policy.is_root_only() {
            notices.push(format!(
                "there is no group {GROUP}: only root may use the service; to admit others: \
                 groupadd --system {GROUP} && usermod --append --groups {GROUP} USER, then start \
                 the service again"
            ));
        }
        let limits = config.limits.resolve(|name| names.user(name));
        let limits = limits.map_err(|error| in_file(error.to_string()))?;
        let memory = config.memory.resolve(memory::of_system());
        let memory = memory.map_err(|error| in_file(format!("[memory]: {error}")))?;
        let rules = rule_set(&config.rule, config.default, &names)
            .map_err(|error| in_file(format!("[[rule]]: {error}")))?;
        let settings = Self {
            policy,
            rules,
            firewall: config.firewall.mode,
            limits,
            memory,
            loopback: config.loopback,
        };
        Ok((settings, Notices(notices)))
    }
}
