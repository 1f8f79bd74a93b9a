//! Network namespaces, compared by the identity of their files.

use std::{fs::File, io, os::fd::AsFd, path::Path};

use rustix::fs::{Stat, fstat};

use crate::sys;

/// The identity of a network namespace: the device and inode of the namespace's file in nsfs. While
/// two sockets are open, they are in the same namespace if and only if the identities of their
/// namespaces are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NetNs {
    /// Device number of nsfs.
    device: u64,
    /// Inode number of the namespace.
    inode: u64,
}

impl NetNs {
    /// Returns the namespace of the calling thread.
    pub fn current() -> io::Result<Self> {
        Self::at(Path::new("/proc/thread-self/ns/net"))
    }

    /// Returns the namespace of a file such as `/run/netns/NAME` or `/proc/PID/ns/net`.
    pub fn at(path: &Path) -> io::Result<Self> {
        Self::of_file(&File::open(path)?)
    }

    /// Returns the namespace in which a socket of any family was made, whichever process has the
    /// socket's descriptor.
    pub fn of_socket(socket: impl AsFd) -> io::Result<Self> {
        Self::of_file(sys::namespace_of_socket(socket.as_fd())?)
    }

    /// Returns the namespace of an open file of nsfs. The identity is valid while the file is open.
    pub fn of_file(file: impl AsFd) -> io::Result<Self> {
        let Stat { st_dev, st_ino, .. } = fstat(file)?;
        Ok(Self {
            device: st_dev,
            inode: st_ino,
        })
    }
}

/// The identity of a process' current network namespace: the device and inode of the file
/// `/proc/PID/net/tcp`, which differ between namespaces. Unlike a look-up of `/proc/PID/ns/net`, a
/// look-up of this file needs no rights over the process. While two processes exist, they are in
/// the same namespace if and only if their views are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetView {
    /// Device number of the identifying file.
    device: u64,
    /// Inode number of the identifying file.
    inode: u64,
}

impl NetView {
    /// Returns the namespace of the calling thread.
    pub fn current() -> io::Result<Self> {
        Self::at("thread-self")
    }

    /// Returns the namespace of process `pid`.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        Self::at(&pid.to_string())
    }

    fn at(process: &str) -> io::Result<Self> {
        let Stat { st_dev, st_ino, .. } = rustix::fs::stat(format!("/proc/{process}/net/tcp"))?;
        Ok(Self {
            device: st_dev,
            inode: st_ino,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn a_socket_is_in_the_namespace_of_its_maker() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: needs root");
        }
        let here = NetNs::current().expect("a namespace");
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        assert_eq!(NetNs::of_socket(&socket).expect("its namespace"), here);
        let elsewhere = std::thread::spawn(|| {
            sys::enter_new_network_namespace().expect("a new namespace");
            let fresh = rustix::net::socket(
                rustix::net::AddressFamily::INET,
                rustix::net::SocketType::STREAM,
                None,
            );
            let there = NetNs::current().expect("a namespace");
            (fresh.expect("a socket"), there, NetView::current())
        });
        let (theirs, there, view) = elsewhere.join().expect("the thread ends");
        assert_ne!(there, here);
        let own = NetView::of_process(std::process::id()).expect("this process");
        assert_eq!(own, NetView::current().expect("this thread"));
        assert_ne!(own, view.expect("that thread"));
        assert_eq!(NetNs::of_socket(theirs).expect("its namespace"), there);
    }
}
