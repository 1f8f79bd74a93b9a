//! A search for bytes of others in the buffers of a connection that waited in the accept queue.

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
    /// Backlog, in the kernel and in the service
    #[arg(long, default_value_t = 1024)]
    backlog: u32,
    /// Seconds from listen to accept, during which clients' data waits in the service
    #[arg(long)]
    wait: f64,
    /// Seconds from accept to the search
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
}

/// Listens, accepts late, and searches all memory for the marker.
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

/// Accepts all connections that arrive in time. Returns their number.
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
