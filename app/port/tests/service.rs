//! Tests of a mux port, called port in this file: shared memory over which a program exchanges
//! packets with the service (the process `tidelaned`). The port has packet rings for each core
//! (polling thread) of the service. The program sends its requests over a Unix socket. For example,
//! the program claims a 3-tuple (protocol, local address and local port), so that the port receives
//! the packets of the 3-tuple. In the tests, a fake service has the other ends of the Unix socket
//! and of the rings.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, socket_with,
    },
};
use tidelane_abi::{
    ABI_VERSION, Message, message,
    port::{PacketPort, RX_CHECKSUM_MAY_BE_PARTIAL},
    refusal,
};
use tidelane_packet_io::{BURST_MAX, Burst, PacketIo, TxChecksum};
use tidelane_packet_ring::ServiceEnd;
use tidelane_port::{Port, PortConfig, PortError, Protocol};
use tidelane_ring::{
    Doorbell, PortMemories, ServicePageMap,
    registration::{new_message, recv_message, send_message},
    sleep,
};

/// Number of the fake service's cores.
const CORES: usize = 2;
/// Number of the mux port.
const NUMBER: u32 = 7;
/// MAC address of the interface that the fake service reports.
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// A time that no test waits for.
const LONG: Duration = Duration::from_secs(60);

/// The path of a fake service's socket. Dropping the value removes the socket.
struct SocketPath(PathBuf);

impl SocketPath {
    fn new(test: &str) -> Self {
        let file = format!("tidelane-port-test-{}-{test}", std::process::id());
        Self(std::env::temp_dir().join(file))
    }

