//! Hooks of the kernel in an interface's traffic: netfilter chains, tc filters, BPF programs and
//! security modules.
//!
//! Packets of the service (the process `tidelaned`, a TCP/IP stack in user space) bypass these
//! hooks. Received packets leave the kernel in XDP, before all hooks. Packets that the service
//! sends over AF_XDP enter the kernel behind all hooks. GSO frames, which carry the payload of many
//! TCP segments, are an exception. The service sends GSO frames over a packet socket, so these
//! frames pass the hooks of tc, tcx and netdev egress. An operator may rely on a hook, so
//! [`Firewall::hooks`] lists the hooks, and [`network_security_modules`] lists the modules.
//!
//! ```text
//!   NIC -> XDP -> tc, tcx -> netdev ingress -> prerouting -> input -> cgroup ingress -> socket
//!           |                                                                            |
//!        service                                                                         |
//!           |                                                                            |
//!   NIC <---+--- tc, tcx <- netdev egress <- cgroup egress <- postrouting <- output <----+
//! ```

mod bpf;
mod filters;
mod legacy;
mod netlink;
mod nftables;
mod sys;

use std::{fmt, io};

pub use bpf::{CgroupHooks, CgroupTree, Naming};

/// A part of the kernel that has hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subsystem {
    /// nf_tables, which `iptables-nft` uses, too.
    Nftables,
    /// The tables of `iptables-legacy`.
    Legacy,
    /// Filters of `tc`.
    Filters,
    /// BPF programs that are attached to an interface by tcx.
    Tcx,
    /// BPF programs that are attached to the root cgroup.
    Cgroups,
}

impl fmt::Display for Subsystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nftables => "nftables",
            Self::Legacy => "iptables-legacy tables",
            Self::Filters => "tc filters",
            Self::Tcx => "tcx programs",
            Self::Cgroups => "cgroup programs",
        })
    }
}

/// Direction of a packet relative to this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Incoming packets.
    Ingress,
    /// Outgoing packets.
    Egress,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        })
    }
}

/// A loaded BPF program. Two programs are equal if their numbers are equal, because only privileged
/// users see names.
#[derive(Clone, Debug, Eq)]
pub struct Program {
    /// Number that the kernel gave the program (BPF program ID).
    id: u32,
    /// Name of the program; `None` if the name is unknown or is not to be reported.
    name: Option<String>,
}

impl PartialEq for Program {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} (id {})", self.id),
            None => write!(f, "id {}", self.id),
        }
    }
}

/// A hook that packets of the service bypass (GSO frames: see the documentation of the module).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hook {
    /// A base chain of nf_tables.
    Chain {
        /// `ip`, `ip6`, `inet` or `netdev`.
        family: &'static str,
        /// Name of the chain's table.
        table: String,
        /// Name of the chain.
        chain: String,
        /// Name of the netfilter hook, such as `input`; `unknown` for a hook without a known name.
        hook: &'static str,
    },
    /// A table of `iptables-legacy` that has a rule, or a policy other than ACCEPT.
    Table {
        /// `iptables` or `ip6tables`.
        command: &'static str,
        /// Name of the table.
        table: String,
    },
    /// A filter of tc.
    Filter {
        /// Name of the interface.
        interface: String,
        /// Direction; `None` for a filter of the interface's root qdisc.
        side: Option<Direction>,
        /// Kind of the filter, such as `u32` or `bpf`.
        kind: String,
        /// Preference of the filter. The kernel runs the filter with the lowest preference first.
        pref: u16,
    },
    /// A BPF program on the interface (tcx).
    Tcx {
        /// Name of the interface.
        interface: String,
        /// Direction.
        side: Direction,
        /// The program.
        program: Program,
    },
    /// A BPF program of a cgroup.
    Cgroup {
        /// Path of the cgroup in the cgroup2 hierarchy.
        cgroup: String,
        /// Attach type in the spelling of `bpftool`.
        attach_type: &'static str,
        /// The program.
        program: Program,
    },
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chain {
                family,
                table,
                chain,
                hook,
            } => write!(
                f,
                "nftables chain {chain:?} of table {family} {table} (hook {hook})"
            ),
            Self::Table { command, table } => {
                write!(f, "table {table:?} of {command}-legacy")
            }
            Self::Filter {
                interface,
                side,
                kind,
                pref,
            } => {
                let place = side.map_or("root".to_owned(), |side| side.to_string());
                write!(f, "tc filter on {interface} {place} ({kind}, pref {pref})")
            }
            Self::Tcx {
                interface,
                side,
                program,
            } => write!(f, "BPF program {program} on {interface} (tcx {side})"),
            Self::Cgroup {
                cgroup,
                attach_type,
                program,
            } => write!(
                f,
                "BPF program {program} on cgroup {cgroup} ({attach_type})"
            ),
        }
    }
}

