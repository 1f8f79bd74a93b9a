//! The command line of the daemon.

use clap::{Parser, ValueEnum};
use tidelane_engine::{Algorithm, EngineConfig};

/// Congestion control algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Congestion {
    /// CUBIC (RFC 9438)
    Cubic,
    /// NewReno (RFC 5681)
    Newreno,
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
    pub name: String,
    /// CPU for the fast path; not pinned if absent
    #[arg(long, value_name = "CPU")]
    pub cores: Option<usize>,
    /// Congestion control of new connections
    #[arg(long, value_enum, default_value = "cubic")]
    pub congestion: Congestion,
    /// Stay in the foreground (the only mode; `tidelane up` starts it in the background)
    #[arg(long)]
    pub foreground: bool,
    /// Connections at once, all programs together
    #[arg(long, default_value_t = 1 << 17)]
    pub flows_max: u32,
    /// How long the fast path spins without work before it sleeps, in microseconds
    #[arg(long, default_value_t = 500)]
    pub spin_us: u64,
}

impl Config {
    /// The engine's part.
    pub fn engine(&self) -> EngineConfig {
        EngineConfig {
            flows_max: self.flows_max,
            congestion: match self.congestion {
                Congestion::Cubic => Algorithm::Cubic,
                Congestion::Newreno => Algorithm::NewReno,
            },
            ..EngineConfig::default()
        }
    }
}
