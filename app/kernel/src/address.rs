//! Socket addresses as the kernel reads them.

use std::net::SocketAddr;

use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

/// An IPv4 or IPv6 socket address.
#[derive(Clone, Copy, Debug)]
pub enum SocketAddress {
    /// IPv4.
    V4(sockaddr_in),
    /// IPv6.
    V6(sockaddr_in6),
}

impl SocketAddress {
    /// Returns a pointer to the address, and its length in bytes. The pointer is valid as long as
    /// the value is not moved.
    pub fn as_raw(&self) -> (*const sockaddr, socklen_t) {
        match self {
            Self::V4(address) => (
                (&raw const *address).cast(),
                size_of::<sockaddr_in>() as socklen_t,
            ),
            Self::V6(address) => (
                (&raw const *address).cast(),
                size_of::<sockaddr_in6>() as socklen_t,
            ),
        }
    }
}

impl From<SocketAddr> for SocketAddress {
    fn from(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(v4) => Self::V4(sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(v6) => Self::V6(sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            }),
        }
    }
}
