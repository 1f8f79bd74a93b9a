//! The system calls of the load tools, through the exported functions of libc.
//!
//! The preloaded library of `tidelane run` replaces these functions. A tool that made raw system
//! calls would not run on Tidelane. All unsafe code of this crate is in this file.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::{AsRawFd, BorrowedFd, RawFd},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// A file descriptor that is closed when dropped.
#[derive(Debug)]
pub struct Fd(RawFd);

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: this value owns the descriptor, and its drop is the last use.
        unsafe { libc::close(self.0) };
    }
}

/// Converts the return value of a call. A negative value becomes the error in `errno`.
fn check(value: libc::c_int) -> io::Result<libc::c_int> {
    if value < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(value)
    }
}

/// Converts the return value of a call that returns a length. A negative value becomes the error in
/// `errno`.
fn check_len(value: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(value).map_err(|_| io::Error::last_os_error())
}

/// Returns a buffer with a `sockaddr_in` or `sockaddr_in6`, and the length of the structure.
fn sockaddr(address: SocketAddr) -> ([u8; 28], libc::socklen_t) {
    let mut name = [0; 28];
    let family = family_of(address) as libc::sa_family_t;
    name[..2].copy_from_slice(&family.to_ne_bytes());
    name[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(v4) => {
            name[4..8].copy_from_slice(&v4.ip().octets());
            (name, size_of::<libc::sockaddr_in>() as libc::socklen_t)
        }
        SocketAddr::V6(v6) => {
            name[8..24].copy_from_slice(&v6.ip().octets());
            name[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            (name, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
        }
    }
}

fn family_of(address: SocketAddr) -> i32 {
    if address.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    }
}

/// Opens a non-blocking TCP socket for the IP version of `address`.
pub fn tcp_socket(address: SocketAddr) -> io::Result<Fd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    check(unsafe { libc::socket(family_of(address), kind, 0) }).map(Fd)
}

/// Sets a socket option with an integer value.
pub fn set_option(fd: &Fd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let len = size_of::<i32>() as libc::socklen_t;
    let pointer = (&raw const value).cast();
    // SAFETY: the pointer is to `value`, which has `len` bytes and lives during the call.
    check(unsafe { libc::setsockopt(fd.0, level, name, pointer, len) }).map(drop)
}

/// Opens a listening socket on `address`.
pub fn listen(address: SocketAddr, backlog: i32) -> io::Result<Fd> {
    let fd = tcp_socket(address)?;
    set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    let (name, len) = sockaddr(address);
    // SAFETY: the pointer is to `name`, which has at least `len` bytes and lives during the call.
    check(unsafe { libc::bind(fd.0, (&raw const name).cast(), len) })?;
    // SAFETY: no pointers.
    check(unsafe { libc::listen(fd.0, backlog) })?;
    Ok(fd)
}

/// Accepts the next connection of a listener as a non-blocking socket. Returns `None` if the accept
/// queue is empty, or if the next connection was reset before the accept.
pub fn accept(listener: &Fd) -> io::Result<Option<Fd>> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let null = std::ptr::null_mut();
    // SAFETY: null addresses are allowed.
    match check(unsafe { libc::accept4(listener.0, null, null.cast(), flags) }) {
        Ok(fd) => Ok(Some(Fd(fd))),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        // The peer has reset the connection before the accept. The listener has no error.
        Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => Ok(None),
        Err(error) => Err(error),
    }
}

/// Binds a socket to an address. The later connect chooses the port.
pub fn bind_address(fd: &Fd, address: IpAddr) -> io::Result<()> {
    /// Defers the choice of the port to the connect (since Linux 4.2). IPv6 sockets have the
    /// option, too.
    const IP_BIND_ADDRESS_NO_PORT: i32 = 24;
    set_option(fd, libc::IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)?;
    let (name, len) = sockaddr(SocketAddr::new(address, 0));
    // SAFETY: the pointer is to `name`, which has at least `len` bytes and lives during the call.
    check(unsafe { libc::bind(fd.0, (&raw const name).cast(), len) }).map(drop)
}

