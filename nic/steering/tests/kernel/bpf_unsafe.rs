//! BPF programs that accept every packet, loaded by system calls without the loader `aya`; and
//! mount namespaces for threads of tests.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Program types `BPF_PROG_TYPE_SCHED_CLS` and `BPF_PROG_TYPE_CGROUP_SKB`.
pub const SCHED_CLS: u32 = 3;
pub const CGROUP_SKB: u32 = 8;
/// Attach types `BPF_CGROUP_INET_EGRESS` and `BPF_TCX_INGRESS`.
pub const CGROUP_INET_EGRESS: u32 = 1;
pub const TCX_INGRESS: u32 = 46;

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_ATTACH: libc::c_long = 8;

/// The arguments of `BPF_PROG_LOAD` (`union bpf_attr`).
#[repr(C)]
#[derive(Default)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    /// `log_level`, `log_size` and the two halves of `log_buf`.
    log: [u32; 4],
    kern_version: u32,
    prog_flags: u32,
    name: [u8; 16],
    ifindex: u32,
    expected_attach_type: u32,
}

/// The arguments of `BPF_PROG_ATTACH` (`union bpf_attr`).
#[repr(C)]
struct Attach {
    /// `target_fd` or `target_ifindex`.
    target: u32,
    /// `attach_bpf_fd`.
    program: u32,
    attach_type: u32,
    flags: u32,
}

/// Loads a program of this type that only returns 1. The program has the name "test_prog".
pub fn load(prog_type: u32, expected_attach_type: u32) -> OwnedFd {
    // r0 = 1; exit
    let insns = [0x0000_0001_0000_00b7u64, 0x0000_0000_0000_0095];
    let mut load = Load {
        prog_type,
        insn_cnt: insns.len() as u32,
        insns: insns.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        expected_attach_type,
        ..Load::default()
    };
    load.name[..9].copy_from_slice(b"test_prog");
    // SAFETY: `load` and the memory to which it points outlive the call, and have the stated sizes.
    let fd = unsafe {
        let size = size_of::<Load>();
        libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw mut load, size)
    };
    assert!(fd >= 0, "load: {}", std::io::Error::last_os_error());
    // SAFETY: the call has just returned this descriptor, and no other code owns the descriptor.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

/// Attaches `program` to an interface or to a cgroup. `target` is the index of the interface or the
/// descriptor of the cgroup's directory.
pub fn attach(program: &OwnedFd, target: u32, attach_type: u32) -> std::io::Result<()> {
    let mut attach = Attach {
        target,
        program: program.as_raw_fd() as u32,
        attach_type,
        flags: 0,
    };
    // SAFETY: `attach` outlives the call, and has the stated size.
    let result = unsafe {
        let size = size_of::<Attach>();
        libc::syscall(libc::SYS_bpf, BPF_PROG_ATTACH, &raw mut attach, size)
    };
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// Gives the calling thread a mount namespace of its own.
pub fn own_mounts() {
    let flags = rustix::thread::UnshareFlags::NEWNS;
    // SAFETY: the thread still shares the descriptor table of the process. The new namespace
    // affects only how the kernel resolves the paths that this thread uses.
    unsafe { rustix::thread::unshare_unsafe(flags) }.expect("root may unshare");
}
