//! Tables of `iptables-legacy`. A hook is a part of the kernel's firewall that packets of the
//! service (a TCP/IP stack in user space) bypass. A table is a hook if it has a rule, or a policy
//! other than ACCEPT. A table that accepts everything is no hook, because even `iptables-legacy -L`
//! creates such a table.

use std::io;

use super::{
    Hook,
    sys::{self, SocketFamily, Table},
};

/// Parameters of an IP version.
#[derive(Clone, Copy, Debug)]
pub(super) struct Version {
    /// Path of the file that lists the names of the tables.
    list: &'static str,
    /// Name of the command that manages the tables: `iptables` or `ip6tables`.
    command: &'static str,
    /// Constants of the socket whose options read the tables.
    sockets: SocketFamily,
    /// Offset in bytes of the field `target_offset` in a rule (a `struct ipt_entry` or
    /// `struct ip6t_entry`).
    target_offset_at: usize,
}

const VERSIONS: [Version; 2] = [
    Version {
        list: "/proc/thread-self/net/ip_tables_names",
        command: "iptables",
        sockets: SocketFamily {
            domain: libc::AF_INET,
            level: libc::IPPROTO_IP,
        },
        target_offset_at: 88,
    },
    Version {
        list: "/proc/thread-self/net/ip6_tables_names",
        command: "ip6tables",
        sockets: SocketFamily {
            domain: libc::AF_INET6,
            level: libc::IPPROTO_IPV6,
        },
        target_offset_at: 140,
    },
];

/// Returns the tables that have a rule, or a policy other than ACCEPT. A table whose rules cannot
/// be examined counts as having rules.
pub(super) fn tables() -> io::Result<Vec<Hook>> {
    let mut hooks = Vec::new();
    for version in VERSIONS {
        let list = match std::fs::read_to_string(version.list) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            list => list?,
        };
        for name in list.lines() {
            let Some((table, rules)) = sys::legacy_table(version.sockets, name)? else {
                continue;
            };
            if !only_accepts(&table, &version, &rules) {
                hooks.push(Hook::Table {
                    command: version.command,
                    table: name.to_owned(),
                });
            }
        }
    }
    Ok(hooks)
}

/// Returns true if the table has no rules except its policies, and all policies are ACCEPT.
/// `rules` is the rule set of the table as bytes.
fn only_accepts(table: &Table, version: &Version, rules: &[u8]) -> bool {
    let hooks = (0..5).filter(|hook| table.valid_hooks & 1 << hook != 0);
    // A table without further rules has one policy rule for each netfilter hook, and the final
    // error rule.
    table.entries == table.valid_hooks.count_ones() + 1
        && hooks.into_iter().all(|hook| {
            let at = table.underflow[hook] as usize;
            verdict(version, rules.get(at..).unwrap_or_default()) == Some(ACCEPT)
        })
}

/// Value of the verdict field that means ACCEPT: a standard target stores `-verdict - 1`, and
/// NF_ACCEPT is 1.
const ACCEPT: i32 = -2;
/// Number of bytes of `struct xt_entry_target` before the verdict of a standard target.
const TARGET_LEN: usize = 32;

/// Returns the verdict of the rule at the start of `rule`. Returns `None` if the rule has no
/// standard target, or is truncated.
fn verdict(version: &Version, rule: &[u8]) -> Option<i32> {
    let offset = rule.get(version.target_offset_at..)?.first_chunk()?;
    let target = rule.get(usize::from(u16::from_ne_bytes(*offset))..)?;
    // A standard target has an empty name.
    let standard = *target.get(2)? == 0;
    let verdict = i32::from_ne_bytes(*target.get(TARGET_LEN..)?.first_chunk()?);
    standard.then_some(verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the policy rule of an IPv4 table. `policy` is the rule's verdict field. `name` is
    /// the first byte of the target's name.
    fn rules(policy: i32, name: u8) -> Vec<u8> {
        let mut rule = vec![0; 112 + 40];
        rule[88..90].copy_from_slice(&112u16.to_ne_bytes());
        rule[114] = name;
        rule[144..148].copy_from_slice(&policy.to_ne_bytes());
        rule
    }

    #[test]
    fn a_table_that_only_accepts_is_no_hook() {
        let table = Table {
            valid_hooks: 1 << 1,
            underflow: [0; 5],
            entries: 2,
        };
        let accepts = |table: &Table, rules: &[u8]| only_accepts(table, &VERSIONS[0], rules);
        assert!(accepts(&table, &rules(ACCEPT, 0)));
        let drop = -1;
        assert!(!accepts(&table, &rules(drop, 0)), "policy DROP");
        assert!(!accepts(&table, &rules(ACCEPT, b'E')), "another target");
        assert!(
            !accepts(&table, &[]),
            "rules that cannot be read may be anything"
        );
        let more = Table {
            entries: 3,
            ..table
        };
        assert!(!accepts(&more, &rules(ACCEPT, 0)), "a rule");
    }
}
