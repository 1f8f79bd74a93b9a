//! Tests of a session (the registration of a program with the service) over the registration
//! socket, from the registration to the death of the service.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, socket_with,
    },
};
use tidelane_abi::{ABI_VERSION, Message, OpenOptions, message, refusal};
use tidelane_client::{ClientEvent, Listen, ListenerHandle, Program, Refusal, RegisterError};
use tidelane_ring::{
    ControlEventProducer, DataEventProducer, Doorbell, Layout, ProgramRegion, ServicePageMap,
    registration::{new_message, recv_message, send_message},
    sleep,
    words::DataWord,
};

/// The path of a socket file, unique to this process and to the name of a test. Dropping the value
/// removes the file.
struct SocketPath(PathBuf);

impl SocketPath {
    fn new(name: &str) -> SocketPath {
        let file = format!("tidelane-client-test-{}-{name}", std::process::id());
        SocketPath(std::env::temp_dir().join(file))
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Listens at `path`. Another thread accepts the first program, and calls `work` with the accepted
/// socket.
fn serve<T: Send + 'static>(
    path: &SocketPath,
    work: impl FnOnce(OwnedFd) -> T + Send + 'static,
) -> JoinHandle<T> {
    let kind = SocketType::SEQPACKET;
    let listener = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&path.0).unwrap()).unwrap();
    listen(&listener, 8).unwrap();
    std::thread::spawn(move || work(accept(&listener).unwrap()))
}

fn listen_with(cookie: u64) -> Listen {
    Listen {
        cookie,
        backlog: 128,
        options: OpenOptions::default(),
        within_host: false,
    }
}

fn receive(socket: &OwnedFd) -> (Message, Vec<OwnedFd>) {
    recv_message(socket.as_fd())
        .unwrap()
        .expect("the program is there")
}

fn answer(socket: &OwnedFd, message: &Message) {
    send_message(socket.as_fd(), message, &[]).unwrap();
}

/// The fake service's side of a registered program.
struct Registered {
    /// The service's end of the registration socket.
    socket: OwnedFd,
    /// The memory that the program shares with the service.
    region: Arc<ProgramRegion>,
    /// The page with the state of the service's cores (polling threads).
    page: ServicePageMap,
    /// The eventfd by which the program wakes the service's only core.
    doorbell: Doorbell,
}

/// Answers REGISTER as the service does.
fn register(socket: OwnedFd) -> Registered {
    let (request, _) = receive(&socket);
    assert_eq!(request.kind, message::REGISTER);
    assert_eq!(&request.name[..7], b"testing");
    let layout = Layout::new(16, 1 << 20, 1 << 20).unwrap();
    let (region, memories) = ProgramRegion::create("test", &layout).unwrap();
    let (page, page_fd) = ServicePageMap::create(1).unwrap();
    let doorbell = Doorbell::new().unwrap();
    let mut registered = new_message(message::REGISTERED);
    registered.region_len = layout.region_len();
    let [control_fd, rx_fd, tx_fd] = memories.descriptors();
    let descriptors = [control_fd, rx_fd, tx_fd, page_fd.as_fd(), doorbell.fd()];
    send_message(socket.as_fd(), &registered, &descriptors).unwrap();
    Registered {
        socket,
        region: Arc::new(region),
        page,
        doorbell,
    }
}

/// Returns true if `fd` is readable or has hung up before `timeout` ends.
fn readable(fd: impl AsFd, timeout: Duration) -> bool {
    let timeout = Timespec::try_from(timeout).unwrap();
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
}

#[test]
fn an_absent_service_is_reported_as_not_running() {
    let path = SocketPath::new("absent");
    let error = Program::register(&path.0, "testing").unwrap_err();
    assert!(matches!(error, RegisterError::NotRunning), "{error}");
    // Leave a socket file without a listening process, as after a crash of the service.
    let kind = SocketType::SEQPACKET;
    let dead = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    bind(&dead, &SocketAddrUnix::new(&path.0).unwrap()).unwrap();
    drop(dead);
    let error = Program::register(&path.0, "testing").unwrap_err();
    assert!(matches!(error, RegisterError::NotRunning), "{error}");
    let error = Program::register(&std::env::temp_dir(), "testing").unwrap_err();
    assert!(matches!(error, RegisterError::NotRunning), "{error}");
}

