//! The confinement's system calls that have no safe wrapper: for seccomp, Landlock, the handler of
//! SIGSYS, and a test of access to BPF maps.

use std::{
    ffi::{c_int, c_void},
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use libc::sock_filter;

/// Flags of `seccomp`. TSYNC applies the filter to all threads. SPEC_ALLOW keeps kernels before
/// 5.16 from switching on mitigations of speculative execution (SSBD), which are meant for
/// processes that run foreign code.
const FILTER_FLAGS: libc::c_ulong =
    libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;
const LANDLOCK_RULE_PATH_BENEATH: c_int = 1;
const BPF_MAP_LOOKUP_ELEM: c_int = 1;

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Installs `program` as the filter of all threads of this process. The calling thread must have
/// the attribute `no_new_privs`.
pub(super) fn set_filter(program: &[sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog {
        len,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies the `len` instructions, which outlive the call, and checks them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            FILTER_FLAGS,
            &raw const program,
        )
    };
    match check(result)? {
        0 => Ok(()),
        thread => Err(io::Error::other(format!(
            "thread {thread} has a filter that the service has not installed"
        ))),
    }
}

/// The kernel's report of a denied call: the head of `siginfo_t`, with the fields of SIGSYS.
#[repr(C)]
struct DeniedCall {
    _signal: [c_int; 4],
    _address: *const c_void,
    /// Number of the denied call.
    number: c_int,
    _architecture: u32,
}

/// A log line, built without allocation. A text that exceeds the buffer is cut.
struct Line {
    text: [u8; 160],
    len: usize,
}

impl Line {
    fn push(&mut self, text: &[u8]) {
        for byte in text {
            if let Some(place) = self.text.get_mut(self.len) {
                *place = *byte;
                self.len += 1;
            }
        }
    }

    fn push_number(&mut self, number: u64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        let mut rest = number;
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.push(&digits[at..]);
    }
}

/// Handles SIGSYS: logs the denied call and ends the process. Makes only async-signal-safe calls.
extern "C" fn on_denied_call(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the siginfo of SIGSYS, which has this layout, and a ucontext_t.
    // Both live on the handler's stack.
    let (number, first, second) = unsafe {
        let registers = &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        (
            (*info.cast::<DeniedCall>()).number,
            registers[libc::REG_RDI as usize],
            registers[libc::REG_RSI as usize],
        )
    };
    let mut line = Line {
        text: [0; 160],
        len: 0,
    };
    line.push(b"tidelaned: denied system call ");
    line.push_number(number.unsigned_abs().into());
    line.push(b" (first arguments ");
    line.push_number(first as u64);
    line.push(b", ");
    line.push_number(second as u64);
    line.push(b"); it is not in confine/calls.rs; the service ends\n");
    // SAFETY: the buffer is live, and `len` is within it. A signal handler may call `abort`.
    unsafe {
        libc::write(libc::STDERR_FILENO, line.text.as_ptr().cast(), line.len);
        libc::abort();
    }
}

/// Makes a denied call end the process with a line in the log.
pub(super) fn report_denied_calls() -> io::Result<()> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeros is a valid sigaction. The handler has the signature that SA_SIGINFO
    // requires, and makes only calls that a handler may make.
    let result = unsafe {
        (*action.as_mut_ptr()).sa_sigaction = on_denied_call as *const () as libc::sighandler_t;
        (*action.as_mut_ptr()).sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSYS, action.as_ptr(), std::ptr::null_mut())
    };
    check(result.into()).map(drop)
}

/// Returns true if the kernel lets this process use its open BPF maps. Some kernels demand CAP_BPF
/// of every caller before they look at the descriptor of the map. This function looks up an element
/// with an invalid descriptor: EBADF shows that the kernel did not demand CAP_BPF.
pub(super) fn may_use_open_maps() -> bool {
    /// The part of `union bpf_attr` that the look-up command reads.
    #[repr(C, align(8))]
    struct Lookup {
        map: c_int,
        key: u64,
        value: u64,
        flags: u64,
    }
    let nothing = Lookup {
        map: -1,
        key: 0,
        value: 0,
        flags: 0,
    };
    let size = size_of::<Lookup>();
    // SAFETY: the attribute has `size` bytes. Its fields are initialised, and the kernel does not
    // use the padding after `map`. No descriptor is -1, so the kernel touches no memory beyond the
    // attribute.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_LOOKUP_ELEM, &raw const nothing, size) };
    let refused = check(result).err().and_then(|error| error.raw_os_error());
    refused == Some(libc::EBADF)
}

/// Returns the version of the kernel's Landlock ABI. Returns `None` if Landlock is missing or
/// disabled.
pub(super) fn landlock_version() -> Option<u32> {
    // SAFETY: with this flag the call takes no memory.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<c_void>(),
            0usize,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    check(version)
        .ok()
        .and_then(|version| version.try_into().ok())
}

/// A Landlock ruleset.
pub(super) struct LandlockRules(OwnedFd);

impl LandlockRules {
    /// Makes a ruleset that denies the rights `handled` (bits LANDLOCK_ACCESS_FS_*) for all files,
    /// and the actions `scoped` (bits LANDLOCK_SCOPE_*) on processes outside the Landlock domain
    /// (the processes under this ruleset). [`allow`](Self::allow) then makes exceptions for files.
    pub(super) fn new(handled: u64, scoped: u64) -> io::Result<Self> {
        /// `struct landlock_ruleset_attr`. Older kernels know fewer fields, and accept zeros for
        /// the rest.
        #[repr(C)]
        struct Attributes {
            files: u64,
            network: u64,
            scoped: u64,
        }
        let attributes = Attributes {
            files: handled,
            network: 0,
            scoped,
        };
        let size = size_of::<Attributes>();
        // SAFETY: the kernel reads `size` bytes of the attributes. The descriptor is new and
        // belongs to this code.
        unsafe {
            let fd = check(libc::syscall(
                libc::SYS_landlock_create_ruleset,
                &raw const attributes,
                size,
                0u32,
            ))?;
            Ok(Self(OwnedFd::from_raw_fd(fd as c_int)))
        }
    }

    /// Allows `rights` for a file, or for all files beneath a directory.
    pub(super) fn allow(&self, file: BorrowedFd<'_>, rights: u64) -> io::Result<()> {
        /// `struct landlock_path_beneath_attr`.
        #[repr(C, packed)]
        struct Beneath {
            rights: u64,
            file: c_int,
        }
        let beneath = Beneath {
            rights,
            file: file.as_raw_fd(),
        };
        // SAFETY: the kernel reads one `Beneath`, which outlives the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                self.0.as_raw_fd(),
                LANDLOCK_RULE_PATH_BENEATH,
                &raw const beneath,
                0u32,
            )
        };
        check(result).map(drop)
    }

    /// Applies the ruleset to the calling thread and to the threads that it starts later.
    pub(super) fn restrict_self(self) -> io::Result<()> {
        // SAFETY: no memory is passed.
        let result =
            unsafe { libc::syscall(libc::SYS_landlock_restrict_self, self.0.as_raw_fd(), 0u32) };
        check(result).map(drop)
    }
}

/// Makes a system call for tests of the filter, which denies it.
#[cfg(test)]
pub(super) fn make_call(call: libc::c_long, arguments: [libc::c_long; 4]) {
    let [a, b, c, d] = arguments;
    // SAFETY: the tests make the call under a filter that denies it. The arguments refer to no
    // memory.
    unsafe { libc::syscall(call, a, b, c, d, 0, 0) };
}
