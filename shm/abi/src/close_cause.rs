//! Values of [`ServiceHalf::cause`](crate::ServiceHalf::cause). The numbers belong to this ABI;
//! errno exists only in `app/sockets`.

/// Both directions ended with a FIN.
pub const FINISHED: u32 = 1;
/// The peer sent RST.
pub const RESET: u32 = 2;
/// The peer refused the connection (RST in SYN-SENT).
pub const REFUSED: u32 = 3;
/// No answer: user timeout, or the last retransmission or keepalive probe expired.
pub const TIMED_OUT: u32 = 4;
/// Host unreachable, by ICMP or a failed neighbour resolution.
pub const HOST_UNREACHABLE: u32 = 5;
/// No route to the network.
pub const NET_UNREACHABLE: u32 = 6;
/// No local port is left.
pub const NO_PORT: u32 = 7;
/// The service refused or aborted the connection: memory, limits, or invalid values in the
/// program's half.
pub const ABORTED: u32 = 8;
/// A limit of the program's user was reached.
pub const LIMIT: u32 = 9;
