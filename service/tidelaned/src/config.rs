//! The command line of the daemon.

use clap::{Parser, ValueEnum};
use tidelane_engine::{Algorithm, EcnPolicy, EngineConfig};

/// Congestion control algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Congestion {
    /// CUBIC (RFC 9438)
    Cubic,
    /// NewReno (RFC 5681)
    Newreno,
    /// DCTCP (RFC 8257); its connections ask for ECN, whatever --ecn says
    Dctcp,
    /// BBR version 1: paced, by a model of the path, whatever is lost
    Bbr,
}

/// When connections use ECN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ecn {
    /// Never
    Off,
    /// Ask for it, and agree if the peer asks (Linux: tcp_ecn=1)
    On,
    /// Agree if the peer asks (Linux: tcp_ecn=2)
    Asked,
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
    /// Explicit Congestion Notification (RFC 3168)
    #[arg(long, value_enum, default_value = "asked")]
    pub ecn: Ecn,
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
