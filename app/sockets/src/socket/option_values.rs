//! The values of socket options: this module converts the program's value to the value that Linux
//! stores, or to the error that Linux returns. The service (the process `tidelaned`) gets the
//! options that affect its connections.

use super::kernel_options;
use crate::sys::{self, Errno};

/// Integer options (level and name) whose values this crate records, so that `getsockopt` returns
/// them. The values of options that are also in [`FORWARDED`] go to the service, too.
pub(crate) const RECORDED: [(i32, i32); 31] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_RCVBUF),
    (libc::SOL_SOCKET, libc::SO_SNDBUF),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2),
    (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP),
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_NO_COOKIE),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IP, libc::IP_TTL),
    (libc::IPPROTO_IP, libc::IP_RECVERR),
    (libc::IPPROTO_IP, libc::IP_RECVTOS),
    (libc::IPPROTO_IP, libc::IP_RECVTTL),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
];
/// Options (level and name) whose values go to the service, because they affect a connection's TCP.
pub(crate) const FORWARDED: [(i32, i32); 18] = [
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG),
    (libc::IPPROTO_TCP, libc::TCP_CONGESTION),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
    (libc::SOL_SOCKET, libc::SO_RCVBUF),
    (libc::SOL_SOCKET, libc::SO_SNDBUF),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IP, libc::IP_TTL),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
];

/// The kernel's default of TCP_LINGER2 in seconds.
pub(crate) const LINGER2_DEFAULT: i32 = 60;
/// The kernel's default of the TTL and of the hop limit.
pub(crate) const TTL_DEFAULT: i32 = 64;
/// Value of SO_MAX_PACING_RATE for "no limit", in bytes per second.
pub(crate) const PACING_NONE: u64 = u64::MAX;
/// Largest TCP_LINGER2 in seconds (Linux' TCP_FIN_TIMEOUT_MAX).
const LINGER2_MAX: i32 = 120;
/// Smallest TCP_WINDOW_CLAMP in bytes: half of Linux' SOCK_MIN_RCVBUF.
const CLAMP_MIN: i32 = 1152;
/// The bits of IP_TOS and IPV6_TCLASS that the program may set: the DSCP. The two lowest bits are
/// the ECN field, which belongs to TCP.
const DSCP: i32 = 0xfc;
/// Initial retransmission timeout of the SYN,ACK in seconds. The timeouts double, and
/// TCP_DEFER_ACCEPT is stored as a number of timeouts ([`defer_timeouts`]).
const SYN_ACK_RTO_S: u32 = 1;
/// Largest retransmission timeout of the SYN,ACK in seconds.
const SYN_ACK_RTO_S_MAX: u32 = 120;

/// The properties of a socket on which the validity of an option depends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketKind {
    /// True if the socket is of family AF_INET6.
    pub(crate) inet6: bool,
    /// True if the socket is connected or connecting.
    pub(crate) connected: bool,
}

/// Returns the value as the kernel stores it, or the kernel's error.
pub(crate) fn normalized(
    level: i32,
    name: i32,
    value: &[u8],
    kind: SocketKind,
) -> Result<i32, Errno> {
    let invalid = Errno(libc::EINVAL);
    let number = match (level, value) {
        (libc::IPPROTO_IPV6, _) if !kind.inet6 => return Err(Errno(libc::ENOPROTOOPT)),
        (libc::IPPROTO_IP, [byte] | [byte, _] | [byte, _, _]) => i32::from(*byte),
        _ => int_at(value, 0)?,
    };
    let within = |range: std::ops::RangeInclusive<i32>| {
        range.contains(&number).then_some(number).ok_or(invalid)
    };
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF | libc::SO_RCVLOWAT) => {
            // Ask the kernel, because the result depends on sysctls.
            let normalized = kernel_options::normalized(false, level, name, &number.to_ne_bytes())?;
            Ok(normalized.unwrap_or(number))
        }
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL) => within(1..=32_767),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_SYNCNT) => within(1..=127),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => within(0..=i32::MAX),
        (libc::IPPROTO_TCP, libc::TCP_FASTOPEN) => match kind.connected {
            true => Err(invalid),
            false => within(0..=i32::MAX),
        },
        (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) if kind.connected => {
            within(0..=1)?;
            match client_fast_open_enabled() {
                true => Err(invalid),
                false => Err(Errno(libc::EOPNOTSUPP)),
            }
        }
        (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_NO_COOKIE) if kind.connected => Err(invalid),
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) if number != 0 => within(88..=32_767),
        (libc::IPPROTO_TCP, libc::TCP_LINGER2) => Ok(number.clamp(-1, LINGER2_MAX)),
        (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => {
            Ok(timeouts_as_seconds(defer_timeouts(number)) as i32)
        }
        (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) if number == 0 && kind.connected => {
            Err(invalid)
        }
        (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) if number != 0 => Ok(number.max(CLAMP_MIN)),
        (libc::IPPROTO_IP, libc::IP_TOS) => Ok(number & DSCP),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE)
        | (libc::IPPROTO_IP, libc::IP_RECVERR | libc::IP_RECVTOS | libc::IP_RECVTTL)
        | (
            libc::IPPROTO_IPV6,
            libc::IPV6_RECVERR | libc::IPV6_RECVTCLASS | libc::IPV6_RECVHOPLIMIT,
        ) => Ok(i32::from(number != 0)),
        (libc::IPPROTO_IP, libc::IP_TTL) if number != -1 => within(1..=255),
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => Ok(within(-1..=255)?.max(0) & DSCP),
        (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => within(-1..=255),
        _ => Ok(number),
    }
}

