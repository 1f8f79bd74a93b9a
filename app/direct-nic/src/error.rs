//! Errors of a context on a NIC queue (a TCP/IP stack in the program): errors of opening the
//! context, of claiming ports and of looking up peers. The text of each error gives the reason, and
//! usually a remedy.

use std::{error, fmt, io, net::IpAddr};

use tidelane_af_xdp::XdpError;
use tidelane_steering::SteeringError;

/// Reason why a context cannot be opened, why a port cannot be claimed, or why a peer cannot be
/// reached. A `String` is the name of the interface, except in `NotServed`.
#[derive(Debug)]
pub enum NicError {
    /// No interface has this name.
    NoInterface(String),
    /// The interface is not supported. The `String` gives the reason, and usually a remedy.
    NotServed(String),
    /// The interface is down.
    Down(String),
    /// The options name no address, and the interface has no address other than IPv6 link-local
    /// addresses.
    NoAddress(String),
    /// The options name this address, but the interface does not have the address.
    ForeignAddress(String, IpAddr),
    /// The interface has this number of queues, and the options name no queue.
    SeveralQueues(String, u32),
    /// The packets of the interface may be longer than a frame of the context can hold.
    LongPackets {
        /// The interface.
        interface: String,
        /// The MTU of the interface in bytes.
        mtu: u32,
        /// The largest supported MTU in bytes.
        mtu_max: u32,
    },
    /// The AF_XDP socket of the queue cannot be opened.
    Queue(XdpError),
    /// The demux (an XDP program) cannot be attached, or refuses the AF_XDP socket or a claim. A
    /// claim makes the demux steer the packets of a port to the context.
    Demux(SteeringError),
    /// A kernel socket uses the port.
    PortInUse(IpAddr, u16),
    /// The kernel has no route to the peer over the interface.
    NoRoute(String, IpAddr),
    /// The link address of the next hop with this IP address is unknown. The next hop has not yet
    /// answered the ARP request or neighbour solicitation.
    NoNeighbour(String, IpAddr),
}

impl NicError {
    /// Returns the closest kind of an [`io::Error`].
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::NoInterface(_) => io::ErrorKind::NotFound,
            Self::NotServed(_) | Self::LongPackets { .. } => io::ErrorKind::Unsupported,
            Self::Down(_) => io::ErrorKind::NetworkDown,
            Self::NoAddress(_) | Self::ForeignAddress(..) => io::ErrorKind::AddrNotAvailable,
            Self::SeveralQueues(..) => io::ErrorKind::InvalidInput,
            Self::Queue(error) => kind_of_queue(error),
            Self::Demux(error) => kind_of_demux(error),
            Self::PortInUse(..) => io::ErrorKind::AddrInUse,
            Self::NoRoute(..) => io::ErrorKind::NetworkUnreachable,
            Self::NoNeighbour(..) => io::ErrorKind::HostUnreachable,
        }
    }
}

fn kind_of_queue(error: &XdpError) -> io::ErrorKind {
    match error {
        XdpError::NoSuchInterface(_) => io::ErrorKind::NotFound,
        XdpError::NoSuchQueue { .. } | XdpError::InvalidConfig(_) => io::ErrorKind::InvalidInput,
        XdpError::QueueBusy { .. } => io::ErrorKind::ResourceBusy,
        XdpError::NotPermitted => io::ErrorKind::PermissionDenied,
        XdpError::MemoryLimit { .. } => io::ErrorKind::OutOfMemory,
        XdpError::NoKernelSupport
        | XdpError::NoMultiBuffer { .. }
        | XdpError::MtuTooLarge { .. } => io::ErrorKind::Unsupported,
        XdpError::System { error, .. } => error.kind(),
    }
}

fn kind_of_demux(error: &SteeringError) -> io::ErrorKind {
    match error {
        SteeringError::NotPermitted => io::ErrorKind::PermissionDenied,
        SteeringError::NoSuchInterface(_) => io::ErrorKind::NotFound,
        SteeringError::NoKernelSupport(_) => io::ErrorKind::Unsupported,
        SteeringError::OtherProgram { .. } => io::ErrorKind::ResourceBusy,
        SteeringError::TooManyQueues { .. } => io::ErrorKind::InvalidInput,
        SteeringError::TooManyClaims => io::ErrorKind::QuotaExceeded,
        SteeringError::System { error, .. } => error.kind(),
    }
}

