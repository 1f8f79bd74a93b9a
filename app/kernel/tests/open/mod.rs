//! Opens a context for a test.

use std::io::ErrorKind;

use tidelane_kernel::{KernelContext, KernelOptions};

/// Opens a context. Prints a message and returns `None` if the system forbids io_uring or does not
/// support the required io_uring.
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
