//! Registration messages as bytes.

use tidelane_abi::{ABI_VERSION, MESSAGE_MAGIC, Message};

/// Bytes of a message.
pub const MESSAGE_LEN: usize = size_of::<Message>();

/// A message of this kind, everything else zero.
pub fn new_message(kind: u32) -> Message {
    let mut message = from_bytes(&[0; MESSAGE_LEN]);
    message.magic = MESSAGE_MAGIC;
    message.abi_version = ABI_VERSION;
    message.kind = kind;
    message
}

/// The message's bytes.
pub fn to_bytes(message: &Message) -> [u8; MESSAGE_LEN] {
    // SAFETY: `Message` is repr(C), of integers only, and its size (asserted in the ABI) is the sum
    // of its fields' sizes, so it has no padding: all its bytes are initialised.
    unsafe { std::mem::transmute::<Message, [u8; MESSAGE_LEN]>(*message) }
}

/// The message that these bytes are. Nothing is validated.
pub fn from_bytes(bytes: &[u8; MESSAGE_LEN]) -> Message {
    // SAFETY: every bit pattern is a `Message`: it is repr(C) and of integers only.
    unsafe { std::mem::transmute::<[u8; MESSAGE_LEN], Message>(*bytes) }
}