/// Returns the hooks `found`, with the names of BPF programs that `known` has. In the result, a
/// hook of `known` replaces the equal hook of `found`. The names in `found` may be missing, because
/// this process may have lost the right to look up names after it found `known`.
pub fn with_known_names(found: Vec<Hook>, known: &[Hook]) -> Vec<Hook> {
    let named = |hook: Hook| {
        known
            .iter()
            .find(|known| **known == hook)
            .cloned()
            .unwrap_or(hook)
    };
    found.into_iter().map(named).collect()
}

/// Error of the search for hooks.
#[derive(Debug)]
pub struct HookQueryError {
    subsystem: Subsystem,
    error: io::Error,
}

impl fmt::Display for HookQueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot look for {}: {}", self.subsystem, self.error)
    }
}

impl std::error::Error for HookQueryError {}

/// Search for the hooks in the traffic of one interface. The search runs in the network namespace
/// of the thread that calls [`hooks`](Self::hooks).
#[derive(Clone, Debug)]
pub struct Firewall {
    interface: String,
    ifindex: u32,
    /// The cgroup2 hierarchy; `None` if the kernel has no cgroups.
    cgroups: Option<CgroupTree>,
    /// Form in which BPF programs are reported: by name and number, or by number only.
    naming: Naming,
}

impl Firewall {
    /// Creates a search for interface `interface` with index `ifindex`.
    pub fn of(interface: &str, ifindex: u32) -> Result<Self, HookQueryError> {
        let subsystem = Subsystem::Cgroups;
        let cgroups = CgroupTree::find().map_err(|error| HookQueryError { subsystem, error })?;
        Ok(Self {
            interface: interface.to_owned(),
            ifindex,
            cgroups,
            naming: Naming::Names,
        })
    }

    /// Makes [`hooks`](Self::hooks) report BPF programs by number only, for a process that lacks
    /// the permission to look up their names.
    #[must_use]
    pub fn without_names(self) -> Self {
        Self {
            naming: Naming::Numbers,
            ..self
        }
    }

    /// Returns the current hooks of each [`Subsystem`]. A subsystem that the kernel lacks has no
    /// hooks.
    pub fn hooks(&self) -> Result<Vec<Hook>, HookQueryError> {
        let of = |subsystem| move |error| HookQueryError { subsystem, error };
        let mut hooks = nftables::chains(&self.interface).map_err(of(Subsystem::Nftables))?;
        hooks.extend(legacy::tables().map_err(of(Subsystem::Legacy))?);
        let filters = filters::filters(&self.interface, self.ifindex);
        hooks.extend(filters.map_err(of(Subsystem::Filters))?);
        let programs = bpf::tcx(&self.interface, self.ifindex, self.naming);
        hooks.extend(programs.map_err(of(Subsystem::Tcx))?);
        if let Some(tree) = &self.cgroups {
            let root = tree.hooks_at("/").map_err(of(Subsystem::Cgroups))?;
            hooks.extend(root.into_hooks("/", self.naming));
        }
        Ok(hooks)
    }
}

/// Returns the active security modules of the kernel that can control connections (`connect`,
/// `listen`). Connections of the service bypass these modules. The result is empty if the kernel's
/// list of modules cannot be read.
pub fn network_security_modules() -> Vec<String> {
    const WITH_SOCKET_HOOKS: [&str; 5] = ["selinux", "apparmor", "smack", "tomoyo", "bpf"];
    let list = std::fs::read_to_string("/sys/kernel/security/lsm").unwrap_or_default();
    list.trim()
        .split(',')
        .filter(|name| WITH_SOCKET_HOOKS.contains(name))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_hook_keeps_its_name() {
        let hook = |program| Hook::Tcx {
            interface: "eth7".to_owned(),
            side: Direction::Ingress,
            program,
        };
        let known = [hook(Program::named(5, "filter"))];
        let numbered = |id| hook(Program { id, name: None });
        let hooks = with_known_names(vec![numbered(4), numbered(5)], &known);
        let shown: Vec<String> = hooks.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "BPF program id 4 on eth7 (tcx ingress)",
                "BPF program filter (id 5) on eth7 (tcx ingress)"
            ]
        );
    }
}
