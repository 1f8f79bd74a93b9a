//! The embedded TCP stack (`tidelane-embedded`) for C programs. `include/tidelane_embedded.h`
//! documents the functions.

mod calls_unsafe;
