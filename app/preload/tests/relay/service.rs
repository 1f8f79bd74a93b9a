//! The relay: a fake service for these tests. The relay has no TCP of its own, but carries each
//! connection of a program over a TCP socket of the kernel.
//!
//! A region is the memory that a program shares with the relay. A slot is the record of one
//! connection in the region. A context consists of the rings of one thread of the program, and a
//! doorbell, which is an eventfd that wakes the thread.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, getsockname,
        listen, socket_with,
    },
};
use tidelane_abi::{
    ControlEvent, ControlRequest, Message, ROUTE_ACCELERATED, close_cause, control_event,
    control_request, data_event, data_request, message, refusal,
};
use tidelane_ring::{
    BufferAllocator, ControlEventProducer, ControlRequestConsumer, DataEventProducer,
    DataRequestConsumer, Doorbell, Layout, ProgramRegion, PublishedRoute, ServicePageMap,
    registration::{new_message, recv_message, send_message},
    sleep,
    words::DataWord,
};

use crate::connection::Connection;

/// The port of the relay's listener is the port of the program's listener plus this number.
///
/// The kernel chooses the program's port from 32768 to 60999. The relay's port is below 32768, so
/// that the kernel does not choose the relay's port for another socket.
pub const PORT_SHIFT: i32 = -31_000;
/// Number of slots in the region of each program.
const SLOTS: u32 = 256;

/// Longest time for which the relay waits until the port of a listener is free.
const BIND_MAX: Duration = Duration::from_secs(5);

/// Number of connections that the relay has carried so far.
static CONNECTIONS: AtomicU32 = AtomicU32::new(0);
/// The relay's listeners, each with the inode number of the program's listening socket. Forked
/// processes that share this socket also share the relay's listener.
static LISTENERS: Mutex<Vec<(u64, Arc<SharedListener>)>> = Mutex::new(Vec::new());

/// The kernel socket at which the relay accepts the connections for a program's listener.
struct SharedListener {
    listener: TcpListener,
    /// The port to which the program has bound its own socket. The relay reports this port to the
    /// program as the local port of each accepted connection.
    port: u16,
}

/// Returns the number of connections that the relay has carried so far.
pub fn connections() -> u32 {
    CONNECTIONS.load(Ordering::Relaxed)
}

/// Starts a thread that accepts programs at `path`. Each program is served by a further thread.
pub fn start(path: &Path) {
    let kind = SocketType::SEQPACKET;
    let listener = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&listener, 64).unwrap();
    std::thread::spawn(move || {
        while let Ok(socket) = accept_with(&listener, SocketFlags::CLOEXEC) {
            std::thread::spawn(move || Session::register(socket).serve());
        }
    });
}

/// The relay's side of a context: the doorbell and the rings.
struct Context {
    bell: Doorbell,
    data_requests: DataRequestConsumer,
    data_events: DataEventProducer,
    control_requests: ControlRequestConsumer,
    control_events: ControlEventProducer,
}

/// The relay's side of a registered program: the region, the contexts and the connections.
struct Session {
    /// The socket over which the program has registered.
    control: OwnedFd,
    region: Arc<ProgramRegion>,
    /// The shared page in which the relay announces its sleep to the program.
    page: ServicePageMap,
    /// The doorbell by which the program wakes the relay.
    bell: Doorbell,
    buffers: BufferAllocator,
    contexts: HashMap<u32, Context>,
    /// Connections by slot.
    connections: HashMap<u32, Connection>,
    /// Listeners by number, or `None` for a listener that the program has closed.
    listeners: Vec<Option<Arc<SharedListener>>>,
    /// Context, listener and cookie of each LISTENER_JOIN, the request of a context for the
    /// connections of a listener. The relay returns the cookie in each event ACCEPTED.
    joined: Vec<(u32, u32, u64)>,
    /// Slots without a connection.
    free: Vec<u32>,
}

