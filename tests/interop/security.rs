//! Attacks on a service (`tidelaned`) by another user or by a peer on the link. Most of the attacks
//! are run by the program `tidelane-attacker`. `docs/security.md` lists the promises of Tidelane,
//! each with the cases that test it.
//!
//! A wire is two network namespaces, the server's and the client's, joined by a veth pair. A
//! service runs in the server's namespace unless a test says otherwise.

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

/// User id and group id of the attacker: the user `nobody`, who has no privileges.
pub const ATTACKER_ID: &str = "65534";
/// User id and group id of a second attacker.
const SECOND_USER_ID: &str = "65533";

/// The user and the namespaces of an attacker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The user [`ATTACKER_ID`] in the network namespace that the caller chooses.
    User,
    /// The user [`SECOND_USER_ID`] in the network namespace that the caller chooses.
    SecondUser,
    /// The user [`ATTACKER_ID`] in a new user namespace and a new network namespace, as in a
    /// container without network.
    Container,
}

/// Returns the program `tidelane-attacker` for attacks on `service`, in the namespace of `side`.
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

/// Returns a command that executes the rest of its command line as the attacker. The caller adds a
/// program and its arguments. For [`Origin::Container`], the attacker makes the new namespaces
/// without privileges.
pub fn as_attacker(wire: &Wire, side: Side, origin: Origin) -> Program {
    let program = wire.program(side, "setpriv");
    let id = match origin {
        Origin::User | Origin::Container => ATTACKER_ID,
        Origin::SecondUser => SECOND_USER_ID,
    };
    let program = ["--reuid", "--regid"]
        .into_iter()
        .fold(program, |program, kind| program.arg(kind).arg(id))
        .arg("--clear-groups");
    match origin {
        Origin::User | Origin::SecondUser => program,
        Origin::Container => program.args("unshare -Urn"),
    }
}

/// Copies one of Tidelane's binaries to a directory that every user may read, because the source
/// tree may be readable for root only. Returns the path of the copy.
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

/// Connects to `port` of the server from the namespace of `side`, over the kernel's stack. Returns
/// all bytes that the server sends until it closes the connection. Fails after five seconds.
pub fn read_all(wire: &Wire, side: Side, port: u16) -> Result<String, Stop> {
    let script = format!("exec 3<>/dev/tcp/{SERVER}/{port} && exec cat <&3");
    let client = wire.program(side, "timeout").args("5 bash -c").arg(script);
    Ok(client.run(SHORT)?.stdout)
}

/// Returns the lines of JSON that an attacker has printed.
pub fn lines(finished: &Finished) -> Result<Vec<Value>, Stop> {
    let lines = finished.stdout.lines().map(serde_json::from_str);
    match lines.collect() {
        Ok(lines) => Ok(lines),
        Err(error) => fail!("{error}: {finished}"),
    }
}
