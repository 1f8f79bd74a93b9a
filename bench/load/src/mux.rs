//! Measures the packet rate of the mux, like Figure 4 of the paper "MultiStack" (CCR 2014).
//!
//! The mux (`service/mux`) shares one NIC between programs that have a network stack of their own.
//! Each program has a mux port: a pair of packet rings in shared memory. A mux port claims TCP
//! ports: the mux then delivers the segments for these TCP ports to the program of the mux port.
//!
//! A *mux thread* forwards packets between the packet rings of many mux ports and a NIC, and checks
//! each packet that a mux port sends. A *program thread* fills and drains the rings of mux ports.
//! The NIC is either memory, which accepts and delivers packets without end, or an AF_XDP socket on
//! a veth. With `--bare`, the mux thread sends or receives on the AF_XDP socket without a mux. The
//! rate without a mux is the upper limit of the interface.

use std::{
    io,
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum};
use serde_json::json;
use tidelane_af_xdp::{XdpConfig, XdpPort};
use tidelane_mux::{Egress, Filter, GsoFrame, Ports, Tuple, copy_to};
use tidelane_packet_io::{BURST_MAX, Burst, Capabilities, PacketIo};
use tidelane_packet_ring::{ProgramBurst, ProgramEnd, ServiceEnd};
use tidelane_ring::PortRegions;
use tidelane_steering::{Buffers, Claim, Demux, Scope, StackId, Steering};
use tidelane_wire::{Endpoint, IpAddress};

use crate::sys;

mod frames;
mod memory_nic;

use frames::Frames;
use memory_nic::MemoryNic;

/// TCP port that the first mux port claims. Each further mux port claims the next TCP port.
const FIRST_PORT: u16 = 2000;
/// Largest number of packets that a program receives in one turn, and that a program sends in one
/// turn.
const PROGRAM_BURST: usize = 32;
/// Time before the packets are counted.
const WARMUP: Duration = Duration::from_millis(300);
/// Number of bytes that `--copy` copies at a time. Most caches are smaller, so that the copy
/// measures the machine's memory.
const COPY_LEN: usize = 64 << 20;

/// Direction of the packets.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// From the mux ports to the NIC.
    Send,
    /// From the NIC to the mux ports.
    Receive,
    /// From each mux port to the next one.
    Between,
}

/// Options of `mux`.
#[derive(Args, Debug)]
pub struct Options {
    /// Direction of the packets.
    #[arg(long)]
    direction: Direction,
    /// Number of mux ports of each mux thread.
    #[arg(long, default_value_t = 1)]
    ports: u16,
    /// Length of a frame in bytes, with the 4 bytes of its check sequence.
    #[arg(long, default_value_t = 64)]
    bytes: usize,
    /// Number of packets in a row that the NIC in memory delivers to the same mux port.
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u16).range(1..=1024))]
    train: u16,
    /// Length of each packet ring in bytes.
    #[arg(long, default_value_t = 64 * 1024)]
    ring_len: u32,
    /// Seconds during which packets are counted.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// CPUs of the mux threads. Each CPU has one mux thread.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    mux_cpus: Vec<usize>,
    /// CPU of the program thread. Without this option, each mux thread also does the work of its
    /// programs.
    #[arg(long)]
    program_cpu: Option<usize>,
    /// Microseconds for which the program thread pauses after each turn over its mux ports. A
    /// program that works on its packets also polls its mux port less often than the program
    /// thread, which only counts packets.
    #[arg(long, default_value_t = 0, requires = "program_cpu")]
    program_pause_us: u64,
    /// Use an AF_XDP socket on this interface instead of memory.
    #[arg(long)]
    interface: Option<String>,
    /// Address of the interface.
    #[arg(long, default_value = "10.77.0.1")]
    address: Ipv4Addr,
    /// Address of the peer.
    #[arg(long, default_value = "10.77.0.2")]
    peer: Ipv4Addr,
    /// Link address of the interface.
    #[arg(long, default_value = "02:00:00:00:00:01")]
    mac: String,
    /// Link address of the peer.
    #[arg(long, default_value = "02:00:00:00:00:02")]
    peer_mac: String,
    /// Send or receive on the AF_XDP socket without a mux. Needs `--interface`.
    #[arg(long = "bare", requires = "interface")]
    without_mux: bool,
    /// Only copy memory, and print its bandwidth.
    #[arg(long)]
    copy: bool,
}

