//! Installs the packages of the programs and test suites that `bench/programs` and `bench/suites`
//! run, and reads the versions of these programs and suites.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tidelane_tests::{
    Stop, command,
    tools::{source_root, target_dir},
};

/// Installs the Debian packages that are missing, by `scripts/setup.sh programs`. The script needs
/// root if a package is missing.
pub fn debian(packages: &[String]) -> Result<(), Stop> {
    if packages.is_empty() {
        return Ok(());
    }
    let script = source_root().join("scripts/setup.sh").display().to_string();
    let line: Vec<&str> = [script.as_str(), "programs"]
        .into_iter()
        .chain(packages.iter().map(String::as_str))
        .collect();
    command(&line).map(drop)
}

/// Converts a failed installation into [`Stop::Skip`], with the last line of the failure's text.
/// The run then skips the program instead of failing.
pub fn skip(stop: Stop) -> Stop {
    match stop {
        Stop::Skip(text) | Stop::Fail(text) => Stop::Skip(last_line(&text)),
    }
}

fn last_line(text: &str) -> String {
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    line.unwrap_or("it cannot be installed").to_owned()
}

/// Runs `install` if no earlier call with the same `folder` and `mark` has succeeded. A file in
/// `folder` records the success. The name of the file contains `mark`.
pub fn once(
    folder: &Path,
    mark: &str,
    install: impl FnOnce() -> Result<(), Stop>,
) -> Result<(), Stop> {
    let mark = folder.join(format!("installed-{}", mark.replace('/', "-")));
    if mark.exists() {
        return Ok(());
    }
    install()?;
    Ok(fs::write(mark, "")?)
}

/// Runs the shell command `text` in `folder`, and returns the first line of the command's standard
/// output, cut to 60 characters. Blank lines do not count. If standard output has no line, returns
/// the first line of standard error. Returns an empty text if the command cannot be run, or if it
/// prints nothing.
pub fn first_line(text: &str, folder: &Path) -> String {
    let output = Command::new("sh")
        .arg("-c")
        .arg(text)
        .env("PATH", search_path())
        .current_dir(folder)
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

/// Returns the value of PATH for programs: the system directories and Tidelane's release binaries.
/// The value does not contain the directories of version managers that a developer's PATH may have.
pub fn search_path() -> String {
    let release = target_dir().join("release");
    format!(
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{}",
        release.display()
    )
}

/// Returns the folder for packages of PyPI and npm.
pub fn tools_dir() -> PathBuf {
    target_dir().join("programs")
}
