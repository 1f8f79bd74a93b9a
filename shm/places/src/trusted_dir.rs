//! Directories of the services' files, and checks that no other user can write to the directories.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, Stat, fchmod, fstat, mkdirat, openat, unlinkat},
    io::Errno,
    process::geteuid,
};

/// A directory of the system ([`of_system`](Self::of_system)), which is not checked, or a checked
/// subdirectory ([`child`](Self::child)). In a checked subdirectory, no other user can create,
/// rename or remove entries.
#[derive(Debug)]
pub struct TrustedDir {
    fd: OwnedFd,
    path: PathBuf,
}

impl TrustedDir {
    /// Opens a directory of the system, such as `/run`, without a check of its owner and mode. The
    /// function follows links in the path, because only the administrator can create these links.
    pub fn of_system(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        let path = path.to_owned();
        Ok(Self { fd, path })
    }

    /// Creates the subdirectory `name`, or opens it if it exists. Refuses a symbolic link, a
    /// directory of another user, and a directory to which other users may write.
    pub fn child(&self, name: &str) -> io::Result<Self> {
        let path = self.path.join(name);
        let mode = Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH;
        let created = match mkdirat(&self.fd, name, mode) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(failed(&path, "cannot be made", error)),
        };
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(&self.fd, name, flags, Mode::empty()).map_err(|error| match error {
            Errno::LOOP | Errno::NOTDIR => {
                refused(&path, "is not a directory, or is a link; remove it")
            }
            error => failed(&path, "cannot be opened", error),
        })?;
        let found = fstat(&fd)?;
        check_owner(&path, &found)?;
        if created {
            // The umask may have cleared bits of the mode.
            fchmod(&fd, mode)?;
        } else if Mode::from_raw_mode(found.st_mode).intersects(Mode::WGRP | Mode::WOTH) {
            let path = path.display();
            let text = format!("others may write to {path}; use: chmod go-w {path}");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(Self { fd, path })
    }

    /// Opens the regular file `name`, or creates it with `mode` if `flags` contains O_CREAT.
    /// Refuses a symbolic link, a file with a second hard link, and a file of another user.
    ///
    /// # Panics
    ///
    /// Panics if `flags` contains O_TRUNC, which would truncate the file before these checks.
    pub fn open(&self, name: &str, flags: OFlags, mode: Mode) -> io::Result<File> {
        assert!(
            !flags.contains(OFlags::TRUNC),
            "the file is not checked yet"
        );
        let path = self.path.join(name);
        // O_NONBLOCK prevents the call from blocking if the entry is a FIFO.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = openat(&self.fd, name, flags, mode).map_err(|error| match error {
            Errno::LOOP => refused(&path, "is a link; remove it"),
            error => failed(&path, "cannot be opened", error),
        })?;
        let found = fstat(&fd)?;
        check_owner(&path, &found)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile || found.st_nlink != 1 {
            return Err(refused(
                &path,
                "is not a regular file, or has a second name; remove it",
            ));
        }
        Ok(fd.into())
    }

    /// Removes the entry `name`, if it exists. Fails for a directory.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(failed(&self.path.join(name), "cannot be removed", error)),
        }
    }

    /// Removes the subdirectory `name`, which must be empty.
    pub fn remove_dir(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name, AtFlags::REMOVEDIR)?)
    }

    /// Returns the path with which the directory was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for TrustedDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn check_owner(path: &Path, found: &Stat) -> io::Result<()> {
    if found.st_uid == geteuid().as_raw() {
        return Ok(());
    }
    let (uid, path) = (found.st_uid, path.display());
    let text = format!("{path} belongs to user {uid}; remove it");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

fn refused(path: &Path, why: &str) -> io::Error {
    let text = format!("{} {why}", path.display());
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

fn failed(path: &Path, what: &str, error: Errno) -> io::Error {
    let error = io::Error::from(error);
    io::Error::new(error.kind(), format!("{} {what}: {error}", path.display()))
}

#[cfg(test)]
mod tests;
