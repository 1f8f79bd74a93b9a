//! [`Interface`]: the calls to the kernel that a context on a NIC queue needs. A context is a
//! TCP/IP stack in the program. An [`Interface`] attaches the demux (an XDP program), claims ports,
//! and looks up routes and neighbours. A claim reserves a port in the kernel, and makes the demux
//! steer the port's packets to the context.

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    rand::{GetRandomFlags, getrandom},
};
use tidelane_af_xdp::{XdpConfig, XdpPort, queue_counts};
use tidelane_direct::DirectOptions;
use tidelane_steering::{
    AttachMode, AttachRequest, Buffers, Claim, Demux, PortReservation, Scope, StackId, Steering,
    kernel_tables::{KernelTables, LinkKind, LinkRecord, NeighborState, RouteKind},
    links::{self, Driver},
};
use tidelane_wire::{IpAddress, MacAddress, protocol};

use crate::{
    error::NicError,
    kernel::{Kernel, Transport},
    options::{NicOptions, RING_FRAMES},
};

/// Longest wait for the kernel to resolve a neighbour. A local neighbour answers in less than a
/// millisecond. The kernel repeats an ARP request after 1 s. The limit is shorter, because a
/// context serves no connection during the wait.
const RESOLVE_MAX: Duration = Duration::from_millis(200);
/// Length of the period after a failed wait in which look-ups of unknown neighbours fail without a
/// wait.
const IMPATIENCE: Duration = Duration::from_secs(1);

/// Limits the waits for neighbours, so that look-ups of many dead hosts do not block the context's
/// connections. During [`IMPATIENCE`] after a failed wait, a look-up of an unknown neighbour fails
/// without a wait. The kernel still resolves the link address, so that a later look-up can succeed.
#[derive(Debug, Default)]
struct Patience {
    /// Time at which the most recent failed wait ended. `None` before the first failed wait.
    failed_at: Option<Instant>,
}

impl Patience {
    /// Returns the longest time for which a look-up that begins at `now` may wait.
    fn limit(&self, now: Instant) -> Duration {
        let is_over = |at: Instant| now.saturating_duration_since(at) >= IMPATIENCE;
        match self.failed_at.is_none_or(is_over) {
            true => RESOLVE_MAX,
            false => Duration::ZERO,
        }
    }

    /// Records that a wait with the time limit `limit` has failed at `now`. Does nothing if `limit`
    /// is zero, because there was no wait.
    fn on_failure(&mut self, now: Instant, limit: Duration) {
        if !limit.is_zero() {
            self.failed_at = Some(now);
        }
    }
}

/// An interface with the demux attached, and a copy of the kernel's routing and neighbour tables.
pub struct Interface {
    link: LinkRecord,
    /// Local addresses of the context.
    addresses: Vec<IpAddress>,
    tables: KernelTables,
    demux: Demux,
    patience: Patience,
    /// Claimed ports, and their reservations in the kernel.
    reservations: BTreeMap<(IpAddress, Transport, u16), PortReservation>,
}

impl Interface {
    /// Attaches the demux to an interface, and opens the AF_XDP socket of a queue.
    ///
    /// # Errors
    ///
    /// A [`NicError`] inside the [`io::Error`], or `InvalidInput` for an impossible number of
    /// buffers. Otherwise, the errors of the calls that read the kernel's tables and the queues.
    pub fn open(options: &NicOptions) -> io::Result<(Self, XdpPort)> {
        let tables = KernelTables::open()?;
        let link = usable_link(&tables, &options.interface)?;
        let addresses = addresses_of(&tables, &link, &options.addresses)?;
        let queues = queue_counts(&link.name)?.rx;
        if queues != 1 && options.queue.is_none() {
            return Err(NicError::SeveralQueues(link.name, queues).into());
        }
        let driver = Driver::of(&link);
        let mut config = config_for(&link, options.buffers)?;
        let release = rustix::system::uname();
        config.tx_metadata = driver.heeds_metadata(&release.release().to_string_lossy());
        let (request, _) = driver.xdp_mode_for(AttachRequest::Best);
        let demux = Demux::load_and_attach_as(link.ifindex, queues, Buffers::One, request);
        let mut demux = demux.map_err(NicError::Demux)?;
        if demux.mode() == AttachMode::Generic {
            // In zero-copy mode, drivers deliver frames only to a native XDP program. A generic XDP
            // program runs before the kernel completes offloaded checksums.
            config.prefer_zero_copy = false;
            config.rx_checksum_may_be_partial = true;
        }
        let queue = options.queue.unwrap_or(0);
        let port = XdpPort::open_index(link.ifindex, queue, &config).map_err(NicError::Queue)?;
        let registered = demux.register_xsk(queue, port.fd());
        registered.map_err(NicError::Demux)?;
        let interface = Self {
            link,
            addresses,
            tables,
            demux,
            patience: Patience::default(),
            reservations: BTreeMap::new(),
        };
        Ok((interface, port))
    }

