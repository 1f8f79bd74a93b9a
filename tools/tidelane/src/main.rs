//! `tidelane`: the command that starts and stops the service, runs programs on it, and shows
//! sockets and counters. The service is the process `tidelaned`, which runs a TCP/IP stack for
//! programs.
//!
//! A failed command prints the failure in one line on standard error, and exits with a non-zero
//! status. For a wrong argument, the option parser prints several lines. The binary `tidelaned` and
//! the library `libtidelane.so`, which `tidelane run` preloads into programs, are in the same
//! directory as this program.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod admin;
mod capture;
mod down;
mod failure;
mod firewall;
mod port;
mod reload;
mod rules;
mod run;
mod ss;
mod stat;
mod up;

use crate::failure::Failure;

/// A TCP stack service beside the kernel's TCP stack.
#[derive(Parser, Debug)]
#[command(name = "tidelane", version, about)]
struct Command {
    #[command(subcommand)]
    verb: Verb,
}

/// The subcommands of `tidelane`.
#[derive(Subcommand, Debug)]
enum Verb {
    /// Start the service on an interface
    Up(up::Options),
    /// Stop the service
    Down(admin::ServiceName),
    /// Show the operator's rules, and the number of connections that each has matched
    Rules(admin::ServiceName),
    /// Read the configuration again, without a restart
    Reload(admin::ServiceName),
    /// Run an unmodified program on the service
    Run(run::Options),
    /// Show the sockets of the programs that run on the service
    Ss(ss::Options),
    /// Show the service's counters
    Stat(stat::Options),
    /// Show the mux ports: packet rings of programs with a TCP/IP stack of their own
    Port(port::Options),
    /// Write packets to a file that tcpdump and Wireshark read
    Capture(capture::Options),
}

fn main() -> ExitCode {
    let result = match Command::parse().verb {
        Verb::Up(options) => up::up(&options),
        Verb::Down(service) => down::down(&service),
        Verb::Rules(service) => rules::rules(&service),
        Verb::Reload(service) => reload::reload(&service),
        Verb::Run(options) => run::run(&options),
        Verb::Ss(options) => ss::ss(&options),
        Verb::Stat(options) => stat::stat(&options),
        Verb::Port(options) => port::port(&options),
        Verb::Capture(options) => capture::capture(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { text, status }) => {
            eprintln!("tidelane: {text}");
            ExitCode::from(status)
        }
    }
}
