//! BPF programs on an interface (tcx) and on cgroups. Packets that the service (the process
//! `tidelaned`, a TCP/IP stack in user space) receives or sends over AF_XDP bypass the programs on
//! the interface. Connections of the service bypass the programs on cgroups.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use aya::programs::loaded_programs;
use rustix::fs::{Mode, OFlags, openat};

use super::{
    Direction, Hook, Program,
    sys::{self, Target},
};

const BPF_TCX_INGRESS: u32 = 46;
const BPF_TCX_EGRESS: u32 = 47;

/// Attach types of cgroup programs that see or control connections, with their names in `bpftool`.
const ATTACH_TYPES: [(u32, &str); 18] = [
    (0, "cgroup_inet_ingress"),
    (1, "cgroup_inet_egress"),
    (2, "cgroup_inet_sock_create"),
    (3, "cgroup_sock_ops"),
    (8, "cgroup_inet4_bind"),
    (9, "cgroup_inet6_bind"),
    (10, "cgroup_inet4_connect"),
    (11, "cgroup_inet6_connect"),
    (12, "cgroup_inet4_post_bind"),
    (13, "cgroup_inet6_post_bind"),
    (21, "cgroup_getsockopt"),
    (22, "cgroup_setsockopt"),
    (29, "cgroup_inet4_getpeername"),
    (30, "cgroup_inet6_getpeername"),
    (31, "cgroup_inet4_getsockname"),
    (32, "cgroup_inet6_getsockname"),
    (34, "cgroup_inet_sock_release"),
    (43, "lsm_cgroup"),
];

/// Form in which programs are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// By name and number.
    Names,
    /// By number.
    Numbers,
}

/// Returns the tcx programs of an interface.
pub(super) fn tcx(interface: &str, ifindex: u32, naming: Naming) -> io::Result<Vec<Hook>> {
    let mut hooks = Vec::new();
    for (attach_type, side) in [
        (BPF_TCX_INGRESS, Direction::Ingress),
        (BPF_TCX_EGRESS, Direction::Egress),
    ] {
        for id in sys::attached_programs(Target::Interface(ifindex), attach_type)? {
            hooks.push(Hook::Tcx {
                interface: interface.to_owned(),
                side,
                program: program(id, naming),
            });
        }
    }
    Ok(hooks)
}

/// Returns the program with this number.
fn program(id: u32, naming: Naming) -> Program {
    if naming == Naming::Numbers {
        return Program { id, name: None };
    }
    Program::numbered(id)
}

impl Program {
    /// Returns the program with this number. The result has no name if the program is gone, has no
    /// name, or is not visible to the caller.
    pub(crate) fn numbered(id: u32) -> Self {
        let mut programs = loaded_programs().filter_map(Result::ok);
        let known = programs.find(|program| program.id() == id);
        let name = known.and_then(|program| program.name_as_str().map(str::to_owned));
        let name = name.filter(|name| !name.is_empty());
        Self { id, name }
    }

    /// Returns the name, if it is known.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns a program with this number and name. The program need not exist in the kernel.
    #[cfg(test)]
    pub(crate) fn named(id: u32, name: &str) -> Self {
        let name = Some(name.to_owned());
        Self { id, name }
    }
}

/// The cgroup2 hierarchy in the view of this process.
#[derive(Clone, Debug)]
pub struct CgroupTree {
    /// The root directory of the hierarchy.
    root: Arc<OwnedFd>,
}

impl CgroupTree {
    /// Opens the hierarchy at its mount point. If no mount point is visible (for example in a shell
    /// of `ip netns exec`), mounts the hierarchy without a directory. Returns `None` if the kernel
    /// does not support cgroup2.
    pub fn find() -> io::Result<Option<Self>> {
        let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo")?;
        let root = match mount_point(&mounts) {
            Some(path) => OwnedFd::from(File::open(path)?),
            None => match sys::mount_cgroup2() {
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
                mounted => mounted?,
            },
        };
        Ok(Some(Self {
            root: Arc::new(root),
        }))
    }