impl Session {
    fn register(control: OwnedFd) -> Self {
        let (request, _) = recv_message(control.as_fd()).unwrap().unwrap();
        assert_eq!(request.kind, message::REGISTER);
        let layout = Layout::new(SLOTS, 64 << 20, 64 << 20).unwrap();
        let (region, memories) = ProgramRegion::create("relay", &layout).unwrap();
        let (page, page_fd) = ServicePageMap::create(1).unwrap();
        page.set_routes(&[PublishedRoute {
            addr: Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets(),
            prefix_len: 128,
            handling: ROUTE_ACCELERATED,
        }])
        .unwrap();
        let bell = Doorbell::new().unwrap();
        let mut registered = new_message(message::REGISTERED);
        registered.region_len = layout.region_len();
        let [control_fd, rx_fd, tx_fd] = memories.descriptors();
        let descriptors = [control_fd, rx_fd, tx_fd, page_fd.as_fd(), bell.fd()];
        send_message(control.as_fd(), &registered, &descriptors).unwrap();
        Self {
            control,
            buffers: BufferAllocator::new(layout.rx_area()),
            region: Arc::new(region),
            page,
            bell,
            contexts: HashMap::new(),
            connections: HashMap::new(),
            listeners: Vec::new(),
            joined: Vec::new(),
            free: (0..SLOTS).rev().collect(),
        }
    }

    fn serve(mut self) {
        loop {
            let mut busy = self.requests();
            busy |= self.accept();
            busy |= self.step();
            self.publish();
            if busy {
                continue;
            }
            let word = &self.page.core(0).unwrap().needs_wakeup;
            sleep::prepare_to_sleep(word);
            let quiet = self.contexts.values().all(|context| {
                context.data_requests.is_empty() && context.control_requests.is_empty()
            });
            if quiet {
                self.sleep();
            }
            sleep::cancel_sleep(&self.page.core(0).unwrap().needs_wakeup);
            if !self.messages() {
                return self.shut_down();
            }
        }
    }

    /// Ends the connections of a program that has ended: completes the connections that the program
    /// had closed, and resets the others.
    fn shut_down(mut self) {
        self.listeners.clear();
        close_unused_listeners(&mut LISTENERS.lock().unwrap());
        self.requests();
        self.connections
            .values_mut()
            .for_each(Connection::reset_orphan);
        while !self.connections.is_empty() {
            if !self.step() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn sleep(&self) {
        let mut fds = vec![
            PollFd::new(&self.control, PollFlags::IN),
            PollFd::from_borrowed_fd(self.bell.fd(), PollFlags::IN),
        ];
        for connection in self.connections.values() {
            if let Some(socket) = &connection.socket {
                fds.push(PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN));
            }
        }
        for (_, listener, _) in &self.joined {
            if let Some(Some(shared)) = self.listeners.get(*listener as usize) {
                fds.push(PollFd::from_borrowed_fd(
                    shared.listener.as_fd(),
                    PollFlags::IN,
                ));
            }
        }
        // Check at this interval whether kernel sockets have room, because `fds` does not include
        // POLLOUT.
        let often = Timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        let _ = poll(&mut fds, Some(&often));
        self.bell.drain();
    }

    /// Handles the messages that the program has sent over the control socket. Returns false if the
    /// program has ended.
    fn messages(&mut self) -> bool {
        loop {
            let mut fds = [PollFd::new(&self.control, PollFlags::IN)];
            if poll(
                &mut fds,
                Some(&Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                }),
            )
            .unwrap()
                == 0
            {
                return true;
            }
            let Ok(Some((request, descriptors))) = recv_message(self.control.as_fd()) else {
                return false;
            };
            if let Some(answer) = self.message(&request, descriptors) {
                let _ = send_message(self.control.as_fd(), &answer, &[]);
            }
        }
    }

