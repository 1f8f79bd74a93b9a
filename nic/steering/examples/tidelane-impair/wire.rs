//! The user-space half of an impaired link between two interfaces. This half holds some packets
//! back for a fixed time, so that other packets overtake them. An eBPF program
//! (`tidelane_steering::impair`) forwards or drops all other packets between the two interfaces.

use std::{
    collections::VecDeque,
    error::Error,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::BorrowedFd,
};
use tidelane_af_xdp::{XdpBurst, XdpConfig, XdpPort, queue_counts};
use tidelane_packet_io::{BURST_MAX, Burst, PacketIo, TxChecksum};
use tidelane_steering::impair::{DirectionCounters, ImpairedLink, Impairment};

/// Configuration of an impaired link.
#[derive(Clone, Debug)]
pub struct WireConfig {
    /// Names of the two interfaces.
    pub ends: [String; 2],
    /// Probabilities of loss and reordering.
    pub impairment: Impairment,
    /// Delay of a reordered packet.
    pub delay: Duration,
}

/// Counters of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct WireCounters {
    /// Counters of the eBPF program.
    pub program: DirectionCounters,
    /// Delayed packets that were sent after their delay.
    pub released: u64,
    /// Released packets that at least one forwarded frame of the same direction has overtaken.
    pub overtaken: u64,
    /// Delayed packets that were dropped, because the outgoing port had no free frame.
    pub refused: u64,
}

/// A packet that is held back until the time `due`, so that later packets overtake it.
struct DelayedPacket {
    bytes: Vec<u8>,
    due: Instant,
    /// Number of forwarded frames of this direction, read shortly before this packet was received.
    forwarded_before: u64,
}

/// The delayed packets and the counters of one direction.
#[derive(Default)]
struct Direction {
    delayed: VecDeque<DelayedPacket>,
    released: u64,
    overtaken: u64,
    refused: u64,
}

/// A running impaired link.
pub struct Wire {
    program: ImpairedLink,
    /// The AF_XDP ports of the two interfaces. Packets of direction `n` (0 or 1) enter at port `n`
    /// and leave at port `1 - n`.
    ports: [XdpPort; 2],
    directions: [Direction; 2],
    delay: Duration,
    bursts: [XdpBurst; 2],
}

impl Wire {
    /// Joins two interfaces of this thread's network namespace.
    pub fn open(config: &WireConfig) -> Result<Self, Box<dyn Error>> {
        let port_config = XdpConfig {
            rx_frames: 1024,
            tx_packets: 1024,
            huge_pages: false,
            ..XdpConfig::for_veth()
        };
        for end in &config.ends {
            let queues = queue_counts(end).map_err(|error| format!("{end}: {error}"))?;
            if queues.rx != 1 {
                let fix = format!("ethtool --set-channels {end} rx 1 tx 1");
                return Err(format!("{end} has {} receive queues; `{fix}`", queues.rx).into());
            }
        }
        let [a, b] = &config.ends;
        let ports = [
            XdpPort::open(a, 0, &port_config)?,
            XdpPort::open(b, 0, &port_config)?,
        ];
        let indices = [ports[0].ifindex(), ports[1].ifindex()];
        let mut program = ImpairedLink::join(indices, &config.impairment)?;
        for (direction, port) in (0..).zip(&ports) {
            program.set_delay_socket(direction, port.fd())?;
        }
        let directions = [Direction::default(), Direction::default()];
        Ok(Self {
            bursts: [ports[0].new_burst(), ports[1].new_burst()],
            program,
            ports,
            directions,
            delay: config.delay,
        })
    }

    /// Waits until a packet arrives that is to be delayed, a delayed packet is due, `stop` has
    /// input or is at its end, or the time is `until`. Then stores the packets that have arrived,
    /// and sends the packets that are due. Returns true if `stop` has input or is at its end.
    pub fn step(
        &mut self,
        until: Instant,
        stop: Option<BorrowedFd<'_>>,
    ) -> Result<bool, Box<dyn Error>> {
        let dues = self
            .directions
            .iter()
            .filter_map(|direction| direction.delayed.front());
        let wake = dues
            .map(|packet| packet.due)
            .chain([until])
            .min()
            .unwrap_or(until);
        let wait = wake.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: wait.as_secs() as _,
            tv_nsec: wait.subsec_nanos() as _,
        };
        let [a, b] = &self.ports;
        let mut fds = vec![PollFd::new(a, PollFlags::IN), PollFd::new(b, PollFlags::IN)];
        fds.extend(stop.map(|stop| PollFd::from_borrowed_fd(stop, PollFlags::IN)));
        poll(&mut fds, Some(&timeout))?;
        let stopped = fds.get(2).is_some_and(|stop| !stop.revents().is_empty());
        let forwarded = self.program.counters()?.map(|counters| counters.forwarded);
        for (direction, forwarded) in forwarded.into_iter().enumerate() {
            self.receive(direction, forwarded);
            self.release_due(direction, forwarded);
        }
        Ok(stopped)
    }

    fn receive(&mut self, direction: usize, forwarded: u64) {
        let (port, burst) = (&mut self.ports[direction], &mut self.bursts[direction]);
        port.rx_burst(burst, BURST_MAX);
        let due = Instant::now() + self.delay;
        for bytes in burst.iter() {
            let packet = DelayedPacket {
                bytes: bytes.to_vec(),
                due,
                forwarded_before: forwarded,
            };
            self.directions[direction].delayed.push_back(packet);
        }
        port.rx_release(burst);
    }

    fn release_due(&mut self, number: usize, forwarded: u64) {
        let port = &mut self.ports[1 - number];
        let direction = &mut self.directions[number];
        let now = Instant::now();
        let mut sent = false;
        while let Some(packet) = direction.delayed.pop_front_if(|packet| packet.due <= now) {
            let Some(frame) = port.tx_frame() else {
                direction.refused += 1;
                continue;
            };
            frame[..packet.bytes.len()].copy_from_slice(&packet.bytes);
            port.tx_commit(packet.bytes.len(), TxChecksum::Done);
            direction.released += 1;
            direction.overtaken += u64::from(forwarded > packet.forwarded_before);
            sent = true;
        }
        if sent || port.tx_pending() > 0 {
            port.tx_flush();
        }
    }

    /// Returns the counters of both directions. The first direction enters at the first interface.
    pub fn counters(&self) -> Result<[WireCounters; 2], Box<dyn Error>> {
        let programs = self.program.counters()?;
        Ok([0, 1].map(|number| {
            let Direction {
                released,
                overtaken,
                refused,
                ..
            } = self.directions[number];
            WireCounters {
                program: programs[number],
                released,
                overtaken,
                refused,
            }
        }))
    }
}