/// Starts a connection. Returns true if the connection is already established.
pub fn connect(fd: &Fd, address: SocketAddr) -> io::Result<bool> {
    let (name, len) = sockaddr(address);
    // SAFETY: the pointer is to `name`, which has at least `len` bytes and lives during the call.
    match check(unsafe { libc::connect(fd.0, (&raw const name).cast(), len) }) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes the pending error of a socket (SO_ERROR), and returns this error. After a connect has
/// finished, the result is the result of the connect.
pub fn take_error(fd: &Fd) -> io::Result<()> {
    let mut value: i32 = 0;
    let mut len = size_of::<i32>() as libc::socklen_t;
    let pointer = (&raw mut value).cast();
    // SAFETY: both pointers are to live locals, and `len` is the length of `value`.
    check(unsafe {
        libc::getsockopt(
            fd.0,
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            pointer,
            &raw mut len,
        )
    })?;
    if value == 0 {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(value))
    }
}

/// Receives into `buffer`. Returns 0 at the end of the stream.
pub fn recv(fd: &Fd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the pointer and length are those of `buffer`.
    check_len(unsafe { libc::recv(fd.0, buffer.as_mut_ptr().cast(), buffer.len(), 0) })
}

/// Sends from `bytes`. Returns the number of bytes that the socket accepted.
pub fn send(fd: &Fd, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL;
    // SAFETY: the pointer and length are those of `bytes`.
    check_len(unsafe { libc::send(fd.0, bytes.as_ptr().cast(), bytes.len(), flags) })
}

/// A level-triggered epoll instance.
#[derive(Debug)]
pub struct Epoll {
    fd: Fd,
    events: Vec<libc::epoll_event>,
}

/// Event bit of a readable descriptor.
pub const READABLE: u32 = libc::EPOLLIN as u32;
/// Event bit of a writable descriptor.
pub const WRITABLE: u32 = libc::EPOLLOUT as u32;

/// The events that an epoll instance reports for one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Readiness {
    /// The number given to [`Epoll::add`].
    pub token: u64,
    /// Bits of `epoll_event.events`.
    pub bits: u32,
}

impl Readiness {
    /// Returns true if a read would return bytes, the end of the stream, or an error.
    pub fn readable(&self) -> bool {
        self.bits & (libc::EPOLLIN | libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0
    }

    /// Returns true if a write would accept bytes or return an error.
    pub fn writable(&self) -> bool {
        self.bits & (libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0
    }
}

impl Epoll {
    /// Makes an instance that reports at most `max` descriptors per wait.
    pub fn new(max: usize) -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Fd)?;
        Ok(Self {
            fd,
            events: vec![libc::epoll_event { events: 0, u64: 0 }; max],
        })
    }

    fn control(&self, op: i32, fd: &Fd, bits: u32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: bits,
            u64: token,
        };
        // SAFETY: the pointer is to a live local.
        check(unsafe { libc::epoll_ctl(self.fd.0, op, fd.0, &raw mut event) }).map(drop)
    }

    /// Watches `fd` for the events `bits`, and reports them with `token`. Closing the descriptor
    /// ends the watch.
    pub fn add(&self, fd: &Fd, bits: u32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, bits, token)
    }

    /// Changes the events that `fd` is watched for.
    pub fn modify(&self, fd: &Fd, bits: u32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, bits, token)
    }

    /// Waits up to `timeout`, rounded down to milliseconds and at most a minute, and fills `ready`
    /// with the ready descriptors. `ready` is empty after the timeout or a signal.
    pub fn wait(&mut self, timeout: Duration, ready: &mut Vec<Readiness>) -> io::Result<()> {
        ready.clear();
        let max = self.events.len() as libc::c_int;
        let millis = timeout.as_millis().min(60_000) as libc::c_int;
        // SAFETY: the pointer and length are those of `events`.
        let count = unsafe { libc::epoll_wait(self.fd.0, self.events.as_mut_ptr(), max, millis) };
        match check(count) {
            Ok(count) => {
                let seen = &self.events[..count as usize];
                ready.extend(seen.iter().map(|e| Readiness {
                    token: e.u64,
                    bits: e.events,
                }));
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Returns the sum of the user and the system CPU time of this process.
pub fn cpu_time() -> Duration {
    // SAFETY: an all-zero rusage is a valid value of that plain structure.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live local.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let of = |t: libc::timeval| {
        Duration::from_secs(t.tv_sec as u64) + Duration::from_micros(t.tv_usec as u64)
    };
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// Binds the calling thread to one CPU.
pub fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: an all-zero set is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: `cpu` is below the set's size.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the pointer and size are those of `set`.
    check(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) }).map(drop)
}

