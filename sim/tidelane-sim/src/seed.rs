//! The scenario of a seed, its run, and the report of the run.

use std::{
    fs::File,
    io::BufWriter,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use clap::ValueEnum;
use tidelane_world::{Report, Scenario, Theme, World};

/// Options that select the scenario of a seed.
#[derive(clap::Args, Clone, Copy)]
pub struct ScenarioOptions {
    /// Topic of the runs; by default, the seed decides
    #[arg(long, value_enum)]
    theme: Option<ThemeName>,
    /// Scenarios with IPv4 only, and without MTU limits of paths
    #[arg(long)]
    plain: bool,
}

/// The topics with their names on the command line.
#[derive(Clone, Copy, ValueEnum)]
pub enum ThemeName {
    /// Hosts with a service, and links of all kinds
    Any,
    /// Client and server on one host
    Memory,
    /// Programs die
    Death,
    /// One or two programs write random values to their shared memory
    Misbehaviour,
    /// Services restart, hosts pause, clocks jump
    Faults,
    /// Programs have little memory for streams
    Pressure,
    /// The peer is a host with smoltcp, another TCP/IP stack
    Foreign,
    /// Services have one to four cores
    Cores,
    /// Programs with stacks of their own use mux ports (packet rings), and some of these programs
    /// are hostile
    Ports,
    /// Some hosts run the direct back end of the ring API (TCP within the program)
    Direct,
}

impl ScenarioOptions {
    /// Returns options that select the topic `theme`.
    pub const fn theme(theme: ThemeName) -> Self {
        Self {
            theme: Some(theme),
            plain: false,
        }
    }

    /// Returns the scenario of `seed`.
    pub fn scenario(self, seed: u64) -> Scenario {
        let scenario = self.draw(seed);
        if self.plain {
            scenario.plain()
        } else {
            scenario
        }
    }

    fn draw(self, seed: u64) -> Scenario {
        let theme = match self.theme {
            None => return Scenario::from_seed(seed),
            Some(ThemeName::Any) => Theme::Any,
            Some(ThemeName::Memory) => Theme::LocalPath,
            Some(ThemeName::Death) => Theme::Death,
            Some(ThemeName::Misbehaviour) => Theme::Misbehaviour,
            Some(ThemeName::Faults) => Theme::Faults,
            Some(ThemeName::Pressure) => Theme::LowMemory,
            Some(ThemeName::Foreign) => Theme::Smoltcp,
            Some(ThemeName::Cores) => Theme::Cores,
            Some(ThemeName::Ports) => Theme::Ports,
            Some(ThemeName::Direct) => Theme::Direct,
        };
        Scenario::with_theme(seed, theme)
    }

    fn arguments(self) -> String {
        let theme = self.theme.and_then(|theme| theme.to_possible_value());
        let theme = theme.map_or(String::new(), |theme| {
            format!(" --theme {}", theme.get_name())
        });
        let plain = if self.plain { " --plain" } else { "" };
        theme + plain
    }

    /// Returns the command that reproduces the run of `seed`.
    fn command(self, seed: u64) -> String {
        let theme = self.arguments();
        format!("cargo run --release -p tidelane-sim -- replay {seed}{theme} --pcap seed-{seed}")
    }
}

/// Runs one scenario. If `pcap` is not `None`, writes a packet capture of the first core of each
/// host that has a service. The names of the captures begin with `pcap`. A panic counts as a
/// failure.
pub fn run(scenario: Scenario, pcap: Option<&Path>) -> Result<Report, String> {
    let hosts = scenario.hosts.len();
    let run = || -> Result<Report, String> {
        let mut world = World::new(scenario).map_err(|error| error.to_string())?;
        for host in 0..hosts {
            let Some(prefix) = pcap else { break };
            let name = format!("{}-{host}.pcapng", prefix.display());
            let file = File::create(&name).map_err(|error| format!("{name}: {error}"))?;
            world
                .capture(host, Box::new(BufWriter::new(file)))
                .map_err(|error| format!("{name}: {error}"))?;
        }
        world.run().map_err(|violation| violation.to_string())
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("without a message")))
    })
}

/// Prints the result of the run of `seed`. Returns true if the run has not failed.
pub fn report(options: ScenarioOptions, seed: u64, outcome: Result<Report, String>) -> bool {
    match outcome {
        Ok(report) => {
            println!("seed {seed}: {report}");
            for (name, value) in report.counters.iter().filter(|(_, value)| **value > 0) {
                println!("  {name:<24} {value}");
            }
            true
        }
        Err(text) => {
            eprintln!("seed {seed}: {text}\nreproduce: {}", options.command(seed));
            false
        }
    }
}

/// Runs a failed seed again, and prints its scenario, its failure `text`, and the names of its
/// packet captures.
pub fn explain(options: ScenarioOptions, seed: u64, text: &str) {
    let folder = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let folder = Path::new(&folder).join("sim");
    let prefix = folder.join(format!(
        "seed-{seed}{}",
        options.arguments().replace(' ', "-")
    ));
    let mut files = "no capture".to_owned();
    if std::fs::create_dir_all(&folder).is_ok() {
        // The second run fails in the same way, and writes its frames to files.
        let _ = run(options.scenario(seed), Some(&prefix));
        files = format!("{}-*.pcapng", prefix.display());
    }
    eprintln!(
        "{}\n\nseed {seed}: {text}\ncapture: {files}\nreproduce: {}",
        options.scenario(seed),
        options.command(seed)
    );
}
