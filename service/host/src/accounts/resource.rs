//! The resources of the service whose use by each user is counted and limited.

macro_rules! resources {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)+) => {
        /// A limited resource of the service.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Resource {
            $($(#[$doc])* $name,)+
        }

        impl Resource {
            /// All resources.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Returns the name that the configuration and the texts of refusals use.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

resources! {
    /// Connections of processes to the service's registration socket, including processes that have
    /// not registered.
    Registrations = "registrations",
    /// Registered programs and mux ports, each with memory shared with the service. A mux port is a
    /// pair of packet rings through which a program with a TCP/IP stack of its own shares the NIC.
    Programs = "programs",
    /// Contexts of programs. A context serves one thread of a program. The context has a set of
    /// rings on each core (polling thread) of the service, and counts as one unit. In each step of
    /// its loop, a core reads the rings of all contexts on this core.
    Contexts = "contexts",
    /// Listening sockets.
    Listeners = "listeners",
    /// Ports that programs reserved, and 3-tuples (protocol, address, port) that mux ports claimed.
    Ports = "ports",
    /// Descriptors that the service holds for a user.
    Descriptors = "descriptors",
    /// Connections in any state but TIME-WAIT.
    Connections = "connections",
    /// Passive opens in the state SYN-RECEIVED. Beyond the limit, the service answers SYNs with SYN
    /// cookies.
    HalfOpen = "half_open",
    /// Active opens that wait for the resolution of a neighbour, or for an ephemeral port.
    ParkedOpens = "parked_opens",
    /// Holds. Each process that shares a connection after a fork has a hold on the connection, and
    /// each context that accepts from a listener has a hold on the listener.
    Holds = "holds",
    /// Bytes of receive buffers, before and after accept.
    StreamBytes = "stream_bytes",
    /// Messages on the registration socket per second. Only the limit is used; there are no
    /// charges.
    Messages = "messages_per_second",
    /// Bytes of receive buffers in the staging area, for connections that no program has yet. The
    /// same bytes also count as `StreamBytes`.
    StagedBytes = "staged_bytes",
    /// Bytes of packet rings of mux ports.
    RingBytes = "ring_bytes",
    /// Packets that each mux port may send per second. Only the limit is used; there are no
    /// charges.
    PortPackets = "port_packets_per_second",
    /// Bytes that each mux port may send per second. Only the limit is used; there are no charges.
    PortBytes = "port_bytes_per_second",
}

impl Resource {
    /// Number of resources.
    pub const COUNT: usize = Self::ALL.len();

    /// Returns the resource's index in a table of all resources.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the resource with this name.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::ALL.iter().copied();
        all.find(|resource| resource.name() == name)
    }

    /// Returns the resource's number in messages between programs and service. The number 0 stands
    /// for no resource.
    pub const fn code(self) -> u32 {
        self as u32 + 1
    }

    /// Returns the resource with this number.
    pub fn from_code(code: u32) -> Option<Self> {
        let index = usize::try_from(code.checked_sub(1)?).ok()?;
        Self::ALL.get(index).copied()
    }
}
