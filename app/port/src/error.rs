//! The errors of opening a mux port. A mux port is shared memory over which a program exchanges
//! packets with the service (the process `tidelaned`).

use std::{fmt, io};

use rustix::io::Errno;
use tidelane_abi::refusal;

/// The reason why a mux port was not opened.
#[derive(Debug)]
pub enum PortError {
    /// No service listens at the path.
    NotRunning,
    /// The ABI (layout of the shared memory) has different versions in this crate and in the
    /// service.
    VersionMismatch {
        /// ABI version of this crate.
        ours: u32,
        /// ABI version of the service.
        theirs: u32,
    },
    /// The service does not admit this user, this network namespace or this cgroup, or the user has
    /// no permission to connect to the service's socket.
    NotAdmitted,
    /// The mux port would exceed a limit that the service sets for the user, such as the limit of
    /// mux ports or of memory for packet rings. The service also gives this reason if it has failed
    /// to open the mux port.
    Limit,
    /// The service refused for another reason. The number is a constant of
    /// [`tidelane_abi::refusal`]. For example, MALFORMED means an impossible
    /// [`ring_len`](crate::PortConfig::ring_len).
    Refused(u32),
    /// A system call failed.
    Io(io::Error),
}

impl PortError {
    /// Returns the error for a refusal. `why` is a constant of [`tidelane_abi::refusal`], and
    /// `theirs` is the ABI version of the service.
    pub(crate) fn of_refusal(why: u32, theirs: u32) -> Self {
        match why {
            refusal::ABI_VERSION => Self::VersionMismatch {
                ours: tidelane_abi::ABI_VERSION,
                theirs,
            },
            refusal::NAMESPACE | refusal::USER | refusal::CGROUP => Self::NotAdmitted,
            refusal::LIMIT => Self::Limit,
            why => Self::Refused(why),
        }
    }

    /// Returns the [`io::ErrorKind`] that is closest to this error.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::NotRunning => io::ErrorKind::NotFound,
            Self::VersionMismatch { .. } => io::ErrorKind::Unsupported,
            Self::NotAdmitted => io::ErrorKind::PermissionDenied,
            Self::Limit => io::ErrorKind::QuotaExceeded,
            Self::Refused(why) => kind_of(*why),
            Self::Io(error) => error.kind(),
        }
    }
}

/// Returns the [`io::ErrorKind`] for a refusal. `why` is a constant of [`tidelane_abi::refusal`].
pub(crate) fn kind_of(why: u32) -> io::ErrorKind {
    match why {
        refusal::IN_USE => io::ErrorKind::AddrInUse,
        refusal::NOT_ACCELERATED => io::ErrorKind::AddrNotAvailable,
        refusal::LIMIT => io::ErrorKind::QuotaExceeded,
        refusal::MALFORMED => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::PermissionDenied,
    }
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRunning => write!(f, "the tidelane service is not running"),
            Self::VersionMismatch { ours, theirs } => write!(
                f,
                "shared-memory version mismatch: this program has {ours}, the running service \
                 {theirs}"
            ),
            Self::NotAdmitted => write!(f, "the service does not admit this program"),
            Self::Limit => write!(
                f,
                "the user has as many mux ports, or as much memory of packet rings, as the service \
                 allows"
            ),
            Self::Refused(why) => write!(f, "the service refused the mux port (reason {why})"),
            Self::Io(error) => write!(f, "cannot open a mux port: {error}"),
        }
    }
}

impl std::error::Error for PortError {}

impl From<io::Error> for PortError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Errno> for PortError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::CONNREFUSED => Self::NotRunning,
            Errno::ACCESS | Errno::PERM => Self::NotAdmitted,
            other => Self::Io(other.into()),
        }
    }
}

impl From<PortError> for io::Error {
    fn from(error: PortError) -> Self {
        match error {
            PortError::Io(error) => error,
            error => io::Error::new(error.kind(), error),
        }
    }
}
