//! Writes an initial RAM file system in the cpio format `newc`, which the kernel's
//! `Documentation/driver-api/early-userspace/buffer-format.rst` describes.

/// Mode bits of a regular file (`S_IFREG`).
const REGULAR: u32 = 0o100_000;
/// Mode bits of a directory (`S_IFDIR`).
const DIRECTORY: u32 = 0o040_000;
/// The name of the entry that ends an archive.
const TRAILER: &str = "TRAILER!!!";

/// An archive to which files are added.
#[derive(Debug, Default)]
pub struct Archive {
    /// The archive so far.
    bytes: Vec<u8>,
    /// Number of entries so far. An entry's inode number is its number in the archive.
    entries: u32,
}

impl Archive {
    /// Adds a directory. The parent directory must have been added before.
    pub fn directory(&mut self, name: &str) {
        self.entry(name, DIRECTORY | 0o755, &[]);
    }

    /// Adds a file with mode 0755.
    pub fn file(&mut self, name: &str, data: &[u8]) {
        self.entry(name, REGULAR | 0o755, data);
    }

    /// Ends the archive and returns its bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.entries += 1;
        // The name ends with a zero byte.
        let name_len = name.len() as u32 + 1;
        // Inode, mode, user, group, links, time, size, four device numbers, name length, checksum.
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            data.len() as u32,
            0,
            0,
            0,
            0,
            name_len,
            0,
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(data);
        self.pad();
    }

    /// Pads the archive to a multiple of four bytes. Headers and data must be aligned to four
    /// bytes.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_the_layout_of_newc() {
        let mut archive = Archive::default();
        archive.directory("bin");
        archive.file("bin/a", b"hello");
        let bytes = archive.finish();
        let text = String::from_utf8(bytes).expect("text");
        assert_eq!(text.len() % 4, 0);
        assert_eq!(text.matches("070701").count(), 3);
        let file = text.find("bin/a\0").expect("the file");
        // The name ends at a multiple of four, and the data follows.
        assert_eq!(&text[(file + 6).next_multiple_of(4)..][..5], "hello");
        let header = &text[file - 110..file];
        assert_eq!(&header[14..22], "000081ed");
        assert_eq!(&header[54..62], "00000005");
    }
}
