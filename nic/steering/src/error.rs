//! Why steering failed, and the command that mends it.

use std::{error::Error, fmt, io};

use crate::firewall::Program;

/// Why the demux, or the mirror of the kernel's tables, could not do what it was asked.
#[derive(Debug)]
pub enum SteeringError {
    /// The caller lacks a capability.
    NotPermitted,
    /// No interface with that index in this network namespace.
    NoSuchInterface(u32),
    /// The kernel cannot load or attach the program at all.
    NoKernelSupport(String),
    /// The interface has an XDP program that is not ours.
    OtherProgram {
        /// The interface.
        interface: String,
        /// The program, unless it has gone by now.
        program: Option<Program>,
    },
    /// More receive queues than the program's table has places.
    TooManyQueues {
        /// Queues asked for.
        queues: u32,
        /// Places there are.
        queues_max: u32,
    },
    /// All places for claims are taken.
    TooManyClaims,
    /// Any other failure: what was tried, and what came of it.
    System {
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
}

impl SteeringError {
    /// Turns a failed system call into the error that its code stands for.
    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted,
            _ => Self::System { action, error },
        }
    }
}

impl fmt::Display for SteeringError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPermitted => write!(
                f,
                "steering packets needs CAP_NET_ADMIN and CAP_BPF; run as root, or `setcap \
                 cap_net_admin,cap_bpf,cap_net_raw,cap_ipc_lock+ep` the program"
            ),
            Self::NoSuchInterface(ifindex) => write!(
                f,
                "no interface with index {ifindex} here; `ip -brief link` lists those there are"
            ),
            Self::NoKernelSupport(detail) => write!(
                f,
                "this kernel cannot run the demux ({detail}); boot Linux 5.9 or later with \
                 CONFIG_BPF_SYSCALL=y and CONFIG_XDP_SOCKETS=y (`uname -r` tells)"
            ),
            Self::OtherProgram { interface, program } => {
                write!(f, "{interface} has another XDP program")?;
                if let Some(program) = program {
                    write!(f, ", {program}")?;
                }
                write!(
                    f,
                    "; `ip link set dev {interface} xdp off` removes it, or stop the process that \
                     has it (`bpftool link` names it)"
                )
            }
            Self::TooManyQueues { queues, queues_max } => write!(
                f,
                "{queues} receive queues, but at most {queues_max} can be served; `ethtool \
                 --set-channels` reduces them"
            ),
            Self::TooManyClaims => write!(f, "no place for another claim; close some sockets"),
            Self::System { action, error } => write!(f, "{action}: {error}"),
        }
    }
}

impl Error for SteeringError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::System { error, .. } => Some(error),
            _ => None,
        }
    }
}
