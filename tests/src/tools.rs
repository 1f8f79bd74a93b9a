//! What a test needs from its machine: privilege, tools, Tidelane's own binaries.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::Stop;

/// Tools by the Debian package that has them.
const PACKAGES: &[(&str, &str)] = &[
    ("ip", "iproute2"),
    ("ss", "iproute2"),
    ("tc", "iproute2"),
    ("nft", "nftables"),
    ("taskset", "util-linux"),
    ("nginx", "nginx"),
    ("redis-server", "redis-server"),
    ("redis-benchmark", "redis-tools"),
    ("redis-cli", "redis-tools"),
    ("memcached", "memcached"),
    ("memcaslap", "libmemcached-tools"),
    ("memccapable", "libmemcached-tools"),
    ("busybox", "busybox"),
    ("curl", "curl"),
    ("wrk", "wrk"),
    ("ethtool", "ethtool"),
    ("sha256sum", "coreutils"),
    ("cc", "gcc"),
    ("valgrind", "valgrind"),
];

/// Where a tool is, looking at PATH and the system directories that a user's PATH may lack.
pub fn find_tool(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_file());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}

/// Skips, naming the package, unless all of `tools` are there.
pub fn require_tools(tools: &[&str]) -> Result<(), Stop> {
    for tool in tools {
        if find_tool(tool).is_none() {
            let package = PACKAGES
                .iter()
                .find(|(name, _)| name == tool)
                .map_or(*tool, |p| p.1);
            return Err(Stop::Skip(format!(
                "no {tool} here; apt-get install {package}"
            )));
        }
    }
    Ok(())
}

/// Makes a program out of C sources; skips if there is no compiler.
pub fn compile(binary: &Path, sources: &[PathBuf]) -> Result<(), Stop> {
    const WARNINGS: [&str; 4] = [
        "-Wall",
        "-Wextra",
        "-Wno-unused-result",
        "-Wno-stringop-overflow",
    ];
    require_tools(&["cc"])?;
    let output = Command::new("cc")
        .args(["-O1", "-g", "-pthread"])
        .args(WARNINGS)
        .arg("-o")
        .arg(binary)
        .args(sources)
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(Stop::Fail(errors.into_owned()))
}

/// Skips unless this is root, which namespaces and AF_XDP need.
pub fn require_root() -> Result<(), Stop> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Stop::Skip(
        "not root, and network namespaces need it; run it with sudo".to_owned(),
    ))
}

/// The root of the source tree.
pub fn source_root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// Where cargo puts what it builds.
pub fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| source_root().join("target"), PathBuf::from)
}

/// One of Tidelane's own release binaries; an error that names the command if it is not built.
pub fn binary(name: &str) -> Result<PathBuf, Stop> {
    let dir =
        env::var_os("TIDELANE_BIN_DIR").map_or_else(|| target_dir().join("release"), PathBuf::from);
    let places = [dir.join(name), dir.join("examples").join(name)];
    match places.iter().find(|path| path.is_file()) {
        Some(path) => Ok(path.clone()),
        None => Err(Stop::Fail(format!(
            "{} is not built; make build",
            places[0].display()
        ))),
    }
}

/// How many times as long as usual everything may take: TIDELANE_PATIENCE, for slow machines.
pub fn patience() -> u32 {
    u32::try_from(env_number("TIDELANE_PATIENCE", 1)).map_or(1, |times| times.max(1))
}

/// Calls `ready` until it is true; fails with `what` in its text after `limit`, which
/// [`patience`] extends.
pub fn wait_until(
    limit: Duration,
    what: &str,
    mut ready: impl FnMut() -> Result<bool, Stop>,
) -> Result<(), Stop> {
    let limit = limit * patience();
    let start = Instant::now();
    loop {
        if ready()? {
            return Ok(());
        }
        if start.elapsed() > limit {
            return Err(Stop::Fail(format!(
                "waited {} s for {what}",
                limit.as_secs_f32()
            )));
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// A number from the environment, for how long a test goes on.
pub fn env_number(name: &str, default: u64) -> u64 {
    env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}
