//! A mux port of the Tidelane service: opening it, claiming 3-tuples (protocol, local address and
//! local port), and sleeping until frames arrive. A mux port has a pair of packet rings for each
//! core (polling thread) of the service. Through these rings, a program with a TCP/IP stack of its
//! own shares the NIC of the service.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use tidelane_abi::{
    message,
    port::{PacketPort, RX_CHECKSUM_MAY_BE_PARTIAL},
};
use tidelane_packet_io::{Capabilities, GsoParameters, GsoPayload, LinkFull, PacketIo, TxChecksum};
use tidelane_packet_ring::ProgramEnd;
use tidelane_ring::{Doorbell, PortRegions, ServicePageMap, registration::new_message, sleep};

use crate::{
    control::Control,
    error::PortError,
    kernel_socket,
    packets::{Ends, PortBurst},
    protocol::Protocol,
};

/// Default path of the service's socket. The environment variable TIDELANE_SOCKET overrides this
/// path.
const SOCKET_PATH: &str = "/run/tidelane/default/control.sock";
/// Default capacity of a packet ring in bytes: room for about 170 Ethernet frames of 1,514 bytes.
const RING_LEN: u32 = 256 << 10;
/// Default of [`PortConfig::spin`], as in the other libraries of the service.
const SPIN: Duration = Duration::from_micros(20);
/// The parameters of a mux port that the program chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Name of the program for `tidelane port list`. A name of more than 31 bytes is truncated.
    pub name: String,
    /// Capacity of each packet ring in bytes: a power of two from 16 KiB to 4 MiB. The default is
    /// 256 KiB. The mux port has one packet ring in each direction for each core (polling thread)
    /// of the service.
    pub ring_len: u32,
    /// Time for which [`Port::wait`] polls the packet rings before it sleeps. The default is 20 µs.
    /// A wait does not poll if a core of the service may run on the same CPU, or if all cores
    /// sleep.
    pub spin: Duration,
}

impl PortConfig {
    /// Returns the default parameters.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ring_len: RING_LEN,
            spin: SPIN,
        }
    }
}

/// An open mux port of the service. Dropping the value closes the mux port and ends its claims (the
/// 3-tuples whose packets the mux port receives).
pub struct Port {
    /// The connection to the service's socket. The end of the connection closes the mux port.
    control: Control,
    /// The parameters of the mux port in the service's answer, such as the number of cores.
    terms: PacketPort,
    /// The program's ends of the packet rings.
    ends: Ends,
    /// The page on which the service's cores (polling threads) announce their sleep.
    page: ServicePageMap,
    /// The doorbells of the service's cores.
    doorbells: Vec<Doorbell>,
    /// The doorbell of this mux port: the eventfd by which the service wakes the program.
    own: Doorbell,
    /// Time for which a wait polls the packet rings before it sleeps.
    spin: Duration,
}

impl Port {
    /// Opens a mux port of the service whose socket the environment variable TIDELANE_SOCKET names.
    /// Without the variable, opens a mux port of the service `default`.
    pub fn open(config: &PortConfig) -> Result<Self, PortError> {
        let path = std::env::var_os("TIDELANE_SOCKET");
        let path = path.map_or_else(|| SOCKET_PATH.into(), PathBuf::from);
        Self::open_at(&path, config)
    }

    /// Opens a mux port of the service that listens at `path`.
    pub fn open_at(path: &Path, config: &PortConfig) -> Result<Self, PortError> {
        let control = Control::connect(path)?;
        let own = Doorbell::new()?;
        let (answer, descriptors) = control.open_port(&config.name, config.ring_len, own.fd())?;
        let terms = answer.packet_port;
        let invalid = || PortError::from(io::Error::from(io::ErrorKind::InvalidData));
        let cores = terms.cores as usize;
        // The descriptors are two memory regions for each core, then the page, then a doorbell for
        // each core.
        if cores == 0 || descriptors.len() != 3 * cores + 1 {
            return Err(invalid());
        }
        let (memories, others) = descriptors.split_at(2 * cores);
        let is_partial = terms.flags & RX_CHECKSUM_MAY_BE_PARTIAL != 0;
        let end = |pair: &[OwnedFd]| {
            let memories = [pair[0].as_fd(), pair[1].as_fd()];
            let regions = PortRegions::map(memories, terms.number, terms.ring_len)?;
            Ok(ProgramEnd::new(&regions, terms.frame_len_max, is_partial))
        };
        let ends = memories.chunks_exact(2).map(end);
        let ends = Ends::new(ends.collect::<io::Result<Vec<_>>>()?);
        let page = ServicePageMap::map(others[0].as_fd()).map_err(io::Error::other)?;
        if page.cores() != terms.cores {
            return Err(invalid());
        }
        let doorbells = descriptors.into_iter().skip(2 * cores + 1);
        Ok(Self {
            control,
            terms,
            ends,
            page,
            doorbells: doorbells.map(Doorbell::from_trusted).collect(),
            own,
            spin: config.spin,
        })
    }

