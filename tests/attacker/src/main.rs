//! `tidelane-attacker`: one attack per subcommand.
//!
//! The exit status is 0 whenever the attack was carried out: the test judges what came of it.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use tidelane_attacker::{Target, attacks};

/// A hostile program for Tidelane's tests.
#[derive(Parser, Debug)]
#[command(name = "tidelane-attacker")]
struct Command {
    /// Name of the service
    #[arg(long, default_value = "default")]
    service: String,
    /// Path of the control socket, if not that of the service's name
    #[arg(long)]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    attack: Attack,
}

#[derive(Subcommand, Debug)]
enum Attack {
    /// Makes a connection by hand, from any address, with frames of any link address.
    Frames(attacks::frames::Options),
    /// Asks whether the service answers at all.
    Probe,
    /// Binds and listens to a port, asks for its clients, and serves those that come.
    Listen(attacks::listen::Options),
    /// Asks for the port of a socket that may not be entitled to it.
    Reserve(attacks::reserve::Options),
    /// Makes the service hold more and more.
    Grow(attacks::grow::Options),
    /// Registers many times and stays.
    IdleRegistrations(attacks::idle_registrations::Options),
    /// All attacks at once, for some time.
    Barrage(attacks::barrage::Options),
    /// Sends descriptors that take long to close.
    Linger(attacks::linger::Options),
    /// Carries connections, and looks for bytes of others in all memory that the service gave.
    Scan(attacks::scan::Options),
    /// Uses the CPU and does nothing else, for comparison.
    Spin(attacks::spin::Options),
    /// Takes pages away from its own region while the service looks at it.
    Punch(attacks::punch::Options),
    /// Accepts late, and looks for bytes of others beside those that waited.
    Staged(attacks::staged::Options),
}

fn main() -> ExitCode {
    let command = Command::parse();
    let target = match command.socket {
        Some(path) => Target(path),
        None => Target::of_name(&command.service),
    };
    let done = match &command.attack {
        Attack::Frames(options) => attacks::frames::run(options),
        Attack::Probe => attacks::probe::run(&target),
        Attack::Listen(options) => attacks::listen::run(&target, options),
        Attack::Reserve(options) => attacks::reserve::run(&target, options),
        Attack::Grow(options) => attacks::grow::run(&target, options),
        Attack::IdleRegistrations(options) => attacks::idle_registrations::run(&target, options),
        Attack::Barrage(options) => attacks::barrage::run(&target, options),
        Attack::Linger(options) => attacks::linger::run(&target, options),
        Attack::Scan(options) => attacks::scan::run(&target, options),
        Attack::Spin(options) => attacks::spin::run(options),
        Attack::Punch(options) => attacks::punch::run(&target, options),
        Attack::Staged(options) => attacks::staged::run(&target, options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("tidelane-attacker: {failure}");
            ExitCode::FAILURE
        }
    }
}