/// Returns the kernel's default of an option. `level` and `name` must be those of IP_TTL. A sysctl
/// can change the default, so this function asks the kernel with a temporary IPv4 socket. Returns
/// [`TTL_DEFAULT`] if the kernel does not answer.
pub(crate) fn kernel_default(level: i32, name: i32) -> i32 {
    let Ok(fd) = sys::tcp_socket(false) else {
        return TTL_DEFAULT;
    };
    let number = sys::socket_int(fd, level, name);
    let _ = sys::close(fd);
    number.unwrap_or(TTL_DEFAULT)
}

/// Returns true if the sysctl `tcp_fastopen` lets clients use TCP Fast Open. Asks the kernel with a
/// temporary socket.
pub(crate) fn client_fast_open_enabled() -> bool {
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT);
    let Ok(fd) = sys::tcp_socket(false) else {
        return false;
    };
    let set = sys::set_socket_option(fd, level, name, &1i32.to_ne_bytes());
    let _ = sys::close(fd);
    set.is_ok()
}

/// Writes the TCP_FASTOPEN_KEY of a connection to `into`, and returns the length in bytes. Only a
/// listener has a key of its own. For a connection, Linux returns the key of the network namespace.
pub(crate) fn fast_open_key(into: &mut [u8]) -> Result<usize, Errno> {
    let fd = sys::tcp_socket(false)?;
    let len = sys::socket_option(fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN_KEY, into);
    let _ = sys::close(fd);
    len
}

/// Reads a value of SO_MAX_PACING_RATE. The value has 64 bits, or 32 bits. All ones mean no limit.
pub(crate) fn rate_of(value: &[u8]) -> Result<u64, Errno> {
    if let Some(bytes) = value.first_chunk() {
        return Ok(u64::from_ne_bytes(*bytes));
    }
    Ok(match int_at(value, 0)? as u32 {
        u32::MAX => PACING_NONE,
        rate => rate.into(),
    })
}

/// Returns the C `int` at byte `at` of an option's value, or EINVAL if the value is too short.
pub(crate) fn int_at(value: &[u8], at: usize) -> Result<i32, Errno> {
    let bytes = value
        .get(at..at + 4)
        .and_then(|bytes| bytes.try_into().ok());
    bytes.map(i32::from_ne_bytes).ok_or(Errno(libc::EINVAL))
}

/// Converts TCP_DEFER_ACCEPT from seconds to a number of SYN,ACK timeouts, rounded up as in Linux.
/// Each timeout is twice as long as its predecessor, up to [`SYN_ACK_RTO_S_MAX`].
pub(crate) fn defer_timeouts(seconds: i32) -> u8 {
    (0..=u8::MAX)
        .find(|count| i64::from(timeouts_as_seconds(*count)) >= i64::from(seconds))
        .unwrap_or(u8::MAX)
}

/// Returns the total duration of the first `count` SYN,ACK timeouts in seconds.
fn timeouts_as_seconds(count: u8) -> u32 {
    let timeout = |nth: u8| SYN_ACK_RTO_S.saturating_mul(1 << nth.min(31));
    (0..count)
        .map(|nth| timeout(nth).min(SYN_ACK_RTO_S_MAX))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: SocketKind = SocketKind {
        inet6: false,
        connected: true,
    };

    #[test]
    fn seconds_to_defer_are_rounded_up_to_timeouts() {
        let rounded = |seconds| timeouts_as_seconds(defer_timeouts(seconds));
        let seen: Vec<_> = [-1, 0, 1, 2, 3, 4, 10, 127, 128].map(rounded).into();
        assert_eq!(seen, [0, 0, 1, 3, 3, 7, 15, 127, 247]);
        assert_eq!(defer_timeouts(i32::MAX), 255);
    }

    #[test]
    fn only_ip_options_accept_single_bytes() {
        let tos = (libc::IPPROTO_IP, libc::IP_TOS);
        assert_eq!(normalized(tos.0, tos.1, &[0xbb], KIND), Ok(0xb8));
        let count = normalized(libc::IPPROTO_TCP, libc::TCP_SYNCNT, &[3], KIND);
        assert_eq!(count, Err(Errno(libc::EINVAL)));
        // A socket of family AF_INET refuses an option of IPv6, even if the value has four bytes.
        let class = (libc::IPPROTO_IPV6, libc::IPV6_TCLASS);
        let refused = normalized(class.0, class.1, &[1, 0, 0, 0], KIND);
        assert_eq!(refused, Err(Errno(libc::ENOPROTOOPT)));
    }
}
