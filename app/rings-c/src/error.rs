//! Errors of the C functions: an errno, and a text with the reason and usually a remedy.

use std::{borrow::Cow, cell::RefCell, io};

thread_local! {
    /// The error of the most recent failed call of this thread.
    static LAST: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// The error of a failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The errno, which is positive.
    errno: i32,
    /// The reason, and usually a remedy.
    text: Cow<'static, str>,
}

/// Returns an error with a fixed text.
const fn fixed(errno: i32, text: &'static str) -> Error {
    Error {
        errno,
        text: Cow::Borrowed(text),
    }
}

impl Error {
    pub const CONTEXT: Self = fixed(
        libc::EBADF,
        "the handle is no open context; open one with tlr_open_context",
    );
    pub const THREAD: Self = fixed(
        libc::EPERM,
        "another thread, or the parent process, has opened the context; open one for each",
    );
    pub const INTERRUPTED_CALL: Self = fixed(
        libc::EBUSY,
        "a signal handler has interrupted another call; set a flag, and call later",
    );
    pub const CONTEXTS: Self = fixed(
        libc::EMFILE,
        "no further context can be numbered; start another process",
    );
    pub const POINTER: Self = fixed(libc::EFAULT, "a pointer is null");
    pub const RESERVED: Self = fixed(
        libc::EINVAL,
        "a reserved field is not zero; initialize the whole structure",
    );
    pub const BACK_END: Self = fixed(
        libc::EOPNOTSUPP,
        "the back end is unknown; use a value of enum tlr_back_end",
    );
    pub const FOREIGN_OPTION: Self = fixed(
        libc::EINVAL,
        "an option is set that the back end does not have; man tlr_open_context lists the options",
    );
    pub const NO_INTERFACE: Self = fixed(
        libc::EINVAL,
        "TLR_DIRECT needs the option interface; `ip -brief link` lists the interfaces",
    );
    pub const NOT_STEERED: Self = fixed(
        libc::EINVAL,
        "a queue other than 0 needs the flag TLR_STEERED, and `ethtool -N` has to send the \
         program's ports to the queue",
    );
    pub const FLAGS: Self = fixed(
        libc::EINVAL,
        "a flag is unknown; use values of enum tlr_flag",
    );
    pub const NAME: Self = fixed(libc::EINVAL, "a name is not UTF-8");
    pub const ADDRESS: Self = fixed(
        libc::EINVAL,
        "the length does not fit the family of the address",
    );
    pub const FAMILY: Self = fixed(
        libc::EAFNOSUPPORT,
        "the address is neither IPv4 (AF_INET) nor IPv6 (AF_INET6)",
    );
    pub const DESCRIPTOR: Self = fixed(libc::ENOTSOCK, "the descriptor is not open in the context");
    pub const NO_SOCKET: Self = fixed(
        libc::EOPNOTSUPP,
        "the kernel has no socket of the descriptor, because another TCP/IP stack carries it",
    );
    pub const NOT_CONNECTED: Self = fixed(
        libc::ENOTCONN,
        "the descriptor is no open connection, or its sending direction is closed",
    );
    pub const NO_UDP_SOCKET: Self = fixed(
        libc::ENOTCONN,
        "the descriptor is no open UDP socket; tlr_bind opens one, and tlr_send sends on a \
         connection",
    );
    pub const TOO_LONG: Self = fixed(
        libc::EMSGSIZE,
        "the payload is longer than the back end can send in a UDP datagram; send less",
    );
    pub const NO_DATAGRAM: Self = fixed(
        libc::EOPNOTSUPP,
        "the slot has data of a connection instead of a datagram; on TLR_IO_URING, getpeername of \
         tlr_socket returns the peer of the connection",
    );
    pub const FULL: Self = fixed(
        libc::EAGAIN,
        "the descriptor has no room for another buffer; wait for TLR_WRITABLE",
    );
    pub const ENTRY: Self = fixed(libc::ENOENT, "the ready list has no such entry or slot");
    pub const NO_BUFFER: Self = fixed(
        libc::ENOBUFS,
        "all buffers have owners; release some, or call tlr_sync, which returns those that were \
         sent",
    );
    pub const TOO_MANY_HELD: Self = fixed(
        libc::ENOBUFS,
        "the program holds too many buffers; release or send some, and call again",
    );
    pub const NO_SUCH_BUFFER: Self = fixed(
        libc::EINVAL,
        "the number is not that of a buffer; it may be the error that a failed call returned",
    );
    pub const BUFFER_GONE: Self = fixed(
        libc::ESTALE,
        "the program has sent or released the buffer, or has called a sync without tlr_hold for \
         the buffer",
    );
    pub const LENGTH: Self = fixed(
        libc::EMSGSIZE,
        "the payload would end beyond the buffer; tlr_capacity returns the room",
    );