/// State of a run that all threads share.
#[derive(Default)]
struct Shared {
    ended: AtomicBool,
    /// Packets that the NIC has accepted from mux ports, plus packets that the programs have
    /// received. With `--bare`, packets that the thread has sent or received on the AF_XDP socket.
    packets: AtomicU64,
}

/// Runs the load, and prints one line of JSON.
pub fn run(options: &Options) -> io::Result<()> {
    if options.copy {
        println!("{}", json!({ "bytes_per_second": copy_rate() }));
        return Ok(());
    }
    let frames = Frames::new(options)?;
    let shared = Arc::new(Shared::default());
    let (mut threads, mut all_programs) = (Vec::new(), Vec::new());
    for cpu in &options.mux_cpus {
        let (ports, programs) = open_ports(options, &frames)?;
        let own = match options.program_cpu {
            Some(_) => {
                all_programs.extend(programs);
                Vec::new()
            }
            None => programs,
        };
        let nic = Nic::open(options, &frames)?;
        let mux = MuxThread {
            ports,
            nic,
            programs: Programs::new(options, own, frames.clone()),
            without_mux: options.without_mux.then_some(options.direction),
            frames: frames.clone(),
        };
        let (cpu, shared) = (*cpu, shared.clone());
        threads.push(thread::spawn(move || mux.run(cpu, &shared)));
    }
    if let Some(cpu) = options.program_cpu {
        let mut programs = Programs::new(options, all_programs, frames);
        let shared = shared.clone();
        let pause = Duration::from_micros(options.program_pause_us);
        threads.push(thread::spawn(move || {
            sys::pin(cpu)?;
            while !shared.ended.load(Ordering::Relaxed) {
                programs.turn(&shared);
                spin_for(pause);
            }
            Ok(())
        }));
    }
    thread::sleep(WARMUP);
    let (start, before) = (Instant::now(), shared.packets.load(Ordering::Relaxed));
    thread::sleep(Duration::from_secs_f64(options.seconds));
    let packets = shared.packets.load(Ordering::Relaxed) - before;
    let seconds = start.elapsed().as_secs_f64();
    shared.ended.store(true, Ordering::Relaxed);
    for thread in threads {
        let ended: io::Result<()> = thread
            .join()
            .map_err(|_| io::Error::other("a thread panicked"))?;
        ended?;
    }
    let rate = packets as f64 / seconds;
    println!(
        "{}",
        json!({ "packets": packets, "packets_per_second": rate, "bytes": options.bytes })
    );
    Ok(())
}

