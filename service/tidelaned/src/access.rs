//! Access: the programs that may use a service.
//!
//! By default: programs in the service's own network namespace, of root or of a member of the group
//! `tidelane`. The table `[access]` of the configuration admits more. Whoever is not admitted stays
//! with the kernel, and so does a program whose cgroup has BPF programs that judge or count its
//! connections: over the service, its packets would bypass them.

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

/// Members of this group may use every service, as far as the namespace is admitted.
pub const GROUP: &str = "tidelane";

/// The table `[access]` of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessConfig {
    /// Files of network namespaces, such as `/run/netns/NAME`; `"*"` for all.
    pub namespaces: Vec<PathBuf>,
    /// Users beside root and the members of the group `tidelane`.
    pub users: Vec<Principal>,
    /// Groups beside `tidelane`.
    pub groups: Vec<Principal>,
}

/// Why a program is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Denial {
    /// The program is in a network namespace that is not admitted.
    Namespace,
    /// The program's user is not admitted.
    User,
    /// Its cgroup has BPF programs, or cannot be looked at.
    Cgroup,
}

impl Denial {
    /// One of [`refusal`].
    pub fn code(self) -> u32 {
        match self {
            Self::Namespace => refusal::NAMESPACE,
            Self::User => refusal::USER,
            Self::Cgroup => refusal::CGROUP,
        }
    }
}

/// Which network namespaces, users and groups are admitted.
#[derive(Debug)]
pub struct AccessPolicy {
    any_namespace: bool,
    /// With their files where they are not the service's own: as long as a file is open, its
    /// identity is not given to another namespace.
    namespaces: Vec<(NetNs, Option<File>)>,
    users: Ids,
    groups: Ids,
    /// The number of [`GROUP`], where there is that group.
    own_group: Option<u32>,
}

impl AccessPolicy {
    /// The default of a service in namespace `own`.
    pub fn new(own: NetNs, own_group: Option<u32>) -> Self {
        Self {
            any_namespace: false,
            namespaces: vec![(own, None)],
            users: Ids::default(),
            groups: Ids::default(),
            own_group,
        }
    }

    /// The policy of `config`. Namespaces that are not there are named, and not admitted.
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

    /// A policy that admits everybody, for a control plane without a host around it.
    fn everybody() -> Self {
        Self {
            any_namespace: true,
            namespaces: Vec::new(),
            users: Ids::all(),
            groups: Ids::all(),
            own_group: None,
        }
    }

    /// Judges a program by what the kernel says of its registration socket.
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

    /// Users that must be able to open the registration socket.
    pub fn socket(&self) -> runtime::Access {
        let group = self.own_group.map(Gid::from_raw);
        if self.users.is_empty() && self.groups.is_empty() {
            runtime::Access::group(group)
        } else {
            runtime::Access::everybody(group)
        }
    }

    /// Returns true if nobody but root may use the service.
    pub fn is_root_only(&self) -> bool {
        self.own_group.is_none() && self.users.is_empty() && self.groups.is_empty()
    }
}

/// The policy of a service, and what it looks at beside sockets.
#[derive(Debug)]
pub struct Access {
    policy: AccessPolicy,
    /// The service's own namespace; `None` if nobody is judged by it.
    own: Option<(NetNs, NetView)>,
    cgroups: Option<CgroupTree>,
    /// Programs of cgroups that Tidelane's own rules replace.
    replaced: CgroupHooks,
}

impl Access {
    /// For a service in the calling thread's namespace.
    pub fn new(policy: AccessPolicy) -> io::Result<Self> {
        Ok(Self {
            policy,
            own: Some((NetNs::current()?, NetView::current()?)),
            cgroups: CgroupTree::find()?,
            replaced: CgroupHooks::default(),
        })
    }

    /// Admits everybody, for a control plane without a host around it.
    pub fn everybody() -> Self {
        Self {
            policy: AccessPolicy::everybody(),
            own: None,
            cgroups: None,
            replaced: CgroupHooks::default(),
        }
    }

    /// Programs of the root cgroup no longer keep anybody with the kernel: the operator said that
    /// Tidelane's own rules replace them.
    pub fn replacing_root_programs(mut self) -> io::Result<Self> {
        if let Some(tree) = &self.cgroups {
            self.replaced = tree.hooks_at("/")?;
        }
        Ok(self)
    }

    /// The root of the cgroups, which must stay readable.
    pub fn cgroups(&self) -> Option<BorrowedFd<'_>> {
        self.cgroups.as_ref().map(CgroupTree::directory)
    }

    /// The service's own namespace, unless nobody is judged by it.
    pub fn own_namespace(&self) -> Option<NetNs> {
        self.own.map(|(namespace, _)| namespace)
    }

    /// The policy.
    pub fn policy(&self) -> &AccessPolicy {
        &self.policy
    }

    /// Another policy from now on.
    pub fn set_policy(&mut self, policy: AccessPolicy) {
        self.policy = policy;
    }

    /// Judges the program `peer`, for which `sponsor` spoke: itself, or the program that it is a
    /// child of. A program that is admitted answers for the users that its children become, as it
    /// does for descriptors that they inherit: a server that gives up root's rights stays where it
    /// is.
    pub fn judge(&self, sponsor: &Peer, peer: &Peer) -> Result<(), Denial> {
        self.policy.admits(sponsor)?;
        self.judge_cgroup(peer)
    }

    /// The namespace that children of a program must be in: its own at registration.
    pub fn view_of(&self, peer: &Peer) -> Option<NetView> {
        if let Some((own, view)) = self.own
            && own == peer.namespace
        {
            return Some(view);
        }
        NetView::of_process(peer.pid_number()).ok()
    }

    /// Judges a child that speaks over a socket which its parent had made for it. `view` is the
    /// namespace that the child must be in: since it was made, it may have gone elsewhere.
    pub fn judge_heir(
        &self,
        sponsor: &Peer,
        peer: &Peer,
        view: Option<NetView>,
    ) -> Result<(), Denial> {
        let now = NetView::of_process(peer.pid_number()).ok();
        if now != view && peer.pid.is_some() && !self.policy.any_namespace {
            return Err(Denial::Namespace);
        }
        self.judge(sponsor, peer)
    }

    /// Returns true if the program `peer`, for which `sponsor` spoke, is in the service's own
    /// network namespace. Another namespace that is admitted has another loopback.
    pub fn is_within_host(&self, sponsor: &Peer, peer: &Peer) -> bool {
        let Some((own, view)) = self.own else {
            return false;
        };
        let now = NetView::of_process(peer.pid_number());
        sponsor.namespace == own && peer.namespace == own && now.is_ok_and(|now| now == view)
    }

    /// A process of another PID namespace that is not visible here cannot be judged by its cgroup.
    fn judge_cgroup(&self, peer: &Peer) -> Result<(), Denial> {
        let (Some(tree), Some(_)) = (&self.cgroups, peer.pid) else {
            return Ok(());
        };
        match tree.hooks_of_process(peer.pid_number()) {
            Ok((_, hooks)) if hooks.clone().without(&self.replaced).is_empty() => Ok(()),
            Ok(_) => Err(Denial::Cgroup),
            Err(error) => {
                let name = peer.name();
                eprintln!("tidelaned: cannot look at the cgroup of {name}: {error}");
                Err(Denial::Cgroup)
            }
        }
    }
}

#[cfg(test)]
mod tests;
