//! What an entry needs on this machine: `scripts/setup.sh programs` brings Debian's packages, and
//! PyPI's and npm's go into a folder of the target directory.

use std::{
    fs,
    process::{Command, Stdio},
};

use tidelane_tests::{
    Stop, command,
    tools::{source_root, target_dir},
};

use crate::catalog::{Entry, tools_dir};

/// Installs what is lacking. A skip says what cannot be had.
pub fn install(entry: &Entry) -> Result<(), Stop> {
    let skip = |stop: Stop| match stop {
        Stop::Skip(text) | Stop::Fail(text) => Stop::Skip(last_line(&text)),
    };
    fs::create_dir_all(tools_dir())?;
    if !entry.packages.is_empty() {
        let script = source_root().join("scripts/setup.sh").display().to_string();
        let packages = entry.packages.iter().map(String::as_str);
        let line: Vec<&str> = [script.as_str(), "programs"]
            .into_iter()
            .chain(packages)
            .collect();
        command(&line).map_err(skip)?;
    }
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

fn last_line(text: &str) -> String {
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    line.unwrap_or("it cannot be installed").to_owned()
}

/// Runs `install` unless a mark says that it was done.
fn once(mark: &str, install: impl FnOnce() -> Result<(), Stop>) -> Result<(), Stop> {
    let mark = tools_dir().join(format!("installed-{}", mark.replace('/', "-")));
    if mark.exists() {
        return Ok(());
    }
    install()?;
    Ok(fs::write(mark, "")?)
}

fn pip(package: &str) -> Result<(), Stop> {
    let venv = tools_dir().join("venv").display().to_string();
    once("venv", || {
        command(&["/usr/bin/python3", "-m", "venv", &venv]).map(drop)
    })?;
    let pip = format!("{venv}/bin/pip");
    once(package, || {
        command(&[&pip, "install", "--quiet", package]).map(drop)
    })
}

/// Each package of npm has a folder of its own, for several versions of one have the same name.
fn npm(package: &str) -> Result<(), Stop> {
    let folder = tools_dir().join(package).display().to_string();
    once(package, || {
        fs::create_dir_all(&folder)?;
        command(&["npm", "install", "--silent", "--prefix", &folder, package]).map(drop)
    })
}

/// The first line that the program says of its version, or the empty text.
pub fn version(entry: &Entry) -> String {
    let output = Command::new("sh")
        .arg("-c")
        .arg(entry.fill(&entry.version))
        .env("PATH", search_path())
        .stdin(Stdio::null())
        .output();
    let Ok(output) = output else {
        return String::new();
    };
    let texts = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into());
    let line = texts
        .iter()
        .flat_map(|text: &String| text.lines())
        .map(str::trim);
    line.filter(|line| !line.is_empty())
        .map(|line| line.chars().take(60).collect())
        .next()
        .unwrap_or_default()
}

/// A search path with the system directories, and without the shims of a developer's machine.
pub fn search_path() -> String {
    let load = target_dir().join("release");
    format!(
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{}",
        load.display()
    )
}