/// Waits for `time` without sleeping.
fn spin_for(time: Duration) {
    if time.is_zero() {
        return;
    }
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Returns the rate in bytes per second at which one thread copies memory that is not in a cache.
fn copy_rate() -> f64 {
    let from = vec![1_u8; COPY_LEN];
    let mut to = vec![0_u8; COPY_LEN];
    let (mut copied, start) = (0, Instant::now());
    while start.elapsed() < Duration::from_millis(500) {
        to.copy_from_slice(&from);
        std::hint::black_box(&mut to);
        copied += COPY_LEN;
    }
    copied as f64 / start.elapsed().as_secs_f64()
}

/// Opens the mux ports of one mux thread. Each mux port has claimed one TCP port.
fn open_ports(
    options: &Options,
    frames: &Frames,
) -> io::Result<(Ports<ServiceEnd>, Vec<ProgramEnd>)> {
    let address = IpAddress::from_v4(options.address.octets());
    let mut ports = Ports::new(frames.mac, vec![address], usize::from(options.ports));
    let mut programs = Vec::new();
    for number in 0..options.ports {
        let (service, program) = PortRegions::heap(number.into(), options.ring_len)?;
        let id = ports
            .open(ServiceEnd::new(&service, None))
            .map_err(|_| io::Error::other("too many mux ports"))?;
        let local = Endpoint::new(address, FIRST_PORT + number);
        let claimed = ports.claim(Tuple { protocol: 6, local }, id);
        claimed.map_err(|_| io::Error::other("a claim failed"))?;
        programs.push(ProgramEnd::new(&program, 1514, false));
    }
    Ok((ports, programs))
}

/// The programs that one thread runs. A mux thread runs the programs of its own mux ports. With
/// `--program-cpu`, the program thread runs the programs of all mux threads. Each program receives
/// all packets of its mux port. For each direction but `Receive`, each program also sends the same
/// frame again and again.
struct Programs {
    /// The programs' ends of the packet rings, each with the burst of its received packets.
    ends: Vec<(ProgramEnd, ProgramBurst)>,
    /// For each mux port, the frame that its program sends. `None` if the programs only receive.
    frames: Option<Frames>,
}

impl Programs {
    fn new(options: &Options, ends: Vec<ProgramEnd>, frames: Frames) -> Self {
        let sends = options.direction != Direction::Receive;
        let with_burst = |end: ProgramEnd| (end.new_burst(), end);
        let ends = ends.into_iter().map(with_burst);
        Self {
            ends: ends.map(|(burst, end)| (end, burst)).collect(),
            frames: sends.then_some(frames),
        }
    }

    /// Receives and sends up to [`PROGRAM_BURST`] packets of each mux port.
    fn turn(&mut self, shared: &Shared) {
        let mut received = 0;
        for (at, (end, burst)) in self.ends.iter_mut().enumerate() {
            received += end.rx_burst(burst, PROGRAM_BURST) as u64;
            end.rx_release(burst);
            let Some(frames) = &self.frames else {
                continue;
            };
            let frame = frames.of(at);
            for _ in 0..PROGRAM_BURST {
                if !copy_to(end, frame) {
                    break;
                }
            }
            end.tx_flush();
        }
        if received > 0 {
            shared.packets.fetch_add(received, Ordering::Relaxed);
        }
    }
}

/// The NIC of a mux thread.
enum Nic {
    Memory(MemoryNic),
    /// An AF_XDP socket, and the demux: the XDP program that redirects frames to the socket. The
    /// demux detaches itself from the interface when it is dropped.
    Xdp {
        port: Box<XdpPort>,
        _demux: Option<Box<Demux>>,
    },
}

impl Nic {
    fn open(options: &Options, frames: &Frames) -> io::Result<Self> {
        let receives = options.direction == Direction::Receive;
        let Some(interface) = &options.interface else {
            let arriving = match receives {
                true => frames.trains(options.train.into()),
                false => Vec::new(),
            };
            return Ok(Self::Memory(MemoryNic::new(arriving, options.train.into())));
        };
        let failed = |error: &dyn std::error::Error| io::Error::other(error.to_string());
        let port = XdpPort::open(interface, 0, &XdpConfig::for_veth()).map_err(|e| failed(&e))?;
        let demux = receives
            .then(|| attach(options, &port).map(Box::new))
            .transpose();
        Ok(Self::Xdp {
            port: Box::new(port),
            _demux: demux.map_err(|e| failed(&e))?,
        })
    }
}

/// Attaches the demux to the interface. The demux then redirects segments for the TCP ports of all
/// mux ports to the socket of `port`.
fn attach(options: &Options, port: &XdpPort) -> Result<Demux, tidelane_steering::SteeringError> {
    let mut demux = Demux::load_and_attach(port.ifindex(), 1, Buffers::One)?;
    demux.register_xsk(0, port.fd())?;
    demux.set_link_address(frames::parse_mac(&options.mac).unwrap_or_default().0)?;
    let addr = options.address.to_ipv6_mapped().octets();
    for number in 0..options.ports {
        let (proto, port) = (6, FIRST_PORT + number);
        let claim = Claim { addr, proto, port };
        demux.claim(&claim, StackId(0), Scope::Whole)?;
    }
    Ok(demux)
}

/// Sends the packets of the mux ports to the NIC, and counts them.
struct ToNic<'a, N> {
    nic: &'a mut N,
    count: u64,
}

