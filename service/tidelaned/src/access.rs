//! Access control: the programs that may use a Tidelane service (`tidelaned`).
//!
//! By default, a program may use the service if its user is root or a member of the group
//! `tidelane`, and if the program is in the service's own network namespace. The table `[access]`
//! of the configuration admits more programs. The connections of a program that is not admitted
//! stay with the kernel's TCP.
//!
//! The service does not admit a program whose cgroup has BPF programs for sockets or packets, such
//! as filters and counters, because the program's connections would bypass these BPF programs.

use std::{fs::File, io, os::fd::BorrowedFd, path::PathBuf};

use rustix::process::Gid;
use serde::Deserialize;
use tidelane_abi::refusal;
use tidelane_steering::firewall::{CgroupHooks, CgroupTree};

use crate::{
    names::{Ids, Names, Principal, UnknownName},
    netns::{NetNs, NetView},
    peer::Peer,
    runtime,
};

/// The group whose members may use every service, if their programs run in an admitted namespace.
pub const GROUP: &str = "tidelane";

/// The table `[access]` of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessConfig {
    /// Network namespaces in addition to the service's own, each as the path of its file, such as
    /// `/run/netns/NAME`; `"*"` for all.
    pub namespaces: Vec<PathBuf>,
    /// Users in addition to root and the members of the group `tidelane`.
    pub users: Vec<Principal>,
    /// Groups in addition to `tidelane`.
    pub groups: Vec<Principal>,
}

/// The reason why a program is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Denial {
    /// The program is in a network namespace that is not admitted.
    Namespace,
    /// The program's user is not admitted.
    User,
    /// The program's cgroup has BPF programs for sockets or packets, or the cgroup cannot be
    /// checked.
    Cgroup,
}

impl Denial {
    /// Returns the reason as a constant of [`refusal`].
    pub fn code(self) -> u32 {
        match self {
            Self::Namespace => refusal::NAMESPACE,
            Self::User => refusal::USER,
            Self::Cgroup => refusal::CGROUP,
        }
    }
}

/// The admitted network namespaces, users and groups.
#[derive(Debug)]
pub struct AccessPolicy {
    /// True if programs of every network namespace are admitted.
    any_namespace: bool,
    /// The admitted namespaces. For a namespace other than the service's own, the file of the
    /// namespace stays open. While the file is open, the kernel does not give the namespace's inode
    /// number to another namespace.
    namespaces: Vec<(NetNs, Option<File>)>,
    users: Ids,
    groups: Ids,
    /// Group id of [`GROUP`], if the host has this group.
    own_group: Option<u32>,
}

impl AccessPolicy {
    /// Returns the default policy of a service in namespace `own`.
    pub fn new(own: NetNs, own_group: Option<u32>) -> Self {
        Self {
            any_namespace: false,
            namespaces: vec![(own, None)],
            users: Ids::default(),
            groups: Ids::default(),
            own_group,
        }
    }

    /// Returns the policy of `config`. Also returns a text for each configured namespace whose file
    /// cannot be opened; the policy does not admit these namespaces. Returns an error if `config`
    /// has an unknown name of a user or group.
    pub fn of(
        config: &AccessConfig,
        names: &Names,
        own: NetNs,
    ) -> Result<(Self, Vec<String>), UnknownName> {
        let mut policy = Self::new(own, names.group(GROUP));
        policy.users = names.users(&config.users)?;
        policy.groups = names.groups(&config.groups)?;
        let mut missing = Vec::new();
        for path in &config.namespaces {
            if path.as_os_str() == "*" {
                policy.any_namespace = true;
                continue;
            }
            match File::open(path).and_then(|file| Ok((NetNs::of_file(&file)?, Some(file)))) {
                Ok(namespace) => policy.namespaces.push(namespace),
                Err(error) => missing.push(format!("{}: {error}", path.display())),
            }
        }
        Ok((policy, missing))
    }

    /// Returns a policy that admits every program, for [`AccessControl::everybody`].
    fn everybody() -> Self {
        Self {
            any_namespace: true,
            namespaces: Vec::new(),
            users: Ids::all(),
            groups: Ids::all(),
            own_group: None,
        }
    }

    /// Returns an error if the policy does not admit the program. `peer` is the kernel's data about
    /// the process that connected to the service's registration socket.
    pub fn admits(&self, peer: &Peer) -> Result<(), Denial> {
        let mut namespaces = self.namespaces.iter().map(|(namespace, _)| *namespace);
        if !self.any_namespace && !namespaces.any(|admitted| admitted == peer.namespace) {
            return Err(Denial::Namespace);
        }
        let mut groups = std::iter::once(peer.gid).chain(peer.groups.iter().copied());
        let by_group = |group| self.groups.contains(group) || self.own_group == Some(group);
        if peer.uid == 0 || self.users.contains(peer.uid) || groups.any(by_group) {
            Ok(())
        } else {
            Err(Denial::User)
        }
    }

    /// Returns the permissions of the registration socket: every user that the policy admits can
    /// open the socket.
    pub fn socket(&self) -> runtime::SocketPermissions {
        let group = self.own_group.map(Gid::from_raw);
        if self.users.is_empty() && self.groups.is_empty() {
            runtime::SocketPermissions::group(group)
        } else {
            runtime::SocketPermissions::everybody(group)
        }
    }

    /// Returns true if only root may use the service.
    pub fn is_root_only(&self) -> bool {
        self.own_group.is_none() && self.users.is_empty() && self.groups.is_empty()
    }
}