/// Puts the calling thread into the idle scheduling class.
pub fn schedule_idle() -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the pointer is to a live local.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameter) }).map(drop)
}

/// Sleeps until `fd` is readable or a signal arrives, at most for `timeout`.
pub fn wait_readable(fd: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let millis = timeout.as_millis().min(60_000) as libc::c_int;
    // SAFETY: the pointer is to one live pollfd.
    match check(unsafe { libc::poll(&raw mut poll, 1, millis) }) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

/// True after SIGTERM or SIGINT.
static ENDING: AtomicBool = AtomicBool::new(false);

extern "C" fn end(_signal: libc::c_int) {
    ENDING.store(true, Ordering::Relaxed);
}

/// Makes [`ending`] return true after SIGTERM or SIGINT, which then do not end the process.
pub fn catch_end() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let handler = end as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe { libc::signal(signal, handler) };
    }
}

/// Returns true if the process has received SIGTERM or SIGINT.
pub fn ending() -> bool {
    ENDING.load(Ordering::Relaxed)
}

/// Returns the number of online CPUs.
pub fn cpus() -> usize {
    // SAFETY: no pointers.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as usize
}

/// Makes the kernel kill this process when its parent ends.
pub fn die_with_parent() -> io::Result<()> {
    // SAFETY: this prctl takes a number only.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }).map(drop)
}

/// Opens a raw ICMP socket, connected to `address`, with a receive timeout. Needs CAP_NET_RAW.
pub fn icmp_socket(address: Ipv4Addr, timeout: Duration) -> io::Result<Fd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(libc::AF_INET, kind, libc::IPPROTO_ICMP) }).map(Fd)?;
    connect(&fd, SocketAddr::new(address.into(), 0))?;
    let value = libc::timeval {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_usec: timeout.subsec_micros() as libc::suseconds_t,
    };
    let len = size_of_val(&value) as libc::socklen_t;
    let pointer = (&raw const value).cast();
    // SAFETY: the pointer and length are those of `value`.
    check(unsafe { libc::setsockopt(fd.0, libc::SOL_SOCKET, libc::SO_RCVTIMEO, pointer, len) })?;
    Ok(fd)
}

/// Fills the counter of the eventfd `number` and clears O_NONBLOCK, so that writes to the eventfd
/// block. All processes that share the eventfd are affected.
pub fn fill_eventfd(number: RawFd) {
    let full = (u64::MAX - 1).to_ne_bytes();
    let mut count = [0u8; 8];
    // SAFETY: both buffers have the eight bytes that an eventfd transfers. The calls fail if the
    // descriptor is closed.
    unsafe {
        libc::fcntl(number, libc::F_SETFL, libc::O_NONBLOCK);
        libc::read(number, count.as_mut_ptr().cast(), count.len());
        libc::write(number, full.as_ptr().cast(), full.len());
        libc::fcntl(number, libc::F_SETFL, 0);
    }
}
