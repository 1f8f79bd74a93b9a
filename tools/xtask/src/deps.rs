//! `cargo xtask deps`: checks that the dependencies in the manifests point down the layers.
//!
//! A layer is a top-level folder. The code map of ARCHITECTURE.md has the order of the layers.

use std::{collections::BTreeMap, fs, path::Path};

use tidelane_tests::tools::source_root;
use toml::{Table, Value};

/// The layers on which the crates of each folder may depend, in addition to their own layer. An
/// entry for a single crate replaces the entry of its layer.
const FOLDERS: &[(&str, &[&str])] = &[
    ("proto", &[]),
    ("shm", &["proto"]),
    ("nic", &["proto", "shm"]),
    ("service", &["proto", "shm", "nic"]),
    // The library that is preloaded into programs contains no TCP, so a crate of `app` without an
    // entry of its own must not depend on `proto`.
    ("app", &["shm"]),
    // `app/port` only moves packets between the service and a program that has its own TCP.
    ("app/port", &["shm", "nic"]),
    // The embedded stack runs the TCP engine inside the program.
    ("app/embedded", &["proto", "nic"]),
    // The direct back end of the ring API (`app/rings`) also runs the TCP engine in the program.
    ("app/direct", &["proto", "nic"]),
    // `app/direct-nic` sets up the direct back end on a NIC queue: the AF_XDP socket, and the demux
    // (the XDP program that steers packets).
    ("app/direct-nic", &["proto", "nic"]),
    // `app/direct-port` sets up the direct back end on a mux port of the service.
    ("app/direct-port", &["proto", "nic"]),
    ("sim", &["proto", "shm", "nic", "service", "app"]),
    ("tools", &["shm", "app", "tests"]),
    (
        "bench",
        &["proto", "shm", "nic", "service", "app", "sim", "tests"],
    ),
    ("fuzz", &["proto", "shm", "nic", "service", "tests"]),
    ("tests", &["proto", "shm", "nic", "service", "app", "sim"]),
];

/// Dependencies that are forbidden although `FOLDERS` allows them. Each entry has the dependent
/// crate, the crate on which it must not depend, and the invariant that forbids the dependency.
const FORBIDDEN: &[(&str, &str, &str)] = &[
    (
        "proto/fastpath",
        "proto/slowpath",
        "fast path and slow path meet in flow",
    ),
    (
        "proto/slowpath",
        "proto/fastpath",
        "fast path and slow path meet in flow",
    ),
    (
        "service/host",
        "nic/af-xdp",
        "the host knows traits, never AF_XDP",
    ),
    (
        "service/host",
        "nic/steering",
        "the host knows traits, never AF_XDP",
    ),
];

/// The order of the crates in `proto`. A crate may depend only on the crates before it in this
/// list.
const PROTO: &[&str] = &[
    "wire",
    "time",
    "fragments",
    "cc",
    "interface",
    "flow",
    "fastpath",
    "slowpath",
    "engine",
];

/// A crate of the workspace.
#[derive(Debug)]
struct Package {
    /// Folder of the crate, relative to the root of the tree.
    folder: String,
    /// Folders of the workspace's crates on which the crate depends.
    depends: Vec<String>,
}

/// Checks every manifest of the workspace. Fails if a dependency does not point down.
pub fn run() -> Result<(), String> {
    let packages = read_workspace(&source_root())?;
    let messages: Vec<String> = packages.iter().flat_map(check).collect();
    messages.iter().for_each(|message| eprintln!("{message}"));
    if messages.is_empty() {
        let edges: usize = packages.iter().map(|package| package.depends.len()).sum();
        println!(
            "deps: {} crates, {edges} dependencies, all downward",
            packages.len()
        );
        return Ok(());
    }
    Err(format!(
        "deps: {} dependencies do not point downward",
        messages.len()
    ))
}

/// Returns a message for each forbidden dependency of a crate.
fn check(package: &Package) -> Vec<String> {
    let complain = |on: &String| {
        refuse(&package.folder, on).map(|why| format!("{} -> {on}: {why}", package.folder))
    };
    package.depends.iter().filter_map(complain).collect()
}

