//! The administrator's limit for the length of accept queues (`net.core.somaxconn`).

use crate::sysctl::Sysctl;

/// The setting's default in Linux, for a setting that cannot be read.
const DEFAULT: u32 = 4096;

/// The open file of `net.core.somaxconn`, for the network namespace in which it was opened. Each
/// use reads the current value.
#[derive(Debug)]
pub struct SomaxConn(Sysctl);

impl SomaxConn {
    /// Opens the setting of the calling thread's network namespace.
    pub fn open() -> Self {
        Self(Sysctl::open("/proc/sys/net/core/somaxconn"))
    }

    /// Returns the effective backlog of a `listen`: `backlog`, but at most the setting, as in the
    /// kernel.
    pub fn clamp(&self, backlog: u32) -> u32 {
        let limit = self.0.read(|text| text.parse().ok());
        backlog.min(limit.unwrap_or(DEFAULT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_kernels_somaxconn() {
        let text = std::fs::read_to_string("/proc/sys/net/core/somaxconn").expect("a setting");
        let limit: u32 = text.trim().parse().expect("a number");
        let setting = SomaxConn::open();
        for _ in 0..2 {
            assert_eq!(setting.clamp(u32::MAX), limit);
            assert_eq!(setting.clamp(1), 1.min(limit));
        }
        let unknown = SomaxConn(Sysctl::open("/proc/sys/no/such"));
        assert_eq!(unknown.clamp(u32::MAX), DEFAULT);
    }
}
