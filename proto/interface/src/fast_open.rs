//! Policy for Fast Open (RFC 7413).

/// Use of Fast Open by all connections of an engine: the supported bits of Linux's `tcp_fastopen`.
/// A request is pending at a listener if the application already has the connection, but the
/// handshake is not complete.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FastOpenPolicy {
    /// 0x1: active opens may request a cookie, and send data with a cookie.
    pub client: bool,
    /// 0x2: a listener grants cookies, and accepts data in a SYN with a valid cookie, if the
    /// listener has a limit of pending requests.
    pub server: bool,
    /// 0x4: if `client` is set, active opens send data without a cookie.
    pub client_without_cookie: bool,
    /// 0x200: if `server` is set, listeners accept data without a cookie.
    pub server_without_cookie: bool,
    /// 0x400: if `server` is set, the limit of pending requests of a new listener is the listener's
    /// backlog, until the application sets another limit.
    pub every_listener: bool,
}

impl FastOpenPolicy {
    /// Returns the policy for a value of the sysctl `net.ipv4.tcp_fastopen`.
    pub const fn from_bits(bits: u32) -> Self {
        Self {
            client: bits & 0x1 != 0,
            server: bits & 0x2 != 0,
            client_without_cookie: bits & 0x4 != 0,
            server_without_cookie: bits & 0x200 != 0,
            every_listener: bits & 0x400 != 0,
        }
    }
}

impl Default for FastOpenPolicy {
    /// Returns Linux's default: an active open uses Fast Open if the application requests Fast
    /// Open.
    fn default() -> Self {
        Self::from_bits(1)
    }
}
