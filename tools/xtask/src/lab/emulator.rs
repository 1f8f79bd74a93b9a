//! The emulator: this machine's own, or a newer one for devices that the own one lacks.
//!
//! The newer one comes out of the backports of this machine's release. It is run where it was
//! unpacked, with libraries and firmware that lie beside it; the other libraries are this
//! machine's.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use super::apt::{self, Apt, Installed};

/// The program.
pub const EMULATOR: &str = "qemu-system-x86_64";
/// The package that has it.
const PACKAGE: &str = "qemu-system-x86";
/// Where packages have libraries, and the emulator's modules and firmware.
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
const MODULES: &str = "usr/lib/x86_64-linux-gnu/qemu";
const FIRMWARE: [&str; 3] = ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"];

/// An emulator.
#[derive(Debug, Default)]
pub struct Emulator {
    /// Where it was unpacked; none if it is this machine's own.
    root: Option<PathBuf>,
    /// Why there is no newer one, if one was looked for.
    no_newer: Option<String>,
}

impl Emulator {
    /// An emulator that has these devices, as far as possible; a newer one is fetched before `end`.
    pub fn with(devices: &[&str], lab: &Path, end: Instant) -> Self {
        let own = Self::default();
        if devices.iter().all(|device| own.has(device)) {
            return own;
        }
        match Self::backported(&lab.join("emulator"), end) {
            Ok(emulator) => emulator,
            Err(reason) => Self {
                no_newer: Some(reason),
                ..own
            },
        }
    }

    /// The emulator of the backports of this machine's release, fetched if it is not there.
    fn backported(home: &Path, end: Instant) -> Result<Self, String> {
        if apt::root(home).is_none() {
            let release = release()?;
            let backports = format!("{release}-backports");
            println!("lab: fetching the emulator of {backports}");
            let apt = Apt::new(home, &[&release, &backports], Installed::AsHere, end)?;
            let packages = apt.brought(PACKAGE, &backports)?;
            if packages.is_empty() {
                return Err(format!("{backports} has no newer {PACKAGE}"));
            }
            apt.unpack(&packages)?;
        }
        let emulator = Self {
            root: apt::root(home),
            no_newer: None,
        };
        let mut version = emulator.command(&[]);
        apt::run(version.arg("--version")).map(|_| emulator)
    }

    /// Returns true if the emulator has the device.
    fn has(&self, device: &str) -> bool {
        let mut help = self.command(&[]);
        help.args(["-device", &format!("{device},help")]);
        help.output().is_ok_and(|output| !output.stdout.is_empty())
    }

    /// Why the emulator has no such device, if so.
    pub fn missing(&self, device: &str) -> Option<String> {
        if self.has(device) {
            return None;
        }
        let newer = self.no_newer.as_ref();
        let newer = newer.map_or(String::new(), |reason| format!("; no newer one: {reason}"));
        Some(format!("{EMULATOR} has no {device}{newer}"))
    }

    /// The command that runs it, by way of `wrapper`, a command that takes another one.
    pub fn command(&self, wrapper: &[&str]) -> Command {
        let mut words: Vec<OsString> = wrapper.iter().map(OsString::from).collect();
        words.push(match &self.root {
            Some(root) => root.join("usr/bin").join(EMULATOR).into(),
            None => EMULATOR.into(),
        });
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        if let Some(root) = &self.root {
            let libraries = LIBRARIES.map(|path| root.join(path));
            if let Ok(path) = std::env::join_paths(libraries) {
                command.env("LD_LIBRARY_PATH", path);
            }
            command.env("QEMU_MODULE_DIR", root.join(MODULES));
            for path in FIRMWARE {
                command.arg("-L").arg(root.join(path));
            }
        }
        command
    }
}

/// The name of this machine's release of Debian.
fn release() -> Result<String, String> {
    let text = fs::read_to_string("/etc/os-release").map_err(|error| error.to_string())?;
    let name = |line: &str| line.strip_prefix("VERSION_CODENAME=").map(str::to_owned);
    let found = text.lines().find_map(name);
    found.ok_or_else(|| "this machine's release has no name".to_owned())
}
