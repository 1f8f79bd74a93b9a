//! The seccomp filter: compiles a table, such as [`CALLS`](super::calls::CALLS), into a BPF
//! program.
//!
//! The kernel does not execute a call that is not in the table, or whose arguments the table does
//! not allow. The kernel sends SIGSYS to the thread instead. The handler of SIGSYS writes the
//! call's number to the log and aborts the process. If the thread blocks the signal, the kernel
//! ends the process. Two cases differ: a call with [`Rule::Missing`] fails with ENOSYS, and a call
//! with the numbering of another architecture ends the process without a line in the log.
//!
//! Since Linux 5.11 the kernel keeps a bitmap of the calls that pass with any arguments. The calls
//! of the packet path are in this bitmap, so the kernel does not run the BPF program for these
//! calls.

use std::io;

use libc::{c_long, sock_filter};

use super::{
    calls::{Group, Rule},
    sys,
};

/// `AUDIT_ARCH_X86_64`: system calls of other architectures have other numbers.
const ARCHITECTURE: u32 = 0xc000_003e;
/// Byte offsets of fields in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const ARGUMENTS_AT: u32 = 16;

/// Installs the filter for all threads of this process and the threads that they start. The filter
/// allows the calls of `groups`.
pub fn install(groups: &[Group]) -> io::Result<()> {
    sys::report_denied_calls()?;
    sys::set_filter(&program(groups, std::process::id()))
}

/// Returns the BPF program that allows the calls of `groups`. `own` is the id of this process.
fn program(groups: &[Group], own: u32) -> Vec<sock_filter> {
    let mut program = vec![
        load(ARCHITECTURE_AT),
        skip_unless(ARCHITECTURE, 1),
        skip(1),
        give(libc::SECCOMP_RET_KILL_PROCESS),
        load(NUMBER_AT),
    ];
    for (call, rule) in groups.iter().flat_map(|group| group.calls) {
        let verdict = verdict(*rule, own);
        program.push(skip_unless(number(*call), verdict.len() as u8));
        program.extend(verdict);
    }
    program.push(give(libc::SECCOMP_RET_TRAP));
    program
}

/// Returns the number of a call as a word of the filter.
fn number(call: c_long) -> u32 {
    u32::try_from(call).expect("the number of a system call")
}

/// Returns the instructions that decide a call by its rule. Each path through the instructions ends
/// with the result for the call.
fn verdict(rule: Rule, own: u32) -> Vec<sock_filter> {
    let allow = give(libc::SECCOMP_RET_ALLOW);
    let deny = give(libc::SECCOMP_RET_TRAP);
    let one_of = |argument, values: &[u32]| {
        let mut verdict = vec![load_argument(argument)];
        for value in values {
            verdict.extend([skip_unless(*value, 1), allow]);
        }
        verdict.push(deny);
        verdict
    };
    match rule {
        Rule::Any => vec![allow],
        Rule::OneOf(argument, values) => one_of(argument, values),
        Rule::OwnProcess(argument) => one_of(argument, &[own]),
        Rule::OwnProcessOrZero(argument) => one_of(argument, &[own, 0]),
        Rule::Bits {
            argument,
            mask,
            set,
        } => vec![
            load_argument(argument),
            keep_bits(mask),
            skip_unless(set, 1),
            allow,
            deny,
        ],
        Rule::Missing => vec![give(libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32)],
    }
}

/// Loads the low word of an argument. The low word is first, because x86-64 is little-endian.
fn load_argument(argument: u32) -> sock_filter {
    load(ARGUMENTS_AT + 8 * argument)
}

fn load(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0)
}

/// Clears the bits of the loaded word that are not in `mask`.
fn keep_bits(mask: u32) -> sock_filter {
    instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, mask, 0)
}

/// Skips `count` instructions unless the loaded word is `value`.
fn skip_unless(value: u32, count: u8) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, count)
}

/// Skips `count` instructions.
fn skip(count: u32) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JA, count, 0)
}

/// Ends the BPF program with this result for the call.
fn give(result: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, result, 0)
}

fn instruction(code: u32, k: u32, jf: u8) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    }
}

#[cfg(test)]
mod tests;
