//! Who may use Fast Open (RFC 7413).

/// The bits of Linux' `tcp_fastopen`, as far as they mean something here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FastOpenPolicy {
    /// 0x1: SYNs of ours may ask for a cookie, and carry text with one.
    pub client: bool,
    /// 0x2: listeners that were given places for it take text with a SYN.
    pub server: bool,
    /// 0x4: SYNs of ours carry text without a cookie.
    pub client_without_cookie: bool,
    /// 0x200: listeners ask for no cookie.
    pub server_without_cookie: bool,
    /// 0x400: a listener has as many places for it as its backlog, unless it is given others.
    pub every_listener: bool,
}

impl FastOpenPolicy {
    /// What Linux' sysctl `net.ipv4.tcp_fastopen` says with this value.
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
    /// Linux': clients may, if a program asks for it.
    fn default() -> Self {
        Self::from_bits(1)
    }
}
