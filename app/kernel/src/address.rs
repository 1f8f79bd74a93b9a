//! Conversion between the socket addresses of the standard library and the kernel's `sockaddr`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

/// An IPv4 or IPv6 socket address in the form that the kernel reads.
#[derive(Clone, Copy, Debug)]
pub enum SocketAddress {
    V4(sockaddr_in),
    V6(sockaddr_in6),
}

impl SocketAddress {
    /// Returns a pointer to the `sockaddr`, and the length of the `sockaddr` in bytes. The pointer
    /// is valid until this value is moved or dropped.
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

    /// Returns the address in the form of the standard library.
    pub fn to_address(self) -> SocketAddr {
        match self {
            Self::V4(v4) => {
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                (ip, u16::from_be(v4.sin_port)).into()
            }
            Self::V6(v6) => {
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into()
            }
        }
    }
}

/// Parses a `sockaddr_in` or a `sockaddr_in6`. Returns `None` if the address family is another one
/// or `bytes` is too short.
pub fn address_of(bytes: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    match family {
        libc::AF_INET => {
            let ip: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
            Some((Ipv4Addr::from(ip), port).into())
        }
        libc::AF_INET6 => {
            let flow_info = u32::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
            let ip: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
            let scope = u32::from_ne_bytes(*bytes.get(24..)?.first_chunk()?);
            Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, flow_info, scope).into())
        }
        _ => None,
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

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    /// Returns the bytes of a `sockaddr` as the kernel reads them.
    fn bytes_of(address: &SocketAddress) -> Vec<u8> {
        let (pointer, len) = address.as_raw();
        // SAFETY: the pointer and the length are those of a live address without padding.
        unsafe { slice::from_raw_parts(pointer.cast::<u8>(), len as usize) }.to_vec()
    }

    #[test]
    fn an_address_is_read_as_it_was_written() {
        for text in ["10.1.2.3:4567", "[2001:db8::1]:80", "[fe80::1%3]:53"] {
            let address: SocketAddr = text.parse().expect("an address");
            let written = SocketAddress::from(address);
            assert_eq!(written.to_address(), address);
            let bytes = bytes_of(&written);
            assert_eq!(address_of(&bytes), Some(address));
            assert_eq!(address_of(&bytes[..bytes.len().min(15) / 2]), None);
        }
        assert_eq!(address_of(&[0xff; 28]), None);
        assert_eq!(address_of(&[]), None);
    }
}
