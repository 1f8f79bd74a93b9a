//! Replacements for parts around the service's own code: a core that runs on its caller's thread
//! instead of a polling thread of the daemon `tidelaned`, a wire between two hosts, and a demux
//! that only stores claims. The real demux is an XDP program, which passes the packets of claimed
//! ports to the service.

use std::{
    collections::BTreeSet,
    io,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tidelane_engine::{EngineConfig, LinkId};
use tidelane_host::{Host, Interface};
use tidelane_packet_io::{BURST_MAX, Burst, MemConfig, MemPort, PacketIo, TxChecksum};
use tidelane_steering::{Claim, DemuxCounters, Scope, StackId, Steering, SteeringError};
use tidelane_time::Instant;
use tidelane_wire::{IpAddress, MacAddress};
use tidelaned::core_link::{Call, CoreLink};

/// Number of frames, free or in use, in one direction of a NIC in memory.
const FRAMES: u32 = 64;
/// First port of the kernel's default ephemeral range.
const EPHEMERAL_MIN: u16 = 32_768;

/// A core: a host (the TCP/IP stack of one core) with its clock.
pub struct OwnCore {
    /// The host.
    pub host: Host<MemPort>,
    /// Current time of the host.
    pub now: Instant,
}

/// The control thread's link to a core. Calls run immediately, because the same thread drives the
/// core.
#[derive(Clone)]
pub struct Link(Arc<Mutex<OwnCore>>);

impl Link {
    /// Creates a core whose host has `address`. Returns the link to the core, and the far end of
    /// the host's NIC in memory.
    pub fn new(address: [u8; 4], mac: MacAddress, now: Instant) -> (Self, MemPort) {
        let (near, far) = MemPort::pair(MemConfig {
            frames: FRAMES,
            ..MemConfig::default()
        });
        let interface = Interface {
            link: LinkId(1),
            mac,
            mtu: 1500,
            addresses: vec![IpAddress::from_v4(address)],
        };
        let config = EngineConfig {
            flows_max: 1024,
            rx_window_max: 1 << 16,
            rx_window_initial: 1 << 14,
            ..EngineConfig::default()
        };
        let host = Host::new(config, [7; 16], interface, vec![near]);
        let host = host.expect("there is memory");
        (Self(Arc::new(Mutex::new(OwnCore { host, now }))), far)
    }

    /// Locks the core.
    pub fn core(&self) -> MutexGuard<'_, OwnCore> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one step of the host at time `now`. Returns true if the step found work.
    pub fn step(&self, now: Instant) -> bool {
        let mut core = self.core();
        core.now = now;
        core.host.step(now)
    }
}

impl CoreLink<MemPort> for Link {
    fn send(&self, call: Call<MemPort>) {
        let mut core = self.core();
        let now = core.now;
        call(&mut core.host, now);
    }

    fn watch(&self, _: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn unwatch(&self, _: BorrowedFd<'_>) {}

    fn is_beside(&self) -> bool {
        false
    }

    fn stop(&self) {}

    fn boosts(&self) -> u32 {
        0
    }
}

/// The far ends of two hosts' NICs in memory. Frames move between the far ends.
pub struct Wire(pub [MemPort; 2]);

impl Wire {
    /// Moves up to [`BURST_MAX`] frames, sent by host `from`, to the other host.
    pub fn carry(&mut self, from: usize) {
        let [one, other] = &mut self.0;
        let (from, to) = if from == 0 {
            (one, other)
        } else {
            (other, one)
        };
        let mut burst = from.new_burst();
        from.rx_burst(&mut burst, BURST_MAX);
        for frame in burst.iter() {
            // A frame for which there is no free buffer is lost, as on a real link.
            if let Some(buffer) = to.tx_frame() {
                buffer[..frame.len()].copy_from_slice(frame);
                to.tx_commit(frame.len(), TxChecksum::Done);
            }
        }
        from.rx_release(&mut burst);
        to.tx_flush();
    }
}

/// A demux that only stores its claims.
#[derive(Clone, Default)]
pub struct ClaimSet(Arc<Mutex<BTreeSet<Claim>>>);

impl ClaimSet {
    /// Returns all current claims.
    pub fn claims(&self) -> BTreeSet<Claim> {
        self.lock().clone()
    }

    /// Returns the claims on ports below the ephemeral range, which programs chose. The kernel
    /// chose the ports of the other claims, and the service keeps these ports for later
    /// connections.
    pub fn own_claims(&self) -> Vec<Claim> {
        let claims = self.claims().into_iter();
        claims.filter(|claim| claim.port < EPHEMERAL_MIN).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<Claim>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Steering for ClaimSet {
    fn claim(&mut self, claim: &Claim, _: StackId, _: Scope) -> Result<(), SteeringError> {
        self.lock().insert(*claim);
        Ok(())
    }

    fn unclaim(&mut self, claim: &Claim) -> Result<bool, SteeringError> {
        Ok(self.lock().remove(claim))
    }

    fn counters(&self) -> Result<DemuxCounters, SteeringError> {
        Ok(DemuxCounters::default())
    }
}