    fn listen(&self) -> OwnedFd {
        let kind = SocketType::SEQPACKET;
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        bind(&socket, &SocketAddrUnix::new(&self.0).unwrap()).unwrap();
        listen(&socket, 1).unwrap();
        socket
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The fake service's side of an open port.
struct Service {
    /// The service's end of the connection over which the program sends its requests.
    socket: OwnedFd,
    /// The service's ends of the packet rings, by core.
    ends: Vec<ServiceEnd>,
    /// Descriptors of the packet rings' memories, by core.
    memories: Vec<PortMemories>,
    /// The page on which the cores announce their sleep.
    page: ServicePageMap,
    /// The doorbells of the cores: the eventfds by which the program wakes a sleeping core.
    bells: Vec<Doorbell>,
}

impl Service {
    /// Accepts the connection of a program, and answers its request to open a port.
    fn open(listener: &OwnedFd) -> Self {
        let socket = accept(listener).unwrap();
        let (request, descriptors) = recv_message(socket.as_fd()).unwrap().unwrap();
        assert_eq!(request.kind, message::OPEN_PORT);
        assert_eq!(&request.name[..8], b"a stack\0");
        let bell = descriptors.into_iter().next().expect("the doorbell");
        let bell = Arc::new(Doorbell::from_untrusted(bell).unwrap());
        let ring_len = request.packet_port.ring_len;
        let made = (0..CORES).map(|_| PortMemories::create(NUMBER, ring_len).unwrap());
        let (regions, memories): (Vec<_>, Vec<_>) = made.unzip();
        let ends = regions
            .iter()
            .map(|regions| ServiceEnd::new(regions, Some(bell.clone())));
        let ends = ends.collect();
        let (page, page_fd) = ServicePageMap::create(CORES as u32).unwrap();
        let bells: Vec<Doorbell> = (0..CORES).map(|_| Doorbell::new().unwrap()).collect();
        let answer = Message {
            packet_port: PacketPort {
                number: NUMBER,
                cores: CORES as u32,
                ring_len,
                flags: RX_CHECKSUM_MAY_BE_PARTIAL,
                frame_len_max: 1514,
                link_address: MAC,
                ..PacketPort::default()
            },
            ..new_message(message::PORT_OPENED)
        };
        let rings = memories.iter().flat_map(PortMemories::descriptors);
        let page_fd = std::iter::once(page_fd.as_fd());
        let fds = rings.chain(page_fd).chain(bells.iter().map(Doorbell::fd));
        let fds: Vec<BorrowedFd<'_>> = fds.collect();
        send_message(socket.as_fd(), &answer, &fds).unwrap();
        Self {
            socket,
            ends,
            memories,
            page,
            bells,
        }
    }

    /// Answers one request with the refusal `why`, or with success if `why` is 0. Returns the
    /// request and its descriptors.
    fn answer(&self, why: u32) -> (Message, Vec<OwnedFd>) {
        let (request, descriptors) = recv_message(self.socket.as_fd()).unwrap().unwrap();
        let mut answer = new_message(request.kind);
        answer.refusal = why;
        send_message(self.socket.as_fd(), &answer, &[]).unwrap();
        (request, descriptors)
    }
}

/// Opens a port of a fake service.
fn open(test: &str) -> (Port, Service) {
    open_with(test, |_| {})
}

/// Does the same as [`open`] with other parameters than the default, which `change` sets.
fn open_with(test: &str, change: impl FnOnce(&mut PortConfig)) -> (Port, Service) {
    let path = SocketPath::new(test);
    let listener = path.listen();
    let service = thread::spawn(move || Service::open(&listener));
    let mut config = PortConfig::new("a stack");
    change(&mut config);
    let port = Port::open_at(&path.0, &config).expect("it opens");
    (port, service.join().unwrap())
}

/// Sends a frame of 60 bytes, each with the value `byte`.
fn send(io: &mut impl PacketIo, byte: u8) {
    io.tx_frame().expect("there is room")[..60].fill(byte);
    io.tx_commit(60, TxChecksum::Done);
    io.tx_flush();
}

/// Receives up to [`BURST_MAX`] frames. Returns the first byte of each.
fn receive<P: PacketIo>(io: &mut P) -> Vec<u8> {
    let mut burst = io.new_burst();
    let count = io.rx_burst(&mut burst, BURST_MAX);
    let frames: Vec<u8> = burst.iter().map(|frame| frame[0]).collect();
    assert_eq!((frames.len(), burst.len()), (count, count));
    assert!(burst.frame(count).is_none());
    io.rx_release(&mut burst);
    frames
}

#[test]
fn a_port_has_the_terms_of_the_service_and_seals_its_memories() {
    let (port, service) = open("terms");
    assert_eq!((port.number(), port.mac()), (7, MAC));
    assert!(service.memories.iter().all(PortMemories::are_sealed));
    let capabilities = port.capabilities();
    assert_eq!(capabilities.tx_frame_len_max, 1514);
    assert!(capabilities.rx_checksum_may_be_partial && !capabilities.tx_checksum);
    assert!(!port.is_closed());
    drop(service);
    assert!(port.is_closed());
}

#[test]
fn frames_of_all_cores_arrive_and_answers_go_back() {
    let (mut port, mut service) = open("frames");
    // The port sends through the core from which it received the most recent frame, or through core
    // 0 if it has received no frame yet.
    send(&mut port, 1);
    assert_eq!(receive(&mut service.ends[0]), [1], "core 0 comes first");
    send(&mut service.ends[1], 2);
    assert_eq!(receive(&mut port), [2]);
    send(&mut port, 3);
    assert_eq!(
        receive(&mut service.ends[1]),
        [3],
        "the core of the last frame"
    );
    assert!(receive(&mut service.ends[0]).is_empty());
    // Each `rx_burst` adds up to 30 frames of both cores to the burst.
    for byte in 0..50 {
        send(&mut service.ends[usize::from(byte % 2)], byte);
    }
    let mut burst = port.new_burst();
    assert_eq!(port.rx_burst(&mut burst, 30), 30);
    assert_eq!(port.rx_burst(&mut burst, 30), 20);
    let mut frames: Vec<u8> = burst.iter().map(|frame| frame[0]).collect();
    port.rx_release(&mut burst);
    frames.sort_unstable();
    assert_eq!(frames, (0..50).collect::<Vec<u8>>());
    // A transmit frame keeps its core (here core 0), even if a frame of another core arrives before
    // the commit.
    send(&mut service.ends[0], 4);
    assert_eq!(receive(&mut port), [4]);
    port.tx_frame().expect("there is room")[..60].fill(5);
    send(&mut service.ends[1], 6);
    assert_eq!(receive(&mut port), [6]);
    port.tx_commit(60, TxChecksum::Done);
    port.tx_flush();
    assert_eq!(receive(&mut service.ends[0]), [5]);
}

#[test]
fn sleepers_are_woken_once_and_only_if_they_sleep() {
    let (mut port, mut service) = open("sleep");
    let needs_wakeup = |service: &Service, core| {
        let line = service.page.core(core).expect("a core");
        sleep::prepare_to_sleep(&line.needs_wakeup);
    };
    send(&mut port, 1);
    assert!(!service.bells[0].drain(), "the core is awake");
    needs_wakeup(&service, 0);
    needs_wakeup(&service, 1);
    port.tx_flush();
    assert!(!service.bells[0].drain(), "nothing was published");
    send(&mut port, 2);
    assert!(service.bells[0].drain() && !service.bells[1].drain());
    // The program sleeps until a core sends.
    port.wait(Some(Duration::ZERO)).expect("a wait");
    assert!(port.prepare_to_sleep(), "there are no frames");
    send(&mut service.ends[1], 3);
    port.cancel_sleep();
    assert!(!port.prepare_to_sleep(), "a frame has arrived");
    port.cancel_sleep();
    port.wait(None).expect("it does not wait");
    assert_eq!(receive(&mut port), [3]);
    let waker = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        send(&mut service.ends[0], 4);
        service
    });
    port.wait(None).expect("it wakes up");
    assert_eq!(receive(&mut port), [4]);
    drop(waker.join());
    let ended = port.wait(None).expect_err("the service has ended");
    assert_eq!(ended.kind(), io::ErrorKind::ConnectionAborted);
    assert!(port.is_closed());
}

