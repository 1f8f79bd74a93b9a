//! Conversion of addresses between the standard library and the engine.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use tidelane_engine::{Endpoint, IpAddress};

/// Converts an IP address to the engine's form.
pub fn address_of(ip: IpAddr) -> IpAddress {
    match ip {
        IpAddr::V4(v4) => IpAddress::from_v4(v4.octets()),
        IpAddr::V6(v6) => IpAddress(v6.octets()),
    }
}

/// Converts an address and port to the engine's form.
pub fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint::new(address_of(address.ip()), address.port())
}

/// Converts an IP address to the standard library's form.
pub fn ip_of(address: IpAddress) -> IpAddr {
    match address.as_v4() {
        Some(v4) => IpAddr::from(v4),
        None => IpAddr::V6(Ipv6Addr::from(address.0)),
    }
}