impl<N: PacketIo> Filter for ToNic<'_, N> {}

impl<N: PacketIo> Egress for ToNic<'_, N> {
    fn nic_capabilities(&self) -> Capabilities {
        self.nic.capabilities()
    }

    fn send_gso_to_nic(&mut self, frame: &GsoFrame<'_>) -> bool {
        let taken = frame.send(self.nic).is_ok();
        self.count += u64::from(taken) * frame.segments() as u64;
        taken
    }

    fn send_to_nic(&mut self, frame: &[u8]) -> bool {
        let taken = copy_to(self.nic, frame);
        self.count += u64::from(taken);
        taken
    }

    fn waits_for_nic(&mut self) -> bool {
        self.nic.tx_frame().is_none()
    }

    fn give_to_host(&mut self, _frame: &[u8]) -> bool {
        false
    }
}

/// A thread with a mux and a NIC.
struct MuxThread {
    ports: Ports<ServiceEnd>,
    nic: Nic,
    programs: Programs,
    /// Direction of the packets if the thread runs without a mux (`--bare`). `None` with a mux.
    without_mux: Option<Direction>,
    frames: Frames,
}

impl MuxThread {
    fn run(mut self, cpu: usize, shared: &Shared) -> io::Result<()> {
        sys::pin(cpu)?;
        match &mut self.nic {
            Nic::Memory(nic) => forward(&mut self.ports, nic, &mut self.programs, shared),
            Nic::Xdp { port, .. } => match self.without_mux {
                None => forward(&mut self.ports, &mut **port, &mut self.programs, shared),
                Some(Direction::Receive) => receive_without_mux(&mut **port, shared),
                Some(_) => send_without_mux(&mut **port, &self.frames, shared),
            },
        }
        Ok(())
    }
}

/// Forwards packets until the run ends.
fn forward<N: PacketIo>(
    ports: &mut Ports<ServiceEnd>,
    nic: &mut N,
    programs: &mut Programs,
    shared: &Shared,
) {
    let mut burst = nic.new_burst();
    let mut receptions = Vec::new();
    while !shared.ended.load(Ordering::Relaxed) {
        nic.rx_burst(&mut burst, BURST_MAX);
        ports.receive(burst.iter(), true, &mut (), &mut receptions);
        nic.rx_release(&mut burst);
        let mut outlet = ToNic { nic, count: 0 };
        ports.take_turns(tidelane_time::Instant(0), &mut outlet);
        let sent = outlet.count;
        nic.tx_flush();
        ports.flush();
        programs.turn(shared);
        if sent > 0 {
            shared.packets.fetch_add(sent, Ordering::Relaxed);
        }
    }
}

/// Sends frames until the run ends.
fn send_without_mux<N: PacketIo>(nic: &mut N, frames: &Frames, shared: &Shared) {
    let mut next = 0;
    while !shared.ended.load(Ordering::Relaxed) {
        let mut count = 0;
        for _ in 0..BURST_MAX {
            if !copy_to(nic, frames.of(next)) {
                break;
            }
            next += 1;
            count += 1;
        }
        nic.tx_flush();
        shared.packets.fetch_add(count, Ordering::Relaxed);
    }
}

/// Receives frames until the run ends.
fn receive_without_mux<N: PacketIo>(nic: &mut N, shared: &Shared) {
    let mut burst = nic.new_burst();
    while !shared.ended.load(Ordering::Relaxed) {
        let count = nic.rx_burst(&mut burst, BURST_MAX);
        nic.rx_release(&mut burst);
        shared.packets.fetch_add(count as u64, Ordering::Relaxed);
    }
}
