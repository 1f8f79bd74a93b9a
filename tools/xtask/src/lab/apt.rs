//! Downloads Debian packages with apt for `cargo xtask lab`, and unpacks them below `target/lab`.
//!
//! Apt uses the Debian archive that this machine's sources name, but separate package lists. No
//! package is installed, and this machine's package lists do not change.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

/// Folder of the unpacked packages. The folder exists only after all packages are unpacked.
const ROOT: &str = "root";

/// The packages that apt assumes to be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// No packages, so that apt fetches all dependencies.
    Nothing,
    /// The installed packages of this machine.
    AsHere,
}

/// An apt whose package lists and downloads are separate from this machine's.
#[derive(Debug)]
pub struct Apt {
    /// Folder of the lists, the downloads and the unpacked packages.
    home: PathBuf,
    /// Options of every apt command.
    options: Vec<String>,
    /// Deadline of all apt commands. `timeout` ends a command that still runs at this time.
    end: Instant,
}

impl Apt {
    /// Downloads the package lists of the Debian releases `suites` to a folder below `home`.
    /// Returns an apt that uses these lists. All apt commands fail after `end`.
    pub fn new(
        home: &Path,
        suites: &[&str],
        installed: Installed,
        end: Instant,
    ) -> Result<Self, String> {
        let own_home = home.join("apt");
        for directory in ["lists/partial", "archives/partial"] {
            let path = own_home.join(directory);
            fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        let list = own_home.join("sources.list");
        fs::write(&list, sources_of(suites)?).map_err(|error| error.to_string())?;
        let own = |name: &str, path: &Path| format!("{name}={}", path.display());
        let nothing = Path::new("/dev/null");
        let mut options = vec![
            own("Dir::State::Lists", &own_home.join("lists")),
            own("Dir::Cache", &own_home),
            own("Dir::Etc::sourcelist", &list),
            own("Dir::Etc::sourceparts", nothing),
            own("Dir::Etc::preferencesparts", nothing),
            "Acquire::Languages=none".to_owned(),
            // Ignore packages of other architectures.
            "APT::Architectures=amd64".to_owned(),
        ];
        if installed == Installed::Nothing {
            options.push(own("Dir::State::status", nothing));
        }
        let options = options
            .into_iter()
            .flat_map(|option| ["-o".to_owned(), option]);
        let apt = Self {
            home: home.to_owned(),
            options: options.collect(),
            end,
        };
        run(apt.command("apt-get").args(["-qq", "update"]))?;
        Ok(apt)
    }

    /// Returns a command that runs `program`, such as `apt-get`, with the options of every apt
    /// command. The command ends at the deadline.
    fn command(&self, program: &str) -> Command {
        let left = self.end.saturating_duration_since(Instant::now());
        let mut command = Command::new("timeout");
        // `timeout 0` would run the command without a time limit.
        command.arg(left.as_secs().max(1).to_string()).arg(program);
        command.args(&self.options);
        command
    }

    /// Returns the names of the packages on which a package depends.
    pub fn dependencies(&self, package: &str) -> Result<Vec<String>, String> {
        let mut depends = self.command("apt-cache");
        depends.args(["depends", "--no-recommends", "--no-suggests"]);
        depends.args(["--no-conflicts", "--no-breaks", "--no-replaces"]);
        let text = run(depends.args(["--no-enhances", package]))?;
        Ok(names_after("Depends: ", &text))
    }

    /// Returns the packages, each as `NAME=VERSION`, that apt would install or upgrade in order to
    /// install `package`. Apt prefers the versions of the release `suite`. The list is empty if apt
    /// has nothing to install.
    pub fn installed_with(&self, package: &str, suite: &str) -> Result<Vec<String>, String> {
        let mut simulation = self.command("apt-get");
        simulation.args(["install", "--simulate", "--no-install-recommends"]);
        let text = run(simulation.args(["--target-release", suite, package]))?;
        Ok(installations(&text))
    }

    /// Fetches packages, given as `NAME` or `NAME=VERSION`, and unpacks them to the folder that
    /// [`root`] returns.
    pub fn unpack(&self, packages: &[String]) -> Result<(), String> {
        let partial = self.home.join("partial");
        // Remove the remains of an interrupted run.
        let _ = fs::remove_dir_all(&partial);
        fs::create_dir_all(&partial).map_err(|error| error.to_string())?;
        for package in packages {
            let mut download = self.command("apt-get");
            download.args(["-qq", "download", package]);
            run(download.current_dir(&self.home))?;
            let file = archive_of(&self.home, package)?;
            run(Command::new("dpkg-deb").arg("-x").arg(&file).arg(&partial))?;
            fs::remove_file(&file).map_err(|error| error.to_string())?;
        }
        fs::rename(&partial, self.home.join(ROOT)).map_err(|error| error.to_string())
    }
}

/// Returns the folder of the packages unpacked below `home`, or `None` if the packages are not all
/// unpacked.
pub fn root(home: &Path) -> Option<PathBuf> {
    Some(home.join(ROOT)).filter(|path| path.is_dir())
}

/// Returns the text after `mark` on each line that contains `mark`.
fn names_after(mark: &str, text: &str) -> Vec<String> {
    let names = text.lines().filter_map(|line| line.split_once(mark));
    names.map(|(_, name)| name.trim().to_owned()).collect()
}

/// Returns the packages that a simulated run of apt-get installs, as `NAME=VERSION`. `text` is the
/// output of apt-get, with lines `Inst NAME [INSTALLED VERSION] (VERSION RELEASE [ARCHITECTURE])`.
fn installations(text: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("Inst "));
    let parts = lines.filter_map(|line| {
        let (name, _) = line.split_once(' ')?;
        let (_, new) = line.split_once('(')?;
        let (version, _) = new.split_once(' ')?;
        Some(format!("{name}={version}"))
    });
    parts.collect()
}

