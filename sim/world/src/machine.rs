//! One simulated host, which drives its service as `tidelaned` drives its cores: the simulated host
//! delivers frames, answers the service's netlink requests, and lets the service sleep. A *port of
//! the host* is the NIC queue of a core, here a pair of frame queues in memory. An *ephemeral port*
//! is a local TCP port for active opens.

use std::{
    collections::{BTreeMap, VecDeque},
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tidelane_engine::{FlowInfo, LinkId};
use tidelane_host::{
    HostRequest, Interface, PORTS_PER_REQUEST, SocketReport,
    accounts::{User, UserId, Weight},
};
use tidelane_netem::Rng;
use tidelane_packet_io::{
    BURST_MAX, Burst, Capture, MemBurst, MemConfig, MemPort, PacketIo, TxChecksum,
};
use tidelane_ring::{ProgramRegion, ServicePageMap, sleep};
use tidelane_time::{Duration, Instant};
use tidelane_wire::IpAddress;

use crate::{
    cwnd_rules::SenderFigures,
    family::Family,
    host_spec::HostSpec,
    service::{ProgramIds, Service},
    topology::{Topology, address, mac, mac_of},
};

/// First port of the ephemeral range.
const PORT_FIRST: u16 = 32_768;
/// Longest delay of a netlink answer, in nanoseconds.
const ANSWER_TIME_MAX: u64 = 400_000;

/// An answer of the simulated kernel that has yet to reach the service.
enum Answer {
    /// The link address of this neighbour.
    Neighbour(IpAddress),
    /// More ephemeral ports of this local address.
    Ports(IpAddress),
}

/// The simulator's end of a host's port, with or without a packet capture.
enum Wire {
    Plain(MemPort),
    Captured(Box<Capture<MemPort, Box<dyn Write>>>),
}

/// One host with its service, its clock and the time of its next step.
pub struct Machine {
    /// The service.
    pub host: Service,
    /// The service page: shared memory in which programs see whether a core sleeps.
    pub page: Arc<ServicePageMap>,
    /// True if a program has rung the service's doorbell.
    pub doorbell_rang: Arc<AtomicBool>,
    /// Time of the next step, or `None` if the service sleeps without a timeout.
    pub next_step: Option<Instant>,
    /// Time until which the host is paused.
    pub paused_until: Instant,
    /// Time by which the host's clock is ahead of the clock of the world.
    clock_offset: Duration,
    /// True while the service is down. Frames to and from the host are then lost.
    pub down: bool,
    spec: HostSpec,
    /// The simulator's ends of the ports, by core.
    wires: Vec<Wire>,
    rng: Rng,
    /// Random numbers that select the receive queue of an arriving frame.
    queue_rng: Rng,
    /// Answers of the kernel, each with its time of arrival.
    answers: VecDeque<(Instant, Answer)>,
    /// Number of ephemeral ports that the service has got so far, by local address.
    ports_given: BTreeMap<IpAddress, u32>,
    /// The users of this host's programs, by user number.
    users: BTreeMap<u32, Arc<User>>,
    /// Buffer for the frames that [`sent`](Self::sent) takes from a port. Empty between the calls.
    burst: MemBurst,
    /// State of a slow NIC. `None` if the NIC frees all sent frames before the next step.
    slow: Option<SlowNic>,
}

impl Machine {
    /// Creates host `index` from `spec`, with the routes of `topology`.
    pub fn new(
        index: usize,
        spec: &HostSpec,
        topology: &Topology,
        rng: Rng,
    ) -> std::io::Result<Self> {
        let port = MemConfig {
            frame_len_max: spec.mtu + 14,
            frames: spec.frames,
            // The links may corrupt bytes. The port therefore completes each checksum, so that the
            // receiver detects wrong bytes.
            partial_checksums: false,
        };
        let families = &Family::BOTH[..1 + usize::from(spec.ipv6)];
        let own = families.iter().map(|family| address(*family, index));
        let addresses: Vec<IpAddress> = own.collect();
        let routes = families.iter();
        let routes = routes.flat_map(|family| topology.routes(*family, index));
        let interface = Interface {
            link: LinkId(1),
            mac: mac(index),
            mtu: spec.mtu,
            addresses: addresses.clone(),
        };
        let mut secret = [0; 16];
        rng.fork(1).fill(&mut secret);
        let (mut host, far) = Service::new(spec.cores, &spec.engine, secret, &interface, &port)?;
        host.set_routes(Instant::ZERO, &addresses, &routes.collect::<Vec<_>>());
        Ok(Self {
            host,
            page: Arc::new(ServicePageMap::heap(spec.cores)?),
            doorbell_rang: Arc::new(AtomicBool::new(false)),
            next_step: Some(Instant::ZERO),
            paused_until: Instant::ZERO,
            clock_offset: Duration::ZERO,
            down: false,
            spec: spec.clone(),
            wires: far.into_iter().map(Wire::Plain).collect(),
            rng: rng.fork(2),
            queue_rng: rng.fork(3),
            answers: VecDeque::new(),
            ports_given: BTreeMap::new(),
            users: BTreeMap::new(),
            burst: MemBurst::default(),
            slow: None,
        })
    }

    /// Registers a program of `user`. The user may use all of each limited resource.
    pub fn add_program(
        &mut self,
        user: u32,
        name: &str,
        region: &Arc<ProgramRegion>,
    ) -> ProgramIds {
        let new = || Arc::new(User::new(UserId(user), Weight::Unlimited));
        let user = self.users.entry(user).or_insert_with(new);
        self.host.add_program(user, name, region)
    }

    /// Returns a line for each resource that is still charged to a user.
    pub fn charged(&self) -> Vec<String> {
        let lines = self.users.iter().flat_map(|(id, user)| {
            let held = user.lines().filter(|line| line.used > 0);
            held.map(move |line| format!("user {id}: {} of {:?}", line.used, line.resource))
        });
        lines.collect()
    }

    /// Makes the machine write all frames of the first core's port, in both directions, to `out` as
    /// pcapng.
    pub fn capture(mut self, out: Box<dyn Write>) -> std::io::Result<Self> {
        let first = std::mem::replace(&mut self.wires[0], Wire::Plain(MemPort::pair(SPARE).0));
        self.wires[0] = first.captured(out)?;
        Ok(self)
    }

    /// Replaces this machine by `new`, whose service starts at time `back` without any state. The
    /// offset of the clock and the capture stay.
    pub fn restart(&mut self, new: Self, back: Instant) -> std::io::Result<()> {
        let mut old = std::mem::replace(self, new);
        self.clock_offset = old.clock_offset;
        self.down = true;
        self.next_step = Some(back);
        self.paused_until = back;
        if let Wire::Captured(capture) = old.wires.swap_remove(0) {
            let (_, out) = capture.finish();
            let first = std::mem::replace(&mut self.wires[0], Wire::Plain(MemPort::pair(SPARE).0));
            self.wires[0] = first.captured(out?)?;
        }
        Ok(())
    }

    /// Returns the time of the host's clock at world time `now`.
    pub fn clock(&self, now: Instant) -> Instant {
        now + self.clock_offset
    }

    /// Moves the host's clock forward by `by`.
    pub fn jump(&mut self, now: Instant, by: Duration) {
        self.clock_offset += by;
        self.wake(now);
    }

    /// Returns the time of the next step, or the end of a pause, whichever is later. Returns `None`
    /// if no step is scheduled.
    pub fn due(&self) -> Option<Instant> {
        Some(self.next_step?.max(self.paused_until))
    }

    /// Delivers a frame to the host. Returns false if the port has no room.
    pub fn deliver(&mut self, now: Instant, frame: &[u8]) -> bool {
        if self.down {
            return true;
        }
        let queue = match self.wires.len() {
            1 => 0,
            queues => self.queue_rng.below(queues as u64) as usize,
        };
        let wire = &mut self.wires[queue];
        wire.set_time(now);
        let port = wire.port();
        let Some(buffer) = port.tx_frame() else {
            self.wake(now);
            return false;
        };
        // The device drops frames longer than its buffers, as a NIC drops frames above its MTU.
        if frame.len() <= buffer.len() {
            buffer[..frame.len()].copy_from_slice(frame);
            port.tx_commit(frame.len(), TxChecksum::Done);
            port.tx_flush();
        }
        self.wake(now);
        true
    }

    /// Schedules a step soon, because the host has work.
    pub fn wake(&mut self, now: Instant) {
        let at = now + Duration(self.rng.below(self.spec.wake_time_max.0 + 1));
        self.next_step = Some(self.next_step.map_or(at, |step| step.min(at)));
    }

    /// Takes one step, and schedules the next step. Returns true if there was work.
    pub fn step(&mut self, now: Instant) -> bool {
        let page = self.page.clone();
        let lines = (0..page.cores()).filter_map(|core| page.core(core));
        let lines = lines.map(|line| &line.needs_wakeup);
        lines.clone().for_each(sleep::cancel_sleep);
        self.doorbell_rang.store(false, Ordering::Relaxed);
        self.down = false;
        let clock = self.clock(now);
        let worked = self.host.step(clock);
        self.take_requests(now);
        let soon = now + Duration(1 + self.rng.below(self.spec.step_time_max.0));
        self.next_step = if worked {
            Some(soon)
        } else {
            lines.for_each(sleep::prepare_to_sleep);
            if self.host.has_work() {
                Some(soon)
            } else {
                let at = self.host.next_timeout();
                at.map(|at| (at - self.clock_offset).max(now + Duration(1)))
            }
        };
        worked
    }

    fn take_requests(&mut self, now: Instant) {
        while let Some(request) = self.host.take_request() {
            let at = now + Duration(self.rng.below(ANSWER_TIME_MAX));
            let at = self.answers.back().map_or(at, |(last, _)| at.max(*last));
            match request {
                HostRequest::Resolve { addr } => {
                    self.answers.push_back((at, Answer::Neighbour(addr)));
                }
                HostRequest::MorePorts { addr } => {
                    self.answers.push_back((at, Answer::Ports(addr)));
                }
                HostRequest::PortIdle { .. }
                | HostRequest::Strays
                | HostRequest::CorruptPorts
                | HostRequest::IdleMemory => {}
            }
        }
    }

    /// Returns the time at which the next answer of the kernel arrives.
    pub fn next_answer(&self) -> Option<Instant> {
        self.answers.front().map(|(at, _)| *at)
    }

    /// Delivers the kernel's oldest answer to the service.
    pub fn answer(&mut self, now: Instant) {
        let Some((_, answer)) = self.answers.pop_front() else {
            return;
        };
        let clock = self.clock(now);
        match answer {
            Answer::Neighbour(addr) => {
                self.host.set_neighbour(clock, addr, mac_of(addr));
            }
            Answer::Ports(addr) => {
                let given = self.ports_given.entry(addr).or_default();
                let count = (self.spec.ports - *given).min(PORTS_PER_REQUEST);
                let first = PORT_FIRST + *given as u16;
                let ports: Vec<u16> = (first..).take(count as usize).collect();
                *given += count;
                self.host.add_ports(clock, addr, &ports);
            }
        }
        self.wake(now);
    }

    /// Expires the kernel's neighbour entry of `addr`. An answer with the link address follows
    /// later.
    pub fn forget_neighbour(&mut self, now: Instant, addr: IpAddress) {
        self.host.set_neighbour(self.clock(now), addr, None);
        let at = now + Duration(self.rng.below(ANSWER_TIME_MAX));
        self.answers.push_back((at, Answer::Neighbour(addr)));
    }

    /// Makes the NIC slow: between two steps, the NIC frees at most `frames` transmit frames.
    pub fn slow_down(&mut self, frames: usize) {
        self.slow = Some(SlowNic {
            frames,
            sent: VecDeque::new(),
        });
    }

    /// Returns true if a slow NIC still holds sent frames. [`sent`](Self::sent) then schedules a
    /// step, because a core with frames in flight has to poll for their completion.
    pub fn waits_for_nic(&self) -> bool {
        self.slow.as_ref().is_some_and(SlowNic::is_busy)
    }

    /// Calls `on_frame` for each frame that the host has transmitted since the last call.
    pub fn sent(&mut self, now: Instant, mut on_frame: impl FnMut(&[u8])) {
        if let Some(slow) = &mut self.slow {
            let port = self.wires[0].port();
            slow.pass(port, &mut on_frame);
            if self.waits_for_nic() {
                let soon = now + Duration(1 + self.rng.below(self.spec.step_time_max.0));
                self.next_step = Some(self.next_step.map_or(soon, |step| step.min(soon)));
            }
            return;
        }
        for wire in &mut self.wires {
            wire.set_time(now);
            let port = wire.port();
            loop {
                if port.rx_burst(&mut self.burst, BURST_MAX) == 0 {
                    break;
                }
                for frame in self.burst.iter().filter(|_| !self.down) {
                    on_frame(frame);
                }
                port.rx_release(&mut self.burst);
            }
        }
    }

    /// Returns a line for each socket, for the report of a violation.
    pub fn describe(&self) -> Vec<String> {
        self.host.sockets().iter().map(describe_socket).collect()
    }
}

/// A slow NIC. The NIC sends each frame without delay, but frees the memory of the frame later.
struct SlowNic {
    /// Largest number of frames that are freed between two steps.
    frames: usize,
    /// Bursts of sent frames that are not yet freed, oldest first.
    sent: VecDeque<MemBurst>,
}

impl SlowNic {
    /// Frees the oldest burst of sent frames, and calls `on_frame` for each new frame.
    fn pass(
        &mut self,
        port: &mut dyn PacketIo<Burst = MemBurst>,
        on_frame: &mut impl FnMut(&[u8]),
    ) {
        if let Some(mut oldest) = self.sent.pop_front() {
            port.rx_release(&mut oldest);
        }
        loop {
            let mut burst = port.new_burst();
            if port.rx_burst(&mut burst, self.frames) == 0 {
                return;
            }
            burst.iter().for_each(&mut *on_frame);
            self.sent.push_back(burst);
        }
    }

    fn is_busy(&self) -> bool {
        !self.sent.is_empty()
    }
}

impl SenderFigures for Machine {
    fn flows(&self) -> Vec<FlowInfo> {
        let sockets = self.host.sockets();
        sockets
            .into_iter()
            .filter_map(|socket| socket.info)
            .collect()
    }

    fn spurious_signals(&self) -> u64 {
        let counters = self.host.counters();
        let counted = counters
            .iter()
            .filter(|(name, _)| SPURIOUS_COUNTERS.contains(&name.as_str()));
        counted.map(|(_, count)| count).sum()
    }
}

/// Counters that increase when a retransmission was spurious.
const SPURIOUS_COUNTERS: [&str; 2] = ["spurious_timeouts", "dsack_recv"];

fn describe_socket(socket: &SocketReport) -> String {
    let SocketReport {
        state,
        local,
        peer,
        recv_q,
        send_q,
        ..
    } = socket;
    let mut line = format!("{local} {peer} {state:?} recv-q {recv_q} send-q {send_q}");
    if let Some(info) = &socket.info {
        line += &format!(
            " {:?} cwnd {} mss {} rto {} ms backoff {} snd_wnd {} rcv_wnd {} flight {} unsent {} \
             ooo {} retrans {}",
            info.ca_state,
            info.cwnd,
            info.mss,
            info.rto.as_millis(),
            info.backoff,
            info.snd_wnd,
            info.rcv_wnd,
            info.flight_size,
            info.unsent,
            info.ooo_ranges,
            info.retrans,
        );
    }
    line
}

/// Configuration of the placeholder port that is used while a [`Wire`] changes its variant.
const SPARE: MemConfig = MemConfig {
    frame_len_max: 64,
    frames: 1,
    partial_checksums: false,
};

impl Wire {
    fn captured(self, out: Box<dyn Write>) -> std::io::Result<Self> {
        Ok(match self {
            Self::Plain(port) => Self::Captured(Box::new(Capture::new(port, out)?)),
            captured => captured,
        })
    }

    fn port(&mut self) -> &mut dyn PacketIo<Burst = MemBurst> {
        match self {
            Self::Plain(port) => port,
            Self::Captured(capture) => &mut **capture,
        }
    }

    fn set_time(&mut self, now: Instant) {
        if let Self::Captured(capture) = self {
            capture.set_time(now.as_nanos());
        }
    }
}
