//! The run directory, and what the process needs of the system before it serves.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Where services have their run directories.
const RUN: &str = "/run/tidelane";

/// The run directory of one service, removed at the end. A lock on its pid file says that the
/// service lives; a directory without a lock is what a killed one left.
pub struct RunDir {
    path: PathBuf,
    _lock: fs::File,
}

impl RunDir {
    /// Makes or takes over the directory of service `name`.
    pub fn open(name: &str) -> io::Result<Self> {
        let path = Path::new(RUN).join(name);
        fs::create_dir_all(&path)?;
        fs::set_permissions(RUN, fs::Permissions::from_mode(0o755))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        let pid = path.join("pid");
        let lock = fs::File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(pid)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                let text = format!("service {name:?} is already running");
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
            }
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
        lock.set_len(0)?;
        fs::write(path.join("pid"), format!("{}\n", std::process::id()))?;
        for socket in ["control.sock", "admin.sock"] {
            match fs::remove_file(path.join(socket)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(Self { path, _lock: lock })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets every user open the socket `name`: programs need no privilege.
    pub fn open_to_all(&self, name: &str) -> io::Result<()> {
        fs::set_permissions(self.path.join(name), fs::Permissions::from_mode(0o666))
    }

    /// Lets only root open the socket `name`.
    pub fn close_to_others(&self, name: &str) -> io::Result<()> {
        fs::set_permissions(self.path.join(name), fs::Permissions::from_mode(0o600))
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
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
