//! Errors of loading the demux and of accessing its maps. The demux is the XDP program that
//! redirects packets with a claimed 3-tuple (local address, protocol, local port) to the service
//! (the process `tidelaned`). The text of each error except [`SteeringError::System`] says what the
//! user can do, in most cases with a command that resolves the error or shows its cause.

use std::{error::Error, fmt, io};

use crate::{firewall::Program, kernel_tables::AttachedXdpMode};

/// The reason for which an operation on the demux failed. Operations on the impaired link of the
/// tests ([`ImpairedLink`](crate::impair::ImpairedLink)) return this type, too.
#[derive(Debug)]
pub enum SteeringError {
    /// The caller lacks CAP_NET_ADMIN or CAP_BPF, or a system call failed with EPERM or EACCES.
    NotPermitted,
    /// This network namespace has no interface with that index.
    NoSuchInterface(u32),
    /// The kernel cannot load or attach the XDP program. The text is the reason, in most cases a
    /// message of the kernel or of the eBPF loader.
    NoKernelSupport(String),
    /// The interface has an XDP program that does not belong to this service.
    OtherProgram {
        /// Name of the interface.
        interface: String,
        /// XDP mode of the program. `None` if the search for the program found no program, for
        /// example because it was removed meanwhile.
        mode: Option<AttachedXdpMode>,
        /// The program. `None` in the same cases as `mode`.
        program: Option<Program>,
    },
    /// The interface has more receive queues than the demux can serve.
    TooManyQueues {
        /// Number of receive queues of the interface.
        queues: u32,
        /// Largest number of receive queues that the demux can serve.
        queues_max: u32,
    },
    /// The table of claims is full. A claim is a 3-tuple whose packets the demux redirects to the
    /// service.
    TooManyClaims,
    /// Any other failed system call.
    System {
        /// Description of the failed action, for example "opening a socket".
        action: &'static str,
        /// Error of the call.
        error: io::Error,
    },
}

impl SteeringError {
    /// Returns a function that converts the error of a system call. EPERM and EACCES become
    /// [`Self::NotPermitted`]. All other errors become [`Self::System`] with `action`.
    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted,
            _ => Self::System { action, error },
        }
    }
}

/// Name of libxdp's own XDP program. This program runs the XDP programs of libxdp's users one after
/// the other.
const DISPATCHER: &str = "xdp_dispatcher";

/// Returns the keyword of `ip link set` that selects an XDP mode.
fn xdp_keyword(mode: Option<AttachedXdpMode>) -> &'static str {
    match mode {
        Some(AttachedXdpMode::Offloaded) => "xdpoffload",
        Some(AttachedXdpMode::Native) => "xdpdrv",
        Some(AttachedXdpMode::Generic) => "xdpgeneric",
        None => "xdp",
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
                "no interface with index {ifindex} here; `ip -brief link` lists the interfaces"
            ),
            Self::NoKernelSupport(detail) => write!(
                f,
                "this kernel cannot run the demux ({detail}); boot Linux 5.11 or later with \
                 CONFIG_BPF_SYSCALL=y and CONFIG_XDP_SOCKETS=y (see: `uname -r`)"
            ),
            Self::OtherProgram {
                interface,
                mode,
                program,
            } => {
                let adjective = mode.map_or(String::new(), |mode| format!("{mode} "));
                write!(f, "{interface} has another {adjective}XDP program")?;
                if let Some(program) = program {
                    write!(f, ", {program}")?;
                }
                match program.as_ref().and_then(Program::name) {
                    Some(DISPATCHER) => write!(
                        f,
                        ", which is libxdp's and runs the programs of others; `xdp-loader status \
                         {interface}` names them, `xdp-loader unload {interface} --all` removes \
                         them"
                    ),
                    _ => write!(
                        f,
                        "; `ip link set dev {interface} {} off` removes it, or stop the process \
                         that has it (`bpftool link` names it)",
                        xdp_keyword(*mode)
                    ),
                }
            }
            Self::TooManyQueues { queues, queues_max } => write!(
                f,
                "{queues} receive queues, but at most {queues_max} can be served; `ethtool \
                 --set-channels` reduces them"
            ),
            Self::TooManyClaims => write!(f, "the table of claims is full; close some sockets"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_program_is_named_with_the_command_that_removes_it() {
        let refusal = |mode, program: Option<&str>| {
            let error = SteeringError::OtherProgram {
                interface: "eth1".to_owned(),
                mode,
                program: program.map(|name| Program::named(7, name)),
            };
            error.to_string()
        };
        let text = refusal(Some(AttachedXdpMode::Generic), Some("theirs"));
        assert!(
            text.starts_with("eth1 has another generic XDP program, theirs (id 7); "),
            "{text}"
        );
        assert!(
            text.contains("ip link set dev eth1 xdpgeneric off"),
            "{text}"
        );
        let text = refusal(Some(AttachedXdpMode::Offloaded), None);
        assert!(
            text.contains("another offloaded XDP program; `ip link set dev eth1 xdpoffload off`"),
            "{text}"
        );
        let text = refusal(Some(AttachedXdpMode::Native), Some(DISPATCHER));
        assert!(
            text.contains("libxdp's") && text.contains("xdp-loader unload eth1 --all"),
            "{text}"
        );
    }
}
