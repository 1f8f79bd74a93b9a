//! Tests of the seccomp filter, in child processes that confine themselves.

use std::{collections::BTreeSet, io, os::unix::process::ExitStatusExt};

use super::{super::calls::CALLS, *};
use crate::confine::tests::{PART, child};

/// Calls that an intruder would make and the service never makes: description, number, first four
/// arguments. -100 is AT_FDCWD, 0x22 is MAP_PRIVATE | MAP_ANONYMOUS, and command 5 of `bpf` is
/// BPF_PROG_LOAD.
const FORBIDDEN: &[(&str, c_long, [c_long; 4])] = &[
    ("execve", libc::SYS_execve, [0; 4]),
    ("execveat", libc::SYS_execveat, [0; 4]),
    ("fork", libc::SYS_fork, [0; 4]),
    ("vfork", libc::SYS_vfork, [0; 4]),
    (
        "clone of a process",
        libc::SYS_clone,
        [libc::SIGCHLD as c_long, 0, 0, 0],
    ),
    ("ptrace", libc::SYS_ptrace, [0; 4]),
    ("process_vm_readv", libc::SYS_process_vm_readv, [0; 4]),
    ("open_by_handle_at", libc::SYS_open_by_handle_at, [0; 4]),
    (
        "open to write",
        libc::SYS_openat,
        [-100, 0, libc::O_WRONLY as c_long, 0],
    ),
    (
        "open to create",
        libc::SYS_openat,
        [-100, 0, libc::O_CREAT as c_long, 0],
    ),
    ("connect", libc::SYS_connect, [0; 4]),
    (
        "AF_UNIX socket",
        libc::SYS_socket,
        [libc::AF_UNIX as c_long, 1, 0, 0],
    ),
    (
        "AF_PACKET socket",
        libc::SYS_socket,
        [libc::AF_PACKET as c_long, 3, 0, 0],
    ),
    (
        "AF_ALG socket",
        libc::SYS_socket,
        [libc::AF_ALG as c_long, 5, 0, 0],
    ),
    (
        "AF_VSOCK socket",
        libc::SYS_socket,
        [libc::AF_VSOCK as c_long, 1, 0, 0],
    ),
    ("bpf program", libc::SYS_bpf, [5, 0, 0, 0]),
    (
        "executable memory",
        libc::SYS_mmap,
        [0, 4096, libc::PROT_EXEC as c_long, 0x22],
    ),
    (
        "memory made executable",
        libc::SYS_mprotect,
        [0, 0, libc::PROT_EXEC as c_long, 0],
    ),
    ("kill", libc::SYS_kill, [0; 4]),
    ("signal to another process", libc::SYS_tgkill, [1, 1, 0, 0]),
    (
        "handler of SIGSYS",
        libc::SYS_rt_sigaction,
        [libc::SIGSYS as c_long, 0, 0, 8],
    ),
    (
        "dumpable again",
        libc::SYS_prctl,
        [libc::PR_SET_DUMPABLE as c_long, 1, 0, 0],
    ),
    (
        "TIOCSTI",
        libc::SYS_ioctl,
        [0, libc::TIOCSTI as c_long, 0, 0],
    ),
    ("setns", libc::SYS_setns, [0; 4]),
    ("unshare", libc::SYS_unshare, [0; 4]),
    ("mount", libc::SYS_mount, [0; 4]),
    ("setuid", libc::SYS_setuid, [0; 4]),
    ("init_module", libc::SYS_init_module, [0; 4]),
    ("io_uring_setup", libc::SYS_io_uring_setup, [0; 4]),
    ("userfaultfd", libc::SYS_userfaultfd, [0; 4]),
    (
        "getpid of the x32 ABI",
        0x4000_0000 + libc::SYS_getpid,
        [0; 4],
    ),
];

#[test]
fn each_call_has_one_rule_and_each_group_a_purpose() {
    let mut seen = BTreeSet::new();
    for group in CALLS {
        assert!(!group.purpose.is_empty());
        for (call, _) in group.calls {
            assert!(seen.insert(*call), "call {call} has two rules");
        }
    }
}

#[test]
fn the_calls_of_the_packet_path_pass_with_any_arguments() {
    let any = |call: &c_long| {
        let mut rules = CALLS.iter().flat_map(|group| group.calls);
        rules.any(|(known, rule)| known == call && *rule == Rule::Any)
    };
    let path = [
        libc::SYS_sendto,
        libc::SYS_sendmsg,
        libc::SYS_recvfrom,
        libc::SYS_epoll_pwait2,
        libc::SYS_epoll_pwait,
        libc::SYS_write,
        libc::SYS_futex,
    ];
    assert!(path.iter().all(any));
}

#[test]
fn a_forbidden_call_ends_the_process_and_is_named() {
    if let Ok(name) = std::env::var(PART) {
        make_forbidden_call(&name);
        return;
    }
    for (name, call, arguments) in FORBIDDEN {
        let output = child(
            "confine::filter::tests::a_forbidden_call_ends_the_process_and_is_named",
            name,
        );
        let said = String::from_utf8_lossy(&output.stderr);
        let signal = output.status.signal();
        assert_eq!(signal, Some(libc::SIGABRT), "{name}: {said}");
        let line = format!(
            "denied system call {} (first arguments {}, ",
            call, arguments[0] as u64
        );
        assert!(said.contains(&line), "{name}: no {line:?} in {said}");
    }
}

fn make_forbidden_call(name: &str) {
    let (_, call, arguments) = FORBIDDEN
        .iter()
        .find(|(known, ..)| *known == name)
        .expect("a call of the list");
    rustix::thread::set_no_new_privs(true).expect("it may be set");
    install(CALLS).expect("the filter");
    sys::make_call(*call, *arguments);
    println!("{name} was made");
}

#[test]
fn the_filter_allows_the_calls_of_the_runtime() {
    const TEST: &str = "confine::filter::tests::the_filter_allows_the_calls_of_the_runtime";
    if std::env::var_os(PART).is_none() {
        let output = child(TEST, "all");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", output.status);
        return;
    }
    rustix::thread::set_no_new_privs(true).expect("it may be set");
    install(CALLS).expect("the filter");
    let threads: Vec<_> = (0..4)
        .map(|number: usize| {
            let thread = std::thread::Builder::new().name(format!("thread-{number}"));
            thread
                .spawn(move || {
                    // A small vector is in the heap. A large vector can have a mapping of its own,
                    // which may move when the vector grows.
                    let mut grown = Vec::new();
                    for size in [10, 100_000, 10_000_000_usize] {
                        grown.resize(size, number as u8);
                        grown.shrink_to_fit();
                    }
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    std::thread::yield_now();
                    grown.len()
                })
                .expect("a thread")
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().expect("it ends"), 10_000_000);
    }
    assert!(std::thread::available_parallelism().is_ok());
    let missing = std::fs::read_to_string("/proc/self/no-such-file").expect_err("no file");
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    assert!(std::fs::read_to_string("/proc/self/status").is_ok());
    let panicked = std::thread::spawn(|| panic!("on purpose")).join();
    assert!(panicked.is_err());
}
