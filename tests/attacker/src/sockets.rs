//! Bound and listening kernel sockets, with which an attack claims ports.

use std::{io, net::SocketAddr, os::fd::OwnedFd};

use clap::Args;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with, sockopt,
};

use crate::sys;

/// Options of a bound TCP socket.
#[derive(Args, Clone, Debug)]
pub struct Bound {
    /// Address and port to bind the socket to
    #[arg(long, default_value = "0.0.0.0:0")]
    pub bind: SocketAddr,
    /// Interface to restrict the socket to, before bind (SO_BINDTODEVICE)
    #[arg(long)]
    pub device: Option<String>,
    /// Sets SO_REUSEADDR before bind
    #[arg(long)]
    pub reuse_address: bool,
    /// Sets SO_REUSEPORT before bind
    #[arg(long)]
    pub reuse_port: bool,
}

impl Bound {
    /// Opens the socket, sets its options and binds it.
    pub fn make(&self) -> io::Result<OwnedFd> {
        let family = match self.bind {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let kind = SocketType::STREAM;
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
        if let Some(device) = &self.device {
            sys::bind_to_device(&socket, device)?;
        }
        sockopt::set_socket_reuseaddr(&socket, self.reuse_address)?;
        sockopt::set_socket_reuseport(&socket, self.reuse_port)?;
        bind(&socket, &self.bind)?;
        Ok(socket)
    }

    /// Opens and binds the socket, then listens with `backlog`.
    pub fn listening(&self, backlog: u32) -> io::Result<OwnedFd> {
        let socket = self.make()?;
        listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
        Ok(socket)
    }
}