#[test]
fn a_wait_polls_the_rings_while_a_core_is_awake_on_another_cpu() {
    let (mut port, mut service) = open_with("spin", |config| config.spin = LONG);
    // No machine has a CPU with this number.
    let elsewhere = u32::MAX - 1;
    for core in 0..CORES as u32 {
        let line = service.page.core(core).expect("a core");
        line.cpu.store(elsewhere, Ordering::Relaxed);
    }
    let waker = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        send(&mut service.ends[1], 1);
        service
    });
    port.wait(None).expect("a frame arrives");
    assert_eq!(receive(&mut port), [1]);
    drop(waker.join().expect("the waker ends"));
    let mut fds = [PollFd::from_borrowed_fd(port.fd(), PollFlags::IN)];
    let readable = poll(&mut fds, Some(&Timespec::default())).expect("poll");
    assert_eq!(
        readable, 0,
        "the program has slept, so the core rang its doorbell"
    );
}

#[test]
fn claims_carry_the_socket_and_refusals_become_errors() {
    let (mut port, service) = open("claims");
    let requests = thread::spawn(move || {
        let whys = [
            0,
            refusal::IN_USE,
            refusal::NOT_ENTITLED,
            refusal::NOT_ACCELERATED,
            refusal::LIMIT,
            0,
        ];
        whys.map(|why| service.answer(why))
    });
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let socket = port.bind_tcp(any).expect("the service agrees");
    let (protocol, local) = Port::local_addr(socket.as_fd()).expect("a TCP socket");
    assert_eq!(protocol, Protocol::Tcp);
    for kind in [
        io::ErrorKind::AddrInUse,
        io::ErrorKind::PermissionDenied,
        io::ErrorKind::AddrNotAvailable,
        io::ErrorKind::QuotaExceeded,
    ] {
        let error = port.bind_udp(any).expect_err("the service refuses");
        assert_eq!(error.kind(), kind);
    }
    port.release(Protocol::Tcp, local)
        .expect("the service agrees");
    let requests = requests.join().unwrap();
    for (request, descriptors) in &requests[..5] {
        assert_eq!((request.kind, descriptors.len()), (message::CLAIM_TUPLE, 1));
    }
    let claimed = Port::local_addr(requests[0].1[0].as_fd()).expect("a TCP socket");
    assert_eq!(claimed, (Protocol::Tcp, local));
    let release = requests[5].0;
    assert_eq!(release.kind, message::RELEASE_TUPLE);
    assert_eq!(
        (release.packet_port.protocol, release.port),
        (6, u32::from(local.port()))
    );
    assert_eq!(release.local_addr[10..], [0xff, 0xff, 127, 0, 0, 1]);
    // The thread that owned the fake service has ended, which closed the service's socket.
    let error = port.bind_tcp(any).expect_err("the service is gone");
    assert_eq!(error.kind(), io::ErrorKind::NotConnected);
    // The port first binds a kernel socket, so the kernel's refusal comes before `NotConnected`.
    let taken = TcpListener::bind(any).unwrap();
    let error = port
        .bind_tcp(taken.local_addr().unwrap())
        .expect_err("it is taken");
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn a_service_that_refuses_or_lies_opens_no_port() {
    let attempt = |test: &str, change: fn(&mut Message)| {
        let path = SocketPath::new(test);
        let listener = path.listen();
        let service = thread::spawn(move || {
            let socket = accept(&listener).unwrap();
            recv_message(socket.as_fd()).unwrap().unwrap();
            let mut answer = new_message(message::PORT_OPENED);
            change(&mut answer);
            send_message(socket.as_fd(), &answer, &[]).unwrap();
        });
        let opened = Port::open_at(&path.0, &PortConfig::new("a stack"));
        service.join().unwrap();
        opened.expect_err("there is no port")
    };
    let limit = attempt("limit", |answer| answer.refusal = refusal::LIMIT);
    assert!(matches!(limit, PortError::Limit));
    let user = attempt("user", |answer| answer.refusal = refusal::USER);
    assert!(matches!(user, PortError::NotAdmitted));
    let len = attempt("len", |answer| answer.refusal = refusal::MALFORMED);
    assert_eq!(len.kind(), io::ErrorKind::InvalidInput);
    let version = attempt("version", |answer| answer.abi_version += 1);
    let PortError::VersionMismatch { ours, theirs } = version else {
        panic!("{version}");
    };
    assert_eq!((ours, theirs), (ABI_VERSION, ABI_VERSION + 1));
    // The answers pass no descriptors. An answer without cores is invalid, too.
    for error in [
        attempt("no-core", |answer| answer.packet_port.cores = 0),
        attempt("no-memory", |answer| answer.packet_port.cores = 1),
        attempt("many", |answer| answer.packet_port.cores = u32::MAX),
    ] {
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
    let nobody = Port::open_at(&SocketPath::new("nobody").0, &PortConfig::new("a stack"));
    assert!(matches!(nobody, Err(PortError::NotRunning)));
}
