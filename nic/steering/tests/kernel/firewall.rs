//! Tests of the search for the kernel's firewall hooks, in network namespaces and cgroups.

use std::{fs, os::fd::AsRawFd, process::Command};

use tidelane_steering::firewall::{CgroupTree, Firewall, Naming};

use crate::{
    bpf_unsafe::{
        CGROUP_INET_EGRESS, CGROUP_SKB, SCHED_CLS, TCX_INGRESS, attach, load, own_mounts,
    },
    net::{Namespace, Pair, privileged},
};

/// Returns the hooks of `veth0` as text. The programs of cgroups are left out, because these
/// programs depend on the machine.
fn hooks(namespace: &Namespace) -> Vec<String> {
    let firewall = Firewall::of("veth0", namespace.index("veth0")).expect("cgroups");
    let found = namespace.run(|| firewall.hooks()).expect("the hooks");
    let words = found.iter().map(ToString::to_string);
    words.filter(|hook| !hook.contains(" on cgroup ")).collect()
}

/// Returns true if `command` is installed. Otherwise prints a message that names the package.
fn has(command: &str, package: &str) -> bool {
    let there = Command::new(command).arg("-V").output();
    let there = there.is_ok_and(|output| output.status.success());
    if !there {
        eprintln!("SKIPPED {command}: apt-get install {package}");
    }
    there
}

#[test]
fn a_plain_namespace_has_no_hook() {
    if privileged("a_plain_namespace_has_no_hook") {
        assert_eq!(hooks(&Pair::new().host), [""; 0]);
    }
}

#[test]
fn base_chains_of_nftables_are_hooks() {
    if !privileged("base_chains_of_nftables_are_hooks") || !has("nft", "nftables") {
        return;
    }
    let pair = Pair::new();
    pair.host.command("nft add table inet idle");
    pair.host.command("nft add chain inet idle only_jumped_to");
    let through = "{ type filter hook forward priority 0 ; }";
    let forwards = format!("nft add chain inet idle through {through}");
    pair.host.command(&forwards);
    assert_eq!(hooks(&pair.host), [""; 0]);
    pair.host.command("nft add table ip t");
    pair.host
        .command("nft add chain ip t o { type filter hook output priority 0 ; }");
    pair.host.command("nft add table netdev n");
    let elsewhere = "{ type filter hook ingress device lo priority 0 ; }";
    pair.host
        .command(&format!("nft add chain netdev n elsewhere {elsewhere}"));
    let here = "{ type filter hook egress device veth0 priority 0 ; }";
    pair.host
        .command(&format!("nft add chain netdev n e {here}"));
    let expected = [
        "nftables chain \"o\" of table ip t (hook output)",
        "nftables chain \"e\" of table netdev n (hook egress)",
    ];
    assert_eq!(hooks(&pair.host), expected);
    // Another namespace has its own hooks.
    assert_eq!(hooks(&pair.peer), [""; 0]);
}

#[test]
fn a_legacy_table_is_a_hook_only_if_it_has_a_rule_or_drops() {
    if !privileged("a_legacy_table_is_a_hook_only_if_it_has_a_rule_or_drops")
        || !has("iptables-legacy", "iptables")
    {
        return;
    }
    for (command, other) in [
        ("iptables", "-A INPUT -p tcp --dport 9 -j DROP"),
        ("iptables", "-P OUTPUT DROP"),
        ("ip6tables", "-A OUTPUT -j ACCEPT"),
    ] {
        let pair = Pair::new();
        pair.host.command(&format!("{command}-legacy -L -n"));
        assert_eq!(hooks(&pair.host), [""; 0], "{command} -L");
        pair.host.command(&format!("{command}-legacy {other}"));
        let expected = format!("table \"filter\" of {command}-legacy");
        assert_eq!(hooks(&pair.host), [expected], "{command} {other}");
    }
}

