//! Values of [`ServiceHalf::cause`](crate::ServiceHalf::cause). The numbers are this ABI's own;
//! errno exists in `app/sockets`.

/// Both sides finished.
pub const FINISHED: u32 = 1;
/// The peer sent RST.
pub const RESET: u32 = 2;
/// The peer refused (RST in SYN-SENT).
pub const REFUSED: u32 = 3;
/// No answer (user timeout, retransmissions or keepalive exhausted).
pub const TIMED_OUT: u32 = 4;
/// ICMP or neighbour failure: host unreachable.
pub const HOST_UNREACHABLE: u32 = 5;
/// No route to the network.
pub const NET_UNREACHABLE: u32 = 6;
/// No local port left.
pub const NO_PORT: u32 = 7;
/// The service refused or aborted: memory, limits, or bad values in the program's half.
pub const ABORTED: u32 = 8;
/// A limit of the program's user was reached.
pub const LIMIT: u32 = 9;
