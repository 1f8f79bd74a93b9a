//! Waits, with a time limit, for the kernel's answers on a netlink socket.

use std::{io, os::fd::AsFd, time::Duration};

use rustix::{
    io::Errno,
    net::{
        RecvFlags, recv,
        sockopt::{Timeout, set_socket_timeout},
    },
};

/// Longest wait for a part of an answer. The kernel usually answers before `send` returns.
pub(crate) const ANSWER_WAIT_MAX: Duration = Duration::from_secs(2);

/// Limits each wait in [`receive_answer`] and [`receive_part`] to `wait_max`.
pub(crate) fn limit_wait(socket: impl AsFd, wait_max: Duration) -> io::Result<()> {
    Ok(set_socket_timeout(socket, Timeout::Recv, Some(wait_max))?)
}

/// Reads the next part of an answer. Returns the length of the part in bytes.
///
/// # Errors
///
/// The errors of [`receive_part`].
pub(crate) fn receive_answer(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    receive_part(socket, buffer).map(|(len, _)| len)
}

/// Reads the next part of an answer. Returns the number of bytes in `buffer`, and the length of the
/// part, which is larger if the part does not fit into `buffer`.
///
/// # Errors
///
/// `TimedOut` if no part arrives within the time that [`limit_wait`] has set for the socket.
pub(crate) fn receive_part(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, usize)> {
    loop {
        match recv(&socket, &mut *buffer, RecvFlags::TRUNC) {
            Ok(lengths) => return Ok(lengths),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let text = "the kernel did not answer a netlink request in time";
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            Err(error) => return Err(error.into()),
        }
    }
}
