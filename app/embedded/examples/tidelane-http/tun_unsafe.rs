//! A TUN device, through which a program exchanges IP packets with the kernel (Linux:
//! Documentation/networking/tuntap.rst).

use std::{
    fs::{File, OpenOptions},
    io,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
};

/// Opens the TUN device `name`, and creates the device if it does not exist. A read or a write
/// moves one packet, and does not block.
pub fn open(name: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK);
    let device = options.open("/dev/net/tun")?;
    // SAFETY: all bytes of `ifreq` may be zero.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
    // SAFETY: the kernel accesses only `request`, which lives until the call returns.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    match result {
        0 => Ok(device),
        _ => Err(io::Error::last_os_error()),
    }
}
