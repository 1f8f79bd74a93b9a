//! The attack `spin`: threads that only use CPU time. Tests compare the effect of other attacks
//! with the effect of this attack.

use std::{
    hint, thread,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::json;

use crate::{protocol::Failure, report};

/// Options of `spin`.
#[derive(Args, Debug)]
pub struct Options {
    /// Number of threads
    #[arg(long, default_value_t = 6)]
    threads: u32,
    /// Duration in seconds
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

/// Spins until the time is over.
pub fn run(options: &Options) -> Result<(), Failure> {
    report(&json!({ "attack": "spin", "began": true }));
    let until = Instant::now() + Duration::from_secs_f64(options.seconds);
    thread::scope(|scope| {
        for _ in 0..options.threads {
            scope.spawn(|| {
                while Instant::now() < until {
                    hint::spin_loop();
                }
            });
        }
    });
    Ok(())
}
