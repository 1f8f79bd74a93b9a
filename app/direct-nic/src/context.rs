//! [`NicContext`]: a direct context (TCP and UDP in the program) that claims the ports of its
//! sockets. A claim reserves a port in the kernel, and makes the demux (an XDP program) steer the
//! port's packets to the context.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    net::SocketAddr,
    os::fd::BorrowedFd,
};

use tidelane_direct::{DirectContext, DirectOptions, TimeSource};
use tidelane_packet_io::PacketIo;
use tidelane_rings::{
    Buffer, Context, Descriptor, ListenOptions, Pool, ReadyList, SendError, Wait,
};
use tidelane_wire::IpAddress;

use crate::kernel::{Kernel, Transport};

/// Largest number of claimed ports that a connect tries before it claims another port. Also the
/// largest number of ports that a bind to UDP port 0 tries.
const TRIES_MAX: usize = 16;

/// A local address and port.
type Local = (IpAddress, u16);

/// A direct context on a queue of a NIC. The kernel grants the claims of ports, and resolves the
/// link addresses of peers.
///
/// Dropping a context resets its connections, and returns its ports to the kernel.
pub struct NicContext<P: PacketIo, K: Kernel> {
    /// Dropped first, so that the resets are sent while the ports are still claimed.
    direct: DirectContext<P>,
    kernel: K,
    /// Claims of TCP ports, which last as long as the context.
    claims: BTreeSet<Local>,
    /// Claimed ports for connections that the program starts.
    outgoing: Vec<Local>,
    /// Index in `outgoing` at which the next connect begins to search.
    next_outgoing: usize,
    /// Claims of UDP ports, by open socket.
    datagram_claims: HashMap<Descriptor, Vec<Local>>,
}

impl<P: PacketIo, K: Kernel> NicContext<P, K> {
    /// Opens a context on `port`, a queue of a NIC. `kernel` grants the claims of TCP and UDP
    /// ports, whose packets then arrive on the queue.
    ///
    /// # Errors
    ///
    /// The errors of [`DirectContext::open`].
    pub fn new(
        options: &DirectOptions,
        port: P,
        time: impl TimeSource<P> + 'static,
        kernel: K,
    ) -> io::Result<Self> {
        Ok(Self {
            direct: DirectContext::open(options, port, time)?,
            kernel,
            claims: BTreeSet::new(),
            outgoing: Vec::new(),
            next_outgoing: 0,
            datagram_claims: HashMap::new(),
        })
    }

    /// Returns the underlying context, for its counters.
    pub fn direct(&self) -> &DirectContext<P> {
        &self.direct
    }

