//! The system calls that the Tidelane service makes while it serves. The seccomp filter
//! ([`super::filter`]) denies all other calls.
//!
//! To add a call, put it into the group of its purpose, or make a group with a new purpose. Limit
//! its arguments if one of them decides the effect: a family, a command, a request. A call that the
//! service makes only during set-up does not belong here. If the service makes a denied call, the
//! service ends, and its log has the number of the call. The test `serving_makes_no_denied_call`
//! (`tests/interop/security/confinement.rs`) runs the service to find missing calls.

use libc::c_long;

/// The condition under which a call is allowed. Arguments are numbered from zero. A rule compares
/// the low 32 bits of an argument, because the kernel uses no more bits of the arguments that this
/// table restricts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// With any arguments.
    Any,
    /// If the argument of this number has one of the values.
    OneOf(u32, &'static [u32]),
    /// If the bits of the argument under `mask` equal `set`.
    Bits {
        /// Number of the argument.
        argument: u32,
        /// The bits that the rule compares.
        mask: u32,
        /// The bits under the mask that must be set. The other bits under the mask must be clear.
        set: u32,
    },
    /// If the argument of this number is the id of this process.
    OwnProcess(u32),
    /// If the argument of this number is the id of this process, or zero, which stands for this
    /// process.
    OwnProcessOrZero(u32),
    /// Never: the call fails with ENOSYS, and its caller uses another system call.
    Missing,
}

use Rule::{Any, Bits, Missing, OneOf, OwnProcess, OwnProcessOrZero};

/// System calls that serve one purpose.
#[derive(Debug)]
pub struct Group {
    /// The purpose in the service.
    pub purpose: &'static str,
    /// The calls.
    pub calls: &'static [(c_long, Rule)],
}

