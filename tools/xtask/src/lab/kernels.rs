//! Fetches the kernels of Debian's releases for `cargo xtask lab`, and unpacks them below
//! `target/lab/kernels`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use super::apt::{self, Apt, Installed, run};

/// The kernels. Each entry has the name on the command line and the Debian release.
pub const KERNELS: [(&str, &str); 4] = [
    ("5.10", "bullseye"),
    ("6.1", "bookworm"),
    ("6.12", "trixie"),
    ("newest", "trixie-backports"),
];

/// Kernels on which the Tidelane service refuses to start, because they lack a feature that the
/// service needs. On these kernels, the lab runs only one of the interop tests (`tests/interop`):
/// the test of the service's start (`cells::STARTS`).
pub const REFUSED: [&str; 1] = ["5.10"];

/// The meta package that depends on the kernel of a release.
const META_PACKAGE: &str = "linux-image-amd64";
/// Name prefixes of the packages that contain a kernel and its modules.
const PARTS: [&str; 3] = ["linux-image-", "linux-binary-", "linux-modules-"];
/// Limit of the search for packages. After this many packages are found, the search follows no
/// further dependencies.
const PACKAGES_MAX: usize = 16;

/// An unpacked kernel.
#[derive(Debug)]
pub struct Kernel {
    /// Version as in `uname -r`.
    pub version: String,
    /// Path of the kernel image.
    pub image: PathBuf,
    /// Folder that contains `lib/modules`.
    pub base: PathBuf,
}

impl Kernel {
    /// Returns the kernel called `name`. Fetches the kernel if it is not unpacked yet. `lab` is the
    /// laboratory's folder. Fetching fails after `end`.
    pub fn get(name: &str, lab: &Path, end: Instant) -> Result<Self, String> {
        let suite = KERNELS.iter().find(|(known, _)| *known == name);
        let (_, suite) = suite.ok_or_else(|| {
            let names: Vec<_> = KERNELS.iter().map(|(name, _)| *name).collect();
            format!("no kernel {name}; there are {}", names.join(", "))
        })?;
        let home = lab.join("kernels").join(name);
        if apt::root(&home).is_none() {
            println!("lab: fetching the kernel of {suite}");
            fetch(&home, suite, end)?;
        }
        Self::unpacked(&home)
    }

    /// Returns the kernel that is unpacked below `home`. Runs depmod if `modules.dep` is missing.
    fn unpacked(home: &Path) -> Result<Self, String> {
        let root = apt::root(home).ok_or("no kernel was unpacked")?;
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

    /// Returns the folder of the modules.
    pub fn modules(&self) -> PathBuf {
        self.base.join("lib/modules").join(&self.version)
    }
}

/// Returns the first entry of a directory. The directory `lib/modules` of an unpacked kernel has
/// only one entry: the folder that is named after the kernel's version.
fn only_entry(directory: &Path) -> Option<PathBuf> {
    let mut entries = fs::read_dir(directory).ok()?.filter_map(Result::ok);
    Some(entries.next()?.path())
}

/// Fetches the kernel of a Debian release, and unpacks it below `home`.
fn fetch(home: &Path, suite: &str, end: Instant) -> Result<(), String> {
    let apt = Apt::new(home, &[suite], Installed::Nothing, end)?;
    apt.unpack(&parts(&apt)?)
}

/// Returns the packages that contain the kernel and its modules.
fn parts(apt: &Apt) -> Result<Vec<String>, String> {
    let mut parts = vec![META_PACKAGE.to_owned()];
    let mut next = 0;
    while next < parts.len() && parts.len() < PACKAGES_MAX {
        for package in apt.dependencies(&parts[next])? {
            if is_part(&package) && !parts.contains(&package) {
                parts.push(package);
            }
        }
        next += 1;
    }
    if parts.len() == 1 {
        return Err(format!("{META_PACKAGE} depends on no kernel"));
    }
    // Drop the meta packages, whose names have no version.
    parts.retain(|package| has_version(package));
    Ok(parts)
}

/// Returns true if the package may contain a part of a kernel.
fn is_part(package: &str) -> bool {
    PARTS.iter().any(|part| package.starts_with(part))
}

/// Returns true if the package's name contains a kernel version.
fn has_version(package: &str) -> bool {
    let rest = PARTS.iter().find_map(|part| package.strip_prefix(part));
    rest.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_parts_of_a_kernel_are_fetched() {
        let dependencies = ["<dracut>", "linux-base-7.3", "linux-binary-7.3"];
        assert_eq!(dependencies.map(is_part), [false, false, true]);
        assert!(has_version("linux-image-6.1.0-50-amd64"));
        assert!(!has_version("linux-modules-amd64"));
    }
}
