//! System calls for which no crate has a safe wrapper.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

/// Binds a socket to the interface called `device` (SO_BINDTODEVICE).
pub fn bind_to_device(socket: &OwnedFd, device: &str) -> io::Result<()> {
    let len = libc::socklen_t::try_from(device.len()).map_err(io::Error::other)?;
    // SAFETY: `device` has `len` readable bytes. The call does not keep the pointer.
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

/// Opens a raw packet socket (AF_PACKET) that sends and receives on one interface.
pub fn packet_socket(interface: &str) -> io::Result<OwnedFd> {
    let name = std::ffi::CString::new(interface).map_err(io::Error::other)?;
    // SAFETY: `name` is a string that ends with a zero. The call does not keep the pointer.
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
    // SAFETY: the call above returned this descriptor, so that no other value owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: all fields of `sockaddr_ll` are integers, for which zero is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = all;
    address.sll_ifindex = ifindex as i32;
    // SAFETY: `address` has `len` readable bytes. The call does not keep the pointer.
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