    /// Returns the options of a context on this interface, with a new random secret.
    ///
    /// # Errors
    ///
    /// The errors of `getrandom`.
    pub fn direct_options(&self, options: &NicOptions) -> io::Result<DirectOptions> {
        let mut secret = [0; 16];
        getrandom(&mut secret, GetRandomFlags::empty())?;
        Ok(options_for(&self.link, &self.addresses, options, secret)?)
    }

    /// Returns the IP address of the next hop to `peer`: the gateway of the route, or `peer` itself
    /// if the route has no gateway. Fails if no route to `peer` leads over this interface.
    fn route(&self, peer: IpAddr) -> Result<IpAddress, NicError> {
        let peer_address = IpAddress::from(peer);
        let route = self.tables.route_lookup(&peer_address.0);
        let over_link = |route: &tidelane_steering::kernel_tables::RouteInfo| {
            route.kind == RouteKind::Unicast && route.ifindex == self.link.ifindex
        };
        match route.filter(over_link) {
            Some(route) => Ok(route.gateway.map_or(peer_address, IpAddress)),
            None => Err(NicError::NoRoute(self.link.name.clone(), peer)),
        }
    }

    /// Returns the link address of a neighbour if the kernel has a valid entry. Asks the kernel to
    /// confirm a stale entry.
    fn known_neighbour(&mut self, hop: IpAddress) -> io::Result<Option<MacAddress>> {
        let ifindex = self.link.ifindex;
        let Some(neighbour) = self.tables.neighbor(ifindex, &hop.0) else {
            return Ok(None);
        };
        if neighbour.state == NeighborState::Stale {
            self.tables.resolve(ifindex, &hop.0)?;
        }
        Ok(neighbour.usable_mac().map(|mac| MacAddress(mac.0)))
    }

    /// Waits until the kernel reports a change of its tables, or until `deadline`.
    fn await_change(&self, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        let socket = self.tables.fd();
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&limit)) {
            Ok(_) => Ok(()),
            // A signal ends the wait early. The caller then waits again until the deadline.
            Err(rustix::io::Errno::INTR) => {
                thread::yield_now();
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Interface {
    /// Removes all claims, because a forked child of this process may keep the demux attached.
    fn drop(&mut self) {
        for (addr, transport, port) in self.reservations.keys() {
            let _ = self.demux.unclaim(&claim_of(*addr, *transport, *port));
        }
    }
}

impl Kernel for Interface {
    fn claim(&mut self, addr: IpAddress, transport: Transport, port: u16) -> io::Result<u16> {
        let reservation = match transport {
            Transport::Tcp => PortReservation::new(addr.0, port),
            Transport::Udp => PortReservation::new_datagram(addr.0, port),
        };
        let reservation = reservation.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => NicError::PortInUse(addr.into(), port).into(),
            _ => error,
        })?;
        let port = reservation.port();
        let claim = claim_of(addr, transport, port);
        let claimed = self.demux.claim(&claim, StackId(0), Scope::Whole);
        claimed.map_err(NicError::Demux)?;
        self.reservations
            .insert((addr, transport, port), reservation);
        Ok(port)
    }

    fn release(&mut self, addr: IpAddress, transport: Transport, port: u16) {
        // If the removal fails, the demux still steers the port's packets to the context, which
        // answers the segments of a TCP port by RST.
        let _ = self.demux.unclaim(&claim_of(addr, transport, port));
        self.reservations.remove(&(addr, transport, port));
    }

    fn next_hop(&mut self, peer: IpAddr) -> io::Result<MacAddress> {
        self.tables.poll()?;
        let hop = self.route(peer)?;
        if let Some(mac) = self.known_neighbour(hop)? {
            return Ok(mac);
        }
        self.tables.resolve(self.link.ifindex, &hop.0)?;
        let limit = self.patience.limit(Instant::now());
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            self.await_change(deadline)?;
            self.tables.poll()?;
            if let Some(mac) = self.known_neighbour(hop)? {
                return Ok(mac);
            }
        }
        self.patience.on_failure(Instant::now(), limit);
        Err(NicError::NoNeighbour(self.link.name.clone(), hop.into()).into())
    }
}

