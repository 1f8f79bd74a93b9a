//! Opens a context (the sockets of one thread, on the kernel's TCP through io_uring) for a test.

use std::io::ErrorKind;

use tidelane_kernel::{KernelContext, KernelOptions};

/// Opens a context. If the system forbids io_uring, or if the kernel lacks a required feature of
/// io_uring, prints a message and returns `None`.
pub fn open(options: &KernelOptions) -> Option<KernelContext> {
    match KernelContext::open(options) {
        Ok(context) => Some(context),
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::PermissionDenied | ErrorKind::Unsupported
            ) =>
        {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
