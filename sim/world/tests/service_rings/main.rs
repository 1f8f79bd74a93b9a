//! The ring API over a service in the same process (`tidelane-service-rings`), in virtual time: two
//! hosts with one program each, and links that may lose frames.

mod bytes;
mod ends;
mod rig_unsafe;
mod window;
