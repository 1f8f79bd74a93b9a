//! The numbers by which the engine and its driver name things.

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
    /// A flow's place in the flow table. The number comes back for another flow after
    /// [`Event::Released`](crate::Event::Released): a driver that keeps it longer adds a
    /// generation.
    FlowId(u32)
);
id!(
    /// A listener's place in the listener table.
    ListenerId(u32)
);
id!(
    /// The driver's number for a link (a NIC queue, the memory wire). The engine only stores it.
    LinkId(u16)
);

impl FlowId {
    /// The place as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl ListenerId {
    /// The place as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
