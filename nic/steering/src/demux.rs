//! The demux: sends the packets of claimed 3-tuples to the service, and all other packets to the
//! kernel.
//!
//! A claim is a 3-tuple of local address, protocol and local port. The service (the process
//! `tidelaned`) claims the ports of the programs that it serves. The demux is an XDP program
//! (`ebpf/demux/demux.bpf.c`). This module loads the program and writes its maps.

use std::{os::fd::BorrowedFd, sync::Arc};

use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use crate::{
    AttachMode, AttachRequest, Heartbeats, SteeringError,
    bpf::{
        ArrayEntry, BpfHashMap, DEMUX_OBJECT, Object, PerCpuCounters, XskSocketMap,
        check_permission,
    },
    kernel_tables,
};

/// Names of the demux's XDP programs for packets in one buffer and for packets in several buffers.
const PROGRAM: &str = "tidelane_demux";
const FRAGS_PROGRAM: &str = "tidelane_frags";
/// Name of the XDP program that passes every frame to the kernel's network stack. The kernel runs
/// this program on the frames that the service hands back to the kernel.
const HAND_BACK_PROGRAM: &str = "tidelane_return";
/// Maximum number of receive queues of one demux. The eBPF program has the same `QUEUES_MAX`.
const QUEUES_MAX: u32 = 64;
/// A frame of zeros, which the kernel drops. [`Demux`] hands this frame back to the kernel once, to
/// test whether the kernel takes frames back.
const PROBE_FRAME: [u8; 60] = [0; 60];
/// Length of `struct claim_key` in bytes: address 16, port 2, protocol 1, zero 1.
const KEY_LEN: usize = 20;
/// Length of `struct claim` in bytes: stack 4, flags 4, zero 8.
const CLAIM_LEN: usize = 16;
/// Flags of `struct claim`: `CLAIM_KERNEL_CONNECTIONS` and `CLAIM_KERNEL_LISTENS` of the eBPF
/// program.
const KERNEL_CONNECTIONS: u32 = 1;
const KERNEL_LISTENS: u32 = 2;
/// Length of `struct link_addresses` in bytes: own address 6, zero 2, source of frames that are
/// handed back 6, zero 2.
const LINK_ADDRESS_LEN: usize = 16;
/// Byte range of the source link address in a frame.
const SOURCE: std::ops::Range<usize> = 6..12;
/// Number of counters in `struct counters`.
const COUNTERS: usize = 13;

/// Number of the stack that owns a claim. The service uses zero. The eBPF program ignores the
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(pub u32);

/// The packets of a claimed 3-tuple that go to the service. The scope applies to TCP only: all UDP
/// datagrams of a claimed 3-tuple go to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// All packets.
    Whole,
    /// Packets without a connection in the kernel. The kernel keeps the segments of its connections
    /// (also of connections in SYN-RECEIVED and TIME-WAIT), and the ACKs of its SYN cookies.
    BesideConnections,
    /// Packets without a connection in the kernel, except SYNs for a listener of the kernel. The
    /// kernel keeps these SYNs, and the packets that it keeps with `BesideConnections`.
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
    /// Value of `addr` for a claim of all IPv4 multicast and broadcast datagrams to a UDP port.
    pub const GROUP_V4: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255];
    /// Value of `addr` for a claim of all IPv6 multicast datagrams to a UDP port.
    pub const GROUP_V6: [u8; 16] = [255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

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

/// Frames that the demux has processed, by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DemuxCounters {
    /// Redirected to the service: claimed TCP or UDP.
    pub redirected: u64,
    /// Redirected to the service: ICMP errors that quote a claimed 3-tuple.
    pub redirected_icmp: u64,
    /// Passed to the kernel: claimed, but the queue had no AF_XDP socket.
    pub no_socket: u64,
    /// Passed to the kernel: TCP or UDP without a claim.
    pub unclaimed: u64,
    /// Passed to the kernel: fragments of datagrams that the service does not get. If a fragment
    /// overtakes the first fragment of its datagram, the demux passes the fragment to the service
    /// or to the kernel, as it did with the earlier datagrams from this source to this destination
    /// (`docs/design/fragments.md`).
    pub fragments: u64,
    /// Passed to the kernel: ICMP, except the errors that `redirected_icmp` counts.
    pub icmp: u64,
    /// Passed to the kernel: other protocols, IPv4 source routes, malformed headers, and long
    /// chains of IPv6 extension headers.
    pub other_ip: u64,
    /// Passed to the kernel: frames that are neither IPv4 nor IPv6, frames of a VLAN (VLAN id other
    /// than zero), and link-level broadcast or multicast without a claim of all groups
    /// ([`Claim::GROUP_V4`]).
    pub not_ip: u64,
    /// Redirected to the service: fragments of claimed TCP or UDP.
    pub redirected_fragments: u64,
    /// Passed to the kernel: claimed, but the kernel has a socket for the packet.
    pub kernel_socket: u64,
    /// Passed to the kernel: claimed, but the core (polling thread of the service) of this queue
    /// writes no heartbeats. After 800 ms without a heartbeat, the kernel gets the TCP packets for
    /// which it has a socket. After 30 s, the kernel gets all packets of the queue, except later
    /// fragments of claimed datagrams.
    pub no_heartbeat: u64,
    /// Passed to the kernel: destined to another link address, which happens on a promiscuous
    /// interface. The kernel drops these frames.
    pub other_host: u64,
    /// Passed to the kernel: handed back by the service.
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
            kernel_socket,
            no_heartbeat,
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
            kernel_socket,
            no_heartbeat,
            other_host,
            returned,
        }
    }

    /// Returns the number of all frames that were passed to the kernel.
    pub fn passed(&self) -> u64 {
        [
            self.no_socket,
            self.unclaimed,
            self.fragments,
            self.icmp,
            self.other_ip,
            self.not_ip,
            self.kernel_socket,
            self.no_heartbeat,
            self.other_host,
            self.returned,
        ]
        .iter()
        .sum()
    }
}

