//! [`Output`]: the destination to which a session (the protocol state of one client) writes its
//! answers.

/// Room in bytes that a session requires before the execution of a command. Every answer fits into
/// this room, except the value of an item.
pub const COMMAND_ROOM: usize = 8192;
/// Room in bytes for the answer to one key of a `get`, without the value.
pub const KEY_ROOM: usize = 512;

/// Destination of the answers to one client, with limited room.
pub trait Output {
    /// Returns the number of bytes that can be written now.
    fn room(&self) -> usize;

    /// Appends bytes. The caller has checked [`Self::room`].
    fn write(&mut self, bytes: &[u8]);

    /// Appends `text` and a CRLF.
    fn line(&mut self, text: &str) {
        self.write(text.as_bytes());
        self.write(b"\r\n");
    }
}

/// A vector has unlimited room. Tests use vectors as outputs.
impl Output for Vec<u8> {
    fn room(&self) -> usize {
        usize::MAX
    }

    fn write(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
