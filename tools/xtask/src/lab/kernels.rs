//! Kernels of Debian's releases, unpacked under `target/lab` and kept there.
//!
//! Apt fetches them, with lists of its own for each release, from the archive that this machine's
//! sources name. Nothing is installed, and the machine's own lists stay as they are.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

/// Kernels by their name on the command line, and the release of Debian that has each.
pub const KERNELS: [(&str, &str); 4] = [
    ("5.10", "bullseye"),
    ("6.1", "bookworm"),
    ("6.12", "trixie"),
    ("newest", "trixie-backports"),
];

/// Kernels that lack a feature that the service needs.
pub const REFUSED: [&str; 1] = ["5.10"];

/// The package that depends on a release's kernel.
const META_PACKAGE: &str = "linux-image-amd64";
/// How the packages are called that a kernel and its modules are in.
const PARTS: [&str; 3] = ["linux-image-", "linux-binary-", "linux-modules-"];
/// Packages that are looked at, at most.
const PACKAGES_MAX: usize = 16;
/// The folder of a kernel's unpacked packages; it appears when all are unpacked.
const ROOT: &str = "root";

/// A kernel on disk.
#[derive(Debug)]
pub struct Kernel {
    /// The version as `uname -r` says it.
    pub version: String,
    /// The image.
    pub image: PathBuf,
    /// The directory that has `lib/modules`, with dependencies resolved by depmod.
    pub base: PathBuf,
}

impl Kernel {
    /// The kernel of that name, fetched if it is not there.
    pub fn get(name: &str, lab: &Path) -> Result<Self, String> {
        let suite = KERNELS.iter().find(|(known, _)| *known == name);
        let (_, suite) = suite.ok_or_else(|| {
            let names: Vec<_> = KERNELS.iter().map(|(name, _)| *name).collect();
            format!("no kernel {name}; there are {}", names.join(", "))
        })?;
        let home = lab.join("kernels").join(name);
        if !home.join(ROOT).is_dir() {
            println!("lab: fetching the kernel of {suite}");
            Apt::new(&home, suite)?.fetch(&home)?;
        }
        Self::unpacked(&home)
    }

    fn unpacked(home: &Path) -> Result<Self, String> {
        let root = home.join(ROOT);
        let modules = ["lib/modules", "usr/lib/modules"].map(|path| root.join(path));
        let modules = modules.iter().find_map(|path| only_entry(path));
        let modules = modules.ok_or_else(|| format!("no modules in {}", root.display()))?;
        let version = modules.file_name().unwrap_or_default();
        let version = version.to_string_lossy().into_owned();
        let images = [
            root.join("boot").join(format!("vmlinuz-{version}")),
            modules.join("vmlinuz"),
        ];
        let image = images.into_iter().find(|path| path.is_file());
        let image = image.ok_or_else(|| format!("no kernel image in {}", root.display()))?;
        let base = if modules.starts_with(root.join("usr")) {
            root.join("usr")
        } else {
            root
        };
        if !modules.join("modules.dep").is_file() {
            let mut depmod = Command::new("depmod");
            run(depmod.arg("-b").arg(&base).arg(&version))?;
        }
        Ok(Self {
            version,
            image,
            base,
        })
    }

    /// The directory of the modules.
    pub fn modules(&self) -> PathBuf {
        self.base.join("lib/modules").join(&self.version)
    }
}

/// The only entry of a directory.
fn only_entry(directory: &Path) -> Option<PathBuf> {
    let mut entries = fs::read_dir(directory).ok()?.filter_map(Result::ok);
    Some(entries.next()?.path())
}

/// Apt with directories of its own.
struct Apt {
    options: Vec<String>,
}