impl fmt::Display for NicError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoInterface(name) => write!(
                f,
                "no interface {name} here; `ip -brief link` lists the interfaces"
            ),
            Self::NotServed(text) => f.write_str(text),
            Self::Down(name) => write!(f, "{name} is down; use: ip link set {name} up"),
            Self::NoAddress(name) => write!(
                f,
                "{name} has no address; use: ip address add ADDRESS/LENGTH dev {name}"
            ),
            Self::ForeignAddress(name, address) => write!(
                f,
                "{address} is no address of {name}; `ip -brief address show {name}` lists them"
            ),
            Self::SeveralQueues(name, queues) => write!(
                f,
                "{name} has {queues} queues, and packets may arrive on each; use: ethtool -L \
                 {name} combined 1, or name the queue to which `ethtool -N` steers the packets of \
                 the program's TCP and UDP ports"
            ),
            Self::LongPackets {
                interface,
                mtu,
                mtu_max,
            } => write!(
                f,
                "{interface} has the MTU {mtu}, but a frame has room for {mtu_max}; use: ip link \
                 set {interface} mtu {mtu_max}"
            ),
            Self::Queue(error) => error.fmt(f),
            Self::Demux(error) => error.fmt(f),
            Self::PortInUse(address, port) => write!(
                f,
                "a socket has port {port} of {address} (`ss -tuanp`); end its program or choose \
                 another port"
            ),
            Self::NoRoute(name, peer) => write!(
                f,
                "the kernel has no route to {peer} over {name}; `ip route get {peer}` shows the \
                 route"
            ),
            Self::NoNeighbour(name, hop) => write!(
                f,
                "{hop} does not answer on {name}, so that its link address is unknown; `ip \
                 neighbor show dev {name}` lists the known ones"
            ),
        }
    }
}

impl error::Error for NicError {}

impl From<NicError> for io::Error {
    fn from(error: NicError) -> Self {
        Self::new(error.kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each error has the expected kind, and its text contains the expected words.
    #[test]
    fn errors_say_what_to_do() {
        use NicError::*;
        use io::ErrorKind;
        let peer: IpAddr = [192, 0, 2, 1].into();
        let name = || "eth7".to_owned();
        let long = LongPackets {
            interface: name(),
            mtu: 9000,
            mtu_max: 3822,
        };
        let queue = Queue(XdpError::NotPermitted);
        let demux = Demux(SteeringError::NotPermitted);
        for (error, kind, advice) in [
            (NoInterface(name()), ErrorKind::NotFound, "ip -brief link"),
            (NotServed(name()), ErrorKind::Unsupported, "eth7"),
            (Down(name()), ErrorKind::NetworkDown, "ip link set eth7 up"),
            (
                NoAddress(name()),
                ErrorKind::AddrNotAvailable,
                "ip address add",
            ),
            (
                ForeignAddress(name(), peer),
                ErrorKind::AddrNotAvailable,
                "show eth7",
            ),
            (
                SeveralQueues(name(), 8),
                ErrorKind::InvalidInput,
                "ethtool -L eth7",
            ),
            (long, ErrorKind::Unsupported, "ip link set eth7 mtu 3822"),
            (queue, ErrorKind::PermissionDenied, "setcap"),
            (demux, ErrorKind::PermissionDenied, "setcap"),
            (PortInUse(peer, 80), ErrorKind::AddrInUse, "ss -tuanp"),
            (
                NoRoute(name(), peer),
                ErrorKind::NetworkUnreachable,
                "ip route get",
            ),
            (
                NoNeighbour(name(), peer),
                ErrorKind::HostUnreachable,
                "ip neighbor show",
            ),
        ] {
            let error = io::Error::from(error);
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(advice), "{error}");
        }
    }
}
