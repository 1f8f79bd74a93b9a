//! The system calls that no safe wrapper has.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

/// Binds a socket to an interface (SO_BINDTODEVICE).
pub fn bind_to_device(socket: &OwnedFd, device: &str) -> io::Result<()> {
    let len = libc::socklen_t::try_from(device.len()).map_err(io::Error::other)?;
    // SAFETY: the pointer is to `len` readable bytes; the call keeps no reference.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            device.as_ptr().cast(),
            len,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Opens a raw socket that sends and receives on one interface.
pub fn packet_socket(interface: &str) -> io::Result<OwnedFd> {
    let name = std::ffi::CString::new(interface).map_err(io::Error::other)?;
    // SAFETY: the name is a string that ends with a zero; the call keeps no reference.
    let ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if ifindex == 0 {
        return Err(io::Error::last_os_error());
    }
    let all = (libc::ETH_P_ALL as u16).to_be();
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes no pointers.
    let socket = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(all)) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just returned this descriptor; nobody else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: all fields of the address are numbers, of which zero is one.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = all;
    address.sll_ifindex = ifindex as i32;
    // SAFETY: the pointer is to an address of the length that is given; the call keeps none.
    let result = unsafe {
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len)
    };
    if result == 0 {
        Ok(socket)
    } else {
        Err(io::Error::last_os_error())
    }
}