impl Apt {
    fn new(home: &Path, suite: &str) -> Result<Self, String> {
        let home = home.join("apt");
        for directory in ["lists/partial", "archives/partial"] {
            let path = home.join(directory);
            fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        let list = home.join("sources.list");
        fs::write(&list, source_of(suite)?).map_err(|error| error.to_string())?;
        let own = |name: &str, path: &Path| format!("{name}={}", path.display());
        let nothing = Path::new("/dev/null");
        let options = [
            own("Dir::State::Lists", &home.join("lists")),
            own("Dir::State::status", nothing),
            own("Dir::Cache", &home),
            own("Dir::Etc::sourcelist", &list),
            own("Dir::Etc::sourceparts", nothing),
            own("Dir::Etc::preferencesparts", nothing),
            "Acquire::Languages=none".to_owned(),
            // Another architecture's or release's kernel is not wanted.
            "APT::Architectures=amd64".to_owned(),
        ];
        let options = options
            .into_iter()
            .flat_map(|option| ["-o".to_owned(), option]);
        Ok(Self {
            options: options.collect(),
        })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(&self.options);
        command
    }

    /// Fetches and unpacks the release's kernel.
    fn fetch(&self, home: &Path) -> Result<(), String> {
        run(self.command("apt-get").args(["-qq", "update"]))?;
        let partial = home.join("partial");
        // The remains of an interrupted run.
        let _ = fs::remove_dir_all(&partial);
        fs::create_dir_all(&partial).map_err(|error| error.to_string())?;
        for package in self.parts()? {
            let mut download = self.command("apt-get");
            download.args(["-qq", "download", &package]);
            run(download.current_dir(home))?;
            let file = archive_of(home, &package)?;
            run(Command::new("dpkg-deb").arg("-x").arg(&file).arg(&partial))?;
            fs::remove_file(&file).map_err(|error| error.to_string())?;
        }
        fs::rename(&partial, home.join(ROOT)).map_err(|error| error.to_string())
    }

    /// The packages that the kernel consists of.
    fn parts(&self) -> Result<Vec<String>, String> {
        let mut parts = vec![META_PACKAGE.to_owned()];
        let mut next = 0;
        while next < parts.len() && parts.len() < PACKAGES_MAX {
            let mut depends = self.command("apt-cache");
            depends.args(["depends", "--no-recommends", "--no-suggests"]);
            depends.args(["--no-conflicts", "--no-breaks", "--no-replaces"]);
            let text = run(depends.args(["--no-enhances", &parts[next]]))?;
            for package in depended(&text) {
                if !parts.contains(&package) {
                    parts.push(package);
                }
            }
            next += 1;
        }
        if parts.len() == 1 {
            return Err(format!("{META_PACKAGE} depends on no kernel"));
        }
        // The others only depend on these.
        parts.retain(|package| has_version(package));
        Ok(parts)
    }
}

/// The parts of a kernel that the output of `apt-cache depends` names.
fn depended(text: &str) -> Vec<String> {
    let names = text.lines().filter_map(|line| line.split_once("Depends: "));
    let names = names.map(|(_, name)| name.trim());
    let parts = names.filter(|name| PARTS.iter().any(|part| name.starts_with(part)));
    parts.map(str::to_owned).collect()
}

/// Returns true if the package's name has a kernel's version.
fn has_version(package: &str) -> bool {
    let rest = PARTS.iter().find_map(|part| package.strip_prefix(part));
    rest.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
}

/// The archive of a package that apt has put into a directory.
fn archive_of(directory: &Path, package: &str) -> Result<PathBuf, String> {
    let entries = fs::read_dir(directory).map_err(|error| error.to_string())?;
    let mut paths = entries.filter_map(Result::ok).map(|entry| entry.path());
    let start = format!("{package}_");
    let found = paths.find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&start) && name.ends_with(".deb")
    });
    found.ok_or_else(|| format!("apt-get brought no {package}"))
}

/// The line of apt's sources for a release, on the archive that this machine uses for its own.
fn source_of(suite: &str) -> Result<String, String> {
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
    Ok(format!(
        "deb [arch=amd64 signed-by={KEYS}] {uri} {suite} main\n"
    ))
}

/// Runs a command to its end; its standard output.
fn run(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("no {name} here"),
        _ => format!("{name}: {error}"),
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{name}: {}", errors.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_parts_of_a_kernel_are_fetched() {
        let text = "linux-image-7.3\n  PreDepends: linux-base\n |Depends: <dracut>\n  \
                    Depends: linux-base-7.3\n  Depends: linux-binary-7.3\n  \
                    Depends: linux-modules-7.3\n";
        assert_eq!(depended(text), ["linux-binary-7.3", "linux-modules-7.3"]);
        assert!(has_version("linux-image-6.1.0-50-amd64"));
        assert!(!has_version("linux-modules-amd64"));
    }
}
