//! Reasons for the end of a connection. The service (process `tidelaned`) writes the reason to
//! [`ServiceHalf::cause`](crate::ServiceHalf::cause) in the connection's slot, the record that
//! service and program share. The numbers are not errno values: `app/sockets` maps them to errno.

/// Both directions ended with a FIN.
pub const FINISHED: u32 = 1;
/// The peer sent RST.
pub const RESET: u32 = 2;
/// The peer refused the connection: a RST arrived during the handshake, or an ICMP error reported
/// that the port is unreachable.
pub const REFUSED: u32 = 3;
/// The user timeout expired, or the last retransmission or keepalive probe had no answer.
pub const TIMED_OUT: u32 = 4;
/// The host is unreachable: neighbour resolution failed, or an ICMP error arrived for which this
/// list has no other value.
pub const HOST_UNREACHABLE: u32 = 5;
/// This host has no route to the network, or an ICMP error reported that a router has none.
pub const NET_UNREACHABLE: u32 = 6;
/// No local port is left.
pub const NO_PORT: u32 = 7;
/// The service refused or aborted the connection, because memory was missing, a limit of the whole
/// service was reached, or the program's half of the slot had an invalid value.
pub const ABORTED: u32 = 8;
/// A limit of the program's user was reached.
pub const LIMIT: u32 = 9;
