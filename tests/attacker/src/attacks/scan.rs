//! The attack `scan`: searches for bytes of other programs. The searched memory is the memory that
//! the service (`tidelaned`) shares with this program.

use std::net::SocketAddrV4;

use clap::Args;
use serde_json::json;

use crate::{
    Target,
    protocol::Failure,
    region::Program,
    report,
    rings::{Event, Rings},
};

/// Options of `scan`.
#[derive(Args, Debug)]
pub struct Options {
    /// The bytes to look for, such as `SECRET`
    marker: String,
    /// Server to connect to before the search; each connection sends one byte and reads the answer
    #[arg(long)]
    connect: Option<SocketAddrV4>,
    /// Number of connections
    #[arg(long, default_value_t = 1)]
    connections: u32,
    /// Seconds to use the connections before the search
    #[arg(long, default_value_t = 0.0)]
    seconds: f64,
}

/// Uses connections if a server is given, then searches for the marker. Prints a line with the
/// number of occurrences.
pub fn run(target: &Target, options: &Options) -> Result<(), Failure> {
    let program = Program::register(target, "scan")?;
    let mut rings = program.context(0)?;
    let opened = match options.connect {
        Some(server) => exchange(&program, &mut rings, server, options),
        None => 0,
    };
    let found = program.scan(options.marker.as_bytes())?;
    report(&json!({
        "attack": "scan", "connections": opened,
        "scanned": found.scanned, "found": found.places,
    }));
    Ok(())
}

/// Opens the connections, sends one byte on each connection, and marks the answers as read. Returns
/// the number of connections that the service has started, established or not.
fn exchange(program: &Program, rings: &mut Rings, server: SocketAddrV4, options: &Options) -> u64 {
    let address = server.ip().to_ipv6_mapped().octets();
    for _ in 0..options.connections {
        rings.connect(address, server.port(), 0);
    }
    let mut opened = 0;
    let mut connections = Vec::new();
    program.carry(rings, options.seconds, |rings, events| {
        for event in events {
            if let Event::Started(connection) = event {
                opened += 1;
                connections.push(connection);
                rings.send(connection, 0, b"?");
            }
        }
        for connection in &connections {
            rings.read_all(*connection);
        }
    });
    opened
}