/// Allows `mmap` and `mprotect` without PROT_EXEC, so that no memory becomes executable.
const NOT_EXECUTABLE: Rule = Bits {
    argument: 2,
    mask: libc::PROT_EXEC as u32,
    set: 0,
};
/// Allows `openat` only to read files that exist.
const READ_ONLY: Rule = Bits {
    argument: 2,
    mask: (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u32,
    set: 0,
};
/// Allows `clone` only to start a thread of this process.
const THREAD: Rule = Bits {
    argument: 0,
    mask: (libc::CLONE_THREAD | libc::CLONE_VM | libc::CLONE_SIGHAND) as u32,
    set: (libc::CLONE_THREAD | libc::CLONE_VM | libc::CLONE_SIGHAND) as u32,
};
/// Signals whose handlers may change. `abort` and the runtime's stack guard remove handlers. The C
/// library installs handlers for its internal signals 32 and 33. SIGSYS is not in the list, so its
/// handler stays.
const SIGNALS: &[u32] = &[
    libc::SIGABRT as u32,
    libc::SIGSEGV as u32,
    libc::SIGBUS as u32,
    32,
    33,
];
/// Requests of `ioctl`: interfaces by name and number; pending bytes of a socket; O_NONBLOCK and
/// close-on-exec; a socket's namespace; offloads of the NIC, which the service switches off if an
/// operator has switched them on.
const REQUESTS: &[u32] = &[
    libc::SIOCGIFINDEX as u32,
    libc::SIOCGIFNAME as u32,
    libc::FIONREAD as u32,
    libc::FIONBIO as u32,
    libc::FIOCLEX as u32,
    0x894c, // SIOCGSKNS
    SIOCETHTOOL,
];
const SIOCETHTOOL: u32 = 0x8946;
/// Address families of new sockets.
const FAMILIES: &[u32] = &[
    libc::AF_INET as u32,
    libc::AF_INET6 as u32,
    libc::AF_NETLINK as u32,
];
/// Commands of `bpf`. Commands 1 to 4 look up, update, delete and iterate the elements of open
/// maps. Command 10 (BPF_PROG_TEST_RUN) injects frames into the kernel. Command 16 (BPF_PROG_QUERY)
/// lists the programs that are attached to cgroups and interfaces.
const BPF_COMMANDS: &[u32] = &[1, 2, 3, 4, 10, 16];
/// Options of `prctl`: a thread's name; names of anonymous memory, which newer allocators set; the
/// auxiliary vector.
const PROCESS_OPTIONS: &[u32] = &[
    libc::PR_SET_NAME as u32,
    libc::PR_SET_VMA as u32,
    0x4155_5856, // PR_GET_AUXV
];
/// Group argument of `fchown` that changes no group. The service changes only the owner of a socket
/// that reserves a port.
const KEEP_GROUP: &[u32] = &[u32::MAX];
/// Commands of `fcntl`.
const DESCRIPTOR_COMMANDS: &[u32] = &[
    libc::F_GETFD as u32,
    libc::F_SETFD as u32,
    libc::F_GETFL as u32,
    libc::F_SETFL as u32,
    libc::F_DUPFD_CLOEXEC as u32,
    libc::F_ADD_SEALS as u32,
    libc::F_GET_SEALS as u32,
];

/// Every system call that the service's threads make while the service serves.
pub const CALLS: &[Group] = &[
    Group {
        purpose: "packets: the rings of AF_XDP are kicked, GSO frames sent; netlink",
        calls: &[
            (libc::SYS_sendto, Any),
            (libc::SYS_sendmsg, Any),
            (libc::SYS_recvfrom, Any),
            (libc::SYS_recvmsg, Any),
        ],
    },
    Group {
        purpose: "sleep and wake-up: doorbells, timeouts",
        calls: &[
            (libc::SYS_epoll_create1, Any),
            (libc::SYS_epoll_ctl, Any),
            (libc::SYS_epoll_wait, Any),
            (libc::SYS_epoll_pwait, Any),
            (libc::SYS_epoll_pwait2, Any),
            (libc::SYS_eventfd2, Any),
            (libc::SYS_poll, Any),
            (libc::SYS_ppoll, Any),
            (libc::SYS_futex, Any),
            (libc::SYS_nanosleep, Any),
            (libc::SYS_clock_nanosleep, Any),
            (libc::SYS_restart_syscall, Any),
        ],
    },
    Group {
        purpose: "descriptors: read, write, copy, close",
        calls: &[
            (libc::SYS_read, Any),
            (libc::SYS_readv, Any),
            (libc::SYS_pread64, Any),
            (libc::SYS_write, Any),
            (libc::SYS_writev, Any),
            (libc::SYS_close, Any),
            (libc::SYS_fcntl, OneOf(1, DESCRIPTOR_COMMANDS)),
            (libc::SYS_ioctl, OneOf(1, REQUESTS)),
        ],
    },
    Group {
        purpose: "registrations and port reservations: sockets of the kernel",
        calls: &[
            (libc::SYS_socket, OneOf(0, FAMILIES)),
            (libc::SYS_socketpair, OneOf(0, &[libc::AF_UNIX as u32])),
            (libc::SYS_bind, Any),
            (libc::SYS_accept4, Any),
            (libc::SYS_shutdown, Any),
            (libc::SYS_getsockname, Any),
            (libc::SYS_getpeername, Any),
            (libc::SYS_getsockopt, Any),
            (libc::SYS_setsockopt, Any),
            (libc::SYS_pidfd_open, Any),
            (libc::SYS_fchown, OneOf(2, KEEP_GROUP)),
        ],
    },
    Group {
        purpose: "claims: the demux's maps; eBPF programs that accelerated connections bypass",
        calls: &[(libc::SYS_bpf, OneOf(0, BPF_COMMANDS))],
    },
    Group {
        purpose: "memory: the allocator's, regions of programs, stacks of threads",
        calls: &[
            (libc::SYS_mmap, NOT_EXECUTABLE),
            (libc::SYS_mprotect, NOT_EXECUTABLE),
            (libc::SYS_munmap, Any),
            (libc::SYS_mremap, Any),
            (libc::SYS_madvise, Any),
            (libc::SYS_brk, Any),
            (libc::SYS_memfd_create, Any),
            (libc::SYS_ftruncate, Any),
            (libc::SYS_fallocate, Any),
            // `fchmod` keeps programs from opening receive buffers for writing. `mlock2` keeps
            // rings in memory.
            (libc::SYS_fchmod, OneOf(1, &[libc::S_IRUSR])),
            (libc::SYS_mlock2, Any),
        ],
    },
    Group {
        purpose: "files to read: /proc, /sys, the configuration",
        calls: &[
            (libc::SYS_openat, READ_ONLY),
            (libc::SYS_lseek, Any),
            (libc::SYS_fstat, Any),
            (libc::SYS_newfstatat, Any),
            (libc::SYS_statx, Any),
            (libc::SYS_getdents64, Any),
            (libc::SYS_readlink, Any),
            (libc::SYS_readlinkat, Any),
            (libc::SYS_getcwd, Any),
        ],
    },
    Group {
        purpose: "shutdown: remove the run directory",
        calls: &[(libc::SYS_unlinkat, Any)],
    },
    Group {
        purpose: "threads: their start, their classes and CPUs, their end",
        calls: &[
            (libc::SYS_clone, THREAD),
            // The flags of clone3 are in memory, which no filter can read. The C library falls back
            // to clone.
            (libc::SYS_clone3, Missing),
            (libc::SYS_set_robust_list, Any),
            (libc::SYS_rseq, Any),
            (libc::SYS_membarrier, Any),
            (libc::SYS_gettid, Any),
            (libc::SYS_getpid, Any),
            (libc::SYS_sched_yield, Any),
            (libc::SYS_sched_getaffinity, Any),
            (libc::SYS_sched_setaffinity, Any),
            (libc::SYS_sched_setscheduler, Any),
            (libc::SYS_setpriority, Any),
            (libc::SYS_prctl, OneOf(0, PROCESS_OPTIONS)),
            (libc::SYS_exit, Any),
            (libc::SYS_exit_group, Any),
        ],
    },
    Group {
        purpose: "signals: a core that is stuck in a call is interrupted; abort",
        calls: &[
            (libc::SYS_tgkill, OwnProcess(0)),
            (libc::SYS_rt_sigreturn, Any),
            (libc::SYS_rt_sigprocmask, Any),
            (libc::SYS_rt_sigaction, OneOf(0, SIGNALS)),
            (libc::SYS_sigaltstack, Any),
        ],
    },
    Group {
        purpose: "questions about this process and this machine",
        calls: &[
            (libc::SYS_clock_gettime, Any),
            (libc::SYS_gettimeofday, Any),
            (libc::SYS_time, Any),
            (libc::SYS_getcpu, Any),
            (libc::SYS_getrandom, Any),
            (libc::SYS_uname, Any),
            (libc::SYS_sysinfo, Any),
            (libc::SYS_getuid, Any),
            (libc::SYS_geteuid, Any),
            (libc::SYS_getrlimit, Any),
            (libc::SYS_prlimit64, OwnProcessOrZero(0)),
        ],
    },
];

/// Every system call of the restorer, a process that restores settings of the NIC if the service
/// was killed.
pub const RESTORER_CALLS: &[Group] = &[
    Group {
        purpose: "wait for messages, and for the end of the service",
        calls: &[
            (libc::SYS_recvfrom, Any),
            (libc::SYS_poll, Any),
            (libc::SYS_ppoll, Any),
            (libc::SYS_nanosleep, Any),
            (libc::SYS_clock_nanosleep, Any),
            (libc::SYS_restart_syscall, Any),
        ],
    },
    Group {
        purpose: "segments to the peers of a service that was killed",
        calls: &[(libc::SYS_sendto, Any), (libc::SYS_clock_gettime, Any)],
    },
    Group {
        purpose: "features of interfaces",
        calls: &[
            (libc::SYS_socket, OneOf(0, &[libc::AF_INET as u32])),
            (
                libc::SYS_ioctl,
                OneOf(1, &[libc::SIOCGIFNAME as u32, SIOCETHTOOL]),
            ),
        ],
    },
    Group {
        purpose: "the log, memory, the end",
        calls: &[
            (libc::SYS_write, Any),
            (libc::SYS_writev, Any),
            (libc::SYS_close, Any),
            (libc::SYS_mmap, NOT_EXECUTABLE),
            (libc::SYS_mprotect, NOT_EXECUTABLE),
            (libc::SYS_munmap, Any),
            (libc::SYS_mremap, Any),
            (libc::SYS_madvise, Any),
            (libc::SYS_brk, Any),
            (libc::SYS_futex, Any),
            (libc::SYS_gettid, Any),
            (libc::SYS_getpid, Any),
            (libc::SYS_tgkill, OwnProcess(0)),
            (libc::SYS_rt_sigreturn, Any),
            (libc::SYS_rt_sigprocmask, Any),
            (libc::SYS_rt_sigaction, OneOf(0, SIGNALS)),
            (libc::SYS_sigaltstack, Any),
            (libc::SYS_exit_group, Any),
        ],
    },
];
