//! One host of the world: the service, and what its driver does in real life (netlink, sleeping).

use std::{
    collections::VecDeque,
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tidelane_engine::LinkId;
use tidelane_host::{Host, HostRequest, Interface, PORTS_PER_REQUEST, Route, SocketReport};
use tidelane_netem::Rng;
use tidelane_packet_io::{BURST_MAX, Capture, Frame, MemConfig, MemPort, PacketIo, TxChecksum};
use tidelane_ring::{ServicePageMap, sleep};
use tidelane_time::{Duration, Instant};
use tidelane_wire::{IpAddress, MacAddress};

use crate::scenario::HostSpec;

/// First port of the ephemeral range.
const PORT_FIRST: u16 = 32_768;
/// The longest that netlink takes to answer.
const ANSWER_TIME_MAX: u64 = 400_000;

/// An answer on its way to the host.
enum Answer {
    Neighbour(IpAddress),
    Ports(IpAddress),
}

/// The world's end of a host's port.
enum Wire {
    Plain(MemPort),
    Captured(Box<Capture<MemPort, Box<dyn Write>>>),
}

/// One host.
pub struct Machine {
    /// The service.
    pub host: Host<MemPort>,
    /// Read by the programs of this host.
    pub page: Arc<ServicePageMap>,
    /// A program rang.
    pub rung: Arc<AtomicBool>,
    /// Its link address.
    pub mac: MacAddress,
    /// When it runs next.
    pub next_step: Option<Instant>,
    spec: HostSpec,
    wire: Wire,
    rng: Rng,
    answers: VecDeque<(Instant, Answer)>,
    ports_given: u32,
    frames: Vec<Frame>,
}

/// The address of host `index`.
pub fn address(index: usize) -> IpAddress {
    IpAddress::from_v4([10, 0, 0, index as u8 + 1])
}

/// The link address of host `index`.
pub fn mac(index: usize) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, index as u8 + 1])
}

impl Machine {
    /// Host `index`, as `spec` says.
    pub fn new(index: usize, spec: &HostSpec, rng: Rng) -> std::io::Result<Self> {
        let (near, far) = MemPort::pair(MemConfig {
            frame_len_max: spec.mtu + 14,
            frames: spec.frames,
            // Bytes may be corrupted on the way, and that must be seen.
            partial_checksums: false,
        });
        let interface = Interface {
            link: LinkId(1),
            mac: mac(index),
            mtu: spec.mtu,
            addresses: vec![address(index)],
        };
        let mut secret = [0; 16];
        rng.fork(1).fill(&mut secret);
        let mut host = Host::new(spec.engine.clone(), secret, interface, vec![near])?;
        let on_link = Route {
            prefix: IpAddress::from_v4([10, 0, 0, 0]),
            prefix_len: 96 + 24,
            gateway: None,
            source: address(index),
        };
        host.set_routes(Instant::ZERO, vec![address(index)], vec![on_link]);
        Ok(Self {
            host,
            page: Arc::new(ServicePageMap::heap(1)?),
            rung: Arc::new(AtomicBool::new(false)),
            mac: mac(index),
            next_step: Some(Instant::ZERO),
            spec: spec.clone(),
            wire: Wire::Plain(far),
            rng: rng.fork(2),
            answers: VecDeque::new(),
            ports_given: 0,
            frames: Vec::new(),
        })
    }

    /// Writes all frames to `out` as pcapng, as seen from the wire.
    pub fn capture(self, out: Box<dyn Write>) -> std::io::Result<Self> {
        let wire = match self.wire {
            Wire::Plain(port) => Wire::Captured(Box::new(Capture::new(port, out)?)),
            captured => captured,
        };
        Ok(Self { wire, ..self })
    }

