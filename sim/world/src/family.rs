//! IP versions of connections, and the MTUs of *narrow* paths. A narrow path is a path between
//! routers with an MTU below 1,500 bytes.

/// Minimum MTU of a link that carries IPv6, in bytes (RFC 8200 §5).
pub const IPV6_MTU_MIN: u32 = 1280;
/// MTUs of narrow paths in bytes. All of them are large enough for IPv6.
pub(crate) const PATH_MTUS: [u32; 4] = [1280, 1280, 1400, 1492];

/// An IP version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Family {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both versions, in the order of their indices.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// Returns the index of this version in an array with an element per version.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Addresses to which a listening socket is bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Bound {
    /// The host's IPv4 address.
    #[default]
    ToV4,
    /// `::`, which accepts connections of both IP versions.
    ToBoth,
    /// Two sockets with the same port: one at `0.0.0.0`, and one at `::` that accepts only IPv6. A
    /// host with the direct back end of the ring API (TCP within the program) has one socket at its
    /// IPv4 address and one at its IPv6 address instead. A program with its own stack on a mux port
    /// (packet rings) has one socket at `::`, as in `ToBoth`.
    Twice,
}
