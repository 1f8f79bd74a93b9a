//! A bad wire for tests: two interfaces joined by an eBPF program that loses packets and sets
//! others aside. Never part of the service.
//!
//! The program drops a share of the IPv4 packets and hands another share to AF_XDP sockets, whose
//! owner sends them on later: `examples/tidelane-impair` does that.

use std::os::fd::BorrowedFd;

use crate::{
    AttachMode, AttachWish, SteeringError,
    bpf::{IMPAIR_OBJECT, Object, PerCpuCounters, Sockets, check_permission},
};

/// `struct both`: two directions of three counters.
const COUNTERS: usize = 6;

/// How bad the wire is, in packets per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Impairment {
    /// Packets that are dropped.
    pub loss_ppm: u32,
    /// Packets that are set aside. Without a socket for them they are dropped, too.
    pub hold_ppm: u32,
}

/// Frames of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionCounters {
    /// Sent on at once.
    pub forwarded: u64,
    /// Dropped on purpose.
    pub lost: u64,
    /// Set aside.
    pub held: u64,
}

/// A bad wire between two interfaces. Dropping it separates them.
pub struct BadWire {
    holders: Sockets,
    counters: PerCpuCounters<COUNTERS>,
    _object: Object,
}

impl BadWire {
    /// Joins the interfaces with these indices. Both need drivers with native XDP, and what is
    /// redirected into a veth arrives only if its other end has NAPI (`ethtool -K <end> gro on`).
    pub fn join(ends: [u32; 2], impairment: &Impairment) -> Result<Self, SteeringError> {
        check_permission()?;
        let globals = [
            ("IFINDEX_A", ends[0]),
            ("LOSS_PPM", impairment.loss_ppm),
            ("HOLD_PPM", impairment.hold_ppm),
        ];
        let mut object = Object::load(IMPAIR_OBJECT, "impair", &[], &globals)?;
        let holders = object.sockets("HOLDERS")?;
        let counters = object.counters("COUNTERS")?;
        object.set_devices("ENDS", &[ends[1], ends[0]])?;
        for ifindex in ends {
            let interface = format!("interface {ifindex}");
            let (mode, refusal) = object.attach(ifindex, &interface, AttachWish::Best)?;
            if mode != AttachMode::Native {
                let detail = refusal.unwrap_or_default();
                return Err(SteeringError::NoKernelSupport(detail));
            }
        }
        Ok(Self {
            holders,
            counters,
            _object: object,
        })
    }

    /// Gives the packets set aside of one direction (0: those that arrive at the first interface)
    /// to a socket that is bound to that interface's queue 0.
    pub fn hold(&mut self, direction: u32, socket: BorrowedFd<'_>) -> Result<(), SteeringError> {
        self.holders.set(direction, socket)
    }

    /// What happened to the frames so far, by direction.
    pub fn counters(&self) -> Result<[DirectionCounters; 2], SteeringError> {
        let [a, b, c, d, e, f] = self.counters.sum()?;
        Ok([
            DirectionCounters {
                forwarded: a,
                lost: b,
                held: c,
            },
            DirectionCounters {
                forwarded: d,
                lost: e,
                held: f,
            },
        ])
    }
}
