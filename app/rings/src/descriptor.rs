//! The number of a socket within its context (the TCP and UDP sockets of one thread).

/// A socket of a context, by number: a listener, a connection or a UDP socket. After
/// [`Context::close`](crate::Context::close) or [`Context::abort`](crate::Context::abort), the
/// context may give the number to another socket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Descriptor(pub u32);
