//! Landlock: the files that the Tidelane service can reach while it serves.
//!
//! The log and the locked pid file stay open. The service can also read the kernel's files about
//! programs and the machine, read its configuration, and remove its run directory. Landlock does
//! not restrict the network, because the seccomp filter limits the address families. A Landlock
//! domain contains the processes under one ruleset. The service's domain also keeps the service
//! from the memory and the descriptors of processes outside the domain, even if these processes
//! have the same user.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use rustix::fs::{Mode, OFlags, open};

use super::sys;
use crate::runtime::RunDir;

/// Rights of access to files (`LANDLOCK_ACCESS_FS_*`).
mod right {
    pub(super) const READ_FILE: u64 = 1 << 2;
    pub(super) const READ_DIR: u64 = 1 << 3;
    pub(super) const REMOVE_DIR: u64 = 1 << 4;
    pub(super) const REMOVE_FILE: u64 = 1 << 5;
}

/// Versions of Landlock that added rights of access to files. Each entry has the version and the
/// number of rights that exist from this version on.
const RIGHTS: [(u32, u32); 4] = [(1, 13), (2, 14), (3, 15), (5, 16)];
/// First version that can deny signals to processes outside the domain, and connections to their
/// abstract unix sockets.
const SCOPED_SINCE: u32 = 6;
/// The scopes for abstract unix sockets (bit 0) and for signals (bit 1).
const SCOPES: u64 = 0b11;

/// Directories that may be read, with all files below them.
const READ_BENEATH: [&str; 5] = [
    "/proc",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
    "/etc/tidelane",
    "/run/netns",
];
/// Files that may be read, to resolve the names of users and groups in the configuration.
const READ_FILES: [&str; 2] = ["/etc/passwd", "/etc/group"];

/// Further readable directories, which depend on this service's configuration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Readable<'a> {
    /// The open root directory of the cgroups. A descriptor is needed because a detached mount has
    /// no path.
    pub directory: Option<BorrowedFd<'a>>,
    /// The directory of the configuration file.
    pub beneath: Option<&'a Path>,
}

/// Restricts the process to the files that serving needs. Returns the version of the kernel's
/// Landlock, or `None` if the kernel has no Landlock.
pub fn restrict(run_dir: &RunDir, readable: &Readable<'_>) -> io::Result<Option<u32>> {
    let Some(version) = sys::landlock_version() else {
        return Ok(None);
    };
    let scoped = if version >= SCOPED_SINCE { SCOPES } else { 0 };
    let rules = sys::LandlockRules::new(rights_of(version), scoped)?;
    let allow = |path: &Path, rights| {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        match open(path, flags, Mode::empty()) {
            Ok(fd) => rules.allow(fd.as_fd(), rights),
            // A missing file cannot be read either.
            Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    };
    let reading = right::READ_FILE | right::READ_DIR;
    for path in READ_BENEATH
        .map(Path::new)
        .into_iter()
        .chain(readable.beneath)
    {
        allow(path, reading)?;
    }
    for path in READ_FILES {
        allow(Path::new(path), right::READ_FILE)?;
    }
    if let Some(directory) = readable.directory {
        rules.allow(directory, reading)?;
    }
    let own: BorrowedFd<'_> = run_dir.dir().as_fd();
    rules.allow(own, right::READ_DIR | right::REMOVE_FILE)?;
    rules.allow(run_dir.all().as_fd(), right::REMOVE_DIR)?;
    rules.restrict_self()?;
    Ok(Some(version))
}

/// If the kernel has Landlock, denies access to all files.
pub fn restrict_all() -> io::Result<()> {
    let Some(version) = sys::landlock_version() else {
        return Ok(());
    };
    let scoped = if version >= SCOPED_SINCE { SCOPES } else { 0 };
    sys::LandlockRules::new(rights_of(version), scoped)?.restrict_self()
}

/// Returns the set of all rights that a version of Landlock handles.
fn rights_of(version: u32) -> u64 {
    let known = RIGHTS.iter().rev().find(|(since, _)| version >= *since);
    known.map_or(0, |(_, count)| (1 << count) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_includes_the_rights_of_earlier_versions() {
        assert_eq!(rights_of(0), 0);
        assert_eq!(rights_of(1), 0x1fff);
        assert_eq!(rights_of(2), 0x3fff);
        assert_eq!(rights_of(3), 0x7fff);
        assert_eq!(rights_of(4), 0x7fff);
        assert_eq!(rights_of(5), 0xffff);
        assert_eq!(rights_of(9), 0xffff);
    }
}
