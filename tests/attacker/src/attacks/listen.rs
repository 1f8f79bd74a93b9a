//! The attack `listen`: claims a port with a listening socket, even if the socket gives no right to
//! the port. The message LISTEN passes the socket to the service (`tidelaned`). If the service
//! grants the request, the service receives the port's packets instead of the kernel.

use std::os::fd::AsFd;

use clap::Args;
use serde_json::json;

use crate::{
    Target,
    protocol::{Failure, verdict},
    region::Program,
    report,
    rings::{Event, Rings},
    sockets::Bound,
};

/// Options of `listen`.
#[derive(Args, Debug)]
pub struct Options {
    #[command(flatten)]
    bound: Bound,
    /// Backlog of the socket and of the service's listener
    #[arg(long, default_value_t = 16)]
    backlog: u32,
    /// Closes the socket after the service has answered LISTEN
    #[arg(long)]
    close: bool,
    /// Leaves connections in the accept queue
    #[arg(long)]
    no_accept: bool,
    /// Seconds to serve clients
    #[arg(long, default_value_t = 0.0)]
    seconds: f64,
    /// Bytes sent to each client
    #[arg(long, default_value = "you are served by the attacker\n")]
    banner: String,
}

/// Sends LISTEN and prints a line with the answer. If the service has granted the request, serves
/// clients, and prints a second line with the number of clients.
pub fn run(target: &Target, options: &Options) -> Result<(), Failure> {
    let program = Program::register(target, "listen")?;
    let mut rings = program.context(0)?;
    let socket = options.bound.listening(options.backlog)?;
    let listener = program.service.listen(socket.as_fd(), options.backlog);
    let kept = (!options.close).then_some(socket);
    report(&json!({ "attack": "listen", "listen": verdict(&listener) }));
    if let Ok(listener) = listener {
        let clients = serve(&program, &mut rings, listener, options);
        report(&json!({ "attack": "listen", "clients": clients }));
    }
    drop(kept);
    Ok(())
}

/// Sends the banner to all clients that connect within [`Options::seconds`]. Returns the number of
/// clients. If [`Options::no_accept`] is true, requests no connections from the service.
fn serve(program: &Program, rings: &mut Rings, listener: u32, options: &Options) -> u64 {
    if !options.no_accept {
        rings.join(listener);
    }
    let mut clients = 0;
    program.carry(rings, options.seconds, |rings, events| {
        for event in events {
            if let Event::Accepted(client) = event {
                clients += 1;
                rings.accept(client, listener);
                rings.send(client, 0, options.banner.as_bytes());
                rings.close(client);
            }
        }
    });
    clients
}
