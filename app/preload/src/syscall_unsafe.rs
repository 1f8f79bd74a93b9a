//! `syscall(2)`, which calls the function of this library (`libtidelane.so`) that handles the
//! system call with the given number. For example, libuv closes descriptors through `syscall`.

use std::ffi::{c_int, c_long, c_uint};

use tidelane_sockets::{
    io_uring,
    sys::{self, cancellation_unsafe::without_cancellation},
};

use crate::{
    bytes_unsafe, control_unsafe, descriptors_unsafe, exit_unsafe, files_unsafe, forks_unsafe,
    hand_over_unsafe,
    libc_abi_unsafe::{fail_with_errno, libc_result},
    message_arrays_unsafe, readiness_unsafe, select_unsafe, vectors_unsafe,
};

/// Arguments of a system call. A system call has at most six arguments.
type Args = [usize; 6];
/// A function that carries out a system call in place of the kernel, and returns its result by
/// libc's convention.
type Handler = unsafe fn(Args) -> c_long;

/// Returns a [`Handler`] that calls an exported function. The first argument of the macro is the
/// pattern of the system call's arguments, and the second is the call of the function.
macro_rules! handler {
    ($args:pat => $call:expr) => {{
        /// # Safety
        ///
        /// The arguments must be valid for the system call.
        unsafe fn handler($args: Args) -> c_long {
            // SAFETY: the caller upholds the safety contract of the exported function.
            let result = unsafe { $call };
            result as c_long
        }
        handler as Handler
    }};
}

/// Interposes libc's `syscall(2)`, which is no cancellation point. The kernel gets each system call
/// that the library does not handle, such as `futex`.
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
    let args = [a, b, c, d, e, f];
    // SAFETY: the caller upholds the safety contract of the system call.
    unsafe {
        match handler_of(number, args) {
            // Many of the exported functions are cancellation points.
            Some(handler) => without_cancellation(|| handler(args)),
            None => libc_result(sys::call(number, args)) as c_long,
        }
    }
}

/// Returns the function for the system call `number`, or `None` if the kernel must handle the call.
///
/// # Safety
///
/// The arguments must be valid for the system call.
#[inline]
unsafe fn handler_of(number: c_long, args: Args) -> Option<Handler> {
    bytes_handler(number)
        .or_else(|| control_handler(number))
        .or_else(|| descriptors_handler(number))
        .or_else(|| readiness_handler(number))
        // SAFETY: the caller upholds the safety contract.
        .or_else(|| unsafe { process_handler(number, args) })
}

/// Returns the function for a call that reads or writes payload.
#[inline]
fn bytes_handler(number: c_long) -> Option<Handler> {
    Some(match number {
        libc::SYS_read => handler!([fd, b, c, ..] => bytes_unsafe::read(fd as _, b as _, c)),
        libc::SYS_write => handler!([fd, b, c, ..] => bytes_unsafe::write(fd as _, b as _, c)),
        libc::SYS_readv => {
            handler!([fd, b, c, ..] => vectors_unsafe::readv(fd as _, b as _, c as _))
        }
        libc::SYS_writev => {
            handler!([fd, b, c, ..] => vectors_unsafe::writev(fd as _, b as _, c as _))
        }
        libc::SYS_preadv2 => handler!([fd, b, c, d, _, f] => vectors_unsafe::preadv2(
            fd as _, b as _, c as _, d as _, f as _
        )),
        libc::SYS_pwritev2 => handler!([fd, b, c, d, _, f] => vectors_unsafe::pwritev2(
            fd as _, b as _, c as _, d as _, f as _
        )),
        libc::SYS_recvfrom => handler!([fd, b, c, d, e, f] => bytes_unsafe::recvfrom(
            fd as _, b as _, c, d as _, e as _, f as _
        )),
        libc::SYS_sendto => handler!([fd, b, c, d, e, f] => bytes_unsafe::sendto(
            fd as _, b as _, c, d as _, e as _, f as _
        )),
        libc::SYS_recvmsg => {
            handler!([fd, b, c, ..] => bytes_unsafe::recvmsg(fd as _, b as _, c as _))
        }
        libc::SYS_sendmsg => {
            handler!([fd, b, c, ..] => bytes_unsafe::sendmsg(fd as _, b as _, c as _))
        }
        libc::SYS_recvmmsg => handler!([fd, b, c, d, e, _] => message_arrays_unsafe::recvmmsg(
            fd as _, b as _, c as c_uint, d as _, e as _
        )),
        libc::SYS_sendmmsg => handler!([fd, b, c, d, ..] => message_arrays_unsafe::sendmmsg(
            fd as _, b as _, c as c_uint, d as _
        )),
        libc::SYS_sendfile => handler!([to, from, c, d, ..] => files_unsafe::sendfile(
            to as _, from as _, c as _, d
        )),
        libc::SYS_splice => handler!([from, b, to, d, e, f] => files_unsafe::splice(
            from as _, b as _, to as _, d as _, e, f as c_uint
        )),
        _ => return None,
    })
}

