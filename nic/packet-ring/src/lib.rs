//! The two ends of a mux port in shared memory. Each end is a [`PacketIo`].
//!
//! A mux port lets a program with a TCP/IP stack of its own share a NIC with the service (the
//! process `tidelaned`). The mux (crate `tidelane-mux`) runs in the cores (polling threads) of the
//! service, and carries frames between the mux ports of programs and the NIC.
//!
//! ```text
//!   program                                   service (mux of a core)
//!   ProgramEnd ── packet ring, program's memory ──> ServiceEnd   copies each frame, then checks it
//!   ProgramEnd <── packet ring, service's memory ── ServiceEnd
//! ```
//!
//! The program may write anything into its own memory at any time. The service copies each frame to
//! private memory before it reads the frame. A program that writes impossible indices or lengths
//! corrupts only its own mux port ([`ServiceEnd::is_corrupt`]).
//!
//! [`PacketIo`]: tidelane_packet_io::PacketIo

mod program_end;
mod service_end;
mod view_unsafe;

pub use crate::{
    program_end::{ProgramBurst, ProgramEnd},
    service_end::{ServiceBurst, ServiceEnd},
};
