//! The ring API over a service in the same process (`tidelane-service-rings`), in virtual time: two
//! hosts with one program each, and links that may lose frames. With the ring API
//! (`tidelane-rings`), one call serves all connections of a thread, and payload moves in buffers
//! instead of copies.

mod bytes;
mod ends;
mod rig_unsafe;
mod window;
