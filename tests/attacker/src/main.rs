//! `tidelane-attacker`: one attack per subcommand.
//!
//! The exit status is 0 if the attack was carried out. The test judges its effect.

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
    /// Makes a connection with raw frames, from any IP and link address.
    Frames(attacks::frames::Options),
    /// Checks that the service answers.
    Probe,
    /// Listens on a port, claims its clients, and serves them.
    Listen(attacks::listen::Options),
    /// Reserves the port of a socket that may not be entitled to it.
    Reserve(attacks::reserve::Options),
    /// Makes the service allocate ever more.
    Grow(attacks::grow::Options),
    /// Registers many times and stays.
    IdleRegistrations(attacks::idle_registrations::Options),
    /// All attacks at once, for some time.
    Barrage(attacks::barrage::Options),
    /// Sends descriptors that take long to close.
    Linger(attacks::linger::Options),
    /// Carries connections, and searches all memory from the service for bytes of others.
    Scan(attacks::scan::Options),
    /// Only uses the CPU, for comparison.
    Spin(attacks::spin::Options),
    /// Punches holes in its own region while the service reads it.
    Punch(attacks::punch::Options),
    /// Accepts late, and searches for bytes of others beside the queued ones.
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