    fn message(&mut self, request: &Message, mut descriptors: Vec<OwnedFd>) -> Option<Message> {
        let mut answer = new_message(request.kind);
        match request.kind {
            message::CONTEXT => {
                let number = request.context;
                let context = Context {
                    bell: Doorbell::from_untrusted(descriptors.remove(0)).unwrap(),
                    data_requests: DataRequestConsumer::new(self.region.clone(), number)?,
                    data_events: DataEventProducer::new(self.region.clone(), number)?,
                    control_requests: ControlRequestConsumer::new(self.region.clone(), number)?,
                    control_events: ControlEventProducer::new(self.region.clone(), number)?,
                };
                self.contexts.insert(number, context);
                answer.context = number;
                Some(answer)
            }
            message::LISTEN => {
                answer.listener = self.listeners.len() as u32;
                self.listeners.push(Some(shared_listener(&descriptors[0])));
                Some(answer)
            }
            message::UNLISTEN => {
                self.listeners[request.listener as usize] = None;
                close_unused_listeners(&mut LISTENERS.lock().unwrap());
                Some(answer)
            }
            // The relay does not suspend listeners.
            message::SUSPEND_LISTENER => Some(answer),
            message::RESERVE => {
                answer.port = u32::from(port_of(&descriptors[0]));
                Some(answer)
            }
            // The relay has no TCP_INFO. Forked children register as other programs do.
            message::TCP_INFO | message::INHERIT => {
                answer.refusal = refusal::NOT_ENTITLED;
                Some(answer)
            }
            _ => None,
        }
    }

    /// Handles the requests in the rings of all contexts. Returns true if there were requests.
    fn requests(&mut self) -> bool {
        let mut words = Vec::new();
        let mut requests = Vec::new();
        for (number, context) in &mut self.contexts {
            while let Some(request) = context.control_requests.pop().unwrap() {
                requests.push((*number, request));
            }
            context.control_requests.release();
            while let Some(word) = context.data_requests.pop().unwrap() {
                words.push((*number, DataWord::decode(word)));
            }
            context.data_requests.release();
        }
        let busy = !(words.is_empty() && requests.is_empty());
        for (context, request) in requests {
            self.control_request(context, &request);
        }
        for (_, word) in words {
            self.data_request(word);
        }
        busy
    }

    fn control_request(&mut self, context: u32, request: &ControlRequest) {
        match request.kind {
            control_request::CONNECT => self.connect(context, request),
            control_request::LISTENER_JOIN => {
                self.joined
                    .push((context, request.listener, request.cookie));
            }
            control_request::LISTENER_LEAVE => self
                .joined
                .retain(|(c, listener, _)| (*c, *listener) != (context, request.listener)),
            other => panic!("control request {other}"),
        }
    }

    fn data_request(&mut self, word: DataWord) {
        match word.kind {
            data_request::ADVANCE => {
                if let Some(connection) = self.connections.get_mut(&word.slot) {
                    connection.advance(&self.region);
                }
            }
            data_request::ASSIGN => {
                if let Some(connection) = self.connections.get_mut(&word.slot) {
                    connection.context = word.arg;
                    self.ready(word.arg, word.slot, data_event::READY);
                }
            }
            data_request::ACCEPT_TAKEN => {}
            other => panic!("data request {other}"),
        }
    }

    fn connect(&mut self, context: u32, request: &ControlRequest) {
        let [.., a, b, c, d] = request.peer_addr;
        let peer = SocketAddr::from(([a, b, c, d], request.peer_port));
        let Ok(socket) = TcpStream::connect(peer) else {
            let event = ControlEvent {
                cause: close_cause::REFUSED,
                ..control(control_event::CONNECT_FAILED, request.cookie)
            };
            self.contexts
                .get_mut(&context)
                .unwrap()
                .control_events
                .push(event)
                .unwrap();
            return;
        };
        let port = match request.local_port {
            0 => socket.local_addr().unwrap().port(),
            reserved => reserved,
        };
        let event = control(control_event::CONNECT_STARTED, request.cookie);
        let slot = self.begin(context, socket, port, event);
        self.ready(context, slot, data_event::READY);
    }

    /// Prepares a slot for the connection of `socket`, and announces the slot with `event`. The
    /// relay reports `port` to the program as the local port. Returns the slot.
    fn begin(&mut self, context: u32, socket: TcpStream, port: u16, event: ControlEvent) -> u32 {
        let slot = self.free.pop().unwrap();
        let connection =
            Connection::begin(&self.region, &mut self.buffers, slot, context, socket, port);
        let generation = connection.generation;
        self.connections.insert(slot, connection);
        CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        let event = ControlEvent {
            slot,
            generation,
            ..event
        };
        self.contexts
            .get_mut(&context)
            .unwrap()
            .control_events
            .push(event)
            .unwrap();
        slot
    }