#[test]
fn refusals_and_version_mismatches_are_reported() {
    let path = SocketPath::new("refused");
    let service = serve(&path, |socket| {
        receive(&socket);
        let mut message = new_message(message::REGISTERED);
        message.refusal = refusal::LIMIT;
        answer(&socket, &message);
    });
    let error = Program::register(&path.0, "testing").unwrap_err();
    assert!(
        matches!(error, RegisterError::Refused(refusal::LIMIT)),
        "{error}"
    );
    service.join().unwrap();

    for refused in [0, refusal::ABI_VERSION] {
        let path = SocketPath::new("version");
        let service = serve(&path, move |socket| {
            receive(&socket);
            let mut message = new_message(message::REGISTERED);
            message.abi_version = ABI_VERSION + 3;
            message.refusal = refused;
            answer(&socket, &message);
        });
        let error = Program::register(&path.0, "testing").unwrap_err();
        let RegisterError::VersionMismatch { ours, theirs } = error else {
            panic!("{error}")
        };
        assert_eq!((ours, theirs), (ABI_VERSION, ABI_VERSION + 3));
        service.join().unwrap();
    }

    let path = SocketPath::new("silent");
    let service = serve(&path, drop);
    let error = Program::register(&path.0, "testing").unwrap_err();
    assert!(matches!(error, RegisterError::Io(_)), "{error}");
    service.join().unwrap();
}

/// Registers the program, and checks and answers its requests up to UNLISTEN. Returns the service's
/// side of the program, and the doorbell (an eventfd) of the program's context. A context is the
/// set of rings of one thread.
fn answer_a_session(socket: OwnedFd) -> (Registered, Doorbell) {
    let service = register(socket);
    let (request, descriptors) = receive(&service.socket);
    assert_eq!((request.kind, request.context), (message::CONTEXT, 0));
    let [doorbell] = <[OwnedFd; 1]>::try_from(descriptors).unwrap();
    let doorbell = Doorbell::from_untrusted(doorbell).unwrap();
    answer(&service.socket, &request);

    let (mut request, descriptors) = receive(&service.socket);
    assert_eq!((request.kind, request.cookie), (message::LISTEN, 77));
    assert_eq!((request.backlog, descriptors.len()), (128, 1));
    request.listener = 9;
    answer(&service.socket, &request);
    let (mut request, _) = receive(&service.socket);
    request.refusal = refusal::NOT_ENTITLED;
    answer(&service.socket, &request);
    let (mut request, descriptors) = receive(&service.socket);
    assert_eq!((request.kind, descriptors.len()), (message::RESERVE, 1));
    request.port = 4711;
    answer(&service.socket, &request);
    let (request, _) = receive(&service.socket);
    assert_eq!(
        (request.kind, request.inode, request.reason),
        (message::REPORT_NOT_ACCELERATED, 5, 2)
    );
    let (request, _) = receive(&service.socket);
    assert_eq!((request.kind, request.listener), (message::UNLISTEN, 9));
    answer(&service.socket, &request);
    (service, doorbell)
}

