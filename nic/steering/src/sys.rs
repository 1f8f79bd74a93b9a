//! Socket options without a safe wrapper.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// TCP_REPAIR_OFF_NO_WP: ends the repair mode without a window probe.
const REPAIR_OFF: libc::c_int = -1;

/// Switches the repair mode of a TCP socket on or off. In repair mode, `bind` succeeds even if
/// another socket has the port. The switch needs CAP_NET_ADMIN. The end of repair mode clears
/// SO_REUSEADDR.
pub fn set_repair(fd: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    let value = if on { 1 } else { REPAIR_OFF };
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, value)
}

/// Restricts a socket to the interface with index `ifindex`.
pub fn bind_to_interface(fd: BorrowedFd<'_>, ifindex: u32) -> io::Result<()> {
    let ifindex = ifindex.try_into().map_err(io::Error::other)?;
    set_option(fd, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, ifindex)
}

fn set_option(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointer is to a live c_int, and the call gets its size. The call keeps no
    // reference.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