    /// Returns the errno, which is positive.
    pub fn errno(&self) -> i32 {
        self.errno
    }

    /// Stores the error for [`last_text`]. Returns the result for C: the negative errno.
    pub fn report(self) -> i32 {
        let code = -self.errno;
        // If this call comes from a signal handler that has interrupted `report` or `last_text`,
        // the borrow fails, and the error is not stored.
        let _ = LAST.try_with(|last| last.try_borrow_mut().map(|mut last| *last = Some(self)));
        code
    }
}

/// Calls a function with the text of the most recent failed call of this thread. The text is empty
/// if no call has failed. Returns an error if the caller is a signal handler that has interrupted
/// [`Error::report`], or if the thread is about to end.
pub fn last_text<R>(call: impl FnOnce(&str) -> R) -> Result<R, Error> {
    LAST.try_with(|last| {
        let last = last.try_borrow().map_err(|_| Error::INTERRUPTED_CALL)?;
        Ok(call(last.as_ref().map_or("", |error| &error.text)))
    })
    .unwrap_or(Err(Error::CONTEXT))
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        let errno = match (error.raw_os_error(), error.kind()) {
            (Some(errno), _) => errno,
            (None, io::ErrorKind::Unsupported) => libc::ENOSYS,
            (None, io::ErrorKind::InvalidInput) => libc::EINVAL,
            (None, io::ErrorKind::OutOfMemory) => libc::ENOMEM,
            (None, io::ErrorKind::NotFound) => libc::ENOENT,
            (None, io::ErrorKind::PermissionDenied) => libc::EACCES,
            (None, io::ErrorKind::ResourceBusy) => libc::EADDRINUSE,
            (None, io::ErrorKind::AddrInUse) => libc::EADDRINUSE,
            (None, io::ErrorKind::AddrNotAvailable) => libc::EADDRNOTAVAIL,
            (None, io::ErrorKind::QuotaExceeded) => libc::EDQUOT,
            (None, io::ErrorKind::HostUnreachable) => libc::EHOSTUNREACH,
            (None, io::ErrorKind::NetworkUnreachable) => libc::ENETUNREACH,
            (None, io::ErrorKind::NetworkDown) => libc::ENETDOWN,
            (None, io::ErrorKind::ConnectionAborted) => libc::ECONNABORTED,
            (None, _) => libc::EIO,
        };
        Self {
            errno,
            text: Cow::Owned(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_kernel_keep_their_numbers() {
        let error = Error::from(io::Error::from_raw_os_error(libc::EADDRINUSE));
        assert_eq!(error.errno(), libc::EADDRINUSE);
        let error = Error::from(io::Error::new(io::ErrorKind::Unsupported, "an old kernel"));
        assert_eq!(error.errno(), libc::ENOSYS);
        assert_eq!(error.report(), -libc::ENOSYS);
        assert_eq!(last_text(str::to_owned).as_deref(), Ok("an old kernel"));
    }

    #[test]
    fn each_thread_has_its_own_text() {
        assert_eq!(Error::FULL.report(), -libc::EAGAIN);
        let other = std::thread::spawn(|| last_text(str::len)).join();
        assert_eq!(other.expect("no panic"), Ok(0));
        let found = last_text(|text| text.contains("TLR_WRITABLE"));
        assert_eq!(found, Ok(true));
    }
}
