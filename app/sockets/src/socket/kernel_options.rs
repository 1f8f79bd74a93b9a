//! Socket options whose values the kernel checks and normalizes. An accelerated connection is a
//! connection that the service (the process `tidelaned`) carries instead of the kernel. For an
//! option of an accelerated connection, this module therefore sets the option on a temporary kernel
//! socket and reads the value back.

use std::os::fd::RawFd;

use crate::sys::{self, Errno};

/// Options (level and name) that do not affect an accelerated connection, such as hints to the
/// kernel's stack, limits of the kernel's buffers, permissions to bind, and options of datagrams.
/// This crate stores and returns the values of these options.
const WITHOUT_EFFECT: [(i32, i32); 38] = [
    (libc::SOL_SOCKET, libc::SO_DEBUG),
    (libc::SOL_SOCKET, libc::SO_BROADCAST),
    (libc::SOL_SOCKET, libc::SO_NO_CHECK),
    (libc::SOL_SOCKET, libc::SO_BSDCOMPAT),
    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL),
    (libc::SOL_SOCKET, libc::SO_WIFI_STATUS),
    (libc::SOL_SOCKET, libc::SO_NOFCS),
    (libc::SOL_SOCKET, libc::SO_LOCK_FILTER),
    (libc::SOL_SOCKET, libc::SO_SELECT_ERR_QUEUE),
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL),
    (libc::SOL_SOCKET, libc::SO_INCOMING_CPU),
    (libc::SOL_SOCKET, 53), // SO_CNX_ADVICE
    (libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL),
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET),
    (libc::SOL_SOCKET, 72), // SO_BUF_LOCK
    (libc::SOL_SOCKET, 74), // SO_TXREHASH
    (libc::IPPROTO_IP, libc::IP_RECVOPTS),
    (libc::IPPROTO_IP, libc::IP_RETOPTS),
    (libc::IPPROTO_IP, libc::IP_PKTINFO),
    (libc::IPPROTO_IP, libc::IP_FREEBIND),
    (libc::IPPROTO_IP, libc::IP_PASSSEC),
    (libc::IPPROTO_IP, libc::IP_TRANSPARENT),
    (libc::IPPROTO_IP, libc::IP_RECVORIGDSTADDR),
    (libc::IPPROTO_IP, 23), // IP_CHECKSUM
    (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT),
    (libc::IPPROTO_IP, 26), // IP_RECVERR_RFC4884
    (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL),
    (libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP),
    (libc::IPPROTO_IP, libc::IP_MULTICAST_ALL),
    (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS),
    (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVORIGDSTADDR),
    (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT),
    (libc::IPPROTO_IPV6, libc::IPV6_FREEBIND),
    (libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG),
    (libc::IPPROTO_TCP, libc::TCP_THIN_LINEAR_TIMEOUTS),
    (libc::IPPROTO_TCP, libc::TCP_THIN_DUPACK),
];

/// Returns true if the option has no effect on an accelerated connection.
pub(crate) fn is_without_effect(level: i32, name: i32) -> bool {
    WITHOUT_EFFECT.contains(&(level, name))
}

/// Returns the value as the kernel stores it, or the kernel's error. Returns `None` if `getsockopt`
/// does not know the option.
pub(crate) fn normalized(
    inet6: bool,
    level: i32,
    name: i32,
    value: &[u8],
) -> Result<Option<i32>, Errno> {
    on_new_socket(inet6, |fd| {
        sys::set_socket_option(fd, level, name, value)?;
        Ok(sys::socket_int(fd, level, name).ok())
    })
}

/// Returns the kernel's error for an option that the service does not support. Returns ENOPROTOOPT
/// if the kernel would accept the value.
pub(crate) fn refusal(inet6: bool, level: i32, name: i32, value: &[u8]) -> Errno {
    let set = on_new_socket(inet6, |fd| sys::set_socket_option(fd, level, name, value));
    set.err().unwrap_or(Errno(libc::ENOPROTOOPT))
}

/// Writes the value that an option has on a new kernel socket to `into`. Returns the value's length
/// in bytes.
pub(crate) fn of_new_socket(
    inet6: bool,
    level: i32,
    name: i32,
    into: &mut [u8],
) -> Result<usize, Errno> {
    on_new_socket(inet6, |fd| sys::socket_option(fd, level, name, into))
}

fn on_new_socket<T>(inet6: bool, ask: impl FnOnce(RawFd) -> Result<T, Errno>) -> Result<T, Errno> {
    let fd = sys::tcp_socket(inet6)?;
    let answer = ask(fd);
    let _ = sys::close(fd);
    answer
}