/// Returns the reason why `from` must not depend on `on`, if there is one.
fn refuse(from: &str, on: &str) -> Option<String> {
    if let Some((_, _, why)) = FORBIDDEN.iter().find(|(a, b, _)| (*a, *b) == (from, on)) {
        return Some((*why).to_owned());
    }
    let (layer, lower) = (top(from), top(on));
    if layer == lower {
        let order = |path: &str| {
            PROTO
                .iter()
                .position(|name| path == format!("proto/{name}"))
        };
        return match (order(from), order(on)) {
            (Some(a), Some(b)) if a <= b => Some("not downward within proto".to_owned()),
            _ => None,
        };
    }
    let entry = |name: &str| FOLDERS.iter().find(|(folder, _)| *folder == name);
    match entry(from).or_else(|| entry(layer)) {
        None => Some(format!(
            "{layer} is not a layer; name it in tools/xtask/src/deps.rs"
        )),
        Some((_, allowed)) if allowed.contains(&lower) => None,
        Some(_) => Some(format!("{layer} may not depend on {lower}")),
    }
}

/// Returns the top-level folder of a path.
fn top(path: &str) -> &str {
    path.split('/').next().unwrap_or(path)
}

fn read_toml(path: &Path) -> Result<Table, String> {
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    text.parse().map_err(|e| format!("{}: {e}", path.display()))
}

/// Reads the manifests of all crates of the workspace.
fn read_workspace(root: &Path) -> Result<Vec<Package>, String> {
    let workspace = read_toml(&root.join("Cargo.toml"))?;
    let members = workspace["workspace"]["members"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let folders: Vec<String> = members
        .iter()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    let manifests: Vec<Table> = folders
        .iter()
        .map(|folder| read_toml(&root.join(folder).join("Cargo.toml")))
        .collect::<Result<_, _>>()?;
    let names: BTreeMap<String, String> = manifests
        .iter()
        .zip(&folders)
        .filter_map(|(manifest, folder)| {
            let name = manifest.get("package")?.get("name")?.as_str()?;
            Some((name.to_owned(), folder.clone()))
        })
        .collect();
    let package = |(manifest, folder): (&Table, &String)| Package {
        folder: folder.clone(),
        depends: dependencies(manifest)
            .filter_map(|name| names.get(&name).cloned())
            .collect(),
    };
    Ok(manifests.iter().zip(&folders).map(package).collect())
}

/// Returns the package names of all dependencies in a manifest, of every kind and for every target.
fn dependencies(manifest: &Table) -> impl Iterator<Item = String> {
    const KINDS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];
    let targets = manifest.get("target").and_then(Value::as_table);
    let tables = targets
        .into_iter()
        .flat_map(|t| t.values().filter_map(Value::as_table));
    std::iter::once(manifest)
        .chain(tables)
        .flat_map(|table| KINDS.iter().filter_map(|kind| table.get(*kind)?.as_table()))
        .flat_map(|table| table.iter())
        .map(|(name, value)| {
            let renamed = value.get("package").and_then(Value::as_str);
            renamed.unwrap_or(name).to_owned()
        })
        .collect::<Vec<_>>()
        .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn downward_is_allowed_and_upward_is_not() {
        for (from, on, fine) in [
            ("proto/flow", "proto/wire", true),
            ("proto/wire", "proto/flow", false),
            ("proto/fastpath", "proto/slowpath", false),
            ("proto/engine", "proto/slowpath", true),
            ("shm/ring", "nic/packet-io", false),
            ("service/host", "nic/packet-io", true),
            ("service/host", "nic/af-xdp", false),
            ("service/tidelaned", "nic/af-xdp", true),
            ("app/sockets", "proto/wire", false),
            ("app/sockets", "shm/ring", true),
            ("app/sockets", "app/client", true),
            ("service/host", "app/client", false),
            ("sim/world", "service/host", true),
            ("elsewhere/x", "proto/wire", false),
        ] {
            assert_eq!(refuse(from, on).is_none(), fine, "{from} -> {on}");
        }
    }

    #[test]
    fn dependencies_of_every_kind_count() {
        let manifest: Table = "[dependencies]\na = \"1\"\nb = { package = \"c\", path = \"x\" }\n\
            [target.'cfg(loom)'.dev-dependencies]\nd.workspace = true\n"
            .parse()
            .expect("a manifest");
        let mut names: Vec<String> = dependencies(&manifest).collect();
        names.sort();
        assert_eq!(names, ["a", "c", "d"]);
    }
}
