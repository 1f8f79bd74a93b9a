//! Opens a context (the sockets of one thread) of the direct back end, which runs TCP in this
//! process. The context sends and receives its packets through a TUN device.

use std::{io, net::SocketAddr};

use tidelane_direct::{DirectContext, DirectOptions, FnTime, poll_descriptor};
use tidelane_embedded::{FnPort, IpAddress};
use tidelane_rings::Context;

use crate::tun_unsafe;

/// MTU of the TUN device in bytes.
const MTU: u32 = 1500;

/// Returns the options of a context that has the IP address of `listen`.
fn direct_options(listen: SocketAddr) -> io::Result<DirectOptions> {
    let mut secret = [0; 16];
    rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
    let address = match listen {
        SocketAddr::V4(v4) => IpAddress::from_v4(v4.ip().octets()),
        SocketAddr::V6(v6) => IpAddress(v6.ip().octets()),
    };
    Ok(DirectOptions::new(address, secret))
}

/// Opens a context that sends and receives its packets through the TUN device `name`. The kernel
/// must route the IP address of `listen` to the device.
pub fn on_device(name: &str, listen: SocketAddr) -> io::Result<impl Context> {
    let device = tun_unsafe::open(name)?;
    let (rx, tx) = (device.try_clone()?, device.try_clone()?);
    let port = FnPort::new(
        MTU,
        move |packet: &mut [u8]| rustix::io::read(&rx, packet).ok().filter(|len| *len > 0),
        // A TUN device takes a whole packet or nothing, so the result needs no check of the length.
        // The stack repeats a packet after EAGAIN. Any other error loses the packet.
        move |packet: &[u8]| rustix::io::write(&tx, packet) != Err(rustix::io::Errno::AGAIN),
    );
    let wait = FnTime::new(move |_: &mut _, limit| poll_descriptor(&device, limit));
    DirectContext::open(&direct_options(listen)?, port, wait)
}