    /// Accepts the connections of all joined listeners. Returns true if there were connections.
    fn accept(&mut self) -> bool {
        let mut busy = false;
        for (context, listener, cookie) in self.joined.clone() {
            let Some(Some(shared)) = self.listeners.get(listener as usize).cloned() else {
                continue;
            };
            while let Ok((socket, _)) = shared.listener.accept() {
                busy = true;
                let event = ControlEvent {
                    listener,
                    ..control(control_event::ACCEPTED, cookie)
                };
                self.begin(context, socket, shared.port, event);
            }
        }
        busy
    }

    /// Runs a step of each connection. Returns true if a connection has made progress.
    fn step(&mut self) -> bool {
        let mut busy = false;
        let slots: Vec<u32> = self.connections.keys().copied().collect();
        for slot in slots {
            let Some(connection) = self.connections.get_mut(&slot) else {
                continue;
            };
            let progress = connection.step(&self.region);
            let context = connection.context;
            busy |= progress.moved;
            if progress.over {
                let connection = self.connections.remove(&slot).unwrap();
                connection.release(&self.region, &mut self.buffers);
                self.ready(context, slot, data_event::RELEASED);
                self.free.insert(0, slot);
            } else if progress.ready {
                self.ready(context, slot, data_event::READY);
            }
        }
        busy
    }

    /// Queues the data event `kind` for a slot of a context.
    fn ready(&mut self, context: u32, slot: u32, kind: u8) {
        let context = self.contexts.get_mut(&context).unwrap();
        context
            .data_events
            .push(DataWord::new(kind, slot).encode())
            .unwrap();
    }

    /// Publishes the queued events, and wakes the sleeping threads that get events.
    fn publish(&mut self) {
        for (number, context) in &mut self.contexts {
            let control = context.control_events.publish();
            let data = context.data_events.publish();
            let head = self.region.ring_set(*number).unwrap().head;
            if (control || data) && sleep::should_ring(&head.needs_wakeup) {
                context.bell.ring();
            }
        }
    }
}

fn port_of(socket: &OwnedFd) -> u16 {
    let name = getsockname(socket).unwrap();
    rustix::net::SocketAddrV4::try_from(name).unwrap().port()
}

/// Closes the listeners that no process uses any more.
fn close_unused_listeners(listeners: &mut Vec<(u64, Arc<SharedListener>)>) {
    listeners.retain(|(_, shared)| Arc::strong_count(shared) > 1);
}

/// Returns the relay's listener for the program's listening socket. If the socket has no listener
/// of the relay yet, creates the listener. Waits up to [`BIND_MAX`] for the port, because the
/// session of an ended program may still have a listener at the port.
fn shared_listener(socket: &OwnedFd) -> Arc<SharedListener> {
    let inode = rustix::fs::fstat(socket).unwrap().st_ino;
    let port = port_of(socket);
    let own_port = (i32::from(port) + PORT_SHIFT) as u16;
    let begin = Instant::now();
    loop {
        let mut listeners = LISTENERS.lock().unwrap();
        close_unused_listeners(&mut listeners);
        if let Some((_, shared)) = listeners.iter().find(|(known, _)| *known == inode) {
            return shared.clone();
        }
        let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, own_port));
        if let Ok(listener) = bound {
            listener.set_nonblocking(true).unwrap();
            let shared = Arc::new(SharedListener { listener, port });
            listeners.push((inode, shared.clone()));
            return shared;
        }
        drop(listeners);
        assert!(begin.elapsed() < BIND_MAX, "port {own_port}: {bound:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn control(kind: u32, cookie: u64) -> ControlEvent {
    ControlEvent {
        kind,
        slot: 0,
        cookie,
        generation: 0,
        cause: 0,
        listener: 0,
        syn_room: 0,
        reserved: [0; 8],
    }
}
