//! A host with the embedded stack: the stack, its device, and the time.

use std::{cell::RefCell, collections::VecDeque, rc::Rc};

use tidelane_embedded::{Connection, FnPort, Instant, IpAddress, Stack, StackConfig};
use tidelane_engine::Clock;
use tidelane_packetdrill::{
    clock,
    info::{DriverInfo, tcp_info},
    settings::Settings,
};

use crate::ip::Version;

/// Secret of the stack, which determines initial sequence numbers and ephemeral ports. The secret
/// is constant, so that runs are reproducible.
const SECRET: [u8; 16] = *b"conformance runs";

/// Function that copies the next received packet to its argument and returns the packet's length.
type Receive = Box<dyn FnMut(&mut [u8]) -> Option<usize>>;
/// Function that sends a packet. The function returns true if the packet was sent.
type Send = Box<dyn FnMut(&[u8]) -> bool>;

/// The two queues of the device, and the present virtual time.
#[derive(Debug)]
struct Device {
    now: Instant,
    /// Packets that the stack has not received yet.
    received: VecDeque<Vec<u8>>,
    /// Packets that the stack has sent, with their times.
    sent: VecDeque<(Instant, Vec<u8>)>,
}

/// A host with the embedded stack.
pub struct Host {
    /// The stack.
    pub stack: Stack<FnPort<Receive, Send>>,
    /// Settings of the script.
    pub settings: Settings,
    /// Address of the host.
    pub address: IpAddress,
    device: Rc<RefCell<Device>>,
}

impl Host {
    /// Returns a host without sockets, whose device carries IP packets of `version`.
    pub fn new(settings: Settings, version: Version) -> Self {
        let device = Rc::new(RefCell::new(Device {
            now: clock::START,
            received: VecDeque::new(),
            sent: VecDeque::new(),
        }));
        let (source, sink) = (device.clone(), device.clone());
        let receive = move |room: &mut [u8]| {
            let packet = source.borrow_mut().received.pop_front()?;
            room[..packet.len()].copy_from_slice(&packet);
            Some(packet.len())
        };
        let send = move |packet: &[u8]| {
            let mut device = sink.borrow_mut();
            let now = device.now;
            device.sent.push_back((now, packet.to_vec()));
            true
        };
        let port = FnPort::new(
            settings.mtu,
            Box::new(receive) as Receive,
            Box::new(send) as Send,
        );
        let address = IpAddress::from(version.local());
        let mut config = StackConfig::new(address, SECRET);
        config.engine = settings.engine();
        config.engine.tx_limit = settings.sndbuf_max();
        let mut stack = Stack::new(config, port);
        if let Some(keys) = settings.fast_open_keys() {
            stack.set_fast_open_keys(keys);
        }
        stack.poll(clock::START);
        Self {
            stack,
            settings,
            address,
            device,
        }
    }

    /// Returns the present time.
    pub fn now(&self) -> Instant {
        self.device.borrow().now
    }

    /// Advances the time to `to`, and runs the timers that are due.
    pub fn advance_to(&mut self, to: Instant) {
        let now = self.now().max(to);
        self.device.borrow_mut().now = now;
        self.stack.poll(now);
    }

    /// Delivers a packet to the stack.
    pub fn inject(&mut self, packet: &[u8]) {
        self.device.borrow_mut().received.push_back(packet.to_vec());
        self.stack.poll(self.now());
    }

    /// Removes and returns the oldest packet that the stack has sent, with its time.
    pub fn next_sent(&mut self) -> Option<(Instant, Vec<u8>)> {
        self.device.borrow_mut().sent.pop_front()
    }

    /// Returns `struct tcp_info` of a connection. `mss_max` is the value of TCP_MAXSEG.
    pub fn tcp_info(&self, connection: Connection, mss_max: u16) -> Option<Vec<u8>> {
        let info = self.stack.info(connection)?;
        let driver = DriverInfo {
            clock: Clock::at(self.now()),
            buffer_limited_us: 0,
            unsent: info.unsent,
            mtu: self.settings.mtu,
            mss_max,
        };
        Some(tcp_info(&info, &driver))
    }
}
