//! The embedded stack (`tidelane-embedded`, a TCP stack that a program links) for C programs.
//! `include/tidelane_embedded.h` documents the functions.

mod calls_unsafe;
