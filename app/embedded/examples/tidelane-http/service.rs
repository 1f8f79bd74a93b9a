//! The HTTP server on a mux port of the Tidelane service. A mux port consists of packet rings
//! through which a program with a TCP/IP stack of its own shares the NIC.

use std::{io, net::SocketAddr, time::Duration};

use tidelane_embedded::{MacAddress, Stack, StackConfig};
use tidelane_port::{Port, PortConfig};

use crate::{Options, stack_config};

/// Length in bytes of each packet ring of the mux port.
const RING_LEN: u32 = 1 << 20;

/// Serves for the time in `options`. Returns the number of responses. Fails if the service ends.
pub fn serve(options: &Options) -> io::Result<u64> {
    let config = PortConfig {
        ring_len: RING_LEN,
        spin: Duration::from_micros(options.spin_us),
        ..PortConfig::new("tidelane-http")
    };
    let mut port = Port::open(&config)?;
    // The service reserves the TCP port in the kernel, so the socket is no longer needed.
    drop(port.bind_tcp(SocketAddr::new(options.address, options.port))?);
    let config = StackConfig {
        mac: MacAddress(port.mac()),
        shared_addresses: true,
        ..stack_config(options)?
    };
    let stack = Stack::new(config, port);
    crate::serve(options, stack, |port: &mut Port, limit| {
        port.wait(Some(limit))
    })
}
