//! A snapshot of the threads in a network namespace, for the report of a test that hangs.

use std::{fmt::Write, fs, path::Path};

use crate::command;

/// Returns a heading, and a line for each process and each thread in the namespace. The line of a
/// thread has the thread's name, state, wait channel (the kernel function in which the thread
/// sleeps), and system call.
pub fn of_namespace(namespace: &str) -> String {
    let pids = command(&["ip", "netns", "pids", namespace]).unwrap_or_default();
    let mut text = format!("  in {namespace}:\n");
    for pid in pids.split_whitespace() {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        // Writing to a `String` never fails.
        let _ = writeln!(text, "    {pid} {}", line.trim_end());
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
            continue;
        };
        for thread in threads.flatten() {
            let _ = writeln!(text, "      {}", thread_line(&thread.path()));
        }
    }
    text
}

/// Returns the line of the thread whose directory in `/proc` is `dir`.
fn thread_line(dir: &Path) -> String {
    let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_default();
    let stat = read("stat");
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().next());
    // The number of the system call, and its first three arguments.
    let syscall = read("syscall");
    let call: Vec<&str> = syscall.split_whitespace().take(4).collect();
    let comm = read("comm");
    let (comm, wchan) = (comm.trim(), read("wchan"));
    let state = state.unwrap_or("?");
    format!("{comm}: state {state}, in {wchan}, call {}", call.join(" "))
}
