//! Doorbells of contexts. A context is the set of rings of a program's thread. Each context has one
//! eventfd, which every core (polling thread) rings by a descriptor of its own.

use std::io;

use tidelane_host::Bell;
use tidelane_ring::Doorbell;

/// The eventfd of a context, by which a core wakes the program.
struct EventBell(Doorbell);

impl Bell for EventBell {
    fn ring(&self) -> bool {
        self.0.ring()
    }
}

/// Returns a copy of a context's doorbell for each of `cores` cores.
pub(super) fn of_context(bell: &Doorbell, cores: usize) -> io::Result<Vec<Box<dyn Bell>>> {
    let copy = |_| {
        let bell = Doorbell::from_trusted(bell.fd().try_clone_to_owned()?);
        Ok(Box::new(EventBell(bell)) as Box<dyn Bell>)
    };
    (0..cores).map(copy).collect()
}