/// The policy of a service, and its view of namespaces and cgroups.
#[derive(Debug)]
pub struct AccessControl {
    policy: AccessPolicy,
    /// The service's own network namespace, identified in two ways: by the inode of the namespace,
    /// and by the file `/proc/PID/net/tcp` (the *view*), which a process without rights over the
    /// other process can look up. `None` for [`AccessControl::everybody`].
    own: Option<(NetNs, NetView)>,
    /// The host's cgroups. `None` if the kernel has no cgroups, and for
    /// [`AccessControl::everybody`]: the service then checks no cgroup.
    cgroups: Option<CgroupTree>,
    /// BPF programs of the root cgroup that Tidelane's own rules replace.
    replaced: CgroupHooks,
}

impl AccessControl {
    /// Makes the access control of a service in the calling thread's namespace.
    pub fn new(policy: AccessPolicy) -> io::Result<Self> {
        Ok(Self {
            policy,
            own: Some((NetNs::current()?, NetView::current()?)),
            cgroups: CgroupTree::find()?,
            replaced: CgroupHooks::default(),
        })
    }

    /// Makes an access control that admits every program, for tests. The service, too, starts with
    /// this access control, until the control thread sets the configured access control.
    pub fn everybody() -> Self {
        Self {
            policy: AccessPolicy::everybody(),
            own: None,
            cgroups: None,
            replaced: CgroupHooks::default(),
        }
    }

    /// Makes the checks ignore the BPF programs that the root cgroup has at this time. The operator
    /// has configured that Tidelane's own rules replace these BPF programs.
    pub fn replacing_root_programs(mut self) -> io::Result<Self> {
        if let Some(tree) = &self.cgroups {
            self.replaced = tree.hooks_at("/")?;
        }
        Ok(self)
    }

    /// Returns the root directory of the cgroups, which the service must still be able to read
    /// after it has given up its rights. Returns `None` if the service checks no cgroup.
    pub fn cgroups(&self) -> Option<BorrowedFd<'_>> {
        self.cgroups.as_ref().map(CgroupTree::directory)
    }

    /// Returns the service's own network namespace. Returns `None` for
    /// [`everybody`](Self::everybody).
    pub fn own_namespace(&self) -> Option<NetNs> {
        self.own.map(|(namespace, _)| namespace)
    }

    /// Returns the policy.
    pub fn policy(&self) -> &AccessPolicy {
        &self.policy
    }

    /// Replaces the policy.
    pub fn set_policy(&mut self, policy: AccessPolicy) {
        self.policy = policy;
    }

    /// Checks the program `peer`. `connected_ancestor` is the process that connected to the
    /// service: the program itself or an ancestor. The policy applies to `connected_ancestor`, and
    /// the check of the cgroup applies to `peer`. A server's child that has given up root's rights
    /// therefore stays admitted.
    pub fn judge(&self, connected_ancestor: &Peer, peer: &Peer) -> Result<(), Denial> {
        self.policy.admits(connected_ancestor)?;
        self.judge_cgroup(peer)
    }

    /// Returns the network namespace in which the children of `peer` must be: the namespace of
    /// `peer` itself. The process `peer` has just connected to the service. Returns `None` if the
    /// service cannot examine the process.
    pub fn view_of(&self, peer: &Peer) -> Option<NetView> {
        if let Some((own, view)) = self.own
            && own == peer.namespace
        {
            return Some(view);
        }
        NetView::of_process(peer.pid_number()).ok()
    }

    /// Checks a forked child `peer`, which has its connection to the service from its parent.
    /// `view` is the network namespace of `connected_ancestor` when that process connected to the
    /// service. If the policy does not admit all namespaces, a child that has moved to another
    /// namespace is refused. A child outside of the service's PID namespace is not checked for a
    /// move, because the service cannot see the child's process.
    pub fn judge_child(
        &self,
        connected_ancestor: &Peer,
        peer: &Peer,
        view: Option<NetView>,
    ) -> Result<(), Denial> {
        let now = NetView::of_process(peer.pid_number()).ok();
        if now != view && peer.pid.is_some() && !self.policy.any_namespace {
            return Err(Denial::Namespace);
        }
        self.judge(connected_ancestor, peer)
    }

    /// Returns true if the program `peer` and its `connected_ancestor` are in the service's own
    /// network namespace. Returns false for [`everybody`](Self::everybody), and if the service
    /// cannot examine `peer`. A program in another admitted namespace has another loopback
    /// interface.
    pub fn is_within_host(&self, connected_ancestor: &Peer, peer: &Peer) -> bool {
        let Some((own, view)) = self.own else {
            return false;
        };
        let now = NetView::of_process(peer.pid_number());
        connected_ancestor.namespace == own
            && peer.namespace == own
            && now.is_ok_and(|now| now == view)
    }

    /// Returns an error if BPF programs act on the program's cgroup, except for BPF programs that
    /// Tidelane's own rules replace. Also returns an error if the cgroup cannot be examined. A
    /// process outside of the service's PID namespace passes, because the service can see neither
    /// the process nor its cgroup.
    fn judge_cgroup(&self, peer: &Peer) -> Result<(), Denial> {
        let (Some(tree), Some(_)) = (&self.cgroups, peer.pid) else {
            return Ok(());
        };
        match tree.hooks_of_process(peer.pid_number()) {
            Ok((_, hooks)) if hooks.clone().without(&self.replaced).is_empty() => Ok(()),
            Ok(_) => Err(Denial::Cgroup),
            Err(error) => {
                let name = peer.name();
                eprintln!("tidelaned: cannot examine the cgroup of {name}: {error}");
                Err(Denial::Cgroup)
            }
        }
    }
}

#[cfg(test)]
mod tests;
