//! The number of a socket within its context.

/// A socket of a context, by number: a listener, a connection or a UDP socket. After
/// [`Context::close`](crate::Context::close), the context reuses the number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Descriptor(pub u32);