/// Returns the path of the `.deb` file of a package that apt downloaded to a directory.
fn archive_of(directory: &Path, package: &str) -> Result<PathBuf, String> {
    let entries = fs::read_dir(directory).map_err(|error| error.to_string())?;
    let mut paths = entries.filter_map(Result::ok).map(|entry| entry.path());
    let name = package.split('=').next().unwrap_or(package);
    let start = format!("{name}_");
    let found = paths.find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&start) && name.ends_with(".deb")
    });
    found.ok_or_else(|| format!("apt-get fetched no {package}"))
}

/// Returns a `sources.list` for the Debian releases `suites`, on the archive that this machine
/// uses.
fn sources_of(suites: &[&str]) -> Result<String, String> {
    const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
    let mut targets = Command::new("apt-get");
    targets.args(["indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)"]);
    let text = run(targets.arg("Created-By: Packages"))?;
    let uri = text
        .lines()
        .find_map(|line| line.strip_prefix("Debian|Debian|"));
    let uri = uri.ok_or("apt's sources name no archive of Debian")?;
    if !Path::new(KEYS).is_file() {
        return Err(format!("no {KEYS}; apt-get install debian-archive-keyring"));
    }
    let lines = suites
        .iter()
        .map(|suite| format!("deb [arch=amd64 signed-by={KEYS}] {uri} {suite} main\n"));
    Ok(lines.collect())
}

/// Runs a command to its end and returns its standard output. If the command fails, returns an
/// error with the last line of its standard error.
pub fn run(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("no {name} here"),
        _ => format!("{name}: {error}"),
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let said = errors.trim().lines().next_back();
    Err(said.map_or_else(
        || format!("{name}: {}", output.status),
        |line| format!("{name}: {line}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_read_from_the_output_of_apt() {
        let depends = "linux-image-7.3\n  PreDepends: linux-base\n |Depends: <dracut>\n  \
                       Depends: linux-binary-7.3\n";
        let names = ["linux-base", "<dracut>", "linux-binary-7.3"];
        assert_eq!(names_after("Depends: ", depends), names);
        let simulation = "The following packages will be upgraded:\n  seabios\n\
                          Inst seabios [1.16.2-1] (1.16.3-2~bpo12+1 Debian:oldstable [all])\n\
                          Inst libslirp0 (4.7.0-1 Debian:oldstable [amd64]) []\n\
                          Conf seabios (1.16.3-2~bpo12+1 Debian:oldstable [all])\n";
        let installed_with = ["seabios=1.16.3-2~bpo12+1", "libslirp0=4.7.0-1"];
        assert_eq!(installations(simulation), installed_with);
    }
}
