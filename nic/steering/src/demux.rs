//! The demux: claimed 3-tuples go to the service, everything else to the kernel.

use std::{os::fd::BorrowedFd, sync::Arc};

use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use crate::{
    AttachMode, AttachWish, Heartbeats, SteeringError,
    bpf::{DEMUX_OBJECT, Object, PerCpuCounters, Sockets, Table, Value, check_permission},
    mirror,
};

/// The program, for packets in one buffer each, and for packets that may have several.
const PROGRAM: &str = "tidelane_demux";
const PROGRAM_OF_FRAGS: &str = "tidelane_frags";
/// The program that lets every frame pass.
const PROGRAM_OF_HAND_BACK: &str = "tidelane_return";
/// Receive queues that one demux can serve; `QUEUES_MAX` of the program.
const QUEUES_MAX: u32 = 64;
/// A frame to no link address, of no protocol: the kernel drops it.
const NOBODYS_FRAME: [u8; 60] = [0; 60];
/// `struct claim_key`: address 16, port 2, protocol 1, zero 1.
const KEY_LEN: usize = 20;
/// `struct claim`: stack 4, flags 4, zero 8.
const OWNER_LEN: usize = 16;
/// `CLAIM_KERNEL_CONNECTIONS` and `CLAIM_KERNEL_LISTENS` of the program.
const KERNEL_CONNECTIONS: u32 = 1;
const KERNEL_LISTENS: u32 = 2;
/// `struct link_addresses`: own address 6, zero 2, address of returned frames 6, zero 2.
const LINK_ADDRESS_LEN: usize = 16;
/// The source address of a frame.
const SOURCE: std::ops::Range<usize> = 6..12;
/// `struct counters`.
const COUNTERS: usize = 13;

/// Which stack a claim belongs to. Zero is the service itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(pub u32);

/// Which packets of a claimed 3-tuple go to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// All packets.
    Whole,
    /// Packets that belong to no connection of the kernel. The kernel keeps the segments of its
    /// connections, also of those half open or in TIME-WAIT, and answers to its SYN cookies.
    BesideConnections,
    /// Packets for which the kernel has no socket: as before, and the kernel keeps the SYNs for its
    /// own listener.
    BesideKernel,
}

impl Scope {
    fn flags(self) -> u32 {
        match self {
            Self::Whole => 0,
            Self::BesideConnections => KERNEL_CONNECTIONS,
            Self::BesideKernel => KERNEL_CONNECTIONS | KERNEL_LISTENS,
        }
    }
}

/// A 3-tuple whose packets go to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    /// Local address, IPv4 as `::ffff:a.b.c.d`.
    pub addr: [u8; 16],
    /// IP protocol: 6 for TCP, 17 for UDP.
    pub proto: u8,
    /// Local port.
    pub port: u16,
}

impl Claim {
    fn key(&self) -> [u8; KEY_LEN] {
        let mut key = [0; KEY_LEN];
        key[..16].copy_from_slice(&self.addr);
        key[16..18].copy_from_slice(&self.port.to_be_bytes());
        key[18] = self.proto;
        key
    }

    fn from_key(key: &[u8; KEY_LEN]) -> Self {
        let mut addr = [0; 16];
        addr.copy_from_slice(&key[..16]);
        Self {
            addr,
            proto: key[18],
            port: u16::from_be_bytes([key[16], key[17]]),
        }
    }
}

/// Frames that the demux saw, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DemuxCounters {
    /// To the service: claimed TCP or UDP.
    pub redirected: u64,
    /// To the service: ICMP errors that quote a claimed 3-tuple.
    pub redirected_icmp: u64,
    /// Claimed, but the queue had no socket: passed to the kernel.
    pub no_socket: u64,
    /// TCP or UDP that nobody claims: passed to the kernel.
    pub unclaimed: u64,
    /// Fragments of what nobody claims, or of unknown datagrams: passed to the kernel.
    pub fragments: u64,
    /// ICMP that is the kernel's.
    pub icmp: u64,
    /// Other protocols, and malformed headers: passed to the kernel.
    pub other_ip: u64,
    /// Neither IPv4 nor IPv6, or link-level broadcast or multicast: passed to the kernel.
    pub not_ip: u64,
    /// To the service: fragments of claimed TCP or UDP.
    pub redirected_fragments: u64,
    /// Claimed, but the kernel has a socket for them: passed to the kernel.
    pub kernels: u64,
    /// Claimed, but the core of the queue shows no life: passed to the kernel, which has a socket
    /// for it, or has all frames by now.
    pub no_life: u64,
    /// To another link address, heard by a promiscuous interface: passed to the kernel, which drops
    /// it.
    pub other_host: u64,
    /// Handed back by the service: passed to the kernel.
    pub returned: u64,
}