#[test]
fn a_session_from_registration_to_the_service_s_death() {
    let path = SocketPath::new("session");
    let service = serve(&path, answer_a_session);
    let program = Program::register(&path.0, "testing a name longer than the field").unwrap();
    let mut context = program.new_context().unwrap();
    // The fake service does not examine the program's sockets, so an eventfd stands for them.
    let file = Doorbell::new().unwrap();
    assert_eq!(
        program.listen(file.fd(), &listen_with(77)).unwrap(),
        ListenerHandle(9)
    );
    let refused = program.listen(file.fd(), &listen_with(78));
    assert!(matches!(
        refused,
        Err(Refusal::Refused(refusal::NOT_ENTITLED))
    ));
    assert_eq!(program.reserve(file.fd(), None).unwrap(), 4711);
    program.report_not_accelerated(5, 2);
    program.unlisten(ListenerHandle(9));
    let (service, doorbell) = service.join().unwrap();

    // While the program sleeps, the service rings the context's doorbell for an event.
    let mut events = DataEventProducer::new(service.region.clone(), 0).unwrap();
    let _control = ControlEventProducer::new(service.region.clone(), 0).unwrap();
    assert!(context.prepare_to_sleep());
    events
        .push(DataWord::new(tidelane_abi::data_event::READY, 3).encode())
        .unwrap();
    events.publish();
    assert!(sleep::should_ring(
        &service.region.ring_set(0).unwrap().head.needs_wakeup
    ));
    assert!(doorbell.ring());
    assert!(readable(
        context.doorbell_fd().unwrap(),
        Duration::from_secs(5)
    ));
    context.cancel_sleep();
    context.drain_doorbell();
    assert!(!readable(context.doorbell_fd().unwrap(), Duration::ZERO));
    let mut got = Vec::new();
    context.poll(&mut |event| got.push(event));
    assert_eq!(got, [ClientEvent::Ready { slot: 3 }]);

    // While the service sleeps, the program rings the service's doorbell for a request.
    let needs_wakeup = &service.page.core(0).unwrap().needs_wakeup;
    sleep::prepare_to_sleep(needs_wakeup);
    context.assign(3);
    context.flush();
    assert!(readable(service.doorbell.fd(), Duration::from_secs(5)));

    // The service dies.
    assert!(program.is_service_alive());
    assert!(!readable(program.control_fd().unwrap(), Duration::ZERO));
    drop(service);
    assert!(readable(
        program.control_fd().unwrap(),
        Duration::from_secs(5)
    ));
    assert!(!program.is_service_alive() && program.service_known_gone());
    assert!(matches!(program.new_context(), Err(Refusal::ServiceGone)));
    assert!(matches!(
        program.reserve(file.fd(), None),
        Err(Refusal::ServiceGone)
    ));
}

/// The library moves its descriptors to numbers from 768 on, because programs may expect to get the
/// lower numbers in order.
#[test]
fn descriptors_of_the_library_have_high_numbers() {
    let path = SocketPath::new("numbers");
    let service = serve(&path, |socket| {
        let service = register(socket);
        let (request, _) = receive(&service.socket);
        answer(&service.socket, &request);
        service
    });
    let program = Program::register(&path.0, "testing").unwrap();
    let context = program.new_context().unwrap();
    let numbers: Vec<i32> = program.descriptors().collect();
    assert_eq!(numbers.len(), 2);
    let doorbell = context.doorbell_fd().unwrap();
    assert!(
        numbers.iter().all(|&fd| fd >= 768) && std::os::fd::AsRawFd::as_raw_fd(&doorbell) >= 768
    );
    service.join().unwrap();
}

/// `abandon` closes this process's descriptor of the registration socket. A child that has
/// abandoned its parent's session therefore does not delay the hang-up when the parent ends. In
/// this test, no other process has the socket, so `abandon` itself causes the hang-up.
#[test]
fn an_abandoned_session_hangs_up_when_the_parent_does() {
    let path = SocketPath::new("abandoned");
    let service = serve(&path, register);
    let program = Program::register(&path.0, "testing").unwrap();
    let service = service.join().unwrap();
    // Abandon the session as a child does after `fork`. Unlike in a child, the shared memory is
    // still mapped.
    program.abandon();
    assert!(program.service_known_gone());
    assert!(readable(&service.socket, Duration::from_secs(5)));
    assert!(recv_message(service.socket.as_fd()).unwrap().is_none());
    program.report_not_accelerated(1, 1);
    assert!(matches!(program.new_context(), Err(Refusal::ServiceGone)));
}
