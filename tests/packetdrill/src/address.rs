//! Conversion of `struct sockaddr_in` and `struct sockaddr_in6` to endpoints and back. An endpoint
//! is an IP address and a port.

use tidelane_engine::{Endpoint, IpAddress};

use crate::errno::{CallResult, Errno};

/// Size of `struct sockaddr_in`, in bytes.
const IN_LEN: usize = 16;
/// Size of `struct sockaddr_in6`, in bytes.
const IN6_LEN: usize = 28;

/// The socket address that a program passes to `bind`, `connect` or `sendto`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Address {
    /// `AF_UNSPEC`, which has no address. `connect` with this address disconnects the socket.
    None,
    /// An IP address and a port.
    Of(Endpoint),
}

/// Parses a socket address structure.
///
/// Fails with EINVAL if `bytes` is too short for its family, and with EAFNOSUPPORT if the family is
/// neither an IP family nor `AF_UNSPEC`.
pub fn parse(bytes: &[u8]) -> CallResult<Address> {
    let family = bytes.first_chunk().ok_or(Errno::INVAL)?;
    let port = |at: &[u8]| Ok(u16::from_be_bytes(*at.first_chunk().ok_or(Errno::INVAL)?));
    let rest = &bytes[2..];
    match i32::from(u16::from_ne_bytes(*family)) {
        libc::AF_UNSPEC => Ok(Address::None),
        libc::AF_INET if bytes.len() >= IN_LEN => {
            let v4 = *rest[2..].first_chunk().ok_or(Errno::INVAL)?;
            let addr = IpAddress::from_v4(v4);
            Ok(Address::Of(Endpoint::new(addr, port(rest)?)))
        }
        libc::AF_INET6 if bytes.len() >= IN6_LEN => {
            let addr = IpAddress(*rest[6..].first_chunk().ok_or(Errno::INVAL)?);
            Ok(Address::Of(Endpoint::new(addr, port(rest)?)))
        }
        libc::AF_INET | libc::AF_INET6 => Err(Errno::INVAL),
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// Returns `end` as the socket address structure of `domain`, which is `AF_INET` or `AF_INET6`.
/// With `AF_INET`, `end` must have an IPv4 address. With `AF_INET6`, an IPv4 address has its
/// IPv4-mapped form.
pub fn emit(end: Endpoint, domain: i32) -> Vec<u8> {
    let mut bytes = (domain as u16).to_ne_bytes().to_vec();
    bytes.extend(end.port.to_be_bytes());
    match end.addr.as_v4() {
        Some(v4) if domain == libc::AF_INET => {
            bytes.extend(v4);
            bytes.resize(IN_LEN, 0);
        }
        _ => {
            bytes.extend([0; 4]);
            bytes.extend(end.addr.0);
            bytes.resize(IN6_LEN, 0);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emitted_address_is_parsed_unchanged() {
        let end = Endpoint::v4([192, 0, 2, 1], 8080);
        for domain in [libc::AF_INET, libc::AF_INET6] {
            assert_eq!(parse(&emit(end, domain)), Ok(Address::Of(end)));
        }
        assert_eq!(parse(&[0, 0]), Ok(Address::None));
        assert_eq!(parse(&[2, 0, 0]), Err(Errno::INVAL));
        assert_eq!(parse(&[1]), Err(Errno::INVAL));
    }
}
