//! The attack `idle-registrations`: registers with the service (`tidelaned`) repeatedly, until an
//! attempt fails or a maximum number is reached. Keeps the registrations without using them. A
//! registration is a session of a program with the service. The message REGISTER begins the
//! session.

use std::{thread, time::Duration};

use clap::Args;
use serde_json::json;

use crate::{
    Target,
    protocol::{Failure, Service},
    report,
};

/// Options of `idle-registrations`.
#[derive(Args, Debug)]
pub struct Options {
    /// Maximum number of registrations
    count: u32,
    /// Connects to the registration socket, but sends no REGISTER
    #[arg(long)]
    silent: bool,
    /// Seconds to keep the registrations
    #[arg(long, default_value_t = 0.0)]
    seconds: f64,
}

/// Makes up to [`Options::count`] registrations. Stops at the first attempt that fails. Keeps the
/// registrations for [`Options::seconds`].
pub fn run(target: &Target, options: &Options) -> Result<(), Failure> {
    let mut kept: Vec<Service> = Vec::new();
    let (mut registered, mut refused) = (0, None);
    for _ in 0..options.count {
        match one(target, options.silent) {
            Ok(service) => {
                registered += 1;
                kept.push(service);
            }
            Err(failure) => {
                refused = Some(failure.to_string());
                break;
            }
        }
    }
    report(&json!({
        "attack": "idle-registrations", "registered": registered, "refused": refused,
    }));
    thread::sleep(Duration::from_secs_f64(options.seconds));
    Ok(())
}

/// Connects to the registration socket. If `silent` is false, also registers. The answer to
/// REGISTER carries descriptors of memory and of doorbells (eventfds). The function closes these
/// descriptors before it returns, because RLIMIT_NOFILE limits this process. The service keeps its
/// own descriptors of the memory and the doorbells.
fn one(target: &Target, silent: bool) -> Result<Service, Failure> {
    let service = target.connect()?;
    if !silent {
        service.register("idle")?;
    }
    Ok(service)
}
