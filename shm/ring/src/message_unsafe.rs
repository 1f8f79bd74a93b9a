//! Registration messages as bytes.

use tidelane_abi::{ABI_VERSION, MESSAGE_MAGIC, Message};

/// Length of a message in bytes.
pub const MESSAGE_LEN: usize = size_of::<Message>();

/// Returns a message of this kind, with all else zero.
pub fn new_message(kind: u32) -> Message {
    let mut message = from_bytes(&[0; MESSAGE_LEN]);
    message.magic = MESSAGE_MAGIC;
    message.abi_version = ABI_VERSION;
    message.kind = kind;
    message
}

/// Returns the bytes of a message.
pub fn to_bytes(message: &Message) -> [u8; MESSAGE_LEN] {
    // SAFETY: `Message` is repr(C), of integers only, and its size (asserted in the ABI) is the sum
    // of its fields' sizes, so it has no padding: all its bytes are initialised.
    unsafe { std::mem::transmute::<Message, [u8; MESSAGE_LEN]>(*message) }
}

/// Converts bytes to a message without validation.
pub fn from_bytes(bytes: &[u8; MESSAGE_LEN]) -> Message {
    // SAFETY: every bit pattern is a `Message`: it is repr(C) and of integers only.
    unsafe { std::mem::transmute::<[u8; MESSAGE_LEN], Message>(*bytes) }
}