    /// Returns the local addresses at which a socket that is bound to `local` receives packets. An
    /// unspecified address stands for all addresses of its IP version. For a TCP listener, `::`
    /// stands for the addresses of both IP versions.
    fn covered(&self, local: SocketAddr, transport: Transport) -> io::Result<Vec<IpAddress>> {
        let address = IpAddress::from(local.ip());
        let is_dual = transport == Transport::Tcp && address == IpAddress::UNSPECIFIED_V6;
        let covers = |own: &IpAddress| is_dual || address.covers(*own);
        let all = self.direct.addresses().all().iter();
        let covered: Vec<IpAddress> = all.copied().filter(covers).collect();
        if covered.is_empty() {
            let message = format!("the context does not have the address {}", local.ip());
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, message));
        }
        Ok(covered)
    }

    /// Claims a TCP port at each of `addresses`, except where the program has already claimed the
    /// port. Returns the new claims. A failure leaves no new claims.
    fn claim_streams(&mut self, addresses: &[IpAddress], port: u16) -> io::Result<Vec<Local>> {
        let unclaimed = |address: &&IpAddress| !self.claims.contains(&(**address, port));
        let addresses: Vec<_> = addresses.iter().filter(unclaimed).copied().collect();
        let new = self.claim_all(Transport::Tcp, &addresses, port)?;
        self.claims.extend(&new);
        Ok(new)
    }

    /// Claims one port at all `addresses`. If `port` is zero, the kernel chooses the port. Returns
    /// the claims. A failure leaves no claims.
    fn claim_all(
        &mut self,
        transport: Transport,
        addresses: &[IpAddress],
        port: u16,
    ) -> io::Result<Vec<Local>> {
        let mut claims: Vec<Local> = Vec::new();
        for address in addresses {
            let port = claims.first().map_or(port, |first| first.1);
            match self.kernel.claim(*address, transport, port) {
                Ok(port) => claims.push((*address, port)),
                Err(error) => {
                    self.release_all(transport, claims);
                    return Err(error);
                }
            }
        }
        Ok(claims)
    }

    fn release_all(&mut self, transport: Transport, claims: Vec<Local>) {
        for (address, port) in claims {
            if transport == Transport::Tcp {
                self.claims.remove(&(address, port));
            }
            self.kernel.release(address, transport, port);
        }
    }

    /// Claims one UDP port at all `addresses`. The kernel chooses a port that is free at the first
    /// address. If the port is in use at another address, tries other ports.
    fn claim_any_datagrams(&mut self, addresses: &[IpAddress]) -> io::Result<Vec<Local>> {
        let mut claims = self.claim_all(Transport::Udp, addresses, 0);
        for _ in 1..TRIES_MAX {
            let Err(error) = &claims else {
                break;
            };
            if error.kind() != io::ErrorKind::AddrInUse {
                break;
            }
            claims = self.claim_all(Transport::Udp, addresses, 0);
        }
        claims
    }

    /// Releases the claims of a UDP socket.
    fn release_datagram_claims(&mut self, descriptor: Descriptor) {
        if let Some(claims) = self.datagram_claims.remove(&descriptor) {
            self.release_all(Transport::Udp, claims);
        }
    }

    /// Returns a claimed port of `address` that is free for a connection to `peer`. If none of the
    /// next [`TRIES_MAX`] claimed ports is suitable, claims a further port.
    fn outgoing_port(&mut self, address: IpAddress, peer: SocketAddr) -> io::Result<u16> {
        let count = self.outgoing.len();
        for tries in 0..count.min(TRIES_MAX) {
            let at = (self.next_outgoing + tries) % count;
            if let Some(port) = self.free_outgoing(at, address, peer) {
                self.next_outgoing = at + 1;
                return Ok(port);
            }
        }
        let claimed = self.claim_streams(&[address], 0);
        match claimed.map(|claims| claims.first().copied()) {
            Ok(Some(local)) => {
                self.outgoing.push(local);
                self.next_outgoing = self.outgoing.len();
                Ok(local.1)
            }
            Ok(None) => Err(io::ErrorKind::AddrInUse.into()),
            // No further port can be claimed, so try all claimed ports.
            Err(error) => (0..count)
                .find_map(|at| self.free_outgoing(at, address, peer))
                .ok_or(error),
        }
    }

    /// Returns the port with the index `at` in `outgoing`, if the port is claimed at `address` and
    /// is free for a connection to `peer`.
    fn free_outgoing(&mut self, at: usize, address: IpAddress, peer: SocketAddr) -> Option<u16> {
        let (local, port) = self.outgoing[at];
        (local == address && self.direct.is_port_free(port, peer)).then_some(port)
    }
}

impl<P: PacketIo, K: Kernel> Context for NicContext<P, K> {
    fn pool(&self) -> &Pool {
        self.direct.pool()
    }

    fn allocate(&mut self, descriptor: Descriptor) -> Option<Buffer> {
        self.direct.allocate(descriptor)
    }

