//! Safe wrappers of system calls for which the Tidelane service has no safe wrapper from another
//! crate. The calls concern scheduling classes, signals, processes, socket options and network
//! namespaces.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// Niceness of a core (a polling thread) in the normal class. The kernel's stack receives packets
/// in interrupts, which do not wait for programs. A core of the service must not wait for programs
/// either, so its niceness is below the default of 0. The core does not keep the CPU for itself,
/// because the core sleeps while there is no work.
const NICE: libc::c_int = -10;

/// The scheduling class of a core (a polling thread), or of its watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Runs almost only while its CPU is otherwise idle (SCHED_IDLE), so that polling takes hardly
    /// any CPU time from programs.
    Idle,
    /// Shares the CPU with programs, with a niceness of -10.
    Normal,
    /// Runs before all threads of the idle and the normal class, in any task group (cgroup or
    /// autogroup). If the kernel refuses this class, the thread gets the normal class. With
    /// CONFIG_RT_GROUP_SCHED, the kernel refuses the class in a cgroup without real-time runtime.
    RealTime,
}

/// Priority of a core and of its watchdog in the real-time class: the lowest.
pub const CORE_PRIORITY: libc::c_int = 1;

/// Size in bytes of the smallest block for which malloc makes a separate mapping. A separate
/// mapping returns to the system when the block is freed. Without an explicit setting, glibc raises
/// this size when the program frees large blocks.
const MAPPED_FROM: libc::c_int = 128 << 10;

/// Makes malloc return large freed blocks to the system. Otherwise the process would keep the
/// memory of connections that have ended.
pub fn give_memory_back() {
    // SAFETY: the call takes no pointers. If glibc refuses the setting, freed memory stays with the
    // process.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM) };
}