impl DemuxCounters {
    fn from_array(counters: [u64; COUNTERS]) -> Self {
        let [
            redirected,
            redirected_icmp,
            no_socket,
            unclaimed,
            fragments,
            icmp,
            other_ip,
            not_ip,
            redirected_fragments,
            kernels,
            no_life,
            other_host,
            returned,
        ] = counters;
        Self {
            redirected,
            redirected_icmp,
            no_socket,
            unclaimed,
            fragments,
            icmp,
            other_ip,
            not_ip,
            redirected_fragments,
            kernels,
            no_life,
            other_host,
            returned,
        }
    }

    /// Frames that went on to the kernel.
    pub fn passed(&self) -> u64 {
        [
            self.no_socket,
            self.unclaimed,
            self.fragments,
            self.icmp,
            self.other_ip,
            self.not_ip,
            self.kernels,
            self.no_life,
            self.other_host,
            self.returned,
        ]
        .iter()
        .sum()
    }
}

/// In how many buffers of the driver a packet may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// In one: a driver refuses an MTU for which one is too small.
    One,
    /// In several (`BPF_F_XDP_HAS_FRAGS`, Linux 5.18).
    Several,
}

/// Sends claimed packets to the service: the demux, or a stand-in of a test.
pub trait Steering: Send {
    /// Sends the packets of a claim that are within `scope` to the service from now on.
    fn claim(&mut self, claim: &Claim, owner: StackId, scope: Scope) -> Result<(), SteeringError>;

    /// Leaves the claim's packets to the kernel from now on. Returns false if it was not claimed.
    fn unclaim(&mut self, claim: &Claim) -> Result<bool, SteeringError>;

    /// Frames so far, by their destination.
    fn counters(&self) -> Result<DemuxCounters, SteeringError>;

    /// The kernel gets this frame, which came to the service although it is the kernel's. Its
    /// checksums are complete.
    ///
    /// # Errors
    ///
    /// The frame is lost where the kernel takes none (before Linux 5.18), or none that long (about
    /// 3,500 bytes).
    fn hand_back(&mut self, frame: &[u8]) -> Result<(), SteeringError> {
        let _ = frame;
        Ok(())
    }

    /// Returns true if the kernel takes frames back.
    fn takes_frames_back(&self) -> bool {
        false
    }

    /// The interface's link address is this one from now on: frames to others are the kernel's. A
    /// stand-in that sees no frames need not know it.
    fn set_link_address(&mut self, address: [u8; 6]) -> Result<(), SteeringError> {
        let _ = address;
        Ok(())
    }
}

/// The demux on one interface. Dropping it, or the end of the process however it ends, detaches it,
/// and the kernel has all packets again.
pub struct Demux {
    mode: AttachMode,
    native_refusal: Option<String>,
    claims: Table<KEY_LEN, OWNER_LEN>,
    sockets: Sockets,
    counters: PerCpuCounters<COUNTERS>,
    heartbeats: Arc<Heartbeats>,
    link_address: Value<LINK_ADDRESS_LEN>,
    /// The interface.
    ifindex: u32,
    takes_frames_back: bool,
    /// The source of frames that are handed back: random, so that nobody else sends such frames.
    mark: [u8; 6],
    /// Holds the programs and the attachment.
    object: Object,
}

impl Demux {
    /// Loads the demux and attaches it to an interface with that many receive queues: in the
    /// driver, or if that cannot be, generically ([`mode`](Self::mode) tells).
    pub fn load_and_attach(
        ifindex: u32,
        queues: u32,
        buffers: Buffers,
    ) -> Result<Self, SteeringError> {
        Self::load_and_attach_as(ifindex, queues, buffers, AttachWish::Best)
    }

    /// As [`load_and_attach`](Self::load_and_attach), where the caller wishes.
    pub fn load_and_attach_as(
        ifindex: u32,
        queues: u32,
        buffers: Buffers,
        wish: AttachWish,
    ) -> Result<Self, SteeringError> {
        check_permission()?;
        if queues > QUEUES_MAX {
            return Err(SteeringError::TooManyQueues {
                queues,
                queues_max: QUEUES_MAX,
            });
        }
        let interface = interface_name(ifindex)?;
        let program = match buffers {
            Buffers::One => PROGRAM,
            Buffers::Several => PROGRAM_OF_FRAGS,
        };
        let sizes = [("SOCKETS", queues.max(1))];
        let mut object = Object::load(DEMUX_OBJECT, program, &sizes, &[])?;
        object.load_also(PROGRAM_OF_HAND_BACK)?;
        let claims = object.table("CLAIMS")?;
        let sockets = object.sockets("SOCKETS")?;
        let counters = object.counters("COUNTERS")?;
        let heartbeats = object.memory("HEARTBEATS", Heartbeats::LEN)?;
        let link_address = object.value("LINK_ADDRESS")?;
        let (mode, native_refusal) = object.attach(ifindex, &interface, wish)?;
        let mut demux = Self {
            mode,
            native_refusal,
            claims,
            sockets,
            counters,
            heartbeats: Arc::new(Heartbeats::new(heartbeats)),
            link_address,
            ifindex,
            takes_frames_back: false,
            mark: random_address()?,
            object,
        };
        demux.takes_frames_back = demux.hand_back(&NOBODYS_FRAME).is_ok();
        if let Some(address) = own_address(ifindex)? {
            demux.set_link_address(address)?;
        }
        Ok(demux)
    }

