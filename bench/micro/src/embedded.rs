//! The load `embedded`: each connection carries one request and one response, as in Figure 6 of the
//! paper "MultiStack" (CCR 2014). Client and server use the embedded stack (`app/embedded`), a
//! TCP/IP stack that a program links.
//!
//! Each stack has a mux port: a pair of packet rings. In the service, the mux copies frames between
//! the NIC and the mux ports. In this load, the function `forward` copies the frames between the
//! two mux ports in place of the mux.

use std::collections::VecDeque;

use tidelane_embedded::{
    Connection, Duration, Endpoint, Event, Instant, IpAddress, Listener, MacAddress, Stack,
    StackConfig,
};
use tidelane_mux::copy_to;
use tidelane_packet_io::{BURST_MAX, Burst, PacketIo};
use tidelane_packet_ring::{ProgramEnd, ServiceEnd};
use tidelane_ring::PortRegions;

use crate::{Load, Tally, allocations_unsafe};

/// Length of a packet ring in bytes.
const RING_LEN: u32 = 1 << 20;
/// Length of a request in bytes.
const REQUEST_LEN: usize = 64;
/// Length of a response in bytes.
const RESPONSE_LEN: usize = 1024;
/// Number of the client's local TCP ports. The client uses the ports in turn. When the client uses
/// a port again, the server still has the port's previous connection in TIME-WAIT. The server
/// accepts the new SYN, because the SYN has a newer timestamp than that connection (RFC 6191).
const LOCAL_PORTS: u16 = 256;
/// TCP port of the server.
const PORT: u16 = 80;
/// Link address of the mux's interface, and of the gateway.
const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
/// IP address of both programs. Programs at mux ports of the same mux share its address.
const ADDRESS: IpAddress = IpAddress::from_v4([10, 0, 0, 1]);
/// Virtual time between two polls of a stack.
const STEP: Duration = Duration::from_micros(200);
/// Limit of the polls of each stack in one turn. A turn that reaches the limit fails.
const POLLS_MAX: u32 = 1000;

/// Returns an embedded stack on a new mux port, and the mux's end of the port. Each byte of the
/// stack's secret key is `secret`.
fn stack(secret: u8) -> (Stack<ProgramEnd>, ServiceEnd) {
    let (service, program) = PortRegions::heap(0, RING_LEN).expect("there is memory");
    let config = StackConfig {
        mac: MAC,
        shared_addresses: true,
        gateway: MAC,
        ..StackConfig::new(ADDRESS, [secret; 16])
    };
    let end = ProgramEnd::new(&program, 1514, false);
    (Stack::new(config, end), ServiceEnd::new(&service, None))
}

/// A server that answers the first request of each connection, and then closes the connection.
pub struct Server {
    stack: Stack<ProgramEnd>,
    listener: Listener,
    buffer: [u8; REQUEST_LEN],
}

impl Server {
    /// Handles one wake-up: polls the stack and handles its events.
    pub fn handle_wakeup(&mut self, now: Instant) {
        self.stack.poll_input(now);
        while let Some(event) = self.stack.next_event() {
            match event {
                Event::Incoming(_) => {
                    while let Some(connection) = self.stack.accept(self.listener) {
                        self.serve(connection);
                    }
                }
                Event::Readable(connection) => self.serve(connection),
                _ => {}
            }
        }
        self.stack.flush();
    }

    fn serve(&mut self, connection: Connection) {
        if self.stack.read(connection, &mut self.buffer) == REQUEST_LEN {
            let written = self.stack.write(connection, &[0x77; RESPONSE_LEN]);
            assert_eq!(written, RESPONSE_LEN);
            self.stack.close(connection);
        }
    }
}

/// A client that opens a connection for each request.
struct Client {
    stack: Stack<ProgramEnd>,
    /// The local TCP ports. The next connection uses the first port.
    locals: VecDeque<u16>,
    /// Number of complete responses in the present turn.
    done: u32,
}

impl Client {
    fn open(&mut self) {
        let local = self.locals.pop_front().expect("there are local ports");
        self.locals.push_back(local);
        let ends = (Endpoint::new(ADDRESS, local), Endpoint::new(ADDRESS, PORT));
        self.stack
            .connect(ends.0, ends.1)
            .expect("the port is free");
    }

    fn handle_wakeup(&mut self, now: Instant) {
        self.stack.poll_input(now);
        while let Some(event) = self.stack.next_event() {
            match event {
                Event::Connected(connection) => {
                    self.stack.write(connection, &[0x55; REQUEST_LEN]);
                }
                Event::Readable(connection) => {
                    let mut buffer = [0; RESPONSE_LEN];
                    if self.stack.read(connection, &mut buffer) == RESPONSE_LEN {
                        self.stack.close(connection);
                        self.done += 1;
                    }
                }
                _ => {}
            }
        }
        self.stack.flush();
    }
}

/// Copies all frames from one mux port to the other, as the mux does.
fn forward(from: &mut ServiceEnd, to: &mut ServiceEnd) {
    let mut burst = from.new_burst();
    while from.rx_burst(&mut burst, BURST_MAX) > 0 {
        for frame in burst.iter() {
            assert!(copy_to(to, frame), "the ring has room");
        }
        from.rx_release(&mut burst);
    }
    to.tx_flush();
}

/// Handles one wake-up of a server on the embedded stack.
#[unsafe(no_mangle)]
#[inline(never)]
fn tidelane_micro_embedded(server: &mut Server, now: Instant) {
    server.handle_wakeup(now);
}

/// Runs the load `embedded`. Each turn opens `load.connections` connections together, and ends when
/// each connection has its response. `load.count` and `load.warmup` are numbers of connections, not
/// of turns. Only the server's instructions and allocations are counted.
pub fn connections(load: Load) -> Tally {
    let (mut stack_1, mut port_1) = stack(1);
    let listener = stack_1.listen(Endpoint::new(ADDRESS, PORT), 1024);
    let mut server = Server {
        stack: stack_1,
        listener: listener.expect("the port is free"),
        buffer: [0; REQUEST_LEN],
    };
    let (stack_2, mut port_2) = stack(2);
    let mut client = Client {
        stack: stack_2,
        locals: (0..LOCAL_PORTS).map(|port| 40_000 + port).collect(),
        done: 0,
    };
    let (mut tally, mut now) = (Tally::default(), Instant::from_secs(1));
    let (warmup, count) = (
        load.warmup / load.connections,
        load.count / load.connections,
    );
    for turn in 0..warmup + count {
        let counts = turn >= warmup;
        client.done = 0;
        (0..load.connections).for_each(|_| client.open());
        let mut polls = 0;
        while client.done < load.connections {
            polls += 1;
            assert!(polls < POLLS_MAX, "the responses do not arrive");
            now += STEP;
            client.handle_wakeup(now);
            forward(&mut port_2, &mut port_1);
            if counts {
                let before = allocations_unsafe::count();
                tidelane_micro_embedded(&mut server, now);
                tally.allocations += allocations_unsafe::count() - before;
            } else {
                server.handle_wakeup(now);
            }
            forward(&mut port_1, &mut port_2);
        }
        if counts {
            tally.count += u64::from(load.connections);
        }
    }
    tally
}
