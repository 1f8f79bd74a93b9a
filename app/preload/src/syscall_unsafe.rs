//! `syscall(2)`, which selects another exported function of this library (`libtidelane.so`) by the
//! system call number. For example, libuv closes descriptors through `syscall`.

use std::ffi::{c_int, c_long, c_uint};

use tidelane_sockets::{io_uring, sys::cancellation_unsafe::without_cancellation};

use crate::{
    bytes_unsafe, control_unsafe, descriptors_unsafe, fast_open_unsafe, files_unsafe, forks_unsafe,
    hand_over_unsafe,
    libc_abi_unsafe::{fail_with_errno, system_call},
    message_arrays_unsafe, readiness_unsafe, select_unsafe, vectors_unsafe,
};

/// Interposes libc's `syscall(2)`, which is no cancellation point. A system call has at most six
/// arguments.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: the caller upholds the safety contract of the system call.
    unsafe {
        without_cancellation(|| match by_number(number, [a, b, c, d, e, f]) {
            Some(result) => result,
            None => system_call(number, [a, b, c, d, e, f]) as c_long,
        })
    }
}

/// Calls the exported function that corresponds to the system call `number`. Returns `None` if this
/// library exports no such function.
///
/// # Safety
///
/// The arguments must be valid for the system call.
unsafe fn by_number(number: c_long, args: [usize; 6]) -> Option<c_long> {
    // SAFETY: the caller guarantees that the arguments are those of the system call.
    unsafe {
        bytes_by_number(number, args)
            .or_else(|| control_by_number(number, args))
            .or_else(|| descriptors_by_number(number, args))
            .or_else(|| readiness_by_number(number, args))
            .or_else(|| io_uring_by_number(number))
            .or_else(|| forks_unsafe::fork_by_number(number, args))
            .or_else(|| exec_by_number(number, args))
    }
}

/// Refuses `io_uring_setup`, by which libuv and Rust programs create io_uring instances, unless the
/// program may use io_uring. Returns `None` for other calls.
fn io_uring_by_number(number: c_long) -> Option<c_long> {
    let refused = number == libc::SYS_io_uring_setup && !io_uring::is_allowed();
    refused.then(|| fail_with_errno(libc::ENOSYS) as c_long)
}

/// Makes a call that executes a program. Returns `None` for other calls.
///
/// # Safety
///
/// The arguments must be valid for the system call.
unsafe fn exec_by_number(number: c_long, args: [usize; 6]) -> Option<c_long> {
    let executes = matches!(number, libc::SYS_execve | libc::SYS_execveat);
    // SAFETY: the caller upholds the safety contract.
    executes.then(|| unsafe { hand_over_unsafe::exec_by_number(number, args) as c_long })
}

/// Makes a call that reads or writes payload. Returns `None` for other calls.
///
/// # Safety
///
/// The arguments must be valid for the system call.
unsafe fn bytes_by_number(number: c_long, args: [usize; 6]) -> Option<c_long> {
    let [a, b, c, d, e, f] = args;
    let fd = a as c_int;
    // SAFETY: the caller upholds the safety contract.
    let result = unsafe {
        match number {
            libc::SYS_read => bytes_unsafe::read(fd, b as _, c),
            libc::SYS_write => bytes_unsafe::write(fd, b as _, c),
            libc::SYS_readv => vectors_unsafe::readv(fd, b as _, c as c_int),
            libc::SYS_writev => vectors_unsafe::writev(fd, b as _, c as c_int),
            libc::SYS_preadv2 => {
                vectors_unsafe::preadv2(fd, b as _, c as c_int, d as _, f as c_int)
            }
            libc::SYS_pwritev2 => {
                vectors_unsafe::pwritev2(fd, b as _, c as c_int, d as _, f as c_int)
            }
            libc::SYS_recvfrom => bytes_unsafe::recvfrom(fd, b as _, c, d as c_int, e as _, f as _),
            libc::SYS_sendto => fast_open_unsafe::sendto(fd, b as _, c, d as c_int, e as _, f as _),
            libc::SYS_recvmsg => bytes_unsafe::recvmsg(fd, b as _, c as c_int),
            libc::SYS_sendmsg => bytes_unsafe::sendmsg(fd, b as _, c as c_int),
            libc::SYS_recvmmsg => {
                message_arrays_unsafe::recvmmsg(fd, b as _, c as c_uint, d as c_int, e as _)
                    as isize
            }
            libc::SYS_sendmmsg => {
                message_arrays_unsafe::sendmmsg(fd, b as _, c as c_uint, d as c_int) as isize
            }
            libc::SYS_sendfile => files_unsafe::sendfile(fd, b as c_int, c as _, d),
            libc::SYS_splice => {
                files_unsafe::splice(fd, b as _, c as c_int, d as _, e, f as c_uint)
            }
            _ => return None,
        }
    };
    Some(result as c_long)
}

