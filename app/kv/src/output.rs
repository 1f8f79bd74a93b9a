//! Where a session writes its answers.

/// Room that a command needs before it is executed. Every answer besides values fits.
pub const COMMAND_ROOM: usize = 8192;
/// Room that one key of a `get` needs, besides its value.
pub const KEY_ROOM: usize = 512;

/// Buffers for the answers to one client.
pub trait Output {
    /// Returns the number of bytes for which there is room.
    fn room(&self) -> usize;

    /// Appends bytes. The caller has checked that there is room.
    fn write(&mut self, bytes: &[u8]);

    /// Appends a line.
    fn line(&mut self, text: &str) {
        self.write(text.as_bytes());
        self.write(b"\r\n");
    }
}

/// Unlimited room.
impl Output for Vec<u8> {
    fn room(&self) -> usize {
        usize::MAX
    }

    fn write(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
