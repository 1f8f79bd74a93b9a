//! Programs that this process starts and that the library cannot serve: each is named once.

use std::{
    ffi::CStr,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::atomic::{AtomicU32, Ordering},
};

use tidelane_inspect::obstacle;

use crate::sys::{self, SharedWords, StaticCell};

/// Programs that are remembered. Later ones are named each time.
const NAMED_MAX: usize = 1024;

/// The hashes of the programs that this process or a related one has named; 0: a free place.
static NAMED: StaticCell<SharedWords<NAMED_MAX>> = StaticCell::new();

/// To be called when the library is loaded: a child could not share the words that it makes.
pub fn prepare() {
    if NAMED.load().is_none()
        && let Some(words) = SharedWords::new()
    {
        NAMED.store(Some(Box::leak(Box::new(words))));
    }
}

/// The process is about to execute `program`, or to spawn it. `search` is the value of PATH if the
/// program is looked for there. To be called between `vfork` and `exec`, too.
pub fn name_if_not_served(program: &CStr, search: Option<&[u8]>) {
    let Some(obstacle) = obstacle(program, search) else {
        return;
    };
    if is_new(program) {
        let name = program.to_bytes().utf8_chunks().next();
        let name = name.map_or("", |chunk| chunk.valid());
        sys::line(format_args!(
            "{name} {obstacle}; its sockets stay with the kernel"
        ));
    }
}

/// Returns true the first time that it is called for a program.
fn is_new(program: &CStr) -> bool {
    let Some(words) = NAMED.load() else {
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
