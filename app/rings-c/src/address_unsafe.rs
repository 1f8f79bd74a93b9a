//! Socket addresses of C programs.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

use crate::error::Error;

/// Reads an address once, and checks it.
///
/// # Safety
///
/// `address` is null or has `len` bytes.
pub unsafe fn read(address: *const sockaddr, len: socklen_t) -> Result<SocketAddr, Error> {
    if address.is_null() {
        return Err(Error::POINTER);
    }
    let len = len as usize;
    if len < size_of::<libc::sa_family_t>() {
        return Err(Error::ADDRESS);
    }
    // SAFETY: the address has at least the bytes of the family. The pointer may be unaligned.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    match i32::from(family) {
        libc::AF_INET if len >= size_of::<sockaddr_in>() => {
            // SAFETY: the address has this length, and any bytes are valid.
            let v4 = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 if len >= size_of::<sockaddr_in6>() => {
            // SAFETY: as for IPv4.
            let v6 = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let (ip, port) = (
                Ipv6Addr::from(v6.sin6_addr.s6_addr),
                u16::from_be(v6.sin6_port),
            );
            Ok(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        libc::AF_INET | libc::AF_INET6 => Err(Error::ADDRESS),
        _ => Err(Error::FAMILY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_at_any_alignment() {
        let mut bytes = [0_u8; 29];
        bytes[1..3].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        bytes[3..5].copy_from_slice(&[0x1f, 0x90]);
        bytes[5..9].copy_from_slice(&[127, 0, 0, 1]);
        let at: *const sockaddr = bytes[1..].as_ptr().cast();
        // SAFETY: the lengths are at most that of the array.
        let read = |len| unsafe { read(at, len) };
        assert_eq!(read(16).map(|a| a.to_string()), Ok("127.0.0.1:8080".into()));
        assert_eq!(read(15), Err(Error::ADDRESS));
        assert_eq!(read(1), Err(Error::ADDRESS));
        bytes[1..3].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        bytes[9..25].copy_from_slice(&Ipv6Addr::LOCALHOST.octets());
        let at: *const sockaddr = bytes[1..].as_ptr().cast();
        // SAFETY: as above.
        let read = |len| unsafe { super::read(at, len) };
        assert_eq!(
            read(28).map(|a| (a.ip(), a.port())),
            Ok((Ipv6Addr::LOCALHOST.into(), 8080))
        );
        assert_eq!(read(27), Err(Error::ADDRESS));
        bytes[1..3].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
        let at: *const sockaddr = bytes[1..].as_ptr().cast();
        // SAFETY: as above.
        assert_eq!(unsafe { super::read(at, 28) }, Err(Error::FAMILY));
    }
}
