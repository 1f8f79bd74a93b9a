//! Calls that end a connection, a listener or an active open, and leave the descriptor open:
//! `shutdown`, and `connect` to an address of the family AF_UNSPEC.
//!
//! A listener listens in two stacks: in the service (the process `tidelaned`) and in the kernel.

use std::os::fd::RawFd;

use crate::{
    readiness::wake,
    socket::{
        Inner, Socket,
        listening::{restore_blocking, suspend},
        state::State,
    },
    sys::{self, Errno, Guard, Handled, Section, TO_KERNEL, fail},
};

/// Carries out `connect` to an address of the family AF_UNSPEC, which ends a listener or an active
/// open. Fails with EOPNOTSUPP if the service carries an established connection.
pub fn disconnect(socket: &'static Socket, fd: RawFd) -> Handled {
    let _section = Section::enter();
    let mut inner = socket.enter(fd)?;
    inner.refresh();
    match inner.state {
        State::Listening(_) => {
            let result = shut_listener_down(socket, inner, fd, libc::SHUT_RD);
            // If another process has already shut the socket down (ENOTCONN), the call succeeds.
            let is_down = matches!(result, Ok(_) | Err(Errno(libc::ENOTCONN)));
            Some(if is_down { Ok(0) } else { result })
        }
        State::Connecting(_) => {
            inner.fail_connect(tidelane_abi::close_cause::RESET);
            inner.error = 0;
            inner.connect_pending = false;
            Some(Ok(0))
        }
        State::Stream(_) | State::Inherited(_) | State::LostByFork => fail(libc::EOPNOTSUPP),
        State::Free | State::Fresh | State::Failed | State::Kernel => TO_KERNEL,
    }
}

/// Ends one or both directions of an accelerated connection (a connection that the service
/// carries). Returns 0, also if the connection has ended meanwhile.
pub(super) fn shut_connection_down(
    socket: &'static Socket,
    inner: &mut Inner,
    how: i32,
) -> Result<usize, Errno> {
    let channel = inner.channel;
    if let State::Stream(connection) = &mut inner.state {
        if how != libc::SHUT_RD {
            connection.stream.shutdown_write();
        }
        if how != libc::SHUT_WR {
            connection.stream.shutdown_read();
        }
        if let Some(channel) = channel {
            channel.submit(&socket.member, connection);
        }
    }
    inner.shut_write |= how != libc::SHUT_RD;
    inner.shut_read |= how != libc::SHUT_WR;
    Ok(0)
}

/// Carries out `shutdown` of a listener. After SHUT_RD or SHUT_RDWR, the socket listens in neither
/// stack, and the connections in the accept queue are reset. This holds for all processes with a
/// descriptor of the socket. The program may call `listen` again. SHUT_WR has no such effect.
pub(super) fn shut_listener_down(
    socket: &'static Socket,
    mut inner: Guard<'static, Inner>,
    fd: RawFd,
    how: i32,
) -> Result<usize, Errno> {
    let _section = Section::enter();
    let result = sys::shutdown(fd, how);
    if how == libc::SHUT_WR {
        return result;
    }
    // ENOTCONN means that another process has shut the socket down. This process continues, because
    // the other process may have died before it told the service.
    if !matches!(result, Ok(_) | Err(Errno(libc::ENOTCONN))) {
        return result;
    }
    restore_blocking(socket, fd);
    suspend(fd);
    // If the kernel chose the port itself, the kernel has released the port.
    inner.bound = sys::local_name(fd).is_ok_and(|local| local.port != 0);
    let channels = inner.channels();
    let State::Listening(listening) = std::mem::replace(&mut inner.state, State::Fresh) else {
        return result;
    };
    drop(inner);
    listening.close();
    for channel in channels.iter() {
        wake::wake_waiters(socket, Some(channel));
    }
    result
}
