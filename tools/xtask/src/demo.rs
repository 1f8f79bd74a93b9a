//! `make demo`: compares an unmodified nginx on the kernel's stack with an unmodified nginx on
//! Tidelane. The client, wrk, is on the kernel's stack in both cases.

use std::{thread, time::Duration};

use clap::Args;
use tidelane_tests::{
    Nginx, Program, Service, Side, Stop, Wire, WireOptions, ensure, machine,
    machine::median,
    nginx::{FILES, NginxOptions},
    tools::{require_root, require_tools},
    wire::SERVER,
    wrk::WrkReport,
};

use crate::bench::{CpuTimes, reason_of};

/// Congestion control on both stacks.
const CONGESTION: &str = "cubic";
/// CPU of wrk.
const CLIENT_CPU: &str = "0";
/// CPU of nginx and of the Tidelane service.
const SERVER_CPU: &str = "1";

/// Options of `demo`.
#[derive(Args, Debug)]
pub struct Options {
    /// Number of rounds of each case; a round measures both stacks
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds per measurement
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Number of connections of wrk
    #[arg(long, default_value_t = 64)]
    connections: u32,
}

/// A wire, which is a veth pair between two network namespaces, and an nginx on one stack at the
/// server's end of the wire. `wire` is the last field, because the programs must be dropped before
/// the wire.
struct StackSetup {
    /// Name of the stack.
    name: &'static str,
    nginx: Nginx,
    _service: Option<Service>,
    wire: Wire,
}

/// The values of one run of wrk.
#[derive(Clone, Copy, Debug)]
struct Sample {
    requests_per_second: f64,
    /// Median latency in microseconds.
    p50_us: f64,
    /// 99th percentile of the latency in microseconds.
    p99_us: f64,
    /// Mean number of busy CPUs, from 0 to 2: the CPU of wrk and the CPU of the server count.
    cores: f64,
}

/// Runs the demo and prints its table.
pub fn run(options: &Options) -> Result<(), String> {
    demo(options).map_err(reason_of)
}

fn demo(options: &Options) -> Result<(), Stop> {
    require_root()?;
    require_tools(&["nginx", "wrk", "curl", "sha256sum"])?;
    println!("{}", machine::describe());
    println!(
        "wrk on CPU {CLIENT_CPU} ({} connections), nginx and the service on CPU {SERVER_CPU}, \
         {CONGESTION} on both stacks\n",
        options.connections
    );
    let stacks = [
        StackSetup::start("kernel", false)?,
        StackSetup::start("tidelane", true)?,
    ];
    for stack in &stacks {
        stack.verify()?;
    }
    println!();
    let mut table = Vec::new();
    for (close, mode) in [(false, "keep-alive"), (true, "Connection: close")] {
        for (file, label) in FILES
            .map(|(name, _)| name)
            .iter()
            .zip(["64 B", "1 KiB", "1 MiB"])
        {
            let pairs = measure_case(options, &stacks, file, close)?;
            table.push((format!("{mode}, {label}"), pairs));
        }
    }
    print_table(&table);
    let names: Vec<String> = stacks
        .iter()
        .flat_map(|stack| [Side::Server, Side::Client].map(|side| stack.wire.namespace(side)))
        .collect();
    drop(stacks);
    let left = tidelane_tests::command(&["ip", "netns", "list"])?;
    ensure!(
        !names.iter().any(|name| left.contains(name)),
        "namespaces are left:\n{left}"
    );
    println!("cleaned up: programs, service, eBPF program and namespaces are gone");
    Ok(())
}

/// Measures all rounds of one case. Each round measures both stacks, in the reverse order of the
/// previous round. Returns the samples of the kernel and of Tidelane for each round.
fn measure_case(
    options: &Options,
    stacks: &[StackSetup; 2],
    file: &str,
    close: bool,
) -> Result<Vec<[Sample; 2]>, Stop> {
    let mut pairs = Vec::new();
    for round in 0..options.rounds {
        let pair = if round % 2 == 0 {
            let kernel = stacks[0].measure(options, file, close)?;
            [kernel, stacks[1].measure(options, file, close)?]
        } else {
            let tidelane = stacks[1].measure(options, file, close)?;
            [stacks[0].measure(options, file, close)?, tidelane]
        };
        pairs.push(pair);
    }
    Ok(pairs)
}

impl StackSetup {
    fn start(name: &'static str, accelerated: bool) -> Result<Self, Stop> {
        let congestion = Some(CONGESTION.to_owned());
        let wire = Wire::with(&WireOptions {
            congestion,
            ..Default::default()
        })?;
        let service = accelerated
            .then(|| wire.service_on_cores(Side::Server, SERVER_CPU, &[]))
            .transpose()?;
        let cpus = Some(SERVER_CPU.to_owned());
        let options = NginxOptions {
            workers: 2,
            cpus,
            ..Default::default()
        };
        let nginx = Nginx::start(&wire, service.as_ref(), &options)?;
        println!(
            "{name:<9} nginx is up, master and {} workers",
            nginx.workers()?.len()
        );
        Ok(Self {
            name,
            nginx,
            _service: service,
            wire,
        })
    }