    /// How the kernel runs the program.
    pub fn mode(&self) -> AttachMode {
        self.mode
    }

    /// Where the cores show life. Until a core has, its queue is not watched.
    pub fn heartbeats(&self) -> &Arc<Heartbeats> {
        &self.heartbeats
    }

    /// Why the program does not run in the driver, if it does not.
    pub fn native_refusal(&self) -> Option<&str> {
        self.native_refusal.as_deref()
    }

    /// All claims, as the kernel has them.
    pub fn claims(&self) -> Result<Vec<(Claim, StackId)>, SteeringError> {
        let entries = self.claims.entries()?;
        Ok(entries
            .iter()
            .map(|(key, owner)| {
                let stack = u32::from_ne_bytes([owner[0], owner[1], owner[2], owner[3]]);
                (Claim::from_key(key), StackId(stack))
            })
            .collect())
    }

    /// Sends the claimed packets of a receive queue to this AF_XDP socket, which is bound to that
    /// queue. Closing the socket undoes it.
    pub fn register_xsk(
        &mut self,
        queue: u32,
        socket: BorrowedFd<'_>,
    ) -> Result<(), SteeringError> {
        self.sockets.set(queue, socket)
    }

    /// Sends the packets of a receive queue to the kernel.
    pub fn unregister_xsk(&mut self, queue: u32) -> Result<(), SteeringError> {
        self.sockets.unset(queue)
    }
}

impl Steering for Demux {
    fn claim(&mut self, claim: &Claim, owner: StackId, scope: Scope) -> Result<(), SteeringError> {
        let mut value = [0; OWNER_LEN];
        value[..4].copy_from_slice(&owner.0.to_ne_bytes());
        value[4..8].copy_from_slice(&scope.flags().to_ne_bytes());
        self.claims.insert(&claim.key(), &value)
    }

    fn unclaim(&mut self, claim: &Claim) -> Result<bool, SteeringError> {
        self.claims.remove(&claim.key())
    }

    fn hand_back(&mut self, frame: &[u8]) -> Result<(), SteeringError> {
        let mut frame = frame.to_vec();
        // The kernel does not look at the source of a packet that is not ARP.
        if let Some(source) = frame.get_mut(SOURCE) {
            source.copy_from_slice(&self.mark);
        }
        self.object
            .receive(PROGRAM_OF_HAND_BACK, &frame, self.ifindex)
    }

    fn takes_frames_back(&self) -> bool {
        self.takes_frames_back
    }

    fn set_link_address(&mut self, address: [u8; 6]) -> Result<(), SteeringError> {
        let mut value = [0; LINK_ADDRESS_LEN];
        value[..6].copy_from_slice(&address);
        value[8..14].copy_from_slice(&self.mark);
        self.link_address.set(&value)
    }

    fn counters(&self) -> Result<DemuxCounters, SteeringError> {
        self.counters.sum().map(DemuxCounters::from_array)
    }
}

/// A link address that nobody has: locally administered, of one host.
fn random_address() -> Result<[u8; 6], SteeringError> {
    let mut address = [0; 6];
    rustix::rand::getrandom(&mut address, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| SteeringError::system("getting random bytes")(error.into()))?;
    address[0] = address[0] & 0xfc | 2;
    Ok(address)
}

/// The link address of an interface of this thread's namespace.
fn own_address(ifindex: u32) -> Result<Option<[u8; 6]>, SteeringError> {
    let address = mirror::link_address(ifindex);
    let address = address.map_err(SteeringError::system(
        "reading the interface's link address",
    ))?;
    Ok(address.map(|address| address.0))
}

/// The name of an interface of this thread's namespace.
fn interface_name(ifindex: u32) -> Result<String, SteeringError> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)
        .map_err(|error| SteeringError::system("opening a socket")(error.into()))?;
    netdevice::index_to_name(&any, ifindex).map_err(|_| SteeringError::NoSuchInterface(ifindex))
}

#[cfg(test)]
mod tests;
