//! `tidelane-attacker`: attacks a Tidelane service (`tidelaned`). Each subcommand is one attack.
//!
//! The exit status is 0 if the attack was carried out, whether or not the attack had an effect. The
//! test that runs the program checks the effect.

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
    /// Path of the registration socket; by default, the path follows from the service's name
    #[arg(long)]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    attack: Attack,
}

/// The attack to carry out.
#[derive(Subcommand, Debug)]
enum Attack {
    /// Opens a connection with raw frames, from any IP and MAC address.
    Frames(attacks::frames::Options),
    /// Asks whether the service admits this user.
    Probe,
    /// Claims a port with a listening socket, and serves the clients of the port.
    Listen(attacks::listen::Options),
    /// Asks the service to reserve a port, and passes a socket as the proof of the right to the
    /// port. The options can select a socket that proves no such right.
    Reserve(attacks::reserve::Options),
    /// Makes the service allocate more and more objects.
    Grow(attacks::grow::Options),
    /// Makes many registrations and leaves them idle.
    IdleRegistrations(attacks::idle_registrations::Options),
    /// Runs several attacks concurrently, for some time.
    Barrage(attacks::barrage::Options),
    /// Sends descriptors that take long to close.
    Linger(attacks::linger::Options),
    /// Searches for bytes of other programs in the memory that the service shares.
    Scan(attacks::scan::Options),
    /// Only uses CPU time, for comparison with other attacks.
    Spin(attacks::spin::Options),
    /// Punches holes into the memory shared with the service while the service reads this memory.
    Punch(attacks::punch::Options),
    /// Accepts connections late, and searches their buffers for bytes of other connections.
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
