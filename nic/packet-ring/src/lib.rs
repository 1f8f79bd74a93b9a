//! The two ends of a mux port in shared memory, each a [`PacketIo`].
//!
//! ```text
//!   program                                   service (a core's mux)
//!   ProgramEnd ── packet ring, program's memory ──> ServiceEnd   copies each frame, then checks it
//!   ProgramEnd <── packet ring, service's memory ── ServiceEnd
//! ```
//!
//! The program may write anything into its own memory at any time. The service copies each frame to
//! private memory before it looks at the frame. A program that writes impossible indices or lengths
//! makes its own end corrupt ([`ServiceEnd::is_corrupt`]), and nothing else.
//!
//! [`PacketIo`]: tidelane_packet_io::PacketIo

mod program_end;
mod service_end;
mod view_unsafe;

pub use crate::{
    program_end::{ProgramBurst, ProgramEnd},
    service_end::{ServiceBurst, ServiceEnd},
};
