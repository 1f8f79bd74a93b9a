//! The direct back end of the ring API (`tidelane-rings`) on a mux port of the Tidelane service
//! (the process `tidelaned`).
//!
//! A mux port is a pair of packet rings with each core (polling thread) of the service. Through a
//! mux port, a program with a TCP/IP stack of its own shares the service's NIC. A context has the
//! sockets of one thread. Its TCP runs in the program.
//!
//! [`open`] opens a mux port, and claims the address and TCP port of the context's only listener,
//! so that the service forwards their packets to the mux port. [`open`] then opens a
//! [`DirectContext`] on the mux port. The environment variable `TIDELANE_SOCKET` names the
//! service's socket. Without the variable, [`open`] uses the service `default`. The program needs
//! no privilege, but the service's rules must admit the program.
//!
//! Through the service, the packets of the mux port reach three kinds of peers: hosts behind the
//! NIC, other mux ports, and programs whose TCP runs in the service.
//!
//! [`DirectContext`]: tidelane_direct::DirectContext
#![forbid(unsafe_code)]

use std::{io, net::SocketAddr};

use rustix::rand::{GetRandomFlags, getrandom};
use tidelane_direct::{DirectContext, DirectOptions, FnTime};
use tidelane_embedded::{IpAddress, MacAddress, SocketOptions};
use tidelane_port::{Port, PortConfig};
use tidelane_rings::Context;

/// Length in bytes of each packet ring of the mux port.
const RING_LEN: u32 = 1 << 20;

/// Parameters of a context on a mux port.
#[derive(Clone, Debug)]
pub struct PortOptions {
    /// Name of the mux port in `tidelane port list`, at most 31 bytes.
    pub name: String,
    /// Address and TCP port of the only listener. The address must be an address of the service's
    /// interface.
    pub listen: SocketAddr,
    /// Number of buffers in the context's pool, at most 32,768.
    pub buffers: u32,
    /// Largest number of buffers of one connection that wait to be sent or acknowledged.
    pub send_queue_max: usize,
    /// Options of all connections. TCP_NODELAY is on by default.
    pub tcp: SocketOptions,
}

impl PortOptions {
    /// Returns the parameters of a context that has 8,192 buffers and listens at `listen`.
    pub fn new(name: impl Into<String>, listen: SocketAddr) -> Self {
        Self {
            name: name.into(),
            listen,
            buffers: 8192,
            send_queue_max: 256,
            tcp: SocketOptions {
                nodelay: true,
                ..SocketOptions::default()
            },
        }
    }

    /// Returns the parameters of the [`DirectContext`]. `secret` keys the initial sequence numbers.
    /// `mac` is the MAC address of the mux port.
    fn direct_options(&self, secret: [u8; 16], mac: [u8; 6]) -> DirectOptions {
        let address = match self.listen {
            SocketAddr::V4(v4) => IpAddress::from_v4(v4.ip().octets()),
            SocketAddr::V6(v6) => IpAddress(v6.ip().octets()),
        };
        let mut options = DirectOptions {
            buffers: self.buffers,
            send_queue_max: self.send_queue_max,
            ..DirectOptions::new(address, secret)
        };
        options.stack.options = self.tcp;
        options.stack.mac = MacAddress(mac);
        // Other stacks share the address, so the stack must accept packets whose source is its own
        // address. The service drops packets with forged sources.
        options.stack.shared_addresses = true;
        options
    }
}

/// Opens a context on a mux port of the service. After the service has ended or has closed the mux
/// port, a call of the context that waits for packets fails with `ConnectionAborted`.
///
/// # Errors
///
/// `InvalidInput` if the listener's address is unspecified. Otherwise, the errors of
/// [`Port::open`], [`Port::bind_tcp`], `getrandom` and [`DirectContext::open`].
pub fn open(options: &PortOptions) -> io::Result<impl Context> {
    if options.listen.ip().is_unspecified() {
        let text = "the listener needs an address of the service's interface";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut port = Port::open(&PortConfig {
        ring_len: RING_LEN,
        ..PortConfig::new(&options.name)
    })?;
    // `bind_tcp` returns the bound kernel socket. The socket may be closed, because the service
    // keeps the TCP port reserved in the kernel.
    drop(port.bind_tcp(options.listen)?);
    let mut secret = [0; 16];
    getrandom(&mut secret, GetRandomFlags::empty())?;
    let direct = options.direct_options(secret, port.mac());
    let wait = FnTime::new(Port::wait);
    DirectContext::open(&direct, port, wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_without_an_address_is_refused() {
        for listen in ["0.0.0.0:80", "[::]:80"] {
            let listen = listen.parse().expect("an address");
            let error = open(&PortOptions::new("test", listen)).err();
            let kind = error.map(|error| error.kind());
            assert_eq!(kind, Some(io::ErrorKind::InvalidInput), "{listen}");
        }
    }

    #[test]
    fn the_context_has_the_address_of_the_listener_and_the_given_limits() {
        let listen = "192.0.2.1:80".parse().expect("an address");
        let mut options = PortOptions::new("test", listen);
        options.buffers = 100;
        options.send_queue_max = 7;
        options.tcp.keepalive = true;
        let direct = options.direct_options([1; 16], [2; 6]);
        assert_eq!(direct.buffers, 100);
        assert_eq!(direct.send_queue_max, 7);
        assert!(direct.stack.options.keepalive && direct.stack.options.nodelay);
        assert!(direct.stack.shared_addresses);
        assert_eq!(direct.stack.mac, MacAddress([2; 6]));
    }
}
