//! A listener of the service (the process `tidelaned`). A listening kernel socket proves to the
//! service that the program has the right to the port.
//!
//! The kernel socket also gets connections over other interfaces, such as loopback. The service
//! does not carry these connections, so the context (the sockets of one thread) resets them.

use std::{io, net::SocketAddr, os::fd::AsFd, os::fd::BorrowedFd, os::fd::OwnedFd, time::Duration};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, accept_with, bind, listen, socket_with, sockopt,
};
use tidelane_abi::OpenOptions;
use tidelane_client::{Listen, ListenerHandle, Program};

use crate::error::ServiceError;

/// Limit of the kernel connections that one call of [`Listener::refuse_kernel_connections`] resets.
/// The remaining connections are reset when the next connection arrives.
const REFUSED_MAX: usize = 4096;

/// A listener of the service, with its kernel socket.
#[derive(Debug)]
pub struct Listener {
    /// The kernel socket. `None` in a simulation.
    socket: Option<OwnedFd>,
    /// The listener in requests to the service.
    pub handle: ListenerHandle,
    /// True while the program has paused the listener, so that no connections are delivered.
    pub is_paused: bool,
}

impl Listener {
    /// Opens a listener, first in the kernel and then in the service.
    pub fn open(
        program: &Program,
        local: SocketAddr,
        backlog: u32,
        cookie: u64,
    ) -> io::Result<Self> {
        let family = match local {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &local)?;
        listen(&socket, backlog.min(i32::MAX as u32) as i32)?;
        let options = Listen {
            cookie,
            backlog,
            options: OpenOptions::default(),
            within_host: program.wants_within_host(),
        };
        let handle = program.listen(socket.as_fd(), &options);
        let handle = handle.map_err(|refusal| ServiceError::Refused {
            listener: Some(local),
            refusal,
        })?;
        Ok(Self {
            socket: Some(socket),
            handle,
            is_paused: false,
        })
    }

    /// Returns a listener of a service in this process, without a kernel socket.
    pub fn in_memory(handle: ListenerHandle) -> Self {
        Self {
            socket: None,
            handle,
            is_paused: false,
        }
    }

    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Resets connections that have arrived through the kernel, at most [`REFUSED_MAX`]. Returns
    /// the number of system calls: each connection costs an accept, a `setsockopt` and a `close`.
    pub fn refuse_kernel_connections(&self) -> u64 {
        let Some(socket) = &self.socket else { return 0 };
        for calls in 0..REFUSED_MAX as u64 {
            let Ok(refused) = accept_with(socket, SocketFlags::CLOEXEC) else {
                return 3 * calls + 1;
            };
            // If SO_LINGER fails, the close sends a FIN instead of a RST.
            let _ = sockopt::set_socket_linger(&refused, Some(Duration::ZERO));
        }
        3 * REFUSED_MAX as u64
    }
}