/// Makes a call that creates, connects or configures a socket. Returns `None` for other calls.
///
/// # Safety
///
/// The arguments must be valid for the system call.
unsafe fn control_by_number(number: c_long, args: [usize; 6]) -> Option<c_long> {
    let [a, b, c, d, e, _] = args;
    let fd = a as c_int;
    // SAFETY: the caller upholds the safety contract.
    let result = unsafe {
        match number {
            libc::SYS_socket => control_unsafe::socket(fd, b as c_int, c as c_int),
            libc::SYS_bind => control_unsafe::bind(fd, b as _, c as _),
            libc::SYS_listen => control_unsafe::listen(fd, b as c_int),
            libc::SYS_accept => control_unsafe::accept(fd, b as _, c as _),
            libc::SYS_accept4 => control_unsafe::accept4(fd, b as _, c as _, d as c_int),
            libc::SYS_connect => control_unsafe::connect(fd, b as _, c as _),
            libc::SYS_shutdown => control_unsafe::shutdown(fd, b as c_int),
            libc::SYS_getsockname => control_unsafe::getsockname(fd, b as _, c as _),
            libc::SYS_getpeername => control_unsafe::getpeername(fd, b as _, c as _),
            libc::SYS_setsockopt => {
                control_unsafe::setsockopt(fd, b as c_int, c as c_int, d as _, e as _)
            }
            libc::SYS_getsockopt => {
                control_unsafe::getsockopt(fd, b as c_int, c as c_int, d as _, e as _)
            }
            _ => return None,
        }
    };
    Some(c_long::from(result))
}

/// Makes a call that closes, duplicates or controls a descriptor. Returns `None` for other calls.
///
/// # Safety
///
/// The arguments must be valid for the system call.
unsafe fn descriptors_by_number(number: c_long, args: [usize; 6]) -> Option<c_long> {
    let [a, b, c, ..] = args;
    let fd = a as c_int;
    // SAFETY: the caller upholds the safety contract.
    let result = unsafe {
        match number {
            libc::SYS_close => descriptors_unsafe::close(fd),
            libc::SYS_close_range => {
                descriptors_unsafe::close_range(a as c_uint, b as c_uint, c as c_int)
            }
            libc::SYS_dup => descriptors_unsafe::dup(fd),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => descriptors_unsafe::dup2(fd, b as c_int),
            libc::SYS_dup3 => descriptors_unsafe::dup3(fd, b as c_int, c as c_int),
            libc::SYS_fcntl => descriptors_unsafe::fcntl(fd, b as c_int, c),
            libc::SYS_ioctl => descriptors_unsafe::ioctl(fd, b as _, c),
            libc::SYS_exit_group => descriptors_unsafe::_exit(fd),
            _ => return None,
        }
    };
    Some(c_long::from(result))
}

/// Makes a call that waits for events. Returns `None` for other calls.
///
/// # Safety
///
/// The arguments must be valid for the system call.
unsafe fn readiness_by_number(number: c_long, args: [usize; 6]) -> Option<c_long> {
    let [a, b, c, d, e, f] = args;
    let fd = a as c_int;
    // SAFETY: the caller upholds the safety contract.
    let result = unsafe {
        match number {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create => readiness_unsafe::epoll_create(fd),
            libc::SYS_epoll_create1 => readiness_unsafe::epoll_create1(fd),
            libc::SYS_epoll_ctl => readiness_unsafe::epoll_ctl(fd, b as c_int, c as c_int, d as _),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => {
                readiness_unsafe::epoll_wait(fd, b as _, c as c_int, d as c_int)
            }
            // The kernel requires that a signal mask (`e`) has a length (`f`) of 8 bytes.
            libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 if e != 0 && f != 8 => {
                fail_with_errno(libc::EINVAL) as c_int
            }
            libc::SYS_ppoll if d != 0 && e != 8 => fail_with_errno(libc::EINVAL) as c_int,
            libc::SYS_ppoll => readiness_unsafe::ppoll(a as _, b as _, c as _, d as _),
            libc::SYS_pselect6 => select_unsafe::pselect6(fd, [b, c, d], e as _, f as _),
            libc::SYS_epoll_pwait => {
                readiness_unsafe::epoll_pwait(fd, b as _, c as c_int, d as c_int, e as _)
            }
            libc::SYS_epoll_pwait2 => {
                readiness_unsafe::epoll_pwait2(fd, b as _, c as c_int, d as _, e as _)
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => readiness_unsafe::poll(a as _, b as _, c as c_int),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => select_unsafe::select(fd, b as _, c as _, d as _, e as _),
            _ => return None,
        }
    };
    Some(c_long::from(result))
}
