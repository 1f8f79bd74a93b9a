//! The configuration of a stack, and the handles and events that the stack gives to the program.

use tidelane_engine::{CloseCause, EngineConfig, FlowId, IpAddress, ListenerId, SocketOptions};
use tidelane_wire::MacAddress;

/// Configuration of a stack.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// Configuration of the engine (`tidelane-engine`), which runs TCP.
    pub engine: EngineConfig,
    /// Key of initial sequence numbers and hashes. The key must not be known to others.
    pub secret: [u8; 16],
    /// Local addresses. Packets to other addresses are dropped.
    pub addresses: Vec<IpAddress>,
    /// Link address of the local end.
    pub mac: MacAddress,
    /// Link address of the router, for peers whose link address is unknown. Zeros mean that there
    /// is no router. If the link has link addresses (`mac` is not zero), active opens to a peer
    /// with an unknown link address then fail.
    pub gateway: MacAddress,
    /// True if other stacks have the same addresses, as on a mux port of the Tidelane service,
    /// through which several stacks share a NIC. If true, the stack accepts packets with a local
    /// source address, so the port must drop packets with forged sources. If false, the stack drops
    /// packets with a local source address.
    pub shared_addresses: bool,
    /// Options of new connections.
    pub options: SocketOptions,
}

impl StackConfig {
    /// Returns the configuration of a stack with one address, on a link without link addresses,
    /// such as [`FnPort`](crate::FnPort).
    pub fn new(address: IpAddress, secret: [u8; 16]) -> Self {
        Self {
            engine: EngineConfig::default(),
            secret,
            addresses: vec![address],
            mac: MacAddress::default(),
            gateway: MacAddress::default(),
            shared_addresses: false,
            options: SocketOptions::default(),
        }
    }
}

/// The handle of a listener of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Listener(pub(crate) ListenerId);

impl Listener {
    /// Returns the handle as a number, for C.
    pub fn to_u32(self) -> u32 {
        self.0.0
    }

    /// Returns the handle with this number. If the stack has no listener with this number,
    /// [`Stack::accept`](crate::Stack::accept) returns `None`.
    pub fn from_u32(number: u32) -> Self {
        Self(ListenerId(number))
    }
}

/// The handle of a connection: the engine's flow id, which later connections may reuse, and a
/// generation, which distinguishes these connections. Once the program has closed the connection,
/// the handle is invalid: functions ignore the handle, even if a later connection has the same flow
/// id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Connection {
    pub(crate) flow: FlowId,
    pub(crate) generation: u32,
}

impl Connection {
    /// Returns the handle as a number other than zero, for C.
    pub fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.flow.0)
    }

    /// Returns the handle with this number. An unknown number yields an invalid handle.
    pub fn from_u64(number: u64) -> Self {
        Self {
            flow: FlowId(number as u32),
            generation: (number >> 32) as u32,
        }
    }
}

/// An event that the stack reports to the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A listener has a connection to accept.
    Incoming(Listener),
    /// An active open is complete: the connection is established.
    Connected(Connection),
    /// New data or a FIN of the peer has arrived. Until the program reads, further data does not
    /// cause the event again, but a FIN does.
    Readable(Connection),
    /// The send buffer has room, after a [`Stack::write`](crate::Stack::write) that took only a
    /// part of its data.
    Writable(Connection),
    /// The peer has announced urgent data. The field `urgent` of
    /// [`Stack::status`](crate::Stack::status) has the position of the last byte of this data.
    Urgent(Connection),
    /// The connection has ended. The program still has to close its handle.
    Closed(Connection, CloseCause),
}
