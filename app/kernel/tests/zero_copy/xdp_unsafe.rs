//! An XDP program that passes every packet.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};

// Commands, program type and attach type of `linux/bpf.h`.
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;

/// The arguments of `BPF_PROG_LOAD` (`union bpf_attr`).
#[repr(C)]
#[derive(Default)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    /// The fields `log_level`, `log_size` and `log_buf`. Zero disables the log of the verifier.
    log: [u32; 4],
    kern_version: u32,
    prog_flags: u32,
    name: [u8; 16],
    ifindex: u32,
    expected_attach_type: u32,
}

/// The arguments of `BPF_LINK_CREATE` (`union bpf_attr`).
#[repr(C)]
struct Link {
    program: u32,
    ifindex: u32,
    attach_type: u32,
    flags: u32,
}

/// Calls `bpf`, and returns the new file descriptor.
fn bpf<T>(command: libc::c_long, arguments: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the arguments are live and have the stated size. The memory to which the arguments
    // point is live until the call returns.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *arguments, size_of::<T>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just returned this descriptor, and no other code owns the descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Attaches to an interface an XDP program that passes every packet. Dropping the result detaches
/// the program.
pub fn attach_pass(ifindex: u32) -> io::Result<OwnedFd> {
    // r0 = 2 (XDP_PASS); exit
    let insns = [0x0000_0002_0000_00b7u64, 0x0000_0000_0000_0095];
    let program = bpf(
        BPF_PROG_LOAD,
        &mut Load {
            prog_type: BPF_PROG_TYPE_XDP,
            insn_cnt: insns.len() as u32,
            insns: insns.as_ptr() as u64,
            license: c"GPL".as_ptr() as u64,
            expected_attach_type: BPF_XDP,
            ..Load::default()
        },
    )?;
    bpf(
        BPF_LINK_CREATE,
        &mut Link {
            program: program.as_raw_fd() as u32,
            ifindex,
            attach_type: BPF_XDP,
            flags: 0,
        },
    )
}