    /// A frame arrives. False if the port has no room for it now.
    pub fn deliver(&mut self, now: Instant, frame: &[u8]) -> bool {
        self.wire.set_time(now);
        let port = self.wire.port();
        let Some(buffer) = port.tx_frame() else {
            self.wake(now);
            return false;
        };
        // A NIC does not take what is longer than its MTU.
        if frame.len() <= buffer.len() {
            buffer[..frame.len()].copy_from_slice(frame);
            port.tx_commit(frame.len(), TxChecksum::Done);
            port.tx_flush();
        }
        self.wake(now);
        true
    }

    /// Something waits for the host: it runs soon.
    pub fn wake(&mut self, now: Instant) {
        let at = now + Duration(self.rng.below(self.spec.wake_time_max.0 + 1));
        self.next_step = Some(self.next_step.map_or(at, |step| step.min(at)));
    }

    /// One step, and the decision when the next one is. Whether there was anything to do.
    pub fn step(&mut self, now: Instant) -> bool {
        let core = self.page.core(0).expect("the page has one core");
        sleep::cancel_sleep(&core.needs_wakeup);
        self.rung.store(false, Ordering::Relaxed);
        let worked = self.host.step(now);
        self.take_requests(now);
        let soon = now + Duration(1 + self.rng.below(self.spec.step_time_max.0));
        let core = self.page.core(0).expect("the page has one core");
        self.next_step = if worked {
            Some(soon)
        } else {
            sleep::prepare_to_sleep(&core.needs_wakeup);
            if self.host.has_work() {
                Some(soon)
            } else {
                self.host.next_timeout().map(|at| at.max(now + Duration(1)))
            }
        };
        worked
    }

    /// Looks at what changed without a step: the driver changed something in the host.
    pub fn touched(&mut self, now: Instant) {
        self.wake(now);
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
                HostRequest::PortIdle { .. } => {}
            }
        }
    }

    /// When the next answer of the driver arrives.
    pub fn next_answer(&self) -> Option<Instant> {
        self.answers.front().map(|(at, _)| *at)
    }

    /// Gives the host an answer that is due.
    pub fn answer(&mut self, now: Instant) {
        let Some((_, answer)) = self.answers.pop_front() else {
            return;
        };
        match answer {
            Answer::Neighbour(addr) => {
                let known = addr.as_v4().filter(|v4| v4[..3] == [10, 0, 0]);
                let mac = known.map(|v4| mac(usize::from(v4[3]).wrapping_sub(1)));
                self.host.set_neighbour(now, addr, mac);
            }
            Answer::Ports(addr) => {
                let left = self.spec.ports - self.ports_given;
                let count = left.min(PORTS_PER_REQUEST);
                let first = PORT_FIRST + self.ports_given as u16;
                let ports: Vec<u16> = (first..).take(count as usize).collect();
                self.ports_given += count;
                self.host.add_ports(now, addr, &ports);
            }
        }
        self.wake(now);
    }

    /// The kernel has forgotten `addr`.
    pub fn forget_neighbour(&mut self, now: Instant, addr: IpAddress) {
        self.host.set_neighbour(now, addr, None);
        let at = now + Duration(self.rng.below(ANSWER_TIME_MAX));
        self.answers.push_back((at, Answer::Neighbour(addr)));
    }

    /// Takes the frames that the host sent.
    pub fn sent(&mut self, now: Instant, mut on_frame: impl FnMut(&[u8])) {
        self.wire.set_time(now);
        let port = self.wire.port();
        loop {
            self.frames.clear();
            if port.rx_burst(&mut self.frames, BURST_MAX) == 0 {
                return;
            }
            for frame in &self.frames {
                on_frame(port.frame_bytes(frame));
            }
            port.rx_release(&self.frames);
        }
    }

    /// What the host says of its sockets, for a report.
    pub fn describe(&self) -> Vec<String> {
        self.host.sockets().iter().map(describe_socket).collect()
    }
}

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

impl Wire {
    fn port(&mut self) -> &mut dyn PacketIo {
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
