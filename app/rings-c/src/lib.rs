//! The ring API (`tidelane-rings`: messages over many connections without copies) for C programs.
//! `include/tidelane_rings.h` has the types, and `man` has a page for each function; begin with
//! `man/tlr.7`. A context is the set of TCP and UDP sockets of one thread.
//!
//! ```text
//!   calls_unsafe      the C functions: pointers and results
//!     └── opened      the contexts of each thread, each found by its handle
//!           ├── back_end   the options of a context, and its back end
//!           └── session    one context: descriptors, ready list, sync
//!                 └── buffers   the owner of each buffer
//! ```
//!
//! A program in C can pass any number. No two contexts of a process have the same handle. The
//! number of a buffer names one use of the buffer. The use ends when the program sends or releases
//! the buffer. A handle of a closed context and a number of an earlier use thus find nothing. All
//! state lies outside of the memory that the program gets, so that a wrong write to a buffer
//! changes only payload.

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
