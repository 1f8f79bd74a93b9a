//! The run directory of a Tidelane service, with the pid file and the listening sockets. The module
//! also raises the process' limit of open descriptors.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixListener,
    },
    path::Path,
    thread,
    time::Duration,
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, chmodat, chownat, fchmod},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with},
    process::{Gid, Resource, Rlimit, getrlimit, setrlimit},
};
use tidelane_places::{RUN, ServiceName, TrustedDir};

/// Files of a service in its run directory.
const ENTRIES: [&str; 3] = ["pid", "control.sock", "admin.sock"];

/// Number of attempts to lock a file that another process has locked, and the pause between two
/// attempts.
const LOCK_TRIES_MAX: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Limit of open descriptors that the process requests.
const DESCRIPTORS_WANTED: u64 = 1 << 20;

/// Backlog of each listening socket.
const PENDING_MAX: i32 = 128;

/// The group and the mode of a socket in the run directory. Group and mode decide which users may
/// connect to the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketPermissions {
    /// The socket's group. `None` for the service's own group.
    pub group: Option<Gid>,
    /// The socket's mode.
    pub mode: Mode,
}

impl SocketPermissions {
    /// Returns permissions for the service's own user and the members of `group`.
    pub fn group(group: Option<Gid>) -> Self {
        Self {
            group,
            mode: Mode::from_raw_mode(0o660),
        }
    }

    /// Returns permissions for every user. The service itself checks each program that connects.
    pub fn everybody(group: Option<Gid>) -> Self {
        Self {
            group,
            mode: Mode::from_raw_mode(0o666),
        }
    }

    /// Returns permissions for the service's own user, which is root.
    pub fn owner() -> Self {
        Self {
            group: None,
            mode: Mode::from_raw_mode(0o600),
        }
    }
}

/// The listening sockets of a service.
#[derive(Debug)]
pub struct Sockets {
    /// Programs register at this socket.
    pub registration: OwnedFd,
    /// Operators send requests to this socket.
    pub admin: UnixListener,
}

/// The run directory of one service. The directory is removed when this value is dropped. A lock on
/// the pid file shows that the service lives. A directory whose pid file is not locked is left over
/// from a killed service.
pub struct RunDir {
    /// The directory that contains the run directories of all services.
    all: TrustedDir,
    /// The run directory of this service.
    own: TrustedDir,
    name: ServiceName,
    _lock: fs::File,
}

/// Locks the pid file. Tries several times, because a killed process takes a moment to release the
/// lock.
fn lock_patiently(file: &File) -> Result<(), fs::TryLockError> {
    for _ in 1..LOCK_TRIES_MAX {
        match file.try_lock() {
            Err(fs::TryLockError::WouldBlock) => thread::sleep(LOCK_PAUSE),
            tried => return tried,
        }
    }
    file.try_lock()
}

impl RunDir {
    /// Makes the directory of service `name`, or takes over the directory of a killed service.
    pub fn open(name: &ServiceName) -> io::Result<Self> {
        Self::open_in(Path::new(RUN), name)
    }

    /// Does the same as [`open`](Self::open), below `run` instead of [`RUN`].
    pub(crate) fn open_in(run: &Path, name: &ServiceName) -> io::Result<Self> {
        let (Some(system), Some(all)) = (run.parent(), run.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let all = TrustedDir::of_system(system)?.child(&all.to_string_lossy())?;
        let own = all.child(name.as_str())?;
        let readable = Mode::from_raw_mode(0o644);
        let mut lock = own.open("pid", OFlags::CREATE | OFlags::WRONLY, readable)?;
        match lock_patiently(&lock) {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                let text = format!("service {:?} is already running", name.as_str());
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
            }
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
        lock.set_len(0)?;
        writeln!(lock, "{}", std::process::id())?;
        for socket in ["control.sock", "admin.sock"] {
            own.remove(socket)?;
        }
        let name = name.clone();
        Ok(Self {
            all,
            own,
            name,
            _lock: lock,
        })
    }

    /// Returns the path of this service's run directory.
    pub fn path(&self) -> &Path {
        self.own.path()
    }

    /// Returns the directory that contains the run directories of all services.
    pub fn all(&self) -> &TrustedDir {
        &self.all
    }

    /// Returns this service's run directory.
    pub fn dir(&self) -> &TrustedDir {
        &self.own
    }

    /// Opens the service's listening sockets. `programs` are the permissions of the registration
    /// socket. A client that connects early waits until the service is ready.
    pub fn listen(&self, programs: SocketPermissions) -> io::Result<Sockets> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let open = |kind, entry, access| {
            let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
            self.bind(&socket, entry, access)?;
            listen(&socket, PENDING_MAX)?;
            io::Result::Ok(socket)
        };
        Ok(Sockets {
            registration: open(SocketType::SEQPACKET, "control.sock", programs)?,
            admin: open(SocketType::STREAM, "admin.sock", SocketPermissions::owner())?.into(),
        })
    }

