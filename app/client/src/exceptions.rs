//! Exceptions: sockets that the user of `tidelane run` leaves to the kernel, so that the service
//! (the process `tidelaned`) does not accelerate them.
//!
//! `tidelane run` passes the exceptions in the environment variable `TIDELANE_KERNEL`. The value is
//! a list of words, separated by spaces: `listen`, `connect`, `port:22`, `port:8000-8099` or
//! `address:10.0.0.0/8`.

use std::{error::Error, fmt, net::IpAddr, ops::RangeInclusive, str::FromStr};

/// Name of the environment variable with the exceptions.
pub const VARIABLE: &str = "TIDELANE_KERNEL";

/// A port or a range of ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports(RangeInclusive<u16>);

/// An address prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// First address of the prefix. An IPv4 address is in its IPv4-mapped form, `::ffff:a.b.c.d`.
    first: u128,
    /// Length of the prefix in bits of the IPv6 form: 104 for an IPv4 prefix of length 8.
    len: u32,
    /// True if the prefix was written in IPv4 notation.
    is_v4: bool,
}

/// The error of parsing a word that is not a valid exception. The text names the expected syntax.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadException(&'static str);

impl fmt::Display for BadException {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for BadException {}

impl FromStr for Ports {
    type Err = BadException;

    fn from_str(text: &str) -> Result<Self, BadException> {
        let bad = BadException("not a port or a range such as 8000-8099");
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (Ok(first), Ok(last)) = (first.parse(), last.parse()) else {
            return Err(bad);
        };
        if first == 0 || last < first {
            return Err(bad);
        }
        Ok(Self(first..=last))
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0.start(), self.0.end())
    }
}

impl FromStr for Addresses {
    type Err = BadException;

    fn from_str(text: &str) -> Result<Self, BadException> {
        let bad = BadException("not an address or a prefix such as 10.0.0.0/8 or fd00::/8");
        let (addr, len) = match text.split_once('/') {
            Some((addr, len)) => (addr, Some(len)),
            None => (text, None),
        };
        let Ok(addr) = addr.parse::<IpAddr>() else {
            return Err(bad);
        };
        let (bits, first) = match addr {
            IpAddr::V4(v4) => (32, v4.to_ipv6_mapped().to_bits()),
            IpAddr::V6(v6) => (128, v6.to_bits()),
        };
        let len: u32 = match len.map_or(Ok(bits), str::parse) {
            Ok(len) if len <= bits => len + 128 - bits,
            _ => return Err(bad),
        };
        if first & u128::MAX.checked_shr(len).unwrap_or(0) != 0 {
            return Err(bad);
        }
        Ok(Self {
            first,
            len,
            is_v4: addr.is_ipv4(),
        })
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addr = std::net::Ipv6Addr::from_bits(self.first);
        match addr.to_ipv4_mapped().filter(|_| self.is_v4) {
            Some(v4) => write!(f, "{v4}/{}", self.len - 96),
            None => write!(f, "{addr}/{}", self.len),
        }
    }
}

impl Addresses {
    /// Returns true if `addr` starts with the prefix.
    fn contains(&self, addr: &[u8; 16]) -> bool {
        let differs = u128::from_be_bytes(*addr) ^ self.first;
        differs.leading_zeros() >= self.len
    }
}

/// The sockets that stay with the kernel instead of being accelerated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exceptions {
    /// True if all listeners stay with the kernel.
    pub listeners: bool,
    /// True if all connections that the program opens stay with the kernel.
    pub connections: bool,
    /// Ports. A listener stays with the kernel if its local port is one of these ports. A
    /// connection that the program opens stays with the kernel if its peer port is one of these
    /// ports.
    pub ports: Vec<Ports>,
    /// Prefixes of addresses. A listener stays with the kernel if its local address has one of
    /// these prefixes. A connection that the program opens stays with the kernel if its peer
    /// address has one of these prefixes. The wildcard address is compared like any other address,
    /// so a listener at `0.0.0.0` does not match `10.0.0.0/8`.
    pub addresses: Vec<Addresses>,
}

