//! A SYN flood from many source addresses, for tests in network namespaces.
//!
//! ```text
//! tidelane-flood --interface IF --to ADDR:PORT --to-mac MAC --from ADDR --hosts N
//!                --rate SYNS_PER_SECOND --count N
//! ```
//!
//! Each SYN looks like a SYN of Linux. Its source address is one of `--hosts` consecutive
//! addresses, which begin with `--from`. The source port is pseudo-random. The SYNs leave at
//! `--rate` on average, in short bursts, until `--count` SYNs are sent. A machine that cannot reach
//! the rate sends as fast as it can. The program prints `ready` when it starts to send. At its end,
//! the program prints the number of SYNs and the duration of the flood in seconds.

use std::{
    error::Error,
    fs,
    io::{Write, stdout},
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use tidelane_af_xdp::{XdpConfig, XdpPort};
use tidelane_packet_io::{PacketIo, TxChecksum};

use crate::syn::{SynSource, parse_mac};

mod syn;

const USAGE: &str = "usage: tidelane-flood --interface IF --to ADDR:PORT --to-mac MAC \
                     --from ADDR --hosts N --rate SYNS_PER_SECOND --count N";
/// Largest number of frames that are queued before a flush.
const BURST: u64 = 32;
/// Duration of one sleep while the program is ahead of its rate.
const SLEEP: Duration = Duration::from_micros(100);

/// The parsed command line.
struct Arguments {
    interface: String,
    to: SocketAddr,
    to_mac: String,
    from: IpAddr,
    hosts: u32,
    rate: u64,
    count: u64,
}

fn parse(words: impl Iterator<Item = String>) -> Result<Arguments, Box<dyn Error>> {
    let words: Vec<String> = words.collect();
    let value = |name: &str| {
        let at = words.iter().position(|word| word == name);
        let value = at.and_then(|at| words.get(at + 1));
        value.ok_or_else(|| format!("{name} is missing; {USAGE}"))
    };
    let arguments = Arguments {
        interface: value("--interface")?.clone(),
        to: value("--to")?.parse()?,
        to_mac: value("--to-mac")?.clone(),
        from: value("--from")?.parse()?,
        hosts: value("--hosts")?.parse()?,
        rate: value("--rate")?.parse()?,
        count: value("--count")?.parse()?,
    };
    if arguments.hosts == 0 || arguments.rate == 0 {
        return Err("--hosts and --rate are at least 1".into());
    }
    Ok(arguments)
}

/// Sends all SYNs. Returns the number of sent SYNs and the duration of the flood.
fn flood(arguments: &Arguments) -> Result<(u64, Duration), Box<dyn Error>> {
    let path = format!("/sys/class/net/{}/address", arguments.interface);
    let own = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let macs = (parse_mac(own.trim())?, parse_mac(&arguments.to_mac)?);
    let config = XdpConfig {
        huge_pages: false,
        gso: false,
        ..XdpConfig::for_veth()
    };
    let mut port = XdpPort::open(&arguments.interface, 0, &config)?;
    let hosts = (arguments.from.into(), arguments.hosts);
    let mut source = SynSource::new(macs, arguments.to, hosts)?;
    writeln!(stdout(), "ready")?;
    let start = Instant::now();
    let mut sent = 0;
    while sent < arguments.count {
        let due = start.elapsed().as_nanos() * u128::from(arguments.rate) / 1_000_000_000;
        let due = u64::try_from(due)?.min(arguments.count);
        if sent >= due {
            thread::sleep(SLEEP);
            continue;
        }
        for _ in 0..(due - sent).min(BURST) {
            let Some(frame) = port.tx_frame() else { break };
            let len = source.write(frame);
            port.tx_commit(len, TxChecksum::Done);
            sent += 1;
        }
        port.tx_flush();
        if let Some(error) = port.take_tx_error() {
            return Err(error.into());
        }
    }
    while PacketIo::tx_pending(&mut port) {
        port.tx_flush();
    }
    Ok((sent, start.elapsed()))
}

fn main() -> ExitCode {
    let outcome = parse(std::env::args().skip(1)).and_then(|arguments| flood(&arguments));
    match outcome {
        Ok((sent, took)) => {
            println!("sent={sent} seconds={:.3}", took.as_secs_f64());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("tidelane-flood: {error}");
            ExitCode::FAILURE
        }
    }
}