    /// Returns the number by which `tidelane port list` identifies the mux port.
    pub fn number(&self) -> u32 {
        self.terms.number
    }

    /// Returns the MAC address of the interface. Each frame that the program sends must have this
    /// source address.
    pub fn mac(&self) -> [u8; 6] {
        self.terms.link_address
    }

    /// Claims the 3-tuple of a kernel socket (protocol, local address and local port), so that this
    /// mux port receives the packets of the 3-tuple. The socket must be bound to an address of the
    /// interface or to a wildcard address, and must not be connected. The socket must not listen,
    /// because the kernel would answer the SYNs.
    ///
    /// The service reserves the local port in the kernel until the claim ends, so the program may
    /// close the socket. If the program passes the socket to another program of the same user, the
    /// other program can claim the 3-tuple with this socket. The claim then moves to the mux port
    /// of the other program, without loss of packets.
    ///
    /// # Errors
    ///
    /// - `AddrInUse`: another mux port, program or kernel socket has the 3-tuple.
    /// - `PermissionDenied`: the socket does not prove that the program may use the 3-tuple.
    /// - `AddrNotAvailable`: the address is not an address of the service's interface.
    /// - `QuotaExceeded`: the claim would exceed the user's limit of claims, or the service has
    ///   failed to add the claim.
    /// - `NotConnected`: the service is gone, or has not answered within 10 seconds.
    pub fn claim(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let request = new_message(message::CLAIM_TUPLE);
        self.control.ask(&request, &[socket]).map(drop)
    }

    /// Binds a kernel TCP socket to `addr` and claims the socket's 3-tuple. If the TCP port of
    /// `addr` is 0, the kernel chooses a TCP port, which [`local_addr`](Self::local_addr) returns.
    /// Returns the socket, which the program may close. The errors are the errors of `socket`, of
    /// `bind` and of [`claim`](Self::claim).
    pub fn bind_tcp(&mut self, addr: SocketAddr) -> io::Result<OwnedFd> {
        self.bind(Protocol::Tcp, addr)
    }

    /// Binds a kernel UDP socket to `addr` and claims the socket's 3-tuple, as
    /// [`bind_tcp`](Self::bind_tcp) does for TCP.
    pub fn bind_udp(&mut self, addr: SocketAddr) -> io::Result<OwnedFd> {
        self.bind(Protocol::Udp, addr)
    }

    fn bind(&mut self, protocol: Protocol, addr: SocketAddr) -> io::Result<OwnedFd> {
        let socket = kernel_socket::bound(protocol, addr)?;
        self.claim(socket.as_fd())?;
        Ok(socket)
    }

    /// Returns the protocol, the local address and the local port of a kernel TCP or UDP socket.
    pub fn local_addr(socket: BorrowedFd<'_>) -> io::Result<(Protocol, SocketAddr)> {
        kernel_socket::tuple_of(socket)
    }

    /// Ends a claim. `local` is the local address and port of the socket with which the program
    /// made the claim. The kernel then receives the packets of the 3-tuple. Returns
    /// `PermissionDenied` if the mux port has no claim of this 3-tuple.
    pub fn release(&mut self, protocol: Protocol, local: SocketAddr) -> io::Result<()> {
        let mut request = new_message(message::RELEASE_TUPLE);
        request.packet_port.protocol = protocol.number().into();
        request.port = local.port().into();
        request.local_addr = match local.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        self.control.ask(&request, &[]).map(drop)
    }

    /// Returns true if the service is gone or has closed the mux port, or if the program has found
    /// an invalid value in a packet ring. Usually makes one system call.
    pub fn is_closed(&self) -> bool {
        self.ends.are_closed() || self.control.is_closed()
    }

