//! Reports about programs that the library (`libtidelane.so`, which contains this crate) cannot
//! serve, such as statically linked programs. The library makes a report when this process starts
//! such a program, which then uses the kernel's TCP. Each of the first `REPORTED_MAX` programs is
//! reported once, and each further program at every start.

use std::{
    ffi::CStr,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::atomic::{AtomicU32, Ordering},
};

use tidelane_inspect::inspect;

use crate::sys::{self, SharedWords, StaticCell};

/// Largest number of remembered programs. A program beyond this number is reported at every start.
const REPORTED_MAX: usize = 1024;

/// Hashes of the programs that this process or its forked children have reported. 0 is a free
/// entry.
static REPORTED: StaticCell<SharedWords<REPORTED_MAX>> = StaticCell::new();

/// Maps the memory for the hashes, which this process shares with the children that it forks
/// afterwards. Called when the library is loaded, before the first fork.
pub fn prepare() {
    if REPORTED.load().is_none()
        && let Some(words) = SharedWords::new()
    {
        REPORTED.store(Some(Box::leak(Box::new(words))));
    }
}

/// Reports `program` if the library cannot serve it. The process is about to execute or spawn
/// `program`. `search` is the value of PATH if the call searches the directories in PATH for the
/// program, or else `None`. A child between `vfork` and `exec` may call this function.
pub fn report_if_not_served(program: &CStr, search: Option<&[u8]>) {
    let Some(unsupported) = inspect(program, search) else {
        return;
    };
    if is_new(program) {
        let name = program.to_bytes().utf8_chunks().next();
        let name = name.map_or("", |chunk| chunk.valid());
        sys::line(format_args!(
            "{name} {unsupported}; its sockets stay with the kernel"
        ));
    }
}

/// Remembers the hash of `program`. Returns true if the hash was not remembered yet, if there is no
/// room ([`REPORTED_MAX`]), or if [`prepare`] has not mapped the memory.
fn is_new(program: &CStr) -> bool {
    let Some(words) = REPORTED.load() else {
        return true;
    };
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(program);
    let hash = (hash as u32).max(1);
    let free = |at: &AtomicU32| at.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed);
    for word in words.all() {
        match free(word) {
            Ok(_) => return true,
            Err(other) if other == hash => return false,
            Err(_) => {}
        }
    }
    true
}
