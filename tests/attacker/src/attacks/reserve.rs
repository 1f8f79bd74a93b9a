//! The attack `reserve`: asks the service (`tidelaned`) to reserve the port of a bound socket, even
//! if the socket gives no right to the port. The message RESERVE passes the socket to the service.

use std::{os::fd::AsFd, thread, time::Duration};

use clap::Args;
use serde_json::json;

use crate::{
    Target,
    protocol::{Failure, verdict},
    region::Program,
    report,
    sockets::Bound,
};

/// Options of `reserve`.
#[derive(Args, Debug)]
pub struct Options {
    #[command(flatten)]
    bound: Bound,
    /// Closes each socket after the service has answered RESERVE
    #[arg(long)]
    close: bool,
    /// Number of requests, each with a new socket
    #[arg(long, default_value_t = 1)]
    times: u32,
    /// Seconds to stay registered after the last request
    #[arg(long, default_value_t = 0.0)]
    seconds: f64,
}

/// Sends RESERVE [`Options::times`] times. Stops early if the service closes the connection or a
/// system call fails. Prints a line with the number of granted requests and the most recent answer.
pub fn run(target: &Target, options: &Options) -> Result<(), Failure> {
    let program = Program::register(target, "reserve")?;
    let mut kept = Vec::new();
    let (mut obtained, mut last) = (0, None);
    for _ in 0..options.times {
        let socket = options.bound.make()?;
        let answer = program.service.reserve(socket.as_fd());
        obtained += u64::from(answer.is_ok());
        let over = answer.as_ref().is_err_and(|failure| !failure.is_refusal());
        last = Some(verdict(&answer));
        if !options.close {
            kept.push(socket);
        }
        if over || matches!(answer, Err(Failure::HungUp)) {
            break;
        }
    }
    report(&json!({ "attack": "reserve", "obtained": obtained, "last": last }));
    thread::sleep(Duration::from_secs_f64(options.seconds));
    Ok(())
}
