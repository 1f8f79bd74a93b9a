//! The run directory, and what the process needs of the system before it serves.

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
    process::Gid,
};
use tidelane_places::{OwnDir, RUN, ServiceName};

/// Files that a service leaves in its run directory.
const ENTRIES: [&str; 3] = ["pid", "control.sock", "admin.sock"];

/// How often, and how far apart, the lock of another process is tried.
const LOCK_TRIES_MAX: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Connections that wait to be accepted, at each socket.
const PENDING_MAX: i32 = 128;

/// Users that may open a socket of the run directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The socket's group, if not the service's own.
    pub group: Option<Gid>,
    /// The socket's mode.
    pub mode: Mode,
}

impl Access {
    /// The service's own user and a group, or only the user.
    pub fn group(group: Option<Gid>) -> Self {
        Self {
            group,
            mode: Mode::from_raw_mode(0o660),
        }
    }

    /// Every user; the service looks at each of them itself.
    pub fn everybody(group: Option<Gid>) -> Self {
        Self {
            group,
            mode: Mode::from_raw_mode(0o666),
        }
    }

    /// The service's own user, which is root.
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
    /// Programs register here.
    pub registration: OwnedFd,
    /// Operators ask here.
    pub admin: UnixListener,
}

/// The run directory of one service, removed at the end. A lock on its pid file says that the
/// service lives; a directory without a lock is what a killed one left.
pub struct RunDir {
    /// The directory of all services.
    all: OwnDir,
    own: OwnDir,
    name: ServiceName,
    _lock: fs::File,
}

/// Locks the file of the service's process. A killed process takes a moment to let go of the file.
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
    /// Makes or takes over the directory of service `name`.
    pub fn open(name: &ServiceName) -> io::Result<Self> {
        Self::open_in(Path::new(RUN), name)
    }

    /// As [`open`](Self::open), below `run` instead of [`RUN`].
    pub(crate) fn open_in(run: &Path, name: &ServiceName) -> io::Result<Self> {
        let (Some(system), Some(all)) = (run.parent(), run.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let all = OwnDir::of_system(system)?.child(&all.to_string_lossy())?;
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

    /// The directory.
    pub fn path(&self) -> &Path {
        self.own.path()
    }

    /// The directory of all services.
    pub fn all(&self) -> &OwnDir {
        &self.all
    }

    /// The directory, as a descriptor.
    pub fn dir(&self) -> &OwnDir {
        &self.own
    }

    /// Opens the service's listening sockets. Whoever connects before the service is ready waits.
    pub fn listen(&self, programs: Access) -> io::Result<Sockets> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let open = |kind, entry, access| {
            let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
            self.bind(&socket, entry, access)?;
            listen(&socket, PENDING_MAX)?;
            io::Result::Ok(socket)
        };
        Ok(Sockets {
            registration: open(SocketType::SEQPACKET, "control.sock", programs)?,
            admin: open(SocketType::STREAM, "admin.sock", Access::owner())?.into(),
        })
    }

    /// Binds a Unix socket to `name` in the directory. At no moment can anybody open the socket who
    /// is not in `access`: it begins as the owner's, and is opened to others once its group is
    /// right.
    fn bind(&self, socket: impl AsFd, name: &str, access: Access) -> io::Result<()> {
        // The entry gets the mode that the socket has, less the file mode creation mask.
        fchmod(&socket, Access::owner().mode)?;
        // Nobody else can put a link into this path: see `OwnDir`.
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

/// Raises the limit of open descriptors: reserved ports and programs take one or more each.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = 1 << 20;
    let all = Rlimit {
        current: Some(wanted),
        maximum: Some(wanted),
    };
    if setrlimit(Resource::Nofile, all).is_err() {
        let most = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        let _ = setrlimit(Resource::Nofile, most);
    }
}

/// Descriptors that this process may have.
pub fn descriptors_max() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt, path::PathBuf};

    use super::*;

    /// A place for run directories of a test's own.
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
        first.listen(Access::owner()).expect("sockets");
        drop(first);
        assert!(!run.join("one").exists());
        // Files that a killed service left are taken over.
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
        let sockets = dir.listen(Access::everybody(None)).expect("sockets");
        for (entry, access) in [
            ("control.sock", Access::everybody(None)),
            ("admin.sock", Access::owner()),
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
