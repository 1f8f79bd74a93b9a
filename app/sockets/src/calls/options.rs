//! The calls `setsockopt` and `getsockopt`. Accelerated connections are the connections that the
//! service (the process `tidelaned`) carries. This crate records their options, and passes the
//! options that affect TCP to the service.

use std::os::fd::RawFd;

use tidelane_abi::congestion;

use crate::{
    socket::{
        Socket, cc_info::cc_info, groups, kernel_options, listening, option_calls::CONGESTION_LEN,
        option_values::fast_open_key, state::State,
    },
    sys::{self, Handled, TO_KERNEL, fail},
};

/// Options of level IPPROTO_TCP that the service reads from the kernel socket of a listener.
const OF_LISTENER: [i32; 3] = [
    libc::TCP_FASTOPEN,
    libc::TCP_FASTOPEN_NO_COOKIE,
    libc::TCP_FASTOPEN_KEY,
];

/// The bytes of `tcpi_pmtu` in `struct tcp_info`.
const PMTU: std::ops::Range<usize> = 60..64;

/// Carries out `setsockopt`.
pub fn set(socket: &'static Socket, fd: RawFd, level: i32, name: i32, value: &[u8]) -> Handled {
    let mut inner = socket.enter(fd)?;
    match inner.state {
        State::Fresh | State::Listening(_) => {
            // The kernel checks the value, and applies it to connections of its own. `apply`
            // records the value for connections that the service carries.
            if let Err(error) = sys::set_socket_option(fd, level, name, value) {
                return Some(Err(error));
            }
            if inner.apply(socket, level, name, value).is_err() {
                inner.options.kernel_only = true;
            }
            if groups::is_program(level, name) {
                drop(inner);
                groups::leave_to_kernel(fd);
                return Some(Ok(0));
            }
            let again = level == libc::IPPROTO_TCP && OF_LISTENER.contains(&name);
            listening::options_changed(socket, &mut inner, fd, again);
            Some(Ok(0))
        }
        State::Connecting(_)
        | State::Stream(_)
        | State::Failed
        | State::Inherited(_)
        | State::LostByFork => Some(inner.apply(socket, level, name, value).map(|()| 0)),
        State::Free | State::Kernel => TO_KERNEL,
    }
}

/// Carries out `getsockopt`: writes the value to `into` and returns the number of bytes written.
pub fn get(socket: &'static Socket, fd: RawFd, level: i32, name: i32, into: &mut [u8]) -> Handled {
    let mut inner = socket.enter(fd)?;
    if inner.state.is_in_kernel() {
        return TO_KERNEL;
    }
    inner.refresh();
    let room = into.len();
    let mut give = |bytes: &[u8]| {
        let count = bytes.len().min(into.len());
        into[..count].copy_from_slice(&bytes[..count]);
        Some(Ok(count))
    };
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let linger = inner.options.linger;
            let on = i32::from(linger.is_some());
            let seconds = linger.unwrap_or(0) as i32;
            give(&[on.to_ne_bytes(), seconds.to_ne_bytes()].concat())
        }
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => {
            give(&timeval_bytes(inner.options.receive_timeout_ns))
        }
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => {
            give(&timeval_bytes(inner.options.send_timeout_ns))
        }
        (libc::IPPROTO_TCP, libc::TCP_CC_INFO) => {
            let tcp_info = inner.service_tcp_info();
            let (info, len) = tcp_info.as_ref().map_or(([0; 20], 0), cc_info);
            give(&info[..len])
        }
        (libc::IPPROTO_TCP, libc::TCP_INFO) => give(&inner.tcp_info()),
        (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => {
            let rate = inner.options.pacing_rate_max();
            if room >= size_of::<u64>() {
                return give(&rate.to_ne_bytes());
            }
            give(&u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes())
        }
        (libc::SOL_SOCKET, libc::SO_COOKIE) => {
            let own = socket.cookie(inner.generation);
            give(&own.to_ne_bytes())
        }
        (libc::IPPROTO_IP, libc::IP_MTU) => give(&inner.tcp_info()[PMTU]),
        (libc::IPPROTO_IPV6, libc::IPV6_MTU) if inner.inet6 => give(&inner.tcp_info()[PMTU]),
        (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_KEY) => Some(fast_open_key(into)),
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => match inner.congestion() {
            Some(number) => give(&congestion_name(number)),
            None => TO_KERNEL,
        },
        (libc::IPPROTO_IPV6, _) if !inner.inet6 => fail(libc::EOPNOTSUPP),
        _ => match inner.int_option(level, name) {
            Some(value) => give(&value.to_ne_bytes()),
            None => Some(kernel_options::of_new_socket(
                inner.inet6,
                level,
                name,
                into,
            )),
        },
    }
}

fn congestion_name(number: u16) -> [u8; CONGESTION_LEN] {
    let name: &[u8] = match number {
        congestion::RENO => b"reno",
        congestion::DCTCP => b"dctcp",
        congestion::BBR => b"bbr",
        _ => b"cubic",
    };
    let mut bytes = [0; CONGESTION_LEN];
    bytes[..name.len()].copy_from_slice(name);
    bytes
}

fn timeval_bytes(ns: Option<u64>) -> [u8; 16] {
    let ns = ns.unwrap_or(0);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&(ns / 1_000_000_000).to_ne_bytes());
    bytes[8..].copy_from_slice(&(ns % 1_000_000_000 / 1_000).to_ne_bytes());
    bytes
}
