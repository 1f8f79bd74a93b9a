//! Parts of [`SocketOptions`](crate::SocketOptions): IP header fields, receive window, FIN-WAIT-2.

use tidelane_time::Duration;
use tidelane_wire::{IpAddress, IpFields};

/// IP header fields of a socket's packets, for both IP versions, because an AF_INET6 socket may be
/// connected over IPv4.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IpOptions {
    /// IP_TOS and IP_TTL.
    pub v4: IpFields,
    /// IPV6_TCLASS and IPV6_UNICAST_HOPS.
    pub v6: IpFields,
}

impl IpOptions {
    /// Returns the fields of packets to `peer`.
    pub fn to(&self, peer: IpAddress) -> IpFields {
        if peer.is_v4() { self.v4 } else { self.v6 }
    }
}

/// Limits of a connection's receive window in bytes. Zero means that the option is not set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WindowOptions {
    /// SO_RCVBUF, converted to payload bytes. If SO_RCVBUF is set, the window is not autotuned and
    /// has this size, but at most `clamp` and the limit of the engine's configuration.
    pub buffer: u32,
    /// TCP_WINDOW_CLAMP: upper bound of the window.
    pub clamp: u32,
    /// SO_RCVLOWAT: number of bytes that must arrive to wake the application. An autotuned window
    /// is at least twice this number, as far as `clamp` and the limit of the engine's configuration
    /// allow.
    pub low: u32,
}

impl WindowOptions {
    /// Returns the size of the window in bytes. `tuned` is the size that autotuning has computed.
    /// `most` is the upper bound that the engine's configuration sets.
    pub fn size(&self, tuned: u32, most: u32) -> u32 {
        let wanted = match self.buffer {
            0 => tuned.max(self.low.saturating_mul(2)),
            set => set,
        };
        wanted.min(self.size_max(most))
    }

    /// Returns the largest window that the options allow, at most `most`.
    pub fn size_max(&self, most: u32) -> u32 {
        let of_buffer = if self.buffer == 0 { most } else { self.buffer };
        let of_clamp = if self.clamp == 0 { most } else { self.clamp };
        of_buffer.min(of_clamp).min(most)
    }

    /// Returns true if the window is autotuned.
    pub fn is_tuned(&self) -> bool {
        self.buffer == 0
    }
}

/// TCP_LINGER2: time of an orphan in FIN-WAIT-2. An orphan is a connection whose socket is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FinWait2 {
    /// The time `fin_wait_2` of the engine's configuration.
    #[default]
    Configured,
    /// A time that the application set.
    For(Duration),
    /// No time: the engine resets an orphan as soon as the orphan enters FIN-WAIT-2. A connection
    /// that becomes an orphan in FIN-WAIT-2 is reset at once.
    Never,
}