    /// Returns the descriptor of the mux port's doorbell (an eventfd). After the program has
    /// announced its sleep ([`prepare_to_sleep`](Self::prepare_to_sleep)), the descriptor becomes
    /// readable when frames arrive.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.own.fd()
    }

    /// Returns the descriptor that hangs up when the service is gone (`POLLRDHUP`, `EPOLLRDHUP`).
    /// The program must not read from this descriptor.
    pub fn service_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Announces that the program is going to wait for [`fd`](Self::fd). Returns true if the
    /// program may wait, and false if frames have arrived. In either case, the program has to call
    /// [`cancel_sleep`](Self::cancel_sleep) before it receives frames.
    pub fn prepare_to_sleep(&mut self) -> bool {
        self.own.drain();
        self.ends.prepare_to_sleep()
    }

    /// Undoes [`prepare_to_sleep`](Self::prepare_to_sleep), so that frames do not make
    /// [`fd`](Self::fd) readable.
    pub fn cancel_sleep(&mut self) {
        self.ends.cancel_sleep();
    }

    /// Waits until a frame arrives, `limit` has passed (if there is a limit), or a signal arrives.
    /// Polls the packet rings for [`PortConfig::spin`] before it sleeps.
    ///
    /// # Errors
    ///
    /// `ConnectionAborted` if [`is_closed`](Self::is_closed): the service is gone or has closed the
    /// mux port, or a packet ring has had an invalid value. Otherwise the errors of `poll`.
    pub fn wait(&mut self, limit: Option<Duration>) -> io::Result<()> {
        if self.ends.are_closed() {
            return Err(aborted());
        }
        let spin = limit.map_or(self.spin, |limit| limit.min(self.spin));
        if self.page.poll(spin, || self.ends.have_frames()) {
            return Ok(());
        }
        let woken = match self.ends.prepare_to_sleep() {
            true => self.sleep(limit),
            false => Ok(()),
        };
        self.cancel_sleep();
        woken
    }

    /// Sleeps until the doorbell rings, the service is gone, `limit` has passed, or a signal
    /// arrives.
    fn sleep(&self, limit: Option<Duration>) -> io::Result<()> {
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let mut fds = [
            PollFd::from_borrowed_fd(self.own.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.control.as_fd(), PollFlags::RDHUP),
        ];
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [bell, service] = fds.map(|fd| !fd.revents().is_empty());
        if bell {
            self.own.drain();
        }
        match service {
            true => Err(aborted()),
            false => Ok(()),
        }
    }

    /// Rings the doorbell of each sleeping core for which the program has published frames since
    /// the previous call.
    fn wake_cores(&mut self) {
        for (core, bell) in self.doorbells.iter().enumerate() {
            if !self.ends.take_published(core) {
                continue;
            }
            let line = self.page.core(core as u32);
            if line.is_some_and(|line| sleep::sleeps(&line.needs_wakeup)) {
                // Ignore a failure: if the service has died, `control` hangs up.
                bell.ring();
            }
        }
    }
}

/// Returns the error of a wait on a closed mux port.
fn aborted() -> io::Error {
    let text = "the service has ended, or has closed the mux port";
    io::Error::new(io::ErrorKind::ConnectionAborted, text)
}

impl PacketIo for Port {
    type Burst = PortBurst;

    fn capabilities(&self) -> Capabilities {
        self.ends.capabilities()
    }

    fn new_burst(&self) -> PortBurst {
        self.ends.new_burst()
    }

    #[inline]
    fn rx_burst(&mut self, burst: &mut PortBurst, max: usize) -> usize {
        self.ends.rx_burst(burst, max)
    }

    fn rx_release(&mut self, burst: &mut PortBurst) {
        self.ends.rx_release(burst);
    }

    #[inline]
    fn tx_frame(&mut self) -> Option<&mut [u8]> {
        self.ends.tx_frame()
    }

    #[inline]
    fn tx_commit(&mut self, len: usize, checksum: TxChecksum) {
        self.ends.tx_commit(len, checksum);
    }

    fn tx_gso_headers(&mut self) -> &mut [u8] {
        self.ends.tx_gso_headers()
    }

    fn tx_gso_send(&mut self, payload: GsoPayload<'_>, gso: GsoParameters) -> Result<(), LinkFull> {
        self.ends.tx_gso_send(payload, gso)
    }

    fn tx_flush(&mut self) {
        self.ends.tx_flush();
        self.wake_cores();
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("terms", &self.terms)
            .finish_non_exhaustive()
    }
}