    /// Returns the descriptor of the root directory.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Returns the programs that see or control the connections of cgroup `path`, including the
    /// programs of the cgroup's ancestors.
    pub fn hooks_at(&self, path: &str) -> io::Result<CgroupHooks> {
        let relative = Path::new(path.trim_start_matches('/'));
        // `/proc/PID/cgroup` shows a cgroup outside of this process's cgroup namespace as "/../..".
        if relative
            .components()
            .any(|part| part == Component::ParentDir)
        {
            let text = format!("cgroup {path} is outside of the mounted hierarchy");
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        let here = Path::new(".");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(&self.root, here.join(relative), flags, Mode::empty())?;
        let mut programs = Vec::new();
        for (attach_type, name) in ATTACH_TYPES {
            let target = Target::Cgroup(directory.as_fd());
            let found = sys::attached_programs(target, attach_type)?;
            programs.extend(found.into_iter().map(|id| (name, id)));
        }
        Ok(CgroupHooks(programs))
    }

    /// Returns the path of the cgroup of process `pid`, and the cgroup's programs as
    /// [`hooks_at`](Self::hooks_at) returns them. If the process has no cgroup in the hierarchy,
    /// returns an empty path and no programs.
    pub fn hooks_of_process(&self, pid: u32) -> io::Result<(String, CgroupHooks)> {
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        let path = groups.lines().find_map(|line| line.strip_prefix("0::"));
        // No program of the hierarchy acts on a process outside of the hierarchy.
        let Some(path) = path else {
            return Ok((String::new(), CgroupHooks::default()));
        };
        Ok((path.to_owned(), self.hooks_at(path)?))
    }
}

/// Returns a directory at which the whole hierarchy is mounted, and not only a part of it. Returns
/// `None` if there is no directory of this kind. `mounts` is the text of `/proc/PID/mountinfo`.
fn mount_point(mounts: &str) -> Option<PathBuf> {
    let path = mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let whole = fields.next()? == "/";
        (whole && kind.split(' ').next()? == "cgroup2").then_some(fields.next()?)
    })?;
    Some(path.replace("\\040", " ").into())
}

/// Programs that act on a cgroup: the attach type and the number of each program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupHooks(Vec<(&'static str, u32)>);

impl CgroupHooks {
    /// Returns true if no program acts on the cgroup.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the programs that are not in `other`. With the programs of the root cgroup as
    /// `other`, the result has the programs that act only below the root.
    #[must_use]
    pub fn without(mut self, other: &Self) -> Self {
        self.0.retain(|program| !other.0.contains(program));
        self
    }

    /// Returns a [`Hook`] for each program. `path` is the path of the cgroup.
    pub fn into_hooks(self, path: &str, naming: Naming) -> impl Iterator<Item = Hook> {
        self.0
            .into_iter()
            .map(move |(attach_type, id)| Hook::Cgroup {
                cgroup: path.to_owned(),
                attach_type,
                program: program(id, naming),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_is_found_among_the_mounts() {
        let mounts = "22 27 0:20 / /proc rw - proc proc rw\n\
                      31 22 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      30 22 0:26 / /sys/fs/cgroup/uni\\040fied rw shared:4 - cgroup2 cgroup2 rw\n";
        let path = mount_point(mounts).expect("a hierarchy");
        assert_eq!(path, Path::new("/sys/fs/cgroup/uni fied"));
        for other in [
            "22 27 0:20 / /proc rw - proc proc rw\n",
            "30 22 0:26 /a/part /mnt rw - cgroup2 cgroup2 rw\n",
            " - \n\n-",
        ] {
            assert_eq!(mount_point(other), None, "{other}");
        }
    }

    #[test]
    fn a_cgroup_outside_of_the_mounted_part_is_an_error() {
        let root = File::open("/").expect("a directory");
        let tree = CgroupTree {
            root: Arc::new(root.into()),
        };
        for path in ["/../x", "/a/../../b", ".."] {
            assert!(tree.hooks_at(path).is_err(), "{path}");
        }
    }

    #[test]
    fn without_removes_the_hooks_of_the_other_cgroup() {
        let all = CgroupHooks(vec![("cgroup_sock_ops", 1), ("cgroup_inet_egress", 2)]);
        let root = CgroupHooks(vec![("cgroup_sock_ops", 1)]);
        assert_eq!(
            all.clone().without(&root),
            CgroupHooks(vec![("cgroup_inet_egress", 2)])
        );
        assert!(all.clone().without(&all).is_empty());
    }
}
