//! C interface of the embedded TCP stack (`tidelane-embedded`). `include/tidelane_embedded.h`
//! documents the functions.

mod calls_unsafe;