/// Number of driver buffers over which a packet may extend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// One buffer. A driver refuses an MTU that does not fit.
    One,
    /// Several buffers (`BPF_F_XDP_HAS_FRAGS`, Linux 5.18).
    Several,
}

/// Operations by which the service steers packets. [`Demux`] implements the trait, and tests
/// implement it without an XDP program.
pub trait Steering: Send {
    /// From now on, sends to the service the packets of the claimed 3-tuple that `scope` selects.
    fn claim(&mut self, claim: &Claim, owner: StackId, scope: Scope) -> Result<(), SteeringError>;

    /// From now on, leaves the packets of the claimed 3-tuple to the kernel. Returns false if the
    /// 3-tuple was not claimed.
    fn unclaim(&mut self, claim: &Claim) -> Result<bool, SteeringError>;

    /// Returns the numbers of processed frames, by result.
    fn counters(&self) -> Result<DemuxCounters, SteeringError>;

    /// Hands a redirected frame back to the kernel, because a kernel socket may need the frame. The
    /// checksums of the frame must be complete. The default implementation does nothing.
    ///
    /// # Errors
    ///
    /// An error means that the frame is lost. The kernel takes no frames back before Linux 5.18,
    /// and no frames that are longer than about 3,500 bytes.
    fn hand_back(&mut self, frame: &[u8]) -> Result<(), SteeringError> {
        let _ = frame;
        Ok(())
    }

    /// Returns true if the kernel takes frames back.
    fn takes_frames_back(&self) -> bool {
        false
    }

    /// Sets the interface's link address. The demux leaves frames to other link addresses to the
    /// kernel. The default implementation, for tests without frames, ignores the address.
    fn set_link_address(&mut self, address: [u8; 6]) -> Result<(), SteeringError> {
        let _ = address;
        Ok(())
    }
}

/// The demux on one interface. The demux is detached when the value is dropped, or when the process
/// ends in any way. The kernel then receives all packets again.
pub struct Demux {
    mode: AttachMode,
    native_error: Option<String>,
    claims: BpfHashMap<KEY_LEN, CLAIM_LEN>,
    sockets: XskSocketMap,
    counters: PerCpuCounters<COUNTERS>,
    heartbeats: Arc<Heartbeats>,
    link_address: ArrayEntry<LINK_ADDRESS_LEN>,
    /// Index of the interface.
    ifindex: u32,
    takes_frames_back: bool,
    /// Source link address of frames that are handed back. The address is random, so that no other
    /// sender is likely to use the address.
    hand_back_source: [u8; 6],
    /// Owner of the programs and the attachment.
    object: Object,
}

impl Demux {
    /// Loads the demux and attaches it to an interface with `queues` receive queues: in the driver,
    /// or in generic mode if the driver cannot run XDP programs (see [`mode`](Self::mode)).
    pub fn load_and_attach(
        ifindex: u32,
        queues: u32,
        buffers: Buffers,
    ) -> Result<Self, SteeringError> {
        Self::load_and_attach_as(ifindex, queues, buffers, AttachRequest::Best)
    }

