//! Parts of [`SocketOptions`](crate::SocketOptions): what a program sets of IP headers, of its
//! receive window, and of the end.

use tidelane_time::Duration;
use tidelane_wire::{IpAddress, IpFields};

/// IP_TOS and IP_TTL, and the same of IPv6. A socket has both: one of AF_INET6 may be connected
/// over IPv4.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IpOptions {
    /// IP_TOS and IP_TTL.
    pub v4: IpFields,
    /// IPV6_TCLASS and IPV6_UNICAST_HOPS.
    pub v6: IpFields,
}

impl IpOptions {
    /// Those for packets to `peer`.
    pub fn to(&self, peer: IpAddress) -> IpFields {
        if peer.is_v4() { self.v4 } else { self.v6 }
    }
}

/// What bounds the receive window of one connection, in bytes; zero: not set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WindowOptions {
    /// SO_RCVBUF, as the bytes of payload that it stands for: the window is this, and does not grow
    /// with use.
    pub buffer: u32,
    /// TCP_WINDOW_CLAMP: the window is never larger.
    pub clamp: u32,
    /// SO_RCVLOWAT: the window is at least twice this, or the program would wait for ever.
    pub low: u32,
}

impl WindowOptions {
    /// The window where use would make it `tuned`, and no window may be above `most`.
    pub fn quota(&self, tuned: u32, most: u32) -> u32 {
        let wanted = match self.buffer {
            0 => tuned.max(self.low.saturating_mul(2)),
            set => set,
        };
        wanted.min(self.largest(most))
    }

    /// The largest window that there may be, below `most`.
    pub fn largest(&self, most: u32) -> u32 {
        let of_buffer = if self.buffer == 0 { most } else { self.buffer };
        let of_clamp = if self.clamp == 0 { most } else { self.clamp };
        of_buffer.min(of_clamp).min(most)
    }

    /// Whether the window grows with use.
    pub fn is_tuned(&self) -> bool {
        self.buffer == 0
    }
}

/// TCP_LINGER2: how long a connection that its program has closed waits for the peer's FIN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FinWait2 {
    /// As long as the engine's configuration says.
    #[default]
    Usual,
    /// So long.
    For(Duration),
    /// Not at all: it is reset.
    Never,
}
