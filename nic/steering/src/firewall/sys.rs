//! System calls without a safe wrapper: query the attached BPF programs, mount the cgroup2
//! hierarchy, and read the tables of `iptables-legacy`.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// Object to which programs are attached.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target<'a> {
    /// The interface with this index.
    Interface(u32),
    /// The cgroup with this directory. A query includes the programs of the cgroup's ancestors.
    Cgroup(BorrowedFd<'a>),
}

/// The arguments of `BPF_PROG_QUERY` (`union bpf_attr`, `query`).
#[repr(C)]
#[derive(Default)]
struct Query {
    target: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    prog_cnt: u32,
    pad: u32,
    /// Three pointers to further output, which are null because this output is not requested, and
    /// a revision number that the kernel may write.
    more: [u64; 4],
}

const _: () = assert!(size_of::<Query>() == 64);

const BPF_PROG_QUERY: libc::c_long = 16;
const BPF_F_QUERY_EFFECTIVE: u32 = 1;
/// Maximum number of programs that are reported for a target and an attach type.
const PROGRAMS_MAX: usize = 64;

/// Returns the numbers (BPF program IDs) of the programs of `attach_type` at `target`. The list is
/// empty if the kernel does not know the attach type.
pub(super) fn attached_programs(target: Target<'_>, attach_type: u32) -> io::Result<Vec<u32>> {
    let mut ids = [0u32; PROGRAMS_MAX];
    let (target, query_flags) = match target {
        Target::Interface(ifindex) => (ifindex, 0),
        Target::Cgroup(directory) => (directory.as_raw_fd() as u32, BPF_F_QUERY_EFFECTIVE),
    };
    let mut query = Query {
        target,
        attach_type,
        query_flags,
        prog_ids: ids.as_mut_ptr() as u64,
        prog_cnt: PROGRAMS_MAX as u32,
        ..Query::default()
    };
    // SAFETY: `query` is a live, initialised `union bpf_attr`, and the call gets its size. Its
    // `prog_ids` points to `prog_cnt` writable numbers that outlive the call.
    let result = unsafe {
        let attr = (&raw mut query).cast::<libc::c_void>();
        libc::syscall(libc::SYS_bpf, BPF_PROG_QUERY, attr, size_of::<Query>())
    };
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        _ if result == 0 => {}
        // The target has more programs than fit into the array. The kernel has written the first
        // programs.
        Some(libc::ENOSPC) => {}
        Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP) => return Ok(Vec::new()),
        _ => return Err(error),
    }
    let count = (query.prog_cnt as usize).min(PROGRAMS_MAX);
    Ok(ids[..count].to_vec())
}

/// Mounts the cgroup2 hierarchy read-only, without a directory. Returns the descriptor of the
/// mount.
pub(super) fn mount_cgroup2() -> io::Result<OwnedFd> {
    const FSOPEN_CLOEXEC: libc::c_uint = 1;
    const FSMOUNT_CLOEXEC: libc::c_uint = 1;
    const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
    const MOUNT_ATTR_RDONLY: libc::c_uint = 1;
    let owned = |fd: libc::c_long| {
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just returned this descriptor, and no other code owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    };
    // SAFETY: the name is a C string that outlives the call.
    let context =
        owned(unsafe { libc::syscall(libc::SYS_fsopen, c"cgroup2".as_ptr(), FSOPEN_CLOEXEC) })?;
    let fd = context.as_raw_fd();
    let null = std::ptr::null::<libc::c_void>();
    // SAFETY: this command takes no key and no value.
    let created =
        unsafe { libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, null, null, 0) };
    if created != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call takes no pointers.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, fd, FSMOUNT_CLOEXEC, MOUNT_ATTR_RDONLY) })
}

/// The constants of an IP version for a socket and its options.
#[derive(Clone, Copy, Debug)]
pub(super) struct SocketFamily {
    /// Address family of the socket: `AF_INET` or `AF_INET6`.
    pub(super) domain: i32,
    /// Level of the options: `IPPROTO_IP` or `IPPROTO_IPV6`.
    pub(super) level: i32,
}

