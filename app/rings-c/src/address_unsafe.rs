//! Converts between the socket addresses of C programs (`struct sockaddr`) and [`SocketAddr`].

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{in_addr, in6_addr, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

use crate::error::Error;

/// Reads an IPv4 or IPv6 address. Returns an error if `address` is null, if `len` is too short for
/// the family of the address, or if the family is neither IPv4 nor IPv6.
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
    // SAFETY: the address is long enough for the family field. The pointer may be unaligned.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    match i32::from(family) {
        libc::AF_INET if len >= size_of::<sockaddr_in>() => {
            // SAFETY: the address is long enough for the structure, and any bytes are valid.
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

/// Writes at most `*len` bytes of the address `value` to `address`. Then sets `*len` to the length
/// of the whole address, as `recvfrom` does.
///
/// # Safety
///
/// `len` is null or valid. `address` is null or has room for `*len` bytes.
pub unsafe fn write(
    value: SocketAddr,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<(), Error> {
    if address.is_null() || len.is_null() {
        return Err(Error::POINTER);
    }
    // SAFETY: the caller's promise. The pointer may be unaligned.
    let room = unsafe { len.read_unaligned() } as usize;
    let copy = |from: *const u8, size: usize| {
        // SAFETY: `from` points to a value of `size` bytes, and `address` has `room` bytes.
        unsafe {
            from.copy_to_nonoverlapping(address.cast(), size.min(room));
            len.write_unaligned(size as socklen_t);
        }
    };
    match value {
        SocketAddr::V4(value) => {
            let v4 = sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: value.port().to_be(),
                sin_addr: in_addr {
                    s_addr: u32::from_ne_bytes(value.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            copy((&raw const v4).cast(), size_of_val(&v4));
        }
        SocketAddr::V6(value) => {
            let v6 = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: value.port().to_be(),
                sin6_flowinfo: value.flowinfo(),
                sin6_addr: in6_addr {
                    s6_addr: value.ip().octets(),
                },
                sin6_scope_id: value.scope_id(),
            };
            copy((&raw const v6).cast(), size_of_val(&v6));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_they_are_read() {
        let values = ["10.1.2.3:80", "[fe80::1%7]:65535", "0.0.0.0:0"];
        for (value, size) in values.into_iter().zip([16, 28, 16]) {
            let value: SocketAddr = value.parse().expect("an address");
            let mut bytes = [0xaa_u8; 33];
            let at: *mut sockaddr = bytes[1..].as_mut_ptr().cast();
            for room in [0, 5, size, 32] {
                let mut len = room;
                // SAFETY: the array has 32 bytes after its first byte.
                unsafe { write(value, at, &raw mut len) }.expect("no null pointer");
                assert_eq!(len, size);
            }
            // SAFETY: the array has 32 bytes after its first byte, and `size` is at most 28.
            assert_eq!(unsafe { read(at, size) }, Ok(value));
            assert!(bytes[1 + size as usize..].iter().all(|byte| *byte == 0xaa));
            let mut len = 3;
            let mut short = [0xaa_u8; 8];
            // SAFETY: the array has more than three bytes.
            unsafe { write(value, short.as_mut_ptr().cast(), &raw mut len) }.expect("no null");
            assert_eq!(short[3..], [0xaa; 5]);
        }
        let value = SocketAddr::from(([127, 0, 0, 1], 1));
        // SAFETY: null pointers are refused.
        let refused = unsafe { write(value, std::ptr::null_mut(), &mut 16) };
        assert_eq!(refused, Err(Error::POINTER));
    }

    #[test]
    fn addresses_are_read_at_any_alignment() {
        let mut bytes = [0_u8; 29];
        bytes[1..3].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        bytes[3..5].copy_from_slice(&[0x1f, 0x90]);
        bytes[5..9].copy_from_slice(&[127, 0, 0, 1]);
        let at: *const sockaddr = bytes[1..].as_ptr().cast();
        // SAFETY: the array has 28 bytes after its first byte, and no call passes a larger length.
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
