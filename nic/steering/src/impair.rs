//! An impaired link for tests: two interfaces joined by an eBPF program. The program drops a share
//! of the IPv4 packets, and redirects another share to AF_XDP sockets. The owner of the sockets
//! sends these packets later: see `examples/tidelane-impair`. The service (the process `tidelaned`)
//! never uses an impaired link.

use std::os::fd::BorrowedFd;

use crate::{
    AttachMode, AttachRequest, SteeringError,
    bpf::{IMPAIR_OBJECT, Object, PerCpuCounters, XskSocketMap, check_permission},
};

/// Number of counters in `struct direction_counters`: three for each of two directions.
const COUNTERS: usize = 6;

/// Probabilities of impairments for an IPv4 packet, in parts per million (ppm).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Impairment {
    /// Share of the packets that the program drops.
    pub loss_ppm: u32,
    /// Share of the other packets (without the packets that `loss_ppm` drops) that the program
    /// redirects to an AF_XDP socket. If the direction has no socket, the program drops these
    /// packets, but still counts them as delayed.
    pub delay_ppm: u32,
}

/// Counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionCounters {
    /// Frames redirected to the other interface without delay.
    pub forwarded: u64,
    /// Frames dropped on purpose.
    pub lost: u64,
    /// Frames redirected to a socket. The owner of the socket sends these frames later. The number
    /// includes the frames that the program dropped because the direction had no socket.
    pub delayed: u64,
}

/// An impaired link between two interfaces. The link is removed when the value is dropped.
pub struct ImpairedLink {
    delay_sockets: XskSocketMap,
    counters: PerCpuCounters<COUNTERS>,
    _object: Object,
}

impl ImpairedLink {
    /// Joins the interfaces with these indices. Both drivers need native XDP. A frame that is
    /// redirected into a veth is lost if the other end of the veth does not use NAPI. The other end
    /// uses NAPI after `ethtool -K <end> gro on`, or if it has an XDP program.
    pub fn join(ends: [u32; 2], impairment: &Impairment) -> Result<Self, SteeringError> {
        check_permission()?;
        let globals = [
            ("IFINDEX_A", ends[0]),
            ("LOSS_PPM", impairment.loss_ppm),
            ("DELAY_PPM", impairment.delay_ppm),
        ];
        let mut object = Object::load(IMPAIR_OBJECT, "impair", &[], &globals)?;
        let delay_sockets = object.xsk_map("DELAY_SOCKETS")?;
        let counters = object.counters("COUNTERS")?;
        object.set_devices("OUTPUTS", &[ends[1], ends[0]])?;
        for ifindex in ends {
            let interface = format!("interface {ifindex}");
            let (mode, refusal) = object.attach(ifindex, &interface, AttachRequest::Best)?;
            if mode != AttachMode::Native {
                let detail = refusal.unwrap_or_default();
                return Err(SteeringError::NoKernelSupport(detail));
            }
        }
        Ok(Self {
            delay_sockets,
            counters,
            _object: object,
        })
    }

    /// Redirects delayed packets of one direction to `socket`. Packets of direction 0 arrive at the
    /// first interface, and packets of direction 1 arrive at the second interface. The socket must
    /// be bound to queue 0 of the interface at which the packets arrive.
    pub fn set_delay_socket(
        &mut self,
        direction: u32,
        socket: BorrowedFd<'_>,
    ) -> Result<(), SteeringError> {
        self.delay_sockets.set(direction, socket)
    }

    /// Returns the counters of directions 0 and 1 (see
    /// [`set_delay_socket`](Self::set_delay_socket)).
    pub fn counters(&self) -> Result<[DirectionCounters; 2], SteeringError> {
        let [a, b, c, d, e, f] = self.counters.sum()?;
        Ok([
            DirectionCounters {
                forwarded: a,
                lost: b,
                delayed: c,
            },
            DirectionCounters {
                forwarded: d,
                lost: e,
                delayed: f,
            },
        ])
    }
}