/// Returns the function for a call that creates, connects or configures a socket.
#[inline]
fn control_handler(number: c_long) -> Option<Handler> {
    Some(match number {
        libc::SYS_socket => {
            handler!([a, b, c, ..] => control_unsafe::socket(a as _, b as _, c as _))
        }
        libc::SYS_bind => {
            handler!([fd, b, c, ..] => control_unsafe::bind(fd as _, b as _, c as _))
        }
        libc::SYS_listen => handler!([fd, b, ..] => control_unsafe::listen(fd as _, b as _)),
        libc::SYS_accept => {
            handler!([fd, b, c, ..] => control_unsafe::accept(fd as _, b as _, c as _))
        }
        libc::SYS_accept4 => {
            handler!([fd, b, c, d, ..] => control_unsafe::accept4(fd as _, b as _, c as _, d as _))
        }
        libc::SYS_connect => {
            handler!([fd, b, c, ..] => control_unsafe::connect(fd as _, b as _, c as _))
        }
        libc::SYS_shutdown => handler!([fd, b, ..] => control_unsafe::shutdown(fd as _, b as _)),
        libc::SYS_getsockname => {
            handler!([fd, b, c, ..] => control_unsafe::getsockname(fd as _, b as _, c as _))
        }
        libc::SYS_getpeername => {
            handler!([fd, b, c, ..] => control_unsafe::getpeername(fd as _, b as _, c as _))
        }
        libc::SYS_setsockopt => handler!([fd, b, c, d, e, _] => control_unsafe::setsockopt(
            fd as _, b as _, c as _, d as _, e as _
        )),
        libc::SYS_getsockopt => handler!([fd, b, c, d, e, _] => control_unsafe::getsockopt(
            fd as _, b as _, c as _, d as _, e as _
        )),
        _ => return None,
    })
}