    /// Loads and attaches the demux in the XDP mode `request`. The other arguments are those of
    /// [`load_and_attach`](Self::load_and_attach).
    pub fn load_and_attach_as(
        ifindex: u32,
        queues: u32,
        buffers: Buffers,
        request: AttachRequest,
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
            Buffers::Several => FRAGS_PROGRAM,
        };
        let sizes = [("SOCKETS", queues.max(1))];
        let mut object = Object::load(DEMUX_OBJECT, program, &sizes, &[])?;
        object.load_another(HAND_BACK_PROGRAM)?;
        let claims = object.hash_map("CLAIMS")?;
        let sockets = object.xsk_map("SOCKETS")?;
        let counters = object.counters("COUNTERS")?;
        let heartbeats = object.mapped_array("HEARTBEATS", Heartbeats::LEN)?;
        let link_address = object.array_entry("LINK_ADDRESS")?;
        let (mode, native_error) = object.attach(ifindex, &interface, request)?;
        let mut demux = Self {
            mode,
            native_error,
            claims,
            sockets,
            counters,
            heartbeats: Arc::new(Heartbeats::new(heartbeats)),
            link_address,
            ifindex,
            takes_frames_back: false,
            hand_back_source: random_address()?,
            object,
        };
        demux.takes_frames_back = demux.hand_back(&PROBE_FRAME).is_ok();
        if let Some(address) = own_address(ifindex)? {
            demux.set_link_address(address)?;
        }
        Ok(demux)
    }

    /// Returns the XDP mode in which the kernel runs the program.
    pub fn mode(&self) -> AttachMode {
        self.mode
    }

    /// Returns the heartbeats of the service's cores (polling threads). The demux does not watch a
    /// queue before the first heartbeat of the queue's core.
    pub fn heartbeats(&self) -> &Arc<Heartbeats> {
        &self.heartbeats
    }

    /// Returns the reason for which the program could not be attached in the driver. Returns `None`
    /// if the program is attached in the driver, or if the caller requested generic mode.
    pub fn native_error(&self) -> Option<&str> {
        self.native_error.as_deref()
    }

    /// Reads all claims from the kernel's map.
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

    /// Sends the claimed packets of a receive queue to this AF_XDP socket, which must be bound to
    /// the queue. Closing the socket removes the socket from the map.
    pub fn register_xsk(
        &mut self,
        queue: u32,
        socket: BorrowedFd<'_>,
    ) -> Result<(), SteeringError> {
        self.sockets.set(queue, socket)
    }

    /// Removes the AF_XDP socket of a receive queue, so that the kernel receives the queue's
    /// packets.
    pub fn unregister_xsk(&mut self, queue: u32) -> Result<(), SteeringError> {
        self.sockets.unset(queue)
    }
}

impl Steering for Demux {
    fn claim(&mut self, claim: &Claim, owner: StackId, scope: Scope) -> Result<(), SteeringError> {
        let mut value = [0; CLAIM_LEN];
        value[..4].copy_from_slice(&owner.0.to_ne_bytes());
        value[4..8].copy_from_slice(&scope.flags().to_ne_bytes());
        let inserted = self.claims.insert(&claim.key(), &value);
        inserted.map_err(claim_failed)
    }

    fn unclaim(&mut self, claim: &Claim) -> Result<bool, SteeringError> {
        self.claims.remove(&claim.key())
    }

    fn hand_back(&mut self, frame: &[u8]) -> Result<(), SteeringError> {
        let mut frame = frame.to_vec();
        // By this source address, the demux recognizes a frame that was handed back. The kernel
        // ignores the source address of a frame, except in frames that carry ARP.
        if let Some(source) = frame.get_mut(SOURCE) {
            source.copy_from_slice(&self.hand_back_source);
        }
        self.object.receive(HAND_BACK_PROGRAM, &frame, self.ifindex)
    }

    fn takes_frames_back(&self) -> bool {
        self.takes_frames_back
    }

    fn set_link_address(&mut self, address: [u8; 6]) -> Result<(), SteeringError> {
        let mut value = [0; LINK_ADDRESS_LEN];
        value[..6].copy_from_slice(&address);
        value[8..14].copy_from_slice(&self.hand_back_source);
        self.link_address.set(&value)
    }

    fn counters(&self) -> Result<DemuxCounters, SteeringError> {
        self.counters.sum().map(DemuxCounters::from_array)
    }
}

/// Converts the error of an insertion into the map of claims. The kernel returns E2BIG for a full
/// hash map.
fn claim_failed(error: SteeringError) -> SteeringError {
    match error {
        SteeringError::System { error, .. } if error.raw_os_error() == Some(libc::E2BIG) => {
            SteeringError::TooManyClaims
        }
        error => error,
    }
}

/// Returns a random link address (unicast, locally administered), which no host is likely to have.
fn random_address() -> Result<[u8; 6], SteeringError> {
    let mut address = [0; 6];
    rustix::rand::getrandom(&mut address, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| SteeringError::system("getting random bytes")(error.into()))?;
    address[0] = address[0] & 0xfc | 2;
    Ok(address)
}

/// Returns the link address of an interface of this thread's network namespace. Returns `None` if
/// the interface has no link address of six bytes.
fn own_address(ifindex: u32) -> Result<Option<[u8; 6]>, SteeringError> {
    let address = kernel_tables::link_address(ifindex);
    let address = address.map_err(SteeringError::system(
        "reading the interface's link address",
    ))?;
    Ok(address.map(|address| address.0))
}

/// Returns the name of an interface of this thread's network namespace.
fn interface_name(ifindex: u32) -> Result<String, SteeringError> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)
        .map_err(|error| SteeringError::system("opening a socket")(error.into()))?;
    netdevice::index_to_name(&any, ifindex).map_err(|_| SteeringError::NoSuchInterface(ifindex))
}

#[cfg(test)]
mod tests;
