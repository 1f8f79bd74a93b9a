//! The check of the host's firewall. If the host has rules that packets of the Tidelane service
//! would bypass, the service starts only if the operator has set [`Mode::Bypass`]. With this mode,
//! the operator declares that Tidelane's own rules replace the host's rules.

use std::{
    fmt::Write,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use clap::ValueEnum;
use rustix::{
    event::Timespec,
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create,
        timerfd_settime,
    },
};
use serde::Deserialize;
use serde_json::{Value, json};
use tidelane_steering::firewall::{Firewall, Hook, network_security_modules, with_known_names};

/// Document that explains the two modes ([`Mode`]) to operators.
const PAGE: &str = "docs/operating.md";
/// Interval between two checks while the service runs.
const CHECK_INTERVAL: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// The action if the kernel has hooks (firewall rules or BPF programs) that packets of the service
/// bypass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Do not start.
    #[default]
    Refuse,
    /// Start: Tidelane's own rules replace the host's rules.
    Bypass,
}

/// The table `[firewall]` of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FirewallConfig {
    /// The action if the host has rules or programs that packets of the service would bypass.
    pub mode: Mode,
}

/// Watches for hooks of the kernel (rules and programs) that packets of the service bypass.
#[derive(Debug)]
pub struct Guard {
    firewall: Firewall,
    mode: Mode,
    /// The hooks that the most recent successful check found.
    hooks: Vec<Hook>,
    /// True if the most recent check failed. Only the first failure after a success is logged.
    failed: bool,
    /// A timer descriptor, which is readable when the next check is due.
    recheck_timer: OwnedFd,
}

impl Guard {
    /// Checks the host before the service starts. `name` is the name of the service and of its
    /// configuration file. The error is one line for the operator.
    pub fn before_start(firewall: Firewall, mode: Mode, name: &str) -> Result<Self, String> {
        let hooks = firewall.hooks().map_err(|error| error.to_string())?;
        if mode == Mode::Refuse && !hooks.is_empty() {
            return Err(refusal(&hooks, name));
        }
        for hook in &hooks {
            eprintln!("tidelaned: bypassed, as configured: {hook}");
        }
        for module in network_security_modules() {
            eprintln!(
                "tidelaned: security module {module}: its rules about connect and listen do not \
                 judge connections of this service ({PAGE})"
            );
        }
        Ok(Self {
            // Later checks report new BPF programs by number only, because the seccomp filter of
            // the running service denies the system calls that return names.
            firewall: firewall.without_names(),
            mode,
            hooks,
            failed: false,
            recheck_timer: timer().map_err(|error| format!("cannot make a timer: {error}"))?,
        })
    }

    /// Returns a descriptor that is readable when [`recheck`](Self::recheck) is due.
    pub fn recheck_timer(&self) -> BorrowedFd<'_> {
        self.recheck_timer.as_fd()
    }

    /// Checks the host again, and logs new and removed hooks.
    pub fn recheck(&mut self) {
        let _ = rustix::io::read(&self.recheck_timer, &mut [0u8; 8]);
        match self.firewall.hooks() {
            Ok(hooks) => {
                for hook in hooks.iter().filter(|hook| !self.hooks.contains(hook)) {
                    eprintln!(
                        "tidelaned: WARNING: new rules: {hook}; connections of this \
                         service bypass it ({PAGE})"
                    );
                }
                for hook in self.hooks.iter().filter(|hook| !hooks.contains(hook)) {
                    eprintln!("tidelaned: rules removed: {hook}");
                }
                self.hooks = with_known_names(hooks, &self.hooks);
                self.failed = false;
            }
            Err(error) if !self.failed => {
                eprintln!("tidelaned: WARNING: {error}");
                self.failed = true;
            }
            Err(_) => {}
        }
    }

    /// Formats the state for the admin socket.
    pub fn to_json(&self) -> Value {
        let hooks: Vec<String> = self.hooks.iter().map(ToString::to_string).collect();
        json!({
            "mode": match self.mode {
                Mode::Refuse => "refuse",
                Mode::Bypass => "bypass",
            },
            "bypassed": hooks,
        })
    }
}

fn timer() -> io::Result<OwnedFd> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
    let every = Itimerspec {
        it_interval: CHECK_INTERVAL,
        it_value: CHECK_INTERVAL,
    };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &every)?;
    Ok(timer)
}

/// Returns one line that names the hooks and the remedies.
fn refusal(hooks: &[Hook], name: &str) -> String {
    let mut text = "this host has rules that connections of Tidelane would bypass: ".to_owned();
    for (number, hook) in hooks.iter().enumerate() {
        let _ = write!(text, "{}{hook}", if number == 0 { "" } else { "; " });
    }
    let _ = write!(
        text,
        ". Remove them, or write what they say as [[rule]] in /etc/tidelane/{name}.toml and start \
         with: tidelane up --firewall bypass ({PAGE})"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_names_every_hook_and_the_way_out_in_one_line() {
        let hooks = ["input", "output"].map(|hook| Hook::Chain {
            family: "inet",
            table: "filter".to_owned(),
            chain: hook.to_owned(),
            hook,
        });
        let text = refusal(&hooks, "web");
        assert_eq!(text.lines().count(), 1);
        for part in [
            "nftables chain \"input\" of table inet filter (hook input)",
            "nftables chain \"output\" of table inet filter (hook output)",
            "/etc/tidelane/web.toml",
            "tidelane up --firewall bypass",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }

    #[test]
    fn the_mode_is_one_of_two_words() {
        let mode = |text| toml::from_str::<FirewallConfig>(text).map(|config| config.mode);
        assert_eq!(mode(""), Ok(Mode::Refuse));
        assert_eq!(mode("mode = 'refuse'"), Ok(Mode::Refuse));
        assert_eq!(mode("mode = 'bypass'"), Ok(Mode::Bypass));
        assert!(mode("mode = 'ignore'").is_err());
    }
}
