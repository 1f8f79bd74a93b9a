//! The command line of the daemon `tidelaned`. [`FileConfig`] is the configuration file.

use std::path::PathBuf;

use clap::{
    Parser, ValueEnum,
    builder::{PathBufValueParser, TypedValueParser},
};
use tidelane_abi::CORES_MAX;
use tidelane_engine::{Algorithm, EcnPolicy, EngineConfig};
use tidelane_places::ServiceName;
use tidelane_steering::AttachRequest;

use crate::firewall;

mod file;

pub use file::{FileConfig, FileError};

/// Number of CPUs that a Linux CPU set (`cpu_set_t`) can contain.
const CPUS_MAX: usize = 1024;

/// Congestion control algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Congestion {
    /// CUBIC (RFC 9438)
    Cubic,
    /// NewReno (RFC 5681)
    Newreno,
    /// DCTCP (RFC 8257); its connections request ECN regardless of --ecn
    Dctcp,
    /// BBR version 1: paced by a model of the path, independent of losses
    Bbr,
}

/// When connections use ECN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ecn {
    /// Never
    Off,
    /// Request ECN, and agree if the peer requests ECN (Linux: tcp_ecn=1)
    On,
    /// Agree if the peer requests ECN (Linux: tcp_ecn=2)
    Asked,
}

/// Where the XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Xdp {
    /// In the NIC driver, or in the kernel's stack if the driver cannot run XDP programs
    Auto,
    /// In the NIC driver; if the driver cannot run XDP programs, the service does not start
    Native,
    /// In the kernel's stack: works with every driver, and is slower
    Generic,
}

impl From<Xdp> for AttachRequest {
    fn from(xdp: Xdp) -> Self {
        match xdp {
            Xdp::Auto => Self::Best,
            Xdp::Native => Self::Native,
            Xdp::Generic => Self::Generic,
        }
    }
}

/// The Tidelane service: a TCP stack beside the kernel's, on one interface
#[derive(Parser, Debug)]
#[command(name = "tidelaned", version)]
pub struct Config {
    /// Interface to serve
    #[arg(long)]
    pub interface: String,
    /// Name of the service: its run directory is /run/tidelane/NAME
    #[arg(long, default_value = "default")]
    pub name: ServiceName,
    /// Configuration file. Without this option, /etc/tidelane/NAME.toml
    #[arg(long, value_name = "FILE", value_parser = absolute())]
    pub config: Option<PathBuf>,
    /// Action if the host has firewall rules that the service's connections would bypass; overrides
    /// the configuration file
    #[arg(long, value_enum, value_name = "MODE")]
    pub firewall: Option<firewall::Mode>,
    /// Place of the XDP program, which redirects packets to the service
    #[arg(long, value_enum, value_name = "MODE", default_value = "auto")]
    pub xdp: Xdp,
    /// CPUs of the cores (polling threads), one core on each CPU: 1, or 1,3, or 0-3; if absent,
    /// there is one core, which may run on any CPU
    #[arg(long, value_name = "LIST", value_parser = parse_cpus)]
    pub cores: Option<CpuList>,
    /// Congestion control of new connections
    #[arg(long, value_enum, default_value = "cubic")]
    pub congestion: Congestion,
    /// Explicit Congestion Notification (RFC 3168)
    #[arg(long, value_enum, default_value = "asked")]
    pub ecn: Ecn,
    /// Stay in the foreground (the only mode; `tidelane up` starts the service in the background)
    #[arg(long)]
    pub foreground: bool,
    /// Maximum number of connections of all programs together
    #[arg(long, default_value_t = 1 << 17)]
    pub flows_max: u32,
    /// Time in microseconds for which a core polls without work before it sleeps
    #[arg(long, default_value_t = 500)]
    pub spin_us: u64,
    /// Leave a core file after a crash; the file contains the data of all users' connections
    #[arg(long)]
    pub core_dumps: bool,
}

/// Distinct CPUs in the given order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(pub Vec<usize>);

/// Parses a list of CPU numbers and ranges. The format is the format of `taskset -c` without
/// strides.
fn parse_cpus(text: &str) -> Result<CpuList, String> {
    let number = |text: &str| match text.trim().parse::<usize>() {
        Ok(cpu) if cpu < CPUS_MAX => Ok(cpu),
        _ => Err(format!("{text:?} is no CPU (see: lscpu -e)")),
    };
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if last < first {
            return Err(format!("the range {part:?} ends before its start"));
        }
        cpus.extend(first..=last);
    }
    let mut sorted = cpus.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() < cpus.len() {
        return Err("a CPU is named twice".to_owned());
    }
    if cpus.len() > CORES_MAX {
        return Err(format!("at most {CORES_MAX} cores"));
    }
    Ok(CpuList(cpus))
}

/// Returns a parser of paths that makes each path absolute. The service reads the configuration
/// file again at each reload. At that time, Landlock lets the service read only certain
/// directories. One of them is the directory of this path (see `confine`).
fn absolute() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(std::path::absolute)
}

impl Config {
    /// Returns the absolute path of the configuration file.
    pub fn file(&self) -> PathBuf {
        let default = || FileConfig::path_of(self.name.as_str());
        self.config.clone().unwrap_or_else(default)
    }

    /// Returns the CPU of each core; `None` for a core that is not pinned.
    pub fn cpus(&self) -> Vec<Option<usize>> {
        match &self.cores {
            Some(CpuList(cpus)) => cpus.iter().copied().map(Some).collect(),
            None => vec![None],
        }
    }

    /// Returns the configuration of the engine (the TCP implementation) of each core. The cores
    /// share `flows_max` equally.
    pub fn engine(&self) -> EngineConfig {
        EngineConfig {
            flows_max: self.flows_max.div_ceil(self.cpus().len() as u32),
            congestion: match self.congestion {
                Congestion::Cubic => Algorithm::Cubic,
                Congestion::Newreno => Algorithm::NewReno,
                Congestion::Dctcp => Algorithm::Dctcp,
                Congestion::Bbr => Algorithm::Bbr,
            },
            ecn: match self.ecn {
                Ecn::Off => EcnPolicy::Off,
                Ecn::On => EcnPolicy::Request,
                Ecn::Asked => EcnPolicy::Accept,
            },
            ..EngineConfig::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        let good = |text| parse_cpus(text).unwrap().0;
        assert_eq!(good("1"), [1]);
        assert_eq!(good("3,0-2"), [3, 0, 1, 2]);
        assert_eq!(good("0-15").len(), 16);
        for bad in [
            "",
            ",",
            "x",
            "1,1",
            "0-2,1",
            "2-0",
            "3,2-0",
            "0-16",
            "-1",
            "1024",
            "99999999999999999999",
        ] {
            assert!(parse_cpus(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_path_of_the_configuration_file_is_absolute() {
        let file = |path: &str| {
            let words = ["tidelaned", "--interface", "eth0", "--config", path];
            Config::try_parse_from(words).unwrap().file()
        };
        assert_eq!(file("/etc/x.toml"), PathBuf::from("/etc/x.toml"));
        let here = std::env::current_dir().unwrap();
        assert_eq!(file("x.toml"), here.join("x.toml"));
    }
}
