//! Construction of control requests. A program sends them to the service (process `tidelaned`) to
//! open connections, and to start and stop accepting the connections of a listener.

use tidelane_abi::{ControlRequest, OpenOptions};

/// Returns a request of kind `kind`, one of [`tidelane_abi::control_request`]. All other fields are
/// zero.
pub fn new_control_request(kind: u32) -> ControlRequest {
    ControlRequest {
        kind,
        flags: 0,
        cookie: 0,
        peer_addr: [0; 16],
        local_addr: [0; 16],
        peer_port: 0,
        local_port: 0,
        listener: 0,
        fast_open: 0,
        reserved_word: 0,
        options: OpenOptions::default(),
        reserved: [0; 3],
    }
}
