//! Ids that the TCP engine and its driver use. The driver is the program that runs the engine.

use core::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($repr:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id!(
    /// Index of a flow (a TCP connection) in the flow table. The engine reuses the id for another
    /// flow after [`Event::Released`](crate::Event::Released), so a driver that keeps ids for
    /// longer must add a generation number.
    FlowId(u32)
);
id!(
    /// Index of a listener in the listener table.
    ListenerId(u32)
);
id!(
    /// The driver's id of a link: a NIC queue, or the local path between programs of one host. The
    /// engine stores this id and returns it to the driver, but does not interpret it.
    LinkId(u16)
);

impl FlowId {
    /// Returns the id as an index into the flow table.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl ListenerId {
    /// Returns the id as an index into the listener table.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