    /// Claims the port, and opens a listener. The claim outlives the listener.
    fn listen(&mut self, local: SocketAddr, options: &ListenOptions) -> io::Result<Descriptor> {
        if local.port() == 0 {
            let message = "a listener on a NIC queue needs a port number other than 0";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let covered = self.covered(local, Transport::Tcp)?;
        let claims = self.claim_streams(&covered, local.port())?;
        let opened = self.direct.listen(local, options);
        if opened.is_err() {
            self.release_all(Transport::Tcp, claims);
        }
        opened
    }

    /// Looks up the route and the neighbour, and starts a connection. If the kernel has to resolve
    /// the neighbour, the call waits for up to 200 ms.
    fn connect(&mut self, peer: SocketAddr) -> io::Result<Descriptor> {
        let address = self.direct.local_address(peer)?;
        let next_hop = self.kernel.next_hop(peer.ip())?;
        let port = self.outgoing_port(address, peer)?;
        self.direct.connect_from(port, peer, next_hop)
    }

    /// Claims the port, and opens a UDP socket. The claim ends with the socket.
    fn bind(&mut self, local: SocketAddr) -> io::Result<Descriptor> {
        let covered = self.covered(local, Transport::Udp)?;
        let claims = match local.port() {
            0 => self.claim_any_datagrams(&covered)?,
            port => self.claim_all(Transport::Udp, &covered, port)?,
        };
        let port = claims.first().map_or(local.port(), |claim| claim.1);
        match self.direct.bind(SocketAddr::new(local.ip(), port)) {
            Ok(descriptor) => {
                self.datagram_claims.insert(descriptor, claims);
                Ok(descriptor)
            }
            Err(error) => {
                self.release_all(Transport::Udp, claims);
                Err(error)
            }
        }
    }

    /// Queues a datagram. If the peer has not recently sent a datagram to the socket, looks up the
    /// route and the neighbour first. If the kernel has to resolve the neighbour, the call waits
    /// for up to 200 ms. The event SEND_FAILED reports a peer that cannot be reached.
    fn send_to(
        &mut self,
        descriptor: Descriptor,
        buffer: Buffer,
        peer: SocketAddr,
    ) -> Result<(), SendError> {
        let needs_hop = self.datagram_claims.contains_key(&descriptor)
            && !self.direct.knows_sender(descriptor, peer.ip());
        let next_hop = match needs_hop {
            true => self.kernel.next_hop(peer.ip()).ok(),
            false => None,
        };
        self.direct.send_to_via(descriptor, buffer, peer, next_hop)
    }

    fn send(&mut self, descriptor: Descriptor, buffer: Buffer) -> Result<(), SendError> {
        self.direct.send(descriptor, buffer)
    }

    fn sync(&mut self, list: &mut ReadyList, wait: Wait) -> io::Result<()> {
        self.direct.sync(list, wait)
    }

    fn tx_sync(&mut self) -> io::Result<()> {
        self.direct.tx_sync()
    }

    fn rx_sync(&mut self, list: &mut ReadyList, wait: Wait) -> io::Result<()> {
        self.direct.rx_sync(list, wait)
    }

    fn pause(&mut self, descriptor: Descriptor) {
        self.direct.pause(descriptor);
    }

    fn resume(&mut self, descriptor: Descriptor) -> io::Result<()> {
        self.direct.resume(descriptor)
    }

    fn shutdown(&mut self, descriptor: Descriptor) {
        self.direct.shutdown(descriptor);
    }

    fn close(&mut self, descriptor: Descriptor) {
        self.release_datagram_claims(descriptor);
        self.direct.close(descriptor);
    }

    fn abort(&mut self, descriptor: Descriptor) {
        self.release_datagram_claims(descriptor);
        self.direct.abort(descriptor);
    }

    fn is_open(&self, descriptor: Descriptor) -> bool {
        self.direct.is_open(descriptor)
    }

    fn socket(&self, descriptor: Descriptor) -> Option<BorrowedFd<'_>> {
        self.direct.socket(descriptor)
    }

    fn system_calls(&self) -> u64 {
        self.direct.system_calls()
    }
}
