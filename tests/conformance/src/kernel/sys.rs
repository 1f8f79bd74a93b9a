//! The system calls that the runner makes to test the kernel's TCP. All unsafe code of this crate
//! is in this file.

use std::{
    ffi::c_void,
    io,
    mem::zeroed,
    net::IpAddr,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use tidelane_engine::{Endpoint, IpAddress};
use tidelane_packetdrill::address;

use crate::{
    call_result::CallResult,
    calls::{Call, Fd},
    ip::Version,
};

/// Request that attaches a descriptor to a tun device (`linux/if_tun.h`).
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;

/// Converts the return value of a call. -1 becomes the error in `errno`.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// Returns true if the process runs as root.
pub fn is_root() -> bool {
    // SAFETY: the call has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Moves the calling thread to a new network namespace.
pub fn new_network_namespace() -> io::Result<()> {
    // SAFETY: the call has no effect on memory.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map(drop)
}

/// Gives the calling thread, and the threads that it starts later, priority over other processes
/// (nice -20), because scripts check the times of events. The threads sleep nearly always, so they
/// take little time from other processes.
pub fn take_precedence() {
    // SAFETY: the call touches no memory. Without the privilege the call has no effect.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, libc::gettid() as libc::id_t, -20) };
}

/// Creates the tun device `name`. Each read or write of the returned descriptor transfers one IP
/// packet without a further header (IFF_NO_PI).
pub fn open_tun(name: &str) -> io::Result<OwnedFd> {
    // SAFETY: the pointer is to a valid C string.
    let fd =
        check(unsafe { libc::open(c"/dev/net/tun".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) })?;
    // SAFETY: `fd` was just opened, and no other value owns it.
    let device = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: `ifreq` is plain data, for which zero is a value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`.
    check(unsafe { libc::ioctl(device.as_raw_fd(), TUNSETIFF, &mut request) })?;
    Ok(device)
}

/// Waits at most `timeout_ms` milliseconds. Returns true if the descriptor is readable or has an
/// error.
pub fn wait_readable(fd: Fd, timeout_ms: i32) -> bool {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the pointer is to one valid entry.
    unsafe { libc::poll(&mut entry, 1, timeout_ms) > 0 }
}

/// Calls `read(2)`.
pub fn read(fd: Fd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the length is the buffer's.
    let len = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
    usize::try_from(len).map_err(|_| io::Error::last_os_error())
}

/// Calls `write(2)`.
pub fn write(fd: Fd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the length is that of the bytes.
    let len = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    usize::try_from(len).map_err(|_| io::Error::last_os_error())
}

/// Calls `shutdown(2)` for both directions, which also ends blocked calls on the socket.
pub fn shutdown(fd: Fd) {
    // SAFETY: the call touches no memory.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
}

/// Calls `close(2)`.
pub fn close(fd: Fd) {
    // SAFETY: `fd` is a socket of the run, closed once.
    unsafe { libc::close(fd) };
}

/// Returns `ip` and `port` as the bytes of a `struct sockaddr` for sockets of the IP version
/// `version`.
fn address(version: Version, ip: IpAddr, port: u16) -> Vec<u8> {
    let end = Endpoint::new(IpAddress::from(ip), port);
    address::emit(end, version.domain())
}

/// Converts the return value of a call to a result without output. -1 becomes the error in `errno`.
fn call_result(result: i64) -> CallResult {
    CallResult::of(match result {
        -1 => Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        value => Ok(value),
    })
}

/// Makes the system call `call` of a script that runs over the IP version `version`. Blocks until
/// the call returns.
pub fn call(call: &Call, version: Version) -> CallResult {
    match call {
        Call::Receive { fd, len, flags } => receive(*fd, *len, *flags),
        Call::Send { fd, bytes, flags } => {
            // SAFETY: the length is that of the bytes.
            call_result(
                unsafe { libc::send(*fd, bytes.as_ptr().cast(), bytes.len(), *flags) } as i64,
            )
        }
        Call::SendConnect {
            fd,
            port,
            bytes,
            flags,
        } => {
            let to = address(version, version.remote(), *port);
            send_connect(*fd, &to, bytes, *flags)
        }
        Call::SetOption {
            fd,
            level,
            name,
            value,
        } => set_option(*fd, *level, *name, value),
        Call::GetOption {
            fd,
            level,
            name,
            len,
        } => option(*fd, *level, *name, *len),
        Call::Poll {
            entries,
            timeout_ms,
        } => poll(entries, *timeout_ms),
        Call::Ioctl { fd, request } => ioctl(*fd, *request),
        Call::Bind { fd, port } => {
            let local = address(version, version.local(), *port);
            let len = local.len() as libc::socklen_t;
            // SAFETY: the length is the address'.
            call_result(unsafe { libc::bind(*fd, local.as_ptr().cast(), len) }.into())
        }
        Call::Connect { fd, port } => {
            let remote = address(version, version.remote(), *port);
            let len = remote.len() as libc::socklen_t;
            // SAFETY: the length is the address'.
            call_result(unsafe { libc::connect(*fd, remote.as_ptr().cast(), len) }.into())
        }
        other => call_with_numbers(other),
    }
}

/// Makes a call whose arguments are all numbers. Returns ENOSYS for any other call.
fn call_with_numbers(call: &Call) -> CallResult {
    // SAFETY: none of these calls touches memory. `accept` permits null pointers.
    let result = unsafe {
        match *call {
            Call::Socket {
                domain,
                kind,
                protocol,
            } => libc::socket(domain, kind, protocol),
            Call::Listen { fd, backlog } => libc::listen(fd, backlog),
            Call::Accept { fd } => libc::accept(fd, std::ptr::null_mut(), std::ptr::null_mut()),
            Call::Shutdown { fd, how } => libc::shutdown(fd, how),
            Call::Close { fd } => libc::close(fd),
            Call::Flags { fd } => libc::fcntl(fd, libc::F_GETFL),
            Call::SetFlags { fd, flags } => libc::fcntl(fd, libc::F_SETFL, flags),
            _ => return CallResult::of(Err(libc::ENOSYS)),
        }
    };
    call_result(result.into())
}

fn receive(fd: Fd, len: usize, flags: i32) -> CallResult {
    let mut output = vec![0; len];
    // SAFETY: the length is the buffer's.
    let result = unsafe { libc::recv(fd, output.as_mut_ptr().cast(), len, flags) };
    let CallResult { result, .. } = call_result(result as i64);
    output.truncate(result.unwrap_or(0) as usize);
    CallResult { result, output }
}

fn send_connect(fd: Fd, to: &[u8], bytes: &[u8], flags: i32) -> CallResult {
    let (address, address_len) = (to.as_ptr().cast(), to.len() as libc::socklen_t);
    let (bytes, len) = (bytes.as_ptr().cast(), bytes.len());
    // SAFETY: the lengths are those of bytes and address.
    let result = unsafe { libc::sendto(fd, bytes, len, flags, address, address_len) };
    call_result(result as i64)
}

fn set_option(fd: Fd, level: i32, name: i32, value: &[u8]) -> CallResult {
    let (bytes, len) = (
        value.as_ptr().cast::<c_void>(),
        value.len() as libc::socklen_t,
    );
    // SAFETY: the length is the value's.
    call_result(unsafe { libc::setsockopt(fd, level, name, bytes, len) }.into())
}

/// Sets the congestion control of a new socket. If the kernel does not have the algorithm, the
/// socket keeps the default, and the script may fail.
pub fn set_congestion(fd: Fd, name: &str) {
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_bytes());
}

fn option(fd: Fd, level: i32, name: i32, len: usize) -> CallResult {
    let mut output = vec![0_u8; len];
    let mut len = len as libc::socklen_t;
    let place = output.as_mut_ptr().cast::<c_void>();
    // Make the call by its number, because `tests/packetdrill` is linked into this program and
    // exports its own `getsockopt`. SAFETY: the length is the buffer's.
    let result =
        unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, place, &raw mut len) };
    output.truncate(len as usize);
    CallResult {
        result: call_result(result).result,
        output,
    }
}

fn poll(entries: &[(Fd, i16)], timeout_ms: i32) -> CallResult {
    let entry = |(fd, events): &(Fd, i16)| libc::pollfd {
        fd: *fd,
        events: *events,
        revents: 0,
    };
    let mut entries: Vec<_> = entries.iter().map(entry).collect();
    let count = entries.len() as libc::nfds_t;
    // SAFETY: the count is that of the entries.
    let result = unsafe { libc::poll(entries.as_mut_ptr(), count, timeout_ms) };
    let output = entries
        .iter()
        .flat_map(|entry| entry.revents.to_ne_bytes())
        .collect();
    CallResult {
        result: call_result(result.into()).result,
        output,
    }
}

fn ioctl(fd: Fd, request: u64) -> CallResult {
    let mut value: libc::c_int = 0;
    // SAFETY: the requests that scripts may name write one int.
    let result = unsafe { libc::ioctl(fd, request as libc::c_ulong, &mut value) };
    let output = value.to_ne_bytes().to_vec();
    CallResult {
        result: call_result(result.into()).result,
        output,
    }
}
