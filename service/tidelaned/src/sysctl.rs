//! A setting of the kernel, in a file of `/proc/sys` that stays open: what is read of it at each
//! registration costs one call, not the five of opening the file anew.

use std::{fs::File, os::unix::fs::FileExt};

/// The longest text of a setting that is read: a list of all congestion controls.
const TEXT_MAX: usize = 4096;

/// A setting of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Sysctl(Option<File>);

impl Sysctl {
    /// The setting of the calling thread's namespace in the file `path`.
    pub fn open(path: &str) -> Self {
        Self(File::open(path).ok())
    }

    /// Reads the setting as it is now, and parses its text with `read`. `None` if the text cannot
    /// be read.
    pub fn read<T>(&self, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let mut text = [0; TEXT_MAX];
        let len = self.0.as_ref()?.read_at(&mut text, 0).ok()?;
        read(str::from_utf8(text.get(..len)?).ok()?.trim())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_anew_each_time() {
        let path = "/proc/sys/net/ipv4/tcp_fastopen";
        let text = std::fs::read_to_string(path).expect("a setting");
        let setting = Sysctl::open(path);
        for _ in 0..2 {
            let read = setting.read(|now| Some(now == text.trim()));
            assert_eq!(read, Some(true));
        }
        assert_eq!(Sysctl::open("/proc/sys/no/such").read(|_| Some(())), None);
    }
}