#[test]
fn filters_and_programs_of_the_interface_are_hooks() {
    if !privileged("filters_and_programs_of_the_interface_are_hooks") {
        return;
    }
    let pair = Pair::new();
    pair.host.command("tc qdisc add dev veth0 clsact");
    assert_eq!(hooks(&pair.host), [""; 0]);
    let added = pair.host.run(|| {
        let u32_filter = "tc filter add dev veth0 egress pref 7 u32 match u32 0 0 flowid 1:1";
        let words: Vec<&str> = u32_filter.split(' ').collect();
        Command::new(words[0]).args(&words[1..]).output()
    });
    let added = added.expect("tc runs");
    if added.status.success() {
        let filter = "tc filter on veth0 egress (u32, pref 7)";
        assert_eq!(hooks(&pair.host), [filter]);
    } else {
        let why = String::from_utf8_lossy(&added.stderr).into_owned();
        eprintln!("SKIPPED a filter of tc: {why}");
    }
    let program = load(SCHED_CLS, 0);
    let index = pair.host.index("veth0");
    if let Err(error) = pair.host.run(|| attach(&program, index, TCX_INGRESS)) {
        return eprintln!("SKIPPED tcx, which needs Linux 6.6: {error}");
    }
    let found = hooks(&pair.host);
    let last = found.last().map(String::as_str).unwrap_or_default();
    let (named, place) = last.split_once(" (id ").expect("a number");
    assert_eq!(named, "BPF program test_prog");
    assert!(place.ends_with(") on veth0 (tcx ingress)"), "{last}");
}

/// A thread that has unmounted `/sys` sees no mount of the cgroup hierarchy. [`CgroupTree::find`]
/// still finds the hierarchy.
#[test]
fn cgroups_are_found_where_none_is_mounted() {
    if !privileged("cgroups_are_found_where_none_is_mounted") {
        return;
    }
    let looked = std::thread::spawn(|| {
        own_mounts();
        for change in [
            &["mount", "--make-rprivate", "/"][..],
            &["umount", "--recursive", "--lazy", "/sys"],
        ] {
            let status = Command::new(change[0]).args(&change[1..]).status();
            assert!(status.is_ok_and(|status| status.success()), "{change:?}");
        }
        let tree = CgroupTree::find().expect("a mount").expect("cgroups");
        tree.hooks_at("/").expect("a root").is_empty()
    });
    let tree = CgroupTree::find()
        .expect("the mounts are readable")
        .expect("a hierarchy");
    let here = tree.hooks_at("/").expect("the root").is_empty();
    assert_eq!(looked.join().expect("the hooks"), here);
}

/// Path of a cgroup's directory. Dropping the value removes the cgroup.
struct Cgroup(String);

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn programs_of_a_cgroup_act_on_its_children_and_on_nobody_else() {
    let name = "programs_of_a_cgroup_act_on_its_children_and_on_nobody_else";
    if !privileged(name) {
        return;
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the mounts are readable");
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let Some(mount) = mount.and_then(|line| line.split(' ').nth(4)) else {
        return eprintln!("SKIPPED {name}: no cgroup2 hierarchy is mounted");
    };
    let tree = CgroupTree::find()
        .expect("the mounts are readable")
        .expect("a hierarchy");
    let group = format!("tidelane-test-{}", std::process::id());
    let parent = Cgroup(format!("{mount}/{group}"));
    let child = Cgroup(format!("{mount}/{group}/child"));
    fs::create_dir(&parent.0).expect("root may make a cgroup");
    fs::create_dir(&child.0).expect("root may make a child cgroup");
    let before = tree.hooks_at("/").expect("the root");
    let none = tree
        .hooks_at(&format!("/{group}/child"))
        .expect("the programs of the child");
    assert!(none.without(&before).is_empty());
    let directory = fs::File::open(&parent.0).expect("its directory");
    let program = load(CGROUP_SKB, CGROUP_INET_EGRESS);
    let target = directory.as_raw_fd() as u32;
    attach(&program, target, CGROUP_INET_EGRESS).expect("root may attach it");
    for path in [format!("/{group}"), format!("/{group}/child")] {
        let hooks = tree.hooks_at(&path).expect("the hooks").without(&before);
        let words: Vec<String> = hooks
            .into_hooks(&path, Naming::Names)
            .map(|hook| hook.to_string())
            .collect();
        assert_eq!(words.len(), 1, "{words:?}");
        assert!(
            words[0].starts_with("BPF program test_prog (id "),
            "{words:?}"
        );
        let place = format!(") on cgroup {path} (cgroup_inet_egress)");
        assert!(words[0].ends_with(&place), "{words:?}");
    }
    let root = tree.hooks_at("/").expect("the root");
    assert!(root.without(&before).is_empty());
    let (own, hooks) = tree
        .hooks_of_process(std::process::id())
        .expect("this process");
    assert!(
        own.starts_with('/') && hooks.without(&before).is_empty(),
        "{own}"
    );
    // Remove the child first, because the kernel refuses to remove a cgroup that has a child.
    drop(child);
}