    /// Binds a Unix socket to `name` in the directory. The socket first has the mode
    /// [`owner`](SocketPermissions::owner). The socket next gets the group of `access`, and finally
    /// the mode of `access`. A user without access can therefore never connect to the socket.
    fn bind(&self, socket: impl AsFd, name: &str, access: SocketPermissions) -> io::Result<()> {
        // The directory entry gets the mode of the socket, without the bits of the process's umask.
        fchmod(&socket, SocketPermissions::owner().mode)?;
        // No other user can put a link into this path: see `TrustedDir`.
        bind(&socket, &SocketAddrUnix::new(self.path().join(name))?)?;
        if access.group.is_some() {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            chownat(&self.own, name, None, access.group, flags)?;
        }
        Ok(chmodat(&self.own, name, access.mode, AtFlags::empty())?)
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        for entry in ENTRIES {
            let _ = self.own.remove(entry);
        }
        let _ = self.all.remove_dir(self.name.as_str());
    }
}

/// Raises the limit of open descriptors to [`DESCRIPTORS_WANTED`], or to the hard limit if the
/// kernel permits no more. A higher limit stays. The service needs descriptors for each reserved
/// port and each program.
pub fn raise_descriptor_limit() {
    let present = getrlimit(Resource::Nofile);
    if setrlimit(Resource::Nofile, raised(present)).is_err() {
        let hard = Rlimit {
            current: present.maximum,
            maximum: present.maximum,
        };
        let _ = setrlimit(Resource::Nofile, hard);
    }
}

/// Returns limits that are at least [`DESCRIPTORS_WANTED`] and at least `present`. `None` means
/// that there is no limit.
fn raised(present: Rlimit) -> Rlimit {
    let raise = |limit: Option<u64>| Some(limit?.max(DESCRIPTORS_WANTED));
    Rlimit {
        current: raise(present.current),
        maximum: raise(present.maximum),
    }
}

/// Returns the soft limit of this process' open descriptors.
pub fn descriptors_max() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    limit.current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_higher_limit_of_descriptors_stays() {
        let limits = |current, maximum| Rlimit { current, maximum };
        let wanted = Some(DESCRIPTORS_WANTED);
        assert_eq!(
            raised(limits(Some(1024), Some(4096))),
            limits(wanted, wanted)
        );
        let higher = Some(2 * DESCRIPTORS_WANTED);
        assert_eq!(raised(limits(Some(1024), higher)), limits(wanted, higher));
        assert_eq!(raised(limits(higher, None)), limits(higher, None));
    }

    use std::{os::unix::fs::PermissionsExt, path::PathBuf};

    use super::*;

    /// Returns a path for run directories of a test.
    fn scratch(test: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("tidelaned-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    fn name() -> ServiceName {
        "one".parse().expect("a name")
    }

    #[test]
    fn a_run_directory_has_one_service_and_leaves_nothing() {
        let run = scratch("single");
        let first = RunDir::open_in(&run, &name()).expect("it is made");
        let pid = fs::read_to_string(first.path().join("pid")).expect("a pid file");
        assert_eq!(pid.trim(), std::process::id().to_string());
        let error = RunDir::open_in(&run, &name()).err().expect("it is taken");
        assert_eq!(error.to_string(), "service \"one\" is already running");
        first.listen(SocketPermissions::owner()).expect("sockets");
        drop(first);
        assert!(!run.join("one").exists());
        // Files of a killed service are taken over.
        fs::create_dir(run.join("one")).expect("a directory");
        for entry in ENTRIES {
            fs::write(run.join("one").join(entry), "7").expect("a file");
        }
        drop(RunDir::open_in(&run, &name()).expect("it is taken over"));
        fs::remove_dir(run).expect("nothing is left");
    }

    #[test]
    fn a_socket_has_the_mode_of_its_access() {
        let run = scratch("modes");
        let dir = RunDir::open_in(&run, &name()).expect("it is made");
        let sockets = dir
            .listen(SocketPermissions::everybody(None))
            .expect("sockets");
        for (entry, access) in [
            ("control.sock", SocketPermissions::everybody(None)),
            ("admin.sock", SocketPermissions::owner()),
        ] {
            let found = fs::metadata(dir.path().join(entry)).expect("it is there");
            let mode = Mode::from_raw_mode(found.permissions().mode());
            assert_eq!(mode, access.mode, "{entry}");
        }
        drop(sockets);
        drop(dir);
        fs::remove_dir(run).expect("nothing is left");
    }
}
