//! The direct back end: TCP in this process, behind a TUN device or on a port of the Tidelane
//! service.

use std::{io, net::SocketAddr, time::Duration};

use tidelane_direct::{DirectContext, DirectOptions, FnTime, poll_descriptor};
use tidelane_embedded::{FnPort, IpAddress, MacAddress};
use tidelane_port::{Port, PortConfig};
use tidelane_rings::Context;

use crate::tun_unsafe;

/// Length of the packet ring of each direction in bytes.
const RING_LEN: u32 = 1 << 20;
/// MTU of the TUN device in bytes.
const MTU: u32 = 1500;

/// Returns the options of a context at the address of `listen`.
fn direct_options(listen: SocketAddr) -> io::Result<DirectOptions> {
    let mut secret = [0; 16];
    rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
    let address = match listen {
        SocketAddr::V4(v4) => IpAddress::from_v4(v4.ip().octets()),
        SocketAddr::V6(v6) => IpAddress(v6.ip().octets()),
    };
    Ok(DirectOptions::new(address, secret))
}

/// Opens a context behind the TUN device `name`. The kernel's route to the device leads to the
/// address of `listen`.
pub fn on_device(name: &str, listen: SocketAddr) -> io::Result<impl Context> {
    let device = tun_unsafe::open(name)?;
    let (rx, tx) = (device.try_clone()?, device.try_clone()?);
    let port = FnPort::new(
        MTU,
        move |packet: &mut [u8]| rustix::io::read(&rx, packet).ok().filter(|len| *len > 0),
        // A device takes a whole packet or nothing.
        move |packet: &[u8]| rustix::io::write(&tx, packet) != Err(rustix::io::Errno::AGAIN),
    );
    let wait = FnTime::new(move |_: &mut _, limit| poll_descriptor(&device, limit));
    DirectContext::open(&direct_options(listen)?, port, wait)
}

/// Opens a context on a port of the service that TIDELANE_SOCKET names. The address of `listen` is
/// an address of the service's interface.
pub fn on_service_port(listen: SocketAddr) -> io::Result<impl Context> {
    let mut port = Port::open(&PortConfig {
        ring_len: RING_LEN,
        ..PortConfig::new("ring-http")
    })?;
    // The service keeps the TCP port reserved in the kernel, so the socket is not needed any more.
    drop(port.bind_tcp(listen)?);
    let mut options = direct_options(listen)?;
    options.stack.mac = MacAddress(port.mac());
    options.stack.shared_addresses = true;
    let wait = FnTime::new(|port: &mut Port, limit: Option<Duration>| {
        port.wait(limit)?;
        match port.is_closed() {
            true => Err(io::Error::other("the service has ended")),
            false => Ok(()),
        }
    });
    DirectContext::open(&options, port, wait)
}
