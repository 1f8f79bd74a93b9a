//! Installs the packages of a catalogue entry, which describes one program. Packages of Debian are
//! installed by a call of `scripts/setup.sh programs`. Packages of PyPI and npm go to a folder
//! below Cargo's target directory.

use std::fs;

use tidelane_programs::packages::{self, once, skip, tools_dir};
use tidelane_tests::{Stop, command};

use crate::catalog::Entry;

/// Installs the packages that are missing, and runs the entry's command `build`. Returns
/// [`Stop::Skip`] with the reason if a package cannot be installed, or if the command fails.
pub fn install(entry: &Entry) -> Result<(), Stop> {
    fs::create_dir_all(tools_dir())?;
    packages::debian(&entry.packages).map_err(skip)?;
    for package in &entry.pip {
        pip(package).map_err(skip)?;
    }
    for package in &entry.npm {
        npm(package).map_err(skip)?;
    }
    match &entry.build {
        Some(build) => command(&["sh", "-c", &entry.fill(build)])
            .map(drop)
            .map_err(skip),
        None => Ok(()),
    }
}

/// Installs a package of PyPI into a virtual environment that all programs share.
fn pip(package: &str) -> Result<(), Stop> {
    let venv = tools_dir().join("venv").display().to_string();
    once(&tools_dir(), "venv", || {
        command(&["/usr/bin/python3", "-m", "venv", &venv]).map(drop)
    })?;
    let pip = format!("{venv}/bin/pip");
    once(&tools_dir(), package, || {
        command(&[&pip, "install", "--quiet", package]).map(drop)
    })
}

/// Installs a package of npm into a folder of its own, because the catalogue may name several
/// versions of one package.
fn npm(package: &str) -> Result<(), Stop> {
    let folder = tools_dir().join(package).display().to_string();
    once(&tools_dir(), package, || {
        fs::create_dir_all(&folder)?;
        command(&["npm", "install", "--silent", "--prefix", &folder, package]).map(drop)
    })
}

/// Returns the first line that the program's version command prints, or an empty text.
pub fn version(entry: &Entry) -> String {
    packages::first_line(&entry.fill(&entry.version), &tools_dir())
}