/// Returns the function for a call that closes, duplicates or controls a descriptor, or that ends
/// the process.
#[inline]
fn descriptors_handler(number: c_long) -> Option<Handler> {
    Some(match number {
        libc::SYS_close => handler!([fd, ..] => descriptors_unsafe::close(fd as _)),
        libc::SYS_close_range => handler!([a, b, c, ..] => descriptors_unsafe::close_range(
            a as c_uint, b as c_uint, c as _
        )),
        libc::SYS_dup => handler!([fd, ..] => descriptors_unsafe::dup(fd as _)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => handler!([fd, b, ..] => descriptors_unsafe::dup2(fd as _, b as _)),
        libc::SYS_dup3 => {
            handler!([fd, b, c, ..] => descriptors_unsafe::dup3(fd as _, b as _, c as _))
        }
        libc::SYS_fcntl => {
            handler!([fd, b, c, ..] => descriptors_unsafe::fcntl(fd as _, b as _, c))
        }
        libc::SYS_ioctl => {
            handler!([fd, b, c, ..] => descriptors_unsafe::ioctl(fd as _, b as _, c))
        }
        libc::SYS_exit_group => exit_group,
        _ => return None,
    })
}

/// Ends the process.
///
/// # Safety
///
/// The arguments must be valid for the system call.
unsafe fn exit_group([status, ..]: Args) -> c_long {
    // SAFETY: the caller upholds the safety contract.
    unsafe { exit_unsafe::_exit(status as c_int) }
}

/// Returns the function for a call of the `epoll`, `poll` or `select` family.
#[inline]
fn readiness_handler(number: c_long) -> Option<Handler> {
    Some(match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_create => handler!([a, ..] => readiness_unsafe::epoll_create(a as _)),
        libc::SYS_epoll_create1 => handler!([a, ..] => readiness_unsafe::epoll_create1(a as _)),
        libc::SYS_epoll_ctl => handler!([fd, b, c, d, ..] => readiness_unsafe::epoll_ctl(
            fd as _, b as _, c as _, d as _
        )),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => handler!([fd, b, c, d, ..] => readiness_unsafe::epoll_wait(
            fd as _, b as _, c as _, d as _
        )),
        libc::SYS_epoll_pwait => handler!([fd, b, c, d, e, len] => if is_mask(e, len) {
            readiness_unsafe::epoll_pwait(fd as _, b as _, c as _, d as _, e as _)
        } else {
            invalid()
        }),
        libc::SYS_epoll_pwait2 => handler!([fd, b, c, d, e, len] => if is_mask(e, len) {
            readiness_unsafe::epoll_pwait2(fd as _, b as _, c as _, d as _, e as _)
        } else {
            invalid()
        }),
        libc::SYS_ppoll => handler!([a, b, c, d, len, _] => if is_mask(d, len) {
            readiness_unsafe::ppoll(a as _, b as _, c as _, d as _)
        } else {
            invalid()
        }),
        libc::SYS_pselect6 => handler!([count, b, c, d, e, f] => select_unsafe::pselect6(
            count as _, [b, c, d], e as _, f as _
        )),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => handler!([a, b, c, ..] => readiness_unsafe::poll(a as _, b as _, c as _)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select => handler!([count, b, c, d, e, _] => select_unsafe::select(
            count as _, b as _, c as _, d as _, e as _
        )),
        _ => return None,
    })
}

/// Returns true if the kernel accepts `len` as the length of the signal mask at address `mask`.
fn is_mask(mask: usize, len: usize) -> bool {
    mask == 0 || len == readiness_unsafe::SIGNAL_MASK_LEN
}

/// Fails with ENOSYS, like a system call that the kernel does not have.
fn unavailable(_: Args) -> c_long {
    fail_with_errno(libc::ENOSYS) as c_long
}

/// Fails with EINVAL.
fn invalid() -> c_int {
    fail_with_errno(libc::EINVAL) as c_int
}

/// Returns the function for a call that creates a process, executes a program, or creates an
/// io_uring instance.
///
/// # Safety
///
/// The arguments must be valid for the system call.
#[inline]
unsafe fn process_handler(number: c_long, args: Args) -> Option<Handler> {
    Some(match number {
        libc::SYS_execve => {
            handler!(args => hand_over_unsafe::exec_by_number(libc::SYS_execve, args))
        }
        libc::SYS_execveat => {
            handler!(args => hand_over_unsafe::exec_by_number(libc::SYS_execveat, args))
        }
        // libuv and Rust programs create io_uring instances by this call.
        libc::SYS_io_uring_setup if !io_uring::is_allowed() => unavailable,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => handler!(args => forks_unsafe::fork_by_number(libc::SYS_fork, args)),
        // The child of a `vfork` shares the parent's stack, and must not return from `syscall`. The
        // library therefore makes a `fork`, whose child has its own copy of the stack.
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork => handler!(args => forks_unsafe::fork_by_number(libc::SYS_fork, args)),
        libc::SYS_clone if forks_unsafe::clone_copies_memory(args) => {
            handler!(args => forks_unsafe::fork_by_number(libc::SYS_clone, args))
        }
        // SAFETY: the caller upholds the safety contract.
        libc::SYS_clone3 if unsafe { forks_unsafe::clone3_copies_memory(args) } => {
            handler!(args => forks_unsafe::fork_by_number(libc::SYS_clone3, args))
        }
        _ => return None,
    })
}
