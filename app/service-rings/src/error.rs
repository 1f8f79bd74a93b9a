//! Errors of a context (the sockets of one thread) on the service (the process `tidelaned`). The
//! text of an error gives the reason, and usually a remedy.

use std::{error, fmt, io, net::SocketAddr};

use tidelane_abi::refusal;
use tidelane_client::{Refusal, RegisterError};

/// Reason why a context on the service cannot be opened or used.
#[derive(Debug)]
pub enum ServiceError {
    /// The service has not registered the program.
    Register(RegisterError),
    /// The service has refused a context or a listener.
    Refused {
        /// Address of the refused listener. `None` if a context was refused.
        listener: Option<SocketAddr>,
        /// The reason.
        refusal: Refusal,
    },
    /// No interface of the service reaches this peer.
    NoRoute(SocketAddr),
    /// The service has ended.
    Gone,
}

impl ServiceError {
    /// Returns the closest kind of an [`io::Error`].
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Register(error) => kind_of_registration(error),
            Self::Refused { refusal, .. } => kind_of_refusal(refusal),
            Self::NoRoute(_) => io::ErrorKind::NetworkUnreachable,
            Self::Gone => io::ErrorKind::ConnectionAborted,
        }
    }
}

fn kind_of_registration(error: &RegisterError) -> io::ErrorKind {
    match error {
        RegisterError::NotRunning => io::ErrorKind::NotFound,
        RegisterError::VersionMismatch { .. } => io::ErrorKind::Unsupported,
        RegisterError::NotAdmitted(_) | RegisterError::NotPermitted => {
            io::ErrorKind::PermissionDenied
        }
        RegisterError::Refused(refusal::LIMIT) => io::ErrorKind::QuotaExceeded,
        RegisterError::Refused(_) => io::ErrorKind::PermissionDenied,
        RegisterError::Io(error) => error.kind(),
    }
}

fn kind_of_refusal(refused: &Refusal) -> io::ErrorKind {
    match refused {
        Refusal::Refused(refusal::IN_USE) => io::ErrorKind::AddrInUse,
        Refusal::Refused(refusal::NOT_ACCELERATED) => io::ErrorKind::AddrNotAvailable,
        Refusal::Refused(_) => io::ErrorKind::PermissionDenied,
        Refusal::Limit(_) => io::ErrorKind::QuotaExceeded,
        Refusal::ServiceGone => io::ErrorKind::ConnectionAborted,
        Refusal::Io(error) => error.kind(),
    }
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Register(RegisterError::NotRunning) => f.write_str(
                "the tidelane service is not running; start it with `tidelane up`, or use the \
                 kernel's back end",
            ),
            Self::Register(error) => error.fmt(f),
            Self::Refused { listener, refusal } => {
                match listener {
                    Some(local) => write!(f, "the service does not listen at {local}: ")?,
                    None => f.write_str("the service makes no context: ")?,
                }
                explain(f, refusal)
            }
            Self::NoRoute(peer) => write!(
                f,
                "no interface of the service reaches {peer}; use the kernel's back end"
            ),
            Self::Gone => f.write_str("the tidelane service has ended; open another context"),
        }
    }
}

/// Writes the reason of a refusal, and a remedy if there is one.
fn explain(f: &mut fmt::Formatter<'_>, refused: &Refusal) -> fmt::Result {
    match refused {
        Refusal::Refused(refusal::NOT_ACCELERATED) => f.write_str(
            "the address is on no interface of the service; listen at 0.0.0.0, ::, or an address \
             of the interface",
        ),
        Refusal::Refused(refusal::IN_USE) => f.write_str(
            "a program with a TCP/IP stack of its own has claimed this TCP port (`tidelane port \
             list`); listen at another TCP port",
        ),
        Refusal::Refused(refusal::NOT_ENTITLED) => f.write_str(
            "another socket gets the port's connections (`ss -ltnp`); end its program or choose \
             another port",
        ),
        Refusal::Limit(_) => f.write_str(
            "the user has as many contexts or listeners as the service allows; close others or \
             raise the limit in the service's configuration",
        ),
        other => write!(f, "{other}"),
    }
}

impl error::Error for ServiceError {}

impl From<RegisterError> for ServiceError {
    fn from(error: RegisterError) -> Self {
        Self::Register(error)
    }
}

impl From<ServiceError> for io::Error {
    fn from(error: ServiceError) -> Self {
        Self::new(error.kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each listed error is converted to the expected kind of `io::Error`, with a remedy in its
    /// text.
    #[test]
    fn refusals_say_what_to_do() {
        let local: SocketAddr = "127.0.0.1:80".parse().expect("an address");
        let refused = |refusal| ServiceError::Refused {
            listener: Some(local),
            refusal,
        };
        for (error, kind, advice) in [
            (
                ServiceError::Register(RegisterError::NotRunning),
                io::ErrorKind::NotFound,
                "tidelane up",
            ),
            (
                refused(Refusal::Refused(refusal::NOT_ACCELERATED)),
                io::ErrorKind::AddrNotAvailable,
                "0.0.0.0",
            ),
            (
                refused(Refusal::Refused(refusal::IN_USE)),
                io::ErrorKind::AddrInUse,
                "tidelane port list",
            ),
            (
                refused(Refusal::Refused(refusal::NOT_ENTITLED)),
                io::ErrorKind::PermissionDenied,
                "ss -ltnp",
            ),
            (
                refused(Refusal::Limit(6)),
                io::ErrorKind::QuotaExceeded,
                "raise the limit",
            ),
            (
                ServiceError::NoRoute(local),
                io::ErrorKind::NetworkUnreachable,
                "kernel's back end",
            ),
            (
                ServiceError::Gone,
                io::ErrorKind::ConnectionAborted,
                "open another context",
            ),
        ] {
            let error = io::Error::from(error);
            assert_eq!(error.kind(), kind);
            assert!(error.to_string().contains(advice), "{error}");
        }
    }

    /// A socket path without a service results in the error of a service that does not run.
    #[test]
    fn a_missing_service_is_named() {
        let options = crate::ServiceOptions {
            socket: "/nonexistent/control.sock".into(),
            ..crate::ServiceOptions::default()
        };
        let error = crate::ServiceContext::open(&options).expect_err("there is no service");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("tidelane up"), "{error}");
    }
}
