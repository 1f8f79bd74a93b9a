//! Prepares a suite, which is a test suite of another project: installs its packages, fetches its
//! source, and builds the suite below `target/suites`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tidelane_programs::{
    last_lines,
    packages::{self, once, skip},
};
use tidelane_tests::{Stop, command, tools::target_dir};

use crate::catalog::{Source, Suite};

/// The folders in which a suite is built and run.
#[derive(Clone, Debug)]
pub struct Place {
    /// Folder of the suite's builds and logs.
    pub folder: PathBuf,
    /// Folder of the suite's source.
    pub source: PathBuf,
}

/// Installs the packages, fetches the source and builds the suite, as far as earlier runs have not
/// done so. Returns [`Stop::Skip`] with the reason if one of these steps fails.
pub fn prepare(suite: &Suite) -> Result<Place, Stop> {
    packages::debian(&suite.packages).map_err(skip)?;
    let folder = suites_dir().join(&suite.name);
    fs::create_dir_all(&folder)?;
    let source = match &suite.source {
        None => folder.clone(),
        Some(Source::Debian(package)) => debian_source(package, &folder).map_err(skip)?,
        Some(Source::Crate(named)) => crate_source(named, &folder).map_err(skip)?,
    };
    let place = Place { folder, source };
    if let Some(build) = &suite.build {
        let log = place.folder.join("build.log");
        let text = place.fill(build);
        once(&place.folder, "build", || built(&text, &place.source, &log)).map_err(skip)?;
    }
    Ok(place)
}

impl Place {
    /// Replaces the placeholders `{source}` and `{place}`.
    pub fn fill(&self, text: &str) -> String {
        text.replace("{source}", &self.source.display().to_string())
            .replace("{place}", &self.folder.display().to_string())
    }

    /// Returns the first line that the suite's version command prints.
    pub fn version(&self, suite: &Suite) -> String {
        packages::first_line(&self.fill(&suite.version), &self.source)
    }
}

/// Returns the folder in which suites are built.
pub fn suites_dir() -> PathBuf {
    target_dir().join("suites")
}

/// Builds a suite: runs the shell command `text` in `folder` with low priority. The command's
/// output goes to the file `log`.
fn built(text: &str, folder: &Path, log: &Path) -> Result<(), Stop> {
    println!("  building; the log is {}", log.display());
    let output = fs::File::create(log)?;
    let status = Command::new("nice")
        .args(["sh", "-ec", text])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stderr(output.try_clone()?)
        .stdout(output)
        .status()?;
    if status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&fs::read(log)?).into_owned();
    Err(Stop::Fail(format!(
        "the build failed: {}",
        last_lines(&words)
    )))
}

/// Fetches a source package of Debian and unpacks it below `folder`. Apt uses separate package
/// lists, so that this machine's lists do not change.
fn debian_source(package: &str, folder: &Path) -> Result<PathBuf, Stop> {
    once(folder, package, || {
        let options = source_lists()?;
        let options: Vec<&str> = options.iter().flat_map(|o| ["-o", o.as_str()]).collect();
        let get = [&["apt-get"], &options[..]].concat();
        command(&[&get[..], &["-qq", "update"]].concat())?;
        let source = [&get[..], &["-qq", "source", package]].concat().join(" ");
        let text = format!("cd {} && {source}", folder.display());
        command(&["sh", "-c", &text]).map(drop)
    })?;
    unpacked(folder)
}

/// Returns the folder below `folder` into which a source package was unpacked.
fn unpacked(folder: &Path) -> Result<PathBuf, Stop> {
    let folders = fs::read_dir(folder)?.filter_map(Result::ok);
    let mut folders = folders.map(|entry| entry.path());
    let is_source = |path: &PathBuf| path.is_dir() && path.join("debian").is_dir();
    folders
        .find(is_source)
        .ok_or_else(|| Stop::Fail("no source was unpacked".to_owned()))
}

/// Returns options that make apt use this machine's Debian archives for source packages, and keep
/// the package lists in separate folders.
fn source_lists() -> Result<[String; 3], Stop> {
    let apt = suites_dir().join("apt");
    fs::create_dir_all(apt.join("lists/partial"))?;
    fs::create_dir_all(apt.join("parts"))?;
    let mut parts: Vec<PathBuf> = fs::read_dir("/etc/apt/sources.list.d")?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    parts.push(PathBuf::from("/etc/apt/sources.list"));
    for path in parts {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let name = path.file_name().unwrap_or_default();
        // Leave out the lists of other vendors, which may have no source packages.
        if text.contains("/debian") {
            fs::write(apt.join("parts").join(name), as_sources(&text))?;
        }
    }
    Ok([
        "Dir::Etc::sourcelist=/dev/null".to_owned(),
        format!("Dir::Etc::sourceparts={}", apt.join("parts").display()),
        format!("Dir::State::lists={}", apt.join("lists").display()),
    ])
}

/// Converts a list of package archives, in either format of apt, from binary to source packages.
/// In the one-line format, entries of other vendors and existing `deb-src` entries become empty
/// lines.
fn as_sources(text: &str) -> String {
    let turned = text.lines().map(|line| {
        if line.starts_with("Types:") {
            "Types: deb-src".to_owned()
        } else if line.starts_with("deb ") && line.contains("/debian") {
            line.replacen("deb ", "deb-src ", 1)
        } else if line.starts_with("deb") {
            String::new()
        } else {
            line.to_owned()
        }
    });
    turned.map(|line| line + "\n").collect()
}

/// Fetches the source of a crate, given as `NAME VERSION`, and unpacks it as a member of a new
/// workspace. The workspace uses this source instead of the source in the registry.
fn crate_source(named: &str, folder: &Path) -> Result<PathBuf, Stop> {
    let (name, version) = named
        .split_once(' ')
        .ok_or_else(|| Stop::Fail(format!("{named} has no version")))?;
    let source = folder.join("workspace").join(name);
    once(folder, named, || {
        let fetched = folder.join("fetch");
        fs::create_dir_all(fetched.join("src"))?;
        fs::write(fetched.join("src/lib.rs"), "")?;
        let manifest = format!(
            "[package]\nname = \"fetch\"\nedition = \"2024\"\n\n[dependencies]\n\
             {name} = \"={version}\"\n\n[workspace]\n"
        );
        fs::write(fetched.join("Cargo.toml"), manifest)?;
        let text = format!("cd {} && cargo vendor -q vendor", fetched.display());
        command(&["sh", "-c", &text])?;
        let vendored = fetched.join("vendor").join(name);
        fs::create_dir_all(folder.join("workspace"))?;
        let (from, to) = (vendored.display(), source.display());
        let text = format!("rm -rf {to} && cp -r {from} {to} && rm -f {to}/.cargo-checksum.json");
        command(&["sh", "-c", &text])?;
        let workspace = format!(
            "[workspace]\nresolver = \"2\"\nmembers = [\"{name}\"]\n\n\
             [patch.crates-io]\n{name} = {{ path = \"{name}\" }}\n"
        );
        Ok(fs::write(folder.join("workspace/Cargo.toml"), workspace)?)
    })?;
    Ok(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_turned_to_sources() {
        let line = "deb http://a/debian stable main\ndeb http://b/other stable main\n";
        assert_eq!(as_sources(line), "deb-src http://a/debian stable main\n\n");
        let fields = "Types: deb\nURIs: http://a/debian\nSuites: stable\n";
        assert!(as_sources(fields).starts_with("Types: deb-src\nURIs:"));
    }
}