impl Exceptions {
    /// Returns true if a listener at this local address and port is left to the kernel. An IPv4
    /// address is in its IPv4-mapped form.
    pub fn has_listener(&self, addr: &[u8; 16], port: u16) -> bool {
        self.listeners || self.matches(addr, port)
    }

    /// Returns true if a connection that the program opens to this peer address and port is left to
    /// the kernel.
    pub fn has_connection(&self, addr: &[u8; 16], port: u16) -> bool {
        self.connections || self.matches(addr, port)
    }

    /// Returns true if `ports` contains the port, or if `addresses` contains a prefix of the
    /// address.
    fn matches(&self, addr: &[u8; 16], port: u16) -> bool {
        self.ports.iter().any(|ports| ports.0.contains(&port))
            || self.addresses.iter().any(|prefix| prefix.contains(addr))
    }
}

impl FromStr for Exceptions {
    type Err = BadException;

    fn from_str(text: &str) -> Result<Self, BadException> {
        let mut exceptions = Self::default();
        for word in text.split_whitespace() {
            match word.split_once(':') {
                None if word == "listen" => exceptions.listeners = true,
                None if word == "connect" => exceptions.connections = true,
                Some(("port", ports)) => exceptions.ports.push(ports.parse()?),
                Some(("address", prefix)) => exceptions.addresses.push(prefix.parse()?),
                _ => return Err(BadException("not listen, connect, port: or address:")),
            }
        }
        Ok(exceptions)
    }
}

impl fmt::Display for Exceptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        words.extend(self.listeners.then(|| "listen".to_owned()));
        words.extend(self.connections.then(|| "connect".to_owned()));
        words.extend(self.ports.iter().map(|ports| format!("port:{ports}")));
        let addresses = self.addresses.iter();
        words.extend(addresses.map(|prefix| format!("address:{prefix}")));
        f.write_str(&words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(text: &str) -> [u8; 16] {
        match text.parse().expect("an address") {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        }
    }

    #[test]
    fn exceptions_survive_a_round_trip_through_text() {
        for text in [
            "",
            "listen",
            "listen connect",
            "port:22-22 port:8000-8099 address:10.0.0.0/8 address:fd00::/8",
            "address:0.0.0.0/0 address:::/0 address:::ffff:0.0.0.0/96",
        ] {
            let exceptions: Exceptions = text.parse().expect(text);
            assert_eq!(exceptions.to_string().parse(), Ok(exceptions), "{text}");
        }
    }

    #[test]
    fn listeners_match_by_local_address_and_connections_by_peer_address() {
        let exceptions: Exceptions = "port:22 port:8000-8002 address:10.1.0.0/16 address:fd00::/8"
            .parse()
            .expect("a list");
        for (addr, port, left) in [
            ("10.2.0.1", 22, true),
            ("10.2.0.1", 23, false),
            ("10.2.0.1", 8001, true),
            ("10.1.255.1", 80, true),
            ("0.0.0.0", 80, false),
            ("fd12::1", 80, true),
            ("fe80::1", 80, false),
        ] {
            assert_eq!(exceptions.has_listener(&mapped(addr), port), left, "{addr}");
            assert_eq!(
                exceptions.has_connection(&mapped(addr), port),
                left,
                "{addr}"
            );
        }
        let all: Exceptions = "listen".parse().expect("a list");
        let addr = mapped("10.0.0.1");
        assert!(all.has_listener(&addr, 1) && !all.has_connection(&addr, 1));
    }

    #[test]
    fn invalid_texts_are_refused() {
        for text in [
            "port:0",
            "port:9-8",
            "port:x",
            "port:65536",
            "address:10.0.0.1/8",
            "address:x",
            "address:10.0.0.0/33",
            "address:fd00::/129",
            "everything",
            "port",
        ] {
            assert!(text.parse::<Exceptions>().is_err(), "{text}");
        }
    }
}
