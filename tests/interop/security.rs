//! Attacks of another user, by `tidelane-attacker`: one folder of cases per area of
//! `docs/security.md`.

use std::{fs, path::PathBuf};

use rustix::fs::{Mode, chmod};
use serde_json::Value;
use tidelane_tests::{Finished, Program, Service, Side, Stop, Wire, fail, tools, wire::SERVER};

use crate::support::SHORT;

pub mod access;
pub mod admission;
pub mod bytes;
pub mod confinement;
pub mod firewall;
pub mod limits;
pub mod network;
pub mod pid_namespace;
pub mod ports;
pub mod rules;
pub mod together;
pub mod watchdog;

/// The attacker's user and group: `nobody`, who owns no service, no socket and no file here.
pub const ATTACKER_ID: &str = "65534";
/// User and group of a second attacker.
const ACCOMPLICE_ID: &str = "65533";

/// The place of the attacker, relative to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Another user beside the service.
    User,
    /// A third user beside the service, with shares of their own.
    Accomplice,
    /// Another user in a user and network namespace of its own, as in a container without network.
    Container,
}

/// Returns the attacker of `service` on one side of the wire: `tidelane-attacker --service NAME`.
/// The caller adds the name of an attack and its options.
pub fn attacker(
    wire: &Wire,
    side: Side,
    origin: Origin,
    service: &Service,
) -> Result<Program, Stop> {
    let binary = readable_copy(wire, "tidelane-attacker")?;
    Ok(as_attacker(wire, side, origin)
        .arg(binary.display())
        .arg("--service")
        .arg(service.name()))
}

/// Returns a program of the attacker's user; the caller adds its command line. The attacker makes
/// its namespaces itself, without privileges.
pub fn as_attacker(wire: &Wire, side: Side, origin: Origin) -> Program {
    let program = wire.program(side, "setpriv");
    let id = match origin {
        Origin::User | Origin::Container => ATTACKER_ID,
        Origin::Accomplice => ACCOMPLICE_ID,
    };
    let program = ["--reuid", "--regid"]
        .into_iter()
        .fold(program, |program, kind| program.arg(kind).arg(id))
        .arg("--clear-groups");
    match origin {
        Origin::User | Origin::Accomplice => program,
        Origin::Container => program.args("unshare -Urn"),
    }
}

/// Returns a copy of one of Tidelane's binaries that every user may run, because the source tree
/// may be readable for root only.
pub fn readable_copy(wire: &Wire, name: &str) -> Result<PathBuf, Stop> {
    let home = wire.scratch().join("bin");
    fs::create_dir_all(&home)?;
    let copy = home.join(name);
    if !copy.exists() {
        fs::copy(tools::binary(name)?, &copy)?;
        for path in [wire.scratch(), &home, &copy] {
            chmod(path, Mode::from_raw_mode(0o755))?;
        }
    }
    Ok(copy)
}

/// Returns all bytes that a kernel client of one side reads from the server until the server
/// closes.
pub fn hear(wire: &Wire, side: Side, port: u16) -> Result<String, Stop> {
    let script = format!("exec 3<>/dev/tcp/{SERVER}/{port} && exec cat <&3");
    let client = wire.program(side, "timeout").args("5 bash -c").arg(script);
    Ok(client.run(SHORT)?.stdout)
}

/// Returns all lines that an attacker wrote, in order.
pub fn lines(finished: &Finished) -> Result<Vec<Value>, Stop> {
    let lines = finished.stdout.lines().map(serde_json::from_str);
    match lines.collect() {
        Ok(lines) => Ok(lines),
        Err(error) => fail!("{error}: {finished}"),
    }
}
