//! An impaired link between two interfaces, for tests in network namespaces.
//!
//! ```text
//! tidelane-impair --in IF_A --out IF_B [--loss PPM] [--reorder PPM] [--delay-us US] [--seconds N]
//!
//! namespace "client"           namespace "wire"             namespace "host"
//! veth0 ------------------- IF_A [this] IF_B ------------------- veth0
//! ethtool -K veth0 gro on                          ethtool -K veth0 gro on
//! ```
//!
//! In both directions, the program drops a random share of the IPv4 packets: `--loss` parts per
//! million. The program delays a random share of the remaining IPv4 packets, `--reorder` parts per
//! million, by `--delay-us` microseconds (1000 by default), so that other packets overtake the
//! delayed packets. Both shares are zero by default. The program prints `ready` to its standard
//! output when the interfaces are joined. The program runs for `--seconds`. Without `--seconds`,
//! the program runs until its standard input is readable or at its end. The program then prints its
//! counters.

use std::{
    error::Error,
    io::{Write, stdin, stdout},
    os::fd::AsFd,
    process::ExitCode,
    time::{Duration, Instant},
};

use tidelane_steering::impair::Impairment;

use crate::wire::{Wire, WireConfig};

mod wire;

const USAGE: &str = "usage: tidelane-impair --in IF_A --out IF_B [--loss PPM] [--reorder PPM] \
                     [--delay-us US] [--seconds N]";
/// Default of `--delay-us`, in microseconds.
const DELAY_US: u64 = 1000;

/// The parsed command line.
struct Arguments {
    wire: WireConfig,
    seconds: Option<u64>,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let (mut ends, mut seconds, mut delay_us) = ([None, None], None, DELAY_US);
    let mut impairment = Impairment::default();
    while let Some(option) = words.next() {
        let value = words
            .next()
            .ok_or_else(|| format!("{option} needs a value; {USAGE}"))?;
        let number = || {
            value
                .parse::<u64>()
                .map_err(|_| format!("{option} needs a number"))
        };
        let share = || match value.parse::<u32>() {
            Ok(ppm) if ppm <= 1_000_000 => Ok(ppm),
            _ => Err(format!("{option} needs a number of at most 1000000")),
        };
        match option.as_str() {
            "--in" => ends[0] = Some(value),
            "--out" => ends[1] = Some(value),
            "--loss" => impairment.loss_ppm = share()?,
            "--reorder" => impairment.delay_ppm = share()?,
            "--delay-us" => delay_us = number()?,
            "--seconds" => seconds = Some(number()?),
            _ => return Err(format!("unknown option {option}; {USAGE}")),
        }
    }
    let [Some(a), Some(b)] = ends else {
        return Err(USAGE.to_owned());
    };
    let delay = Duration::from_micros(delay_us);
    Ok(Arguments {
        wire: WireConfig {
            ends: [a, b],
            impairment,
            delay,
        },
        seconds,
    })
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let mut wire = Wire::open(&arguments.wire)?;
    writeln!(stdout(), "ready")?;
    let (start, tick) = (Instant::now(), Duration::from_secs(1));
    let end = arguments
        .seconds
        .map(|seconds| start + Duration::from_secs(seconds));
    let input = stdin();
    loop {
        let now = Instant::now();
        if end.is_some_and(|end| now >= end) {
            break;
        }
        let until = end.unwrap_or(now + tick).min(now + tick);
        // With a time limit, the standard input is ignored, because the input may be closed from
        // the start.
        let stop = end.is_none().then(|| input.as_fd());
        if wire.step(until, stop)? {
            break;
        }
    }
    for (end, counters) in arguments.wire.ends.iter().zip(wire.counters()?) {
        let program = counters.program;
        writeln!(
            stdout(),
            "from={end} forwarded={} lost={} delayed={} released={} overtaken={} refused={}",
            program.forwarded,
            program.lost,
            program.delayed,
            counters.released,
            counters.overtaken,
            counters.refused,
        )?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let outcome = parse(std::env::args().skip(1)).map_err(Into::into);
    match outcome.and_then(|arguments| run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidelane-impair: {error}");
            ExitCode::FAILURE
        }
    }
}
