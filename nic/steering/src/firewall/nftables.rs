//! Base chains of nf_tables. A base chain is a chain with a netfilter hook. Packets that the
//! service (a TCP/IP stack in user space) receives or sends over AF_XDP bypass these chains. A base
//! chain is reported, even without rules, if packets to or from this host on the interface pass the
//! chain. All other chains are only jump targets, and tables without a base chain have no effect.

use std::io;

use super::{
    Hook,
    netlink::{self, Attributes, malformed},
};

const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFT_MSG_GETCHAIN: u16 = 4;
/// Length of `struct nfgenmsg` in bytes. In a request, a structure of zeros selects all families.
const NFGENMSG_LEN: usize = 4;

const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_DEV: u16 = 3;
const NFTA_HOOK_DEVS: u16 = 4;

/// Returns the base chains that packets to or from this host on `interface` pass.
pub(super) fn chains(interface: &str) -> io::Result<Vec<Hook>> {
    let kind = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETCHAIN;
    let dump = netlink::dump(Some(netlink::NETFILTER), kind, &[0; NFGENMSG_LEN])?;
    let messages = dump.unwrap_or_default();
    let chains = messages.iter().map(|message| chain(message, interface));
    chains.filter_map(Result::transpose).collect()
}

/// Returns the chain that `message` describes. Returns `None` if the chain is no base chain, or if
/// packets to or from this host on `interface` do not pass the chain.
fn chain(message: &[u8], interface: &str) -> io::Result<Option<Hook>> {
    let family = *message.first().ok_or_else(malformed)?;
    let attributes = Attributes(message.get(NFGENMSG_LEN..).ok_or_else(malformed)?);
    let Some(hook) = attributes.find(NFTA_CHAIN_HOOK)? else {
        return Ok(None);
    };
    let number = Attributes(hook).find(NFTA_HOOK_HOOKNUM)?;
    let number = number.and_then(|bytes| bytes.first_chunk());
    let number = u32::from_be_bytes(*number.ok_or_else(malformed)?);
    let Some((family, hook_name)) = place(family, number) else {
        return Ok(None);
    };
    if !applies_to(&Attributes(hook), interface)? {
        return Ok(None);
    }
    Ok(Some(Hook::Chain {
        family,
        table: attributes.text(NFTA_CHAIN_TABLE)?.unwrap_or_default(),
        chain: attributes.text(NFTA_CHAIN_NAME)?.unwrap_or_default(),
        hook: hook_name,
    }))
}

/// Returns the names of a family and of a netfilter hook. `family` and `hook` are the kernel's
/// numbers. Returns `None` for hooks that packets to or from this host never pass (forwarding,
/// bridges, ARP).
fn place(family: u8, hook: u32) -> Option<(&'static str, &'static str)> {
    const INET: [Option<&str>; 6] = [
        Some("prerouting"),
        Some("input"),
        None,
        Some("output"),
        Some("postrouting"),
        Some("ingress"),
    ];
    const NETDEV: [Option<&str>; 2] = [Some("ingress"), Some("egress")];
    let (family, hooks) = match family {
        1 => ("inet", &INET[..]),
        2 => ("ip", &INET[..]),
        5 => ("netdev", &NETDEV[..]),
        10 => ("ip6", &INET[..]),
        _ => return None,
    };
    // An unknown hook is reported instead of being skipped.
    let name = hooks.get(hook as usize).copied();
    Some((family, name.unwrap_or(Some("unknown"))?))
}

/// Returns true if a hook names no device, or if `interface` is among the devices of the hook.
fn applies_to(hook: &Attributes<'_>, interface: &str) -> io::Result<bool> {
    let mut devices = Vec::new();
    devices.extend(hook.text(NFTA_HOOK_DEV)?);
    for device in Attributes(hook.find(NFTA_HOOK_DEVS)?.unwrap_or_default()) {
        devices.push(netlink::text(device?.1));
    }
    Ok(devices.is_empty() || devices.iter().any(|device| device == interface))
}

#[cfg(test)]
mod tests {
    use super::{super::netlink::Dump, *};

    /// Answer of Linux 6.18 to the request of `chains`, with these tables:
    ///
    /// ```text
    /// table inet filter {
    ///     chain input { type filter hook input priority 0; policy drop; tcp dport 22 accept; }
    ///     chain plain { }
    /// }
    /// table ip nat { chain post { type nat hook postrouting priority 100; } }
    /// table netdev edge {
    ///     chain out { type filter hook egress device "eth1" priority 5; }
    ///     chain in { type filter hook ingress devices = { "eth1", "lo" } priority -1; }
    /// }
    /// table ip6 empty { }
    /// ```
    const DUMP: &str = "70000000030a020001000000dc320000010000020b00010066696c74657200000a000300\
        696e7075740000000c0002000000000000000001140004000800010000000001080002000000000008000500\
        000000000b00070066696c746572000008000a0000000001080006000000000140000000030a020001000000\
        dc320000010000020b00010066696c74657200000a000300706c61696e0000000c0002000000000000000002\
        080006000000000068000000030a020001000000dc32000002000002080001006e61740009000300706f7374\
        000000000c000200000000000000000114000400080001000000000408000200000000640800050000000001\
        080007006e61740008000a0000000001080006000000000088000000030a020001000000dc32000005000002\
        090001006564676500000000080003006f7574000c0002000000000000000001300004000800010000000001\
        08000200000000051000040009000100657468310000000009000300657468310000000008000500000000010b\
        00070066696c746572000008000a0000000001080006000000000084000000030a020001000000dc32000005\
        000002090001006564676500000000070003\
        00696e00000c00020000000000000000022c000400080001000000000008000200ffffffff18000400070001\
        006c6f000009000100657468310000000008000500000000010b00070066696c746572000008000a00000000\
        010800060000000000";

    fn messages() -> Vec<Vec<u8>> {
        let digits: Vec<u32> = DUMP.chars().filter_map(|c| c.to_digit(16)).collect();
        let bytes: Vec<u8> = digits
            .chunks(2)
            .map(|pair| (pair[0] << 4 | pair[1]) as u8)
            .collect();
        let mut dump = Dump::new(1);
        dump.take(&bytes).expect("a part of a dump");
        dump.messages
    }

    fn named(interface: &str) -> Vec<String> {
        messages()
            .iter()
            .filter_map(|message| chain(message, interface).expect("a chain"))
            .map(|hook| hook.to_string())
            .collect()
    }

    #[test]
    fn base_chains_are_named_and_others_are_not() {
        let all = [
            "nftables chain \"input\" of table inet filter (hook input)",
            "nftables chain \"post\" of table ip nat (hook postrouting)",
            "nftables chain \"out\" of table netdev edge (hook egress)",
            "nftables chain \"in\" of table netdev edge (hook ingress)",
        ];
        assert_eq!(named("eth1"), all);
        assert_eq!(named("lo"), [all[0], all[1], all[3]]);
        assert_eq!(named("eth2"), all[..2]);
    }

    #[test]
    fn a_message_that_ends_early_is_an_error_or_says_less() {
        for message in messages() {
            for end in 0..message.len() {
                // A truncated hook attribute is an error, but a missing hook attribute is not. The
                // loop therefore checks only that no truncated message causes a panic.
                let _ = chain(&message[..end], "eth1");
            }
        }
    }

    #[test]
    fn hooks_of_other_families_and_of_forward_are_left_out() {
        assert_eq!(place(2, 2), None, "forward");
        assert_eq!(place(7, 1), None, "bridge");
        assert_eq!(place(3, 0), None, "arp");
        assert_eq!(place(1, 99), Some(("inet", "unknown")));
    }
}