fn claim_of(addr: IpAddress, transport: Transport, port: u16) -> Claim {
    let proto = match transport {
        Transport::Tcp => protocol::TCP,
        Transport::Udp => protocol::UDP,
    };
    Claim {
        addr: addr.0,
        proto,
        port,
    }
}

/// Returns the MAC address of an Ethernet interface.
fn own_link_address(link: &LinkRecord) -> Result<MacAddress, NicError> {
    let text = || format!("{} has no Ethernet address", link.name);
    let address = link.mac.ok_or_else(|| NicError::NotServed(text()))?;
    Ok(MacAddress(address.0))
}

/// Returns the link with this name if a context can use it.
fn usable_link(tables: &KernelTables, name: &str) -> Result<LinkRecord, NicError> {
    let link = tables.link_by_name(name);
    let link = link.ok_or_else(|| NicError::NoInterface(name.to_owned()))?;
    links::check(tables, link).map_err(NicError::NotServed)?;
    match link.up {
        true => Ok(link.clone()),
        false => Err(NicError::Down(name.to_owned())),
    }
}

/// Returns the addresses of a context: `wanted`, or all addresses of the link except IPv6
/// link-local addresses if `wanted` is empty.
fn addresses_of(
    tables: &KernelTables,
    link: &LinkRecord,
    wanted: &[IpAddr],
) -> Result<Vec<IpAddress>, NicError> {
    let all = tables.addresses(link.ifindex);
    let all: Vec<IpAddress> = all.map(|record| IpAddress(record.addr)).collect();
    if wanted.is_empty() {
        let usable = all.into_iter().filter(|own| !own.is_link_local_v6());
        let usable: Vec<IpAddress> = usable.collect();
        return match usable.is_empty() {
            true => Err(NicError::NoAddress(link.name.clone())),
            false => Ok(usable),
        };
    }
    let wanted = wanted.iter().map(|address| {
        let own = Some(IpAddress::from(*address)).filter(|own| all.contains(own));
        own.ok_or_else(|| NicError::ForeignAddress(link.name.clone(), *address))
    });
    wanted.collect()
}

