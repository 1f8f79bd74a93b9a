//! Errors of opening an AF_XDP port ([`XdpPort`](crate::XdpPort)). A port is an AF_XDP socket on
//! one NIC queue, with the memory of its frames (the UMEM). The text of each error, except
//! [`XdpError::InvalidConfig`] and [`XdpError::System`], names a command that resolves the error or
//! shows its cause.

use std::{error::Error, fmt, io};

/// The reason for which an AF_XDP port could not be opened.
#[derive(Debug)]
pub enum XdpError {
    /// The network namespace of the calling thread has no interface with the requested name or
    /// index. The text is the name, or `with index` and the index.
    NoSuchInterface(String),
    /// The interface has no queue with this number.
    NoSuchQueue {
        /// The interface.
        interface: String,
        /// Number of the requested queue.
        queue: u32,
    },
    /// Another AF_XDP socket is already bound to the queue.
    QueueBusy {
        /// The interface.
        interface: String,
        /// Number of the requested queue.
        queue: u32,
    },
    /// The caller lacks a capability, for example CAP_NET_RAW.
    NotPermitted,
    /// The kernel was built without AF_XDP.
    NoKernelSupport,
    /// The UMEM exceeds the memory that the process may lock (RLIMIT_MEMLOCK).
    MemoryLimit {
        /// Size of the UMEM in bytes.
        bytes: usize,
    },
    /// The MTU of the interface is larger than the largest MTU of a port.
    MtuTooLarge {
        /// The interface.
        interface: String,
        /// MTU of the interface in bytes.
        mtu: u32,
        /// The largest MTU of a port in bytes ([`MTU_MAX`](crate::MTU_MAX)).
        mtu_max: u32,
    },
    /// A packet of the interface may need several frames, but this kernel supports only packets in
    /// one frame.
    NoMultiBuffer {
        /// The interface.
        interface: String,
        /// Largest MTU in bytes whose packets take one frame each.
        mtu_max: u32,
    },
    /// The configuration is invalid. The text names the violated rule.
    InvalidConfig(&'static str),
    /// Any other failed system call.
    System {
        /// Name or description of the call.
        call: &'static str,
        /// Error of the call.
        error: io::Error,
    },
}

impl XdpError {
    /// Converts the error of the AF_XDP `socket` call.
    pub(crate) fn of_socket(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EAFNOSUPPORT) => Self::NoKernelSupport,
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted,
            _ => Self::System {
                call: "socket",
                error,
            },
        }
    }
}

impl fmt::Display for XdpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchInterface(interface) => {
                write!(
                    f,
                    "no interface {interface} here; `ip -brief link` lists the interfaces"
                )
            }
            Self::NoSuchQueue { interface, queue } => write!(
                f,
                "{interface} has no queue {queue}; `ethtool --show-channels {interface}` shows how \
                 many it has"
            ),
            Self::QueueBusy { interface, queue } => write!(
                f,
                "queue {queue} of {interface} belongs to another AF_XDP socket; `ip -details link \
                 show {interface}` and `bpftool net` show whose program is there"
            ),
            Self::NotPermitted => write!(
                f,
                "AF_XDP sockets need CAP_NET_RAW; run as root, or `setcap \
                 cap_net_raw,cap_net_admin,cap_bpf,cap_ipc_lock+ep` the program"
            ),
            Self::NoKernelSupport => write!(
                f,
                "this kernel has no AF_XDP; boot one with CONFIG_XDP_SOCKETS=y (see: `grep \
                 XDP_SOCKETS /boot/config-$(uname -r)`)"
            ),
            Self::MemoryLimit { bytes } => write!(
                f,
                "{bytes} bytes of frames exceed the lockable memory; `ulimit -l unlimited`, or \
                 fewer frames"
            ),
            Self::MtuTooLarge {
                interface,
                mtu,
                mtu_max,
            } => write!(
                f,
                "the MTU {mtu} of {interface} is too large; `ip link set {interface} mtu {mtu_max}`"
            ),
            Self::NoMultiBuffer { interface, mtu_max } => write!(
                f,
                "the MTU of {interface} needs packets of several frames, which AF_XDP has only \
                 from Linux 6.6 on; `ip link set {interface} mtu {mtu_max}`, or a later kernel"
            ),
            Self::InvalidConfig(rule) => write!(f, "invalid AF_XDP configuration: {rule}"),
            Self::System { call, error } => write!(f, "{call}: {error}"),
        }
    }
}

impl Error for XdpError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::System { error, .. } => Some(error),
            _ => None,
        }
    }
}