/// Fields of the kernel's description of a table of `iptables-legacy` (`struct ipt_getinfo`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Table {
    /// Bit set of the netfilter hooks that use the table (bit `n` for hook `n`).
    pub(super) valid_hooks: u32,
    /// Byte offset of each hook's policy rule in the rule set.
    pub(super) underflow: [u32; 5],
    /// Number of rules, including the policies and the final error rule.
    pub(super) entries: u32,
}

/// `struct ipt_getinfo` and `struct ip6t_getinfo`.
#[repr(C)]
#[derive(Default)]
struct TableInfo {
    name: [u8; 32],
    valid_hooks: u32,
    hook_entry: [u32; 5],
    underflow: [u32; 5],
    num_entries: u32,
    size: u32,
}

const _: () = assert!(size_of::<TableInfo>() == 84);

/// `IPT_SO_GET_INFO`, `IP6T_SO_GET_INFO`.
const SO_GET_INFO: i32 = 64;
/// `IPT_SO_GET_ENTRIES`, `IP6T_SO_GET_ENTRIES`.
const SO_GET_ENTRIES: i32 = 65;
/// Number of bytes of `struct ipt_get_entries` before the rules.
const ENTRIES_AT: usize = 40;
/// Length in bytes of the longest rule set that is read. If the rule set of a table is longer, the
/// caller assumes that the table has rules.
const RULES_LEN_MAX: usize = 16 << 20;

/// Returns table `name` and its rule set as bytes. Returns `None` if the table has been removed
/// meanwhile. The bytes are empty if the rule set is longer than `RULES_LEN_MAX`, or if another
/// process is replacing the rules.
pub(super) fn legacy_table(
    family: SocketFamily,
    name: &str,
) -> io::Result<Option<(Table, Vec<u8>)>> {
    let mut info = TableInfo::default();
    let len = name.len().min(info.name.len() - 1);
    info.name[..len].copy_from_slice(&name.as_bytes()[..len]);
    let socket = option_socket(family.domain)?;
    let size = size_of::<TableInfo>();
    let into = (&raw mut info).cast();
    // SAFETY: `into` points to `size` writable bytes, and any bytes are a valid `TableInfo`.
    if let Err(error) = unsafe { option(&socket, family.level, SO_GET_INFO, into, size) } {
        return gone(error);
    }
    let table = Table {
        valid_hooks: info.valid_hooks,
        underflow: info.underflow,
        entries: info.num_entries,
    };
    let rules_len = info.size as usize;
    if rules_len > RULES_LEN_MAX {
        return Ok(Some((table, Vec::new())));
    }
    let mut bytes = vec![0u8; ENTRIES_AT + rules_len];
    bytes[..32].copy_from_slice(&info.name);
    bytes[32..36].copy_from_slice(&info.size.to_ne_bytes());
    let (into, size) = (bytes.as_mut_ptr().cast(), bytes.len());
    // SAFETY: `into` points to `size` writable bytes.
    match unsafe { option(&socket, family.level, SO_GET_ENTRIES, into, size) } {
        Ok(()) => Ok(Some((table, bytes.split_off(ENTRIES_AT)))),
        // Another process is replacing the rules. If the bytes are empty, the caller assumes that
        // the table has rules.
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(Some((table, Vec::new()))),
        Err(error) => gone(error),
    }
}

/// Turns an error that means "the table does not exist" into `None`. Returns any other error.
fn gone<T>(error: io::Error) -> io::Result<Option<T>> {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOPROTOOPT) => Ok(None),
        _ => Err(error),
    }
}

/// Opens a socket of the address family `domain`. The options that read the tables do not depend on
/// the type of the socket.
fn option_socket(domain: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `socket` has just returned this descriptor, and no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Reads the table option `name` (`SO_GET_INFO` or `SO_GET_ENTRIES`) into `into`.
///
/// # Safety
///
/// `into` points to `len` writable bytes.
unsafe fn option(
    socket: &OwnedFd,
    level: i32,
    name: i32,
    into: *mut libc::c_void,
    len: usize,
) -> io::Result<()> {
    let mut len = len as libc::socklen_t;
    // SAFETY: the caller guarantees `into` and `len`. The kernel writes the length to `len`, which
    // outlives the call.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, into, &raw mut len) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
