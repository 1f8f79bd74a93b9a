//! A context whose ports are claimed.

use std::{collections::BTreeSet, io, net::SocketAddr, os::fd::BorrowedFd};

use tidelane_direct::{DirectContext, DirectOptions, TimeSource};
use tidelane_packet_io::PacketIo;
use tidelane_rings::{
    Buffer, Context, Descriptor, ListenOptions, Pool, ReadyList, SendError, Wait,
};
use tidelane_wire::IpAddress;

use crate::kernel::Kernel;

/// Number of claimed ports that an open tries before it claims another one.
const TRIES_MAX: usize = 16;

/// A local address and port.
type Local = (IpAddress, u16);

/// A direct context that claims its ports, and learns link addresses, from the kernel.
///
/// The end of a context resets its connections, and leaves its ports to the kernel.
pub struct NicContext<P: PacketIo, K: Kernel> {
    /// Dropped first: its resets leave while the ports are still claimed.
    direct: DirectContext<P>,
    kernel: K,
    claims: BTreeSet<Local>,
    /// Claimed ports for the connections that the program starts.
    outgoing: Vec<Local>,
    /// Place in `outgoing` at which the next open begins to search.
    next_outgoing: usize,
}

impl<P: PacketIo, K: Kernel> NicContext<P, K> {
    /// Opens a context on a port, whose frames come from claims of `kernel`.
    ///
    /// # Errors
    ///
    /// As those of [`DirectContext::open`].
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
        })
    }

    /// Returns the context below the claims, for its counters.
    pub fn direct(&self) -> &DirectContext<P> {
        &self.direct
    }

    /// Claims a port of all `addresses`, as far as it is not claimed. Returns the new claims. A
    /// failure leaves no new claims.
    fn claim_all(&mut self, addresses: &[IpAddress], port: u16) -> io::Result<Vec<Local>> {
        let mut new = Vec::new();
        for address in addresses {
            if self.claims.contains(&(*address, port)) {
                continue;
            }
            match self.kernel.claim(*address, port) {
                Ok(port) => new.push((*address, port)),
                Err(error) => {
                    self.release_all(new);
                    return Err(error);
                }
            }
        }
        self.claims.extend(&new);
        Ok(new)
    }

    fn release_all(&mut self, claims: Vec<Local>) {
        for (address, port) in claims {
            self.claims.remove(&(address, port));
            self.kernel.release(address, port);
        }
    }

    /// Returns a claimed port of `address` that can be used for a connection to `peer`. Claims
    /// another one if some ports are in use.
    fn outgoing_port(&mut self, address: IpAddress, peer: SocketAddr) -> io::Result<u16> {
        let count = self.outgoing.len();
        for tries in 0..count.min(TRIES_MAX) {
            let at = (self.next_outgoing + tries) % count;
            if let Some(port) = self.free_outgoing(at, address, peer) {
                self.next_outgoing = at + 1;
                return Ok(port);
            }
        }
        let claimed = self.claim_all(&[address], 0);
        match claimed.map(|claims| claims.first().copied()) {
            Ok(Some(local)) => {
                self.outgoing.push(local);
                self.next_outgoing = self.outgoing.len();
                Ok(local.1)
            }
            Ok(None) => Err(io::ErrorKind::AddrInUse.into()),
            // All ports are claimed: one of them may be free.
            Err(error) => (0..count)
                .find_map(|at| self.free_outgoing(at, address, peer))
                .ok_or(error),
        }
    }

    /// Returns port `at` of the outgoing ports if it is a port of `address` and can be used.
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

    /// Claims the port, and opens a listener. The claim stays after the end of the listener.
    fn listen(&mut self, local: SocketAddr, options: &ListenOptions) -> io::Result<Descriptor> {
        if local.port() == 0 {
            let message = "a listener on a queue needs a port; name one";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let address = IpAddress::from(local.ip());
        // A listener at `::` has the connections of both IP versions.
        let is_dual = address == IpAddress::UNSPECIFIED_V6;
        let covers = |own: &IpAddress| is_dual || address.covers(*own);
        let all = self.direct.addresses().all().iter();
        let covered: Vec<IpAddress> = all.copied().filter(covers).collect();
        if covered.is_empty() {
            let message = format!("the context does not have the address {}", local.ip());
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, message));
        }
        let claims = self.claim_all(&covered, local.port())?;
        let opened = self.direct.listen(local, options);
        if opened.is_err() {
            self.release_all(claims);
        }
        opened
    }

    /// Looks up the route and the neighbour, and starts a connection. The call waits for a fraction
    /// of a second if the kernel has to resolve the neighbour.
    fn connect(&mut self, peer: SocketAddr) -> io::Result<Descriptor> {
        let address = self.direct.local_address(peer)?;
        let next_hop = self.kernel.next_hop(peer.ip())?;
        let port = self.outgoing_port(address, peer)?;
        self.direct.connect_from(port, peer, next_hop)
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
        self.direct.close(descriptor);
    }

    fn abort(&mut self, descriptor: Descriptor) {
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