    fn client(&self, name: &str) -> Program {
        self.wire.program(Side::Client, name).cpus(CLIENT_CPU)
    }

    /// Fetches each file with curl, once with keep-alive and once with `Connection: close`. Fails
    /// if the digest of a fetched file differs from the digest of the file on disk.
    fn verify(&self) -> Result<(), Stop> {
        let limit = Duration::from_secs(30);
        for (file, len) in FILES {
            let path = self.nginx.file(file);
            let digest = |program: Program| -> Result<String, Stop> {
                let text = program.run(limit)?.stdout;
                Ok(text
                    .split_whitespace()
                    .next()
                    .unwrap_or_default()
                    .to_owned())
            };
            let wanted = digest(self.client("sha256sum").arg(path.display()))?;
            for header in ["Connection: keep-alive", "Connection: close"] {
                let line = format!(
                    "set -e; curl -sS --fail --max-time 20 -H '{header}' -o got \
                     http://{SERVER}/{file}; sha256sum got; rm got"
                );
                let got = digest(self.client("sh").arg("-c").arg(line))?;
                ensure!(
                    got == wanted,
                    "{}: {file} has the digest {got}, not {wanted}",
                    self.name
                );
            }
            println!(
                "{:<9} {file:>3} ({len:>7} bytes)  sha256 {}... verified",
                self.name,
                &wanted[..16]
            );
        }
        Ok(())
    }

    /// Runs wrk once for `file`, with `Connection: close` if `close` is true.
    fn measure(&self, options: &Options, file: &str, close: bool) -> Result<Sample, Stop> {
        let seconds = options.seconds;
        let wrk = self.client("wrk").args("-t 1 --latency");
        let wrk = wrk
            .arg("-c")
            .arg(options.connections)
            .arg("-d")
            .arg(format!("{seconds}s"));
        let wrk = if close {
            wrk.arg("-H").arg("Connection: close")
        } else {
            wrk
        };
        let running = wrk.arg(format!("http://{SERVER}/{file}")).spawn()?;
        thread::sleep(Duration::from_millis(300));
        let before = CpuTimes::now();
        thread::sleep(Duration::from_secs_f64(f64::from(seconds) - 0.5));
        let after = CpuTimes::now();
        let finished = running
            .wait(Duration::from_secs(u64::from(seconds) + 20))?
            .success()?;
        let report = WrkReport::parse(&finished.stdout)
            .map_err(|reason| Stop::Fail(format!("{}: {reason}: {finished}", self.name)))?;
        let missing = || Stop::Fail(format!("no latency in wrk's output: {finished}"));
        let cpus = [CLIENT_CPU, SERVER_CPU].map(|cpu| cpu.parse().unwrap_or(0));
        let sample = Sample {
            requests_per_second: report.requests_per_second,
            p50_us: report.p50_us.ok_or_else(missing)?,
            p99_us: report.p99_us.ok_or_else(missing)?,
            cores: cpus.iter().map(|cpu| after.busy_since(&before, *cpu)).sum(),
        };
        let mode = if close { "close" } else { "keep-alive" };
        println!(
            "{:<9} {file:>3} {mode:<10} {:>9.0} requests/s",
            self.name, sample.requests_per_second
        );
        Ok(sample)
    }
}

/// A function that computes one metric of a sample.
type Metric = fn(&Sample) -> f64;

/// The metrics of the table with their names.
const COLUMNS: [(&str, Metric); 4] = [
    ("requests/s", |s| s.requests_per_second),
    ("p50 us", |s| s.p50_us),
    ("p99 us", |s| s.p99_us),
    ("req/s per core", |s| {
        s.requests_per_second / s.cores.max(0.01)
    }),
];

fn print_table(table: &[(String, Vec<[Sample; 2]>)]) {
    println!("\nnginx, medians; ratio is Tidelane over kernel, pair by pair\n");
    let width = table.iter().map(|(case, _)| case.len()).max().unwrap_or(0);
    println!(
        "{:<width$}  {:<14} {:>10} {:>10} {:>7} {:>15}",
        "case", "", "kernel", "tidelane", "ratio", "spread"
    );
    for (case, pairs) in table {
        for (index, (heading, of)) in COLUMNS.iter().enumerate() {
            let side = |at: usize| pairs.iter().map(|pair| of(&pair[at])).collect::<Vec<_>>();
            let ratios: Vec<f64> = pairs.iter().map(|[k, t]| of(t) / of(k).max(1e-9)).collect();
            let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
            let most = ratios.iter().copied().fold(0.0, f64::max);
            let case = if index == 0 { case.as_str() } else { "" };
            println!(
                "{case:<width$}  {heading:<14} {:>10.0} {:>10.0} {:>7.2} {:>15}",
                median(&side(0)),
                median(&side(1)),
                median(&ratios),
                format!("{least:.2} to {most:.2}")
            );
        }
    }
    println!("\nreq/s per core counts all cores: those of wrk, nginx and the service\n");
}
