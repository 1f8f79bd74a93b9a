//! Conversion of registration messages from and to bytes. A program and the service (process
//! `tidelaned`) exchange these messages over a unix socket.

use tidelane_abi::{ABI_VERSION, MESSAGE_MAGIC, Message};

/// Length of a message in bytes.
pub const MESSAGE_LEN: usize = size_of::<Message>();

/// Returns a message of kind `kind` with the magic number and our ABI version. All other fields are
/// zero.
pub fn new_message(kind: u32) -> Message {
    let mut message = from_bytes(&[0; MESSAGE_LEN]);
    message.magic = MESSAGE_MAGIC;
    message.abi_version = ABI_VERSION;
    message.kind = kind;
    message
}

/// Returns the bytes of a message.
pub fn to_bytes(message: &Message) -> [u8; MESSAGE_LEN] {
    // SAFETY: `Message` is repr(C) and consists of integers. Its size, which the crate
    // `tidelane-abi` asserts, is the sum of the sizes of its fields. A message therefore has no
    // padding, and all its bytes are initialised.
    unsafe { std::mem::transmute::<Message, [u8; MESSAGE_LEN]>(*message) }
}

/// Converts bytes to a message without validation.
pub fn from_bytes(bytes: &[u8; MESSAGE_LEN]) -> Message {
    // SAFETY: `Message` is repr(C) and consists of integers, so every bit pattern is valid.
    unsafe { std::mem::transmute::<[u8; MESSAGE_LEN], Message>(*bytes) }
}
