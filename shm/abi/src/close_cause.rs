//! Reasons for the end of a connection. The service (process `tidelaned`) writes the reason to
//! [`ServiceHalf::cause`](crate::ServiceHalf::cause) in the connection's slot (the record in memory
//! that the service and the program share). If the service could not start an active open, the
//! control event CONNECT_FAILED has the reason. The numbers are not errno values: `app/sockets`
//! maps the numbers to errno.

/// Both directions ended with a FIN.
pub const FINISHED: u32 = 1;
/// The peer sent RST.
pub const RESET: u32 = 2;
/// The connection was refused: a RST arrived during the handshake, an ICMP error reported that the
/// port is unreachable, or an operator's rule denied the active open.
pub const REFUSED: u32 = 3;
/// The user timeout expired, or the maximum number of retransmissions, window probes or keepalive
/// probes had no answer.
pub const TIMED_OUT: u32 = 4;
/// The host is unreachable: neighbour resolution or the wait for a local port timed out, or an ICMP
/// error arrived for which this list has no other value.
pub const HOST_UNREACHABLE: u32 = 5;
/// This host has no route to the network or lacks the requested source address, or an ICMP error
/// reported that a router has no route.
pub const NET_UNREACHABLE: u32 = 6;
/// No local port is available for this peer, or the requested local port cannot be used.
pub const NO_PORT: u32 = 7;
/// The service reset the connection: an operator's rule denies the connection, the program wrote
/// invalid values to the slot, or the service ends. The service also reports this value if it could
/// not start an active open because an endpoint was invalid, or because the flow table or the
/// program's slots were full. The client library reports this value after the service has died.
pub const ABORTED: u32 = 8;
/// A limit of the program's user was reached.
pub const LIMIT: u32 = 9;
