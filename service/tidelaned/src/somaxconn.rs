//! The longest accept queue that the administrator allows (net.core.somaxconn).

use std::{fs::File, os::unix::fs::FileExt};

/// Linux's initial value.
const DEFAULT: u32 = 4096;

/// The setting of the network namespace in which it was opened, as it is now.
#[derive(Debug)]
pub struct SomaxConn(Option<File>);

impl SomaxConn {
    /// The value of the calling thread's namespace.
    pub fn open() -> Self {
        Self(File::open("/proc/sys/net/core/somaxconn").ok())
    }

    /// The backlog that `listen` gets for the one that it asks for, as from the kernel.
    pub fn clamp(&self, backlog: u32) -> u32 {
        backlog.min(self.read().unwrap_or(DEFAULT))
    }

    fn read(&self) -> Option<u32> {
        let mut text = [0; 16];
        let len = self.0.as_ref()?.read_at(&mut text, 0).ok()?;
        str::from_utf8(text.get(..len)?).ok()?.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_kernel_s() {
        let text = std::fs::read_to_string("/proc/sys/net/core/somaxconn").expect("a setting");
        let limit: u32 = text.trim().parse().expect("a number");
        let setting = SomaxConn::open();
        for _ in 0..2 {
            assert_eq!(setting.clamp(u32::MAX), limit);
            assert_eq!(setting.clamp(1), 1.min(limit));
        }
        assert_eq!(SomaxConn(None).clamp(u32::MAX), DEFAULT);
    }
}
