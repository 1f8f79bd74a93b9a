//! One seed: its scenario, its run, and what is said of it.

use std::{
    fs::File,
    io::BufWriter,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use clap::ValueEnum;
use tidelane_world::{Report, Scenario, Theme, World};

/// What runs are about.
#[derive(clap::Args, Clone, Copy)]
pub struct About {
    /// What the runs are about; without it, the seed decides
    #[arg(long, value_enum)]
    theme: Option<ThemeName>,
    /// IPv4 alone and no narrow paths: what seeds were before they drew these
    #[arg(long)]
    plain: bool,
}

/// The themes, as they are called on the command line.
#[derive(Clone, Copy, ValueEnum)]
pub enum ThemeName {
    /// Hosts and wires of all kinds
    Any,
    /// Client and server on one host
    Memory,
    /// Programs die
    Death,
    /// A program writes random values to its shared memory
    Misbehaviour,
    /// Services restart, hosts pause, clocks jump
    Faults,
    /// Programs have little memory for streams
    Pressure,
    /// A smoltcp host is the peer
    Foreign,
    /// Services have several cores
    Cores,
}

impl About {
    /// Runs about `theme`.
    pub const fn theme(theme: ThemeName) -> Self {
        Self {
            theme: Some(theme),
            plain: false,
        }
    }

    /// The scenario of `seed`.
    pub fn scenario(self, seed: u64) -> Scenario {
        let scenario = self.drawn(seed);
        if self.plain {
            scenario.plain()
        } else {
            scenario
        }
    }

    fn drawn(self, seed: u64) -> Scenario {
        let theme = match self.theme {
            None => return Scenario::from_seed(seed),
            Some(ThemeName::Any) => Theme::Any,
            Some(ThemeName::Memory) => Theme::MemoryWire,
            Some(ThemeName::Death) => Theme::Death,
            Some(ThemeName::Misbehaviour) => Theme::Misbehaviour,
            Some(ThemeName::Faults) => Theme::Faults,
            Some(ThemeName::Pressure) => Theme::Memory,
            Some(ThemeName::Foreign) => Theme::Foreign,
            Some(ThemeName::Cores) => Theme::Cores,
        };
        Scenario::with_theme(seed, theme)
    }

    fn words(self) -> String {
        let theme = self.theme.and_then(|theme| theme.to_possible_value());
        let theme = theme.map_or(String::new(), |theme| {
            format!(" --theme {}", theme.get_name())
        });
        let plain = if self.plain { " --plain" } else { "" };
        theme + plain
    }

    /// The command that shows the run of `seed` again.
    fn command(self, seed: u64) -> String {
        let theme = self.words();
        format!("cargo run --release -p tidelane-sim -- replay {seed}{theme} --pcap seed-{seed}")
    }
}

/// Runs one scenario; a panic counts as a failure like any other.
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
        Err(format!("panic: {}", text.unwrap_or("without a text")))
    })
}

/// Prints how a run ended. Whether all rules held.
pub fn report(about: About, seed: u64, outcome: Result<Report, String>) -> bool {
    match outcome {
        Ok(report) => {
            println!("seed {seed}: {report}");
            for (name, value) in report.counters.iter().filter(|(_, value)| **value > 0) {
                println!("  {name:<24} {value}");
            }
            true
        }
        Err(text) => {
            eprintln!("seed {seed}: {text}\nreproduce: {}", about.command(seed));
            false
        }
    }
}

/// Says all there is to say of a seed that failed: its scenario, its frames, and why.
pub fn explain(about: About, seed: u64, text: &str) {
    let folder = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let folder = Path::new(&folder).join("sim");
    let prefix = folder.join(format!("seed-{seed}{}", about.words().replace(' ', "-")));
    let mut files = "no capture".to_owned();
    if std::fs::create_dir_all(&folder).is_ok() {
        // The same again, and so it fails again, but with its frames on disk.
        let _ = run(about.scenario(seed), Some(&prefix));
        files = format!("{}-*.pcapng", prefix.display());
    }
    eprintln!(
        "{}\n\nseed {seed}: {text}\ncapture: {files}\nreproduce: {}",
        about.scenario(seed),
        about.command(seed)
    );
}
