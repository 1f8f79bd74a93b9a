//! A mux port of the Tidelane service, for programs with their own network stack.
//!
//! The service (the process `tidelaned`) shares its NIC and the addresses of its interface with
//! programs that have their own network stack. A mux port consists of packet rings in shared
//! memory: one ring in each direction for each core (polling thread) of the service. Over the
//! rings, the program exchanges packets with the service. The program receives and sends the
//! packets of the 3-tuples (protocol, local address and local port) that the program has claimed
//! for its mux port. To claim a 3-tuple, the program passes to the service a kernel socket that is
//! bound to the local address and port.
//!
//! ```no_run
//! use tidelane_packet_io::{BURST_MAX, Burst, PacketIo};
//! use tidelane_port::{Port, PortConfig};
//!
//! let mut port = Port::open(&PortConfig::new("example"))?;
//! let socket = port.bind_tcp("10.77.0.1:80".parse().unwrap())?;
//! let mut burst = port.new_burst();
//! loop {
//!     port.rx_burst(&mut burst, BURST_MAX);
//!     for frame in burst.iter() {
//!         println!("{} bytes", frame.len());
//!     }
//!     port.rx_release(&mut burst);
//!     // The wait fails if the service has ended.
//!     port.wait(None)?;
//!     # drop(socket);
//!     # break;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Port`] is a [`PacketIo`](tidelane_packet_io::PacketIo), so the embedded stack
//! (`tidelane-embedded`) runs on a mux port. The program must complete the checksums of the frames
//! that it sends, except the TCP checksum of a GSO frame. The service drops a frame, for example,
//! if a checksum is wrong, if the mux port has not claimed the source 3-tuple, or if the source MAC
//! address is not [`Port::mac`].
#![forbid(unsafe_code)]

mod control;
mod error;
mod kernel_socket;
mod packets;
mod port;
mod protocol;

pub use crate::{
    error::PortError,
    packets::PortBurst,
    port::{Port, PortConfig},
    protocol::Protocol,
};
