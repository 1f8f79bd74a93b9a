//! The embedded stack for C: `include/tidelane_embedded.h` documents the functions.

mod calls_unsafe;