/// Returns the configuration of the AF_XDP socket.
fn config_for(link: &LinkRecord, buffers: u32) -> io::Result<XdpConfig> {
    if !(1..=NicOptions::BUFFERS_MAX).contains(&buffers) {
        let message = format!("buffers: 1 to {}", NicOptions::BUFFERS_MAX);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let config = match link.kind {
        LinkKind::Veth => XdpConfig::for_veth(),
        _ => XdpConfig::default(),
    };
    let config = XdpConfig {
        rx_frames: RING_FRAMES,
        tx_packets: RING_FRAMES,
        shared_frames: buffers,
        ..config.sized_for(link.mtu)
    };
    match config.single_frame_mtu() {
        mtu_max if link.mtu > mtu_max => Err(NicError::LongPackets {
            interface: link.name.clone(),
            mtu: link.mtu,
            mtu_max,
        }
        .into()),
        _ => Ok(config),
    }
}

/// Returns the options of a context on a link with the given addresses.
fn options_for(
    link: &LinkRecord,
    addresses: &[IpAddress],
    options: &NicOptions,
    secret: [u8; 16],
) -> Result<DirectOptions, NicError> {
    let first = addresses.first().copied().unwrap_or_default();
    let mut direct = DirectOptions::new(first, secret);
    direct.stack.addresses = addresses.to_vec();
    direct.stack.mac = own_link_address(link)?;
    direct.stack.options = options.tcp;
    direct.mtu = link.mtu;
    direct.send_queue_max = options.send_queue_max;
    Ok(direct)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error of [`Interface::open`]. The test needs no privilege: reading the kernel's
    /// tables needs none, and the call fails before it needs one.
    fn error_of(options: &NicOptions) -> io::Error {
        match Interface::open(options) {
            Ok(_) => panic!("{options:?} is possible"),
            Err(error) => error,
        }
    }

    #[test]
    fn unusable_interfaces_are_named() {
        let error = error_of(&NicOptions::new("no-such-if"));
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("no-such-if"), "{error}");
        let error = error_of(&NicOptions::new("lo"));
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains("is the loopback"), "{error}");
    }

    #[test]
    fn time_spent_on_unanswered_waits_is_bounded() {
        let start = Instant::now();
        let mut patience = Patience::default();
        let (mut now, mut waited) = (start, Duration::ZERO);
        // Look up many dead hosts in sequence.
        for _ in 0..100_000 {
            let limit = patience.limit(now);
            now += limit + Duration::from_micros(100);
            waited += limit;
            patience.on_failure(now, limit);
        }
        let share = waited.as_secs_f64() / (now - start).as_secs_f64();
        assert!((0.1..0.2).contains(&share), "{share}");
        // After `IMPATIENCE`, a look-up may wait again.
        assert_eq!(patience.limit(now + IMPATIENCE), RESOLVE_MAX);
    }

    fn link(kind: LinkKind, mtu: u32) -> LinkRecord {
        LinkRecord {
            ifindex: 7,
            name: "eth7".to_owned(),
            mac: None,
            mtu,
            kind,
            ethernet: true,
            up: true,
            master: None,
            lower: None,
            lower_is_elsewhere: false,
            xdp_programs: Vec::new(),
        }
    }

    #[test]
    fn a_context_has_the_options_of_its_link() {
        let mut link = link(LinkKind::Device, 1400);
        let addresses = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddress::from_v4);
        let mut options = NicOptions::new("eth7");
        options.tcp.keepalive = true;
        options.send_queue_max = 7;
        let refused = options_for(&link, &addresses, &options, [1; 16]);
        assert!(matches!(refused, Err(NicError::NotServed(_))));
        let mac = tidelane_steering::kernel_tables::MacAddress([2, 0, 0, 0, 0, 1]);
        link.mac = Some(mac);
        let direct = options_for(&link, &addresses, &options, [1; 16]).expect("Ethernet");
        assert_eq!(direct.stack.addresses, addresses);
        assert_eq!(direct.stack.mac, MacAddress(mac.0));
        assert_eq!(direct.stack.gateway, MacAddress::default());
        assert!(direct.stack.options.keepalive && direct.stack.options.nodelay);
        assert_eq!((direct.mtu, direct.send_queue_max), (1400, 7));
    }

    #[test]
    fn frames_hold_the_packets_of_the_interface() {
        let config = config_for(&link(LinkKind::Device, 1500), 100).expect("possible");
        assert_eq!((config.frame_size, config.shared_frames), (2048, 100));
        assert!(config.prefer_zero_copy && !config.rx_checksum_may_be_partial);
        let config = config_for(&link(LinkKind::Veth, 3000), 100).expect("possible");
        assert_eq!(config.frame_size, 4096);
        assert!(!config.prefer_zero_copy && config.rx_checksum_may_be_partial);
        let error = config_for(&link(LinkKind::Device, 9000), 100).expect_err("too long");
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        for buffers in [0, NicOptions::BUFFERS_MAX + 1, u32::MAX] {
            let error = config_for(&link(LinkKind::Device, 1500), buffers);
            let error = error.expect_err("impossible");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{buffers}");
        }
        config_for(&link(LinkKind::Device, 1500), NicOptions::BUFFERS_MAX).expect("possible");
    }
}
