//! The ring API (`tidelane-rings`) for C programs. `include/tidelane_rings.h` has the types, and
//! `man` has a page for each function; begin with `man/tlr.7`.
//!
//! ```text
//!   calls_unsafe      the C functions: pointers and results
//!     └── opened      the contexts of each thread, by handle
//!           ├── back_end   the options of a context, and its back end
//!           └── session    one context: descriptors, ready list, sync
//!                 └── buffers   the owner of each buffer
//! ```
//!
//! A program in C can pass any number. The handle of a context and the number of a buffer identify
//! one use, so that a number of an earlier use finds nothing. All state lies outside of the memory
//! that the program gets, so that a wrong write to a buffer changes only payload.

mod address_unsafe;
mod back_end;
mod buffers;
mod calls_unsafe;
mod error;
mod fork_unsafe;
mod opened;
mod options_unsafe;
mod session;
mod types;