/// Moves thread `tid` of this process (0: the caller) to `class`. If the kernel refuses the
/// real-time class, moves the thread to the normal class. Returns an error if the kernel refuses
/// the idle or the normal class.
pub fn set_class(tid: i32, class: Class) -> io::Result<()> {
    let (policy, sched_priority) = match class {
        Class::Idle => (libc::SCHED_IDLE, 0),
        Class::Normal => (libc::SCHED_OTHER, 0),
        Class::RealTime => (libc::SCHED_RR, CORE_PRIORITY),
    };
    let parameter = libc::sched_param { sched_priority };
    // SAFETY: the pointer is to a live, initialised sched_param, and the call keeps no reference.
    let result = match unsafe { libc::sched_setscheduler(tid, policy, &parameter) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    if result.is_err() && class == Class::RealTime {
        return set_class(tid, Class::Normal);
    }
    // SAFETY: the call takes no pointers. The niceness has no effect in the idle and the real-time
    // class. If the call fails, the thread keeps the niceness that it had.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, tid as libc::id_t, NICE) };
    result
}

/// Reads an option of a TCP socket into `into`. Returns the length of the option in bytes.
pub fn tcp_option(fd: BorrowedFd<'_>, name: libc::c_int, into: &mut [u8]) -> io::Result<usize> {
    socket_option(fd, libc::IPPROTO_TCP, name, into)
}

/// Returns the index of the interface to which a socket is bound (SO_BINDTOIFINDEX, Linux 5.1).
/// Returns 0 for a socket that is bound to no interface.
pub fn bound_interface(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut ifindex = [0; 4];
    match socket_option(fd, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, &mut ifindex)? {
        4 => Ok(u32::from_ne_bytes(ifindex)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn socket_option(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    into: &mut [u8],
) -> io::Result<usize> {
    let mut len = into.len() as libc::socklen_t;
    let value = into.as_mut_ptr().cast();
    // SAFETY: `value` points to `len` writable bytes, and `len` is a live local.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, value, &raw mut len) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((len as usize).min(into.len()))
}

/// The process in which [`fork`] has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forked {
    /// The caller.
    Parent,
    /// The copy of the caller.
    Child,
}

/// Forks this process. The process must have only one thread.
pub fn fork() -> io::Result<Forked> {
    // SAFETY: the process has no other thread. If another thread held a lock, the lock would stay
    // locked forever in the child.
    match unsafe { libc::fork() } {
        0 => Ok(Forked::Child),
        pid if pid > 0 => Ok(Forked::Parent),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Closes every descriptor except standard input, output and error, and the descriptors in `kept`.
/// Code that owns a closed descriptor must not use or close the descriptor afterwards.
pub fn close_all_but(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<u32> = kept.iter().map(|fd| fd.as_raw_fd() as u32).collect();
    kept.sort_unstable();
    let mut first = libc::STDERR_FILENO as u32 + 1;
    for stop in kept.into_iter().chain([u32::MAX]) {
        if first < stop {
            // SAFETY: the call takes no pointers. The caller of `close_all_but` ensures that no
            // code uses a closed descriptor.
            let result = unsafe { libc::syscall(libc::SYS_close_range, first, stop - 1, 0) };
            if result != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        first = first.max(stop.saturating_add(1));
    }
    Ok(())
}

/// Starts a new session and process group, so that signals to the service's process group do not
/// reach this process. Sets the thread's name.
pub fn leave_session(name: &str) {
    // Neither call can fail: a forked process leads no process group, and any name is accepted.
    let _ = rustix::process::setsid();
    let name = std::ffi::CString::new(name).unwrap_or_default();
    let _ = rustix::thread::set_name(&name);
}

/// Makes the packets of `socket` leave by the interface of this name (SO_BINDTODEVICE).
pub fn bind_to_interface(socket: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    set_option(socket, libc::SO_BINDTODEVICE, name.as_bytes())
}

/// Makes the kernel report the sender of each message on `socket` by a pidfd (SO_PASSPIDFD, Linux
/// 6.5). Fails with ENOPROTOOPT on older kernels.
pub fn pass_pidfd(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_option(socket, libc::SO_PASSPIDFD, &1_i32.to_ne_bytes())
}

/// Sets an option of level SOL_SOCKET.
fn set_option(socket: BorrowedFd<'_>, option: libc::c_int, value: &[u8]) -> io::Result<()> {
    let (value, len) = (value.as_ptr().cast(), value.len() as libc::socklen_t);
    let (socket, level) = (socket.as_raw_fd(), libc::SOL_SOCKET);
    // SAFETY: `value` points to `len` live bytes, which the kernel copies.
    let result = unsafe { libc::setsockopt(socket, level, option, value, len) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Returns the calling thread's id.
pub fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// The signal that [`interrupt`] sends. The kernel ignores SIGURG by default, so the signal does no
/// harm if it arrives before its handler is set.
const INTERRUPT: libc::c_int = libc::SIGURG;

extern "C" fn on_interrupt(_: libc::c_int) {}

/// Sets an empty handler for the signal of [`interrupt`], so that the signal ends a blocking system
/// call with EINTR.
pub fn allow_interrupts() -> io::Result<()> {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeros is a valid sigaction (no flags: calls are not restarted). The handler does
    // nothing, so it may run at any point.
    let result = unsafe {
        (*action.as_mut_ptr()).sa_sigaction = on_interrupt as *const () as libc::sighandler_t;
        libc::sigaction(INTERRUPT, action.as_ptr(), std::ptr::null_mut())
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Interrupts a blocking system call of thread `tid` of this process, if the thread is in a call.
pub fn interrupt(tid: i32) {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: the call takes no pointers. If the thread is gone, the call fails without harm.
    unsafe { libc::syscall(libc::SYS_tgkill, process, tid, INTERRUPT) };
}

/// A request to the service by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGINT, SIGTERM: end.
    End,
}

/// Returns the next signal from the descriptor of [`block_signals`], or `None` if no signal is
/// pending.
pub fn next_signal(signals: &OwnedFd) -> Option<Signal> {
    // `struct signalfd_siginfo` begins with the signal number.
    let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
    let read = rustix::io::read(signals, &mut info).ok()?;
    let [a, b, c, d, ..] = info;
    match u32::from_ne_bytes([a, b, c, d]) as i32 {
        _ if read < info.len() => None,
        libc::SIGHUP => Some(Signal::Reload),
        _ => Some(Signal::End),
    }
}

/// Blocks SIGHUP, SIGINT and SIGTERM in this thread and in the threads that it starts. Returns a
/// descriptor that becomes readable when one of these signals arrives.
pub fn block_signals() -> io::Result<OwnedFd> {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is live and writable, and sigemptyset initialises it before its use.
    let fd = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGHUP);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
        match libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) {
            0 => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
        libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: signalfd has just returned this descriptor, and no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the network namespace of any socket as a descriptor (`ioctl` SIOCGSKNS, Linux 4.9). The
/// caller needs CAP_NET_ADMIN in the user namespace that owns the network namespace.
pub fn namespace_of_socket(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the request takes no argument and keeps nothing.
    let fd = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGSKNS as _) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just returned this descriptor, and no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns a pidfd of the process that connected the other end of a unix socket (SO_PEERPIDFD,
/// Linux 6.5). Fails with ENOPROTOOPT on older kernels.
pub fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let value = (&raw mut fd).cast();
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERPIDFD);
    // SAFETY: `value` and `len` point to live locals, and `len` is the size of `fd`.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, value, &raw mut len) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just installed this descriptor, and no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns true if the kernel has `epoll_pwait2`.
pub fn has_epoll_pwait2() -> bool {
    // SAFETY: all pointers are null, and the kernel refuses descriptor -1 before it writes events.
    let result = unsafe {
        let none = std::ptr::null_mut::<libc::c_void>();
        libc::syscall(libc::SYS_epoll_pwait2, -1, none, 1, none, none, 0)
    };
    result >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS)
}

/// Returns true if the kernel has SO_PEERPIDFD.
pub fn has_peer_pidfd() -> bool {
    let pair = std::os::unix::net::UnixStream::pair();
    pair.is_ok_and(|(one, _other)| peer_pidfd(one.as_fd()).is_ok())
}

/// Returns the supplementary groups of the process that connected the other end of a unix socket,
/// as the groups were at the connect (SO_PEERGROUPS, Linux 4.13).
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    /// NGROUPS_MAX in Linux.
    const GROUPS_MAX: usize = 65_536;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERGROUPS);
    let mut groups: Vec<libc::gid_t> = vec![0; 32];
    loop {
        let mut len = size_of_val(&groups[..]) as libc::socklen_t;
        let value = groups.as_mut_ptr().cast();
        // SAFETY: `value` points to `len` writable bytes, and `len` is a live local.
        let result =
            unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, value, &raw mut len) };
        let count = len as usize / size_of::<libc::gid_t>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || count > GROUPS_MAX {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

/// Returns the id, the user and the group of the process that connected the other end of a unix
/// socket, as they were at the connect (SO_PEERCRED). The process id is zero if the process is
/// invisible in the caller's PID namespace. The safe wrappers of other crates cannot represent a
/// process id of zero.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let value = (&raw mut credentials).cast();
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: `value` and `len` point to live locals, and `len` is the size of `credentials`.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, value, &raw mut len) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(credentials)
}

/// Moves the calling thread alone to a new network namespace.
#[cfg(test)]
pub fn enter_new_network_namespace() -> io::Result<()> {
    // SAFETY: the call takes no pointers. CLONE_NEWNET changes nothing on which Rust's standard
    // library relies.
    match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
