//! The emulator (QEMU) that runs the machines of the laboratory (`cargo xtask lab`).
//!
//! The laboratory uses the installed emulator if it has all devices that the tests need. Otherwise
//! the laboratory fetches a newer emulator from the backports of this machine's Debian release. The
//! packages of the newer emulator are not installed, but unpacked to a folder, from which the
//! emulator takes its libraries and firmware. Libraries that the folder lacks come from this
//! machine.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use super::apt::{self, Apt, Installed};

/// Name of the emulator's program.
pub const EMULATOR: &str = "qemu-system-x86_64";
/// Debian package of the emulator.
const PACKAGE: &str = "qemu-system-x86";
/// Folders of libraries in the unpacked packages.
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
/// Folder of the emulator's modules in the unpacked packages.
const MODULES: &str = "usr/lib/x86_64-linux-gnu/qemu";
/// Folders of firmware in the unpacked packages.
const FIRMWARE: [&str; 3] = ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"];

/// The installed emulator, or an unpacked emulator.
#[derive(Debug, Default)]
pub struct Emulator {
    /// Folder of the unpacked packages. `None` for the installed emulator.
    root: Option<PathBuf>,
    /// Reason why a newer emulator could not be fetched or run. `None` if no attempt has failed.
    no_newer: Option<String>,
}

impl Emulator {
    /// Returns the installed emulator if it has all of these devices. Otherwise returns a newer
    /// emulator, fetched if necessary. If the newer emulator cannot be fetched or run, returns the
    /// installed emulator. `lab` is the laboratory's folder. Fetching fails after `end`.
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

    /// Returns the emulator from the backports of this machine's Debian release. Fetches the
    /// emulator if it is not unpacked yet.
    fn backported(home: &Path, end: Instant) -> Result<Self, String> {
        if apt::root(home).is_none() {
            let release = release()?;
            let backports = format!("{release}-backports");
            println!("lab: fetching the emulator of {backports}");
            let apt = Apt::new(home, &[&release, &backports], Installed::AsHere, end)?;
            let packages = apt.installed_with(PACKAGE, &backports)?;
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

    /// Returns a message if the emulator lacks the device.
    pub fn missing(&self, device: &str) -> Option<String> {
        if self.has(device) {
            return None;
        }
        let newer = self.no_newer.as_ref();
        let newer = newer.map_or(String::new(), |reason| format!("; no newer one: {reason}"));
        Some(format!("{EMULATOR} has no {device}{newer}"))
    }

    /// Returns the command that runs the emulator. `wrapper` is empty, or has the words of a
    /// command such as `setpriv`, which executes its arguments.
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

/// Returns the name of this machine's Debian release.
fn release() -> Result<String, String> {
    let text = fs::read_to_string("/etc/os-release").map_err(|error| error.to_string())?;
    let name = |line: &str| line.strip_prefix("VERSION_CODENAME=").map(str::to_owned);
    let found = text.lines().find_map(name);
    found.ok_or_else(|| "/etc/os-release has no VERSION_CODENAME".to_owned())
}
