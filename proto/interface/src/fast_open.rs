//! Policy for Fast Open (RFC 7413).

/// Use of Fast Open by all connections of an engine: the bits of Linux's `tcp_fastopen` that are
/// supported.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FastOpenPolicy {
    /// 0x1: active opens may request a cookie, and send data with a cookie.
    pub client: bool,
    /// 0x2: listeners with a limit of pending requests grant cookies, and accept data in a SYN with
    /// a valid cookie.
    pub server: bool,
    /// 0x4: active opens send data without a cookie, if `client` is set.
    pub client_without_cookie: bool,
    /// 0x200: listeners accept data without a cookie, if `server` is set.
    pub server_without_cookie: bool,
    /// 0x400: a new listener's limit of pending requests is its backlog, unless the application
    /// sets a limit. The bit has no effect without `server`.
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
    /// Returns Linux's default: an active open uses Fast Open if the application requests this.
    fn default() -> Self {
        Self::from_bits(1)
    }
}
