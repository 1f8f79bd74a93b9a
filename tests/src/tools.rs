//! Requirements of tests: root, installed tools, and Tidelane's binaries. Also a wait with a time
//! limit, and numbers from environment variables.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::Stop;

/// Tools and their Debian packages. For a tool that is not in this list, [`require_tools`] assumes
/// that the package has the name of the tool.
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
    ("perf", "linux-perf"),
];

/// Finds a tool in the directories of PATH, and then in `/usr/sbin` and `/sbin`, which the PATH of
/// an ordinary user often lacks. A name with a slash is a path, which needs no search.
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

/// Skips the test unless all of `tools` are installed. The reason names the package of the first
/// missing tool.
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

/// Compiles the C program `binary` from `sources`. Skips the test if there is no compiler.
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

/// Skips the test unless the user is root. Network namespaces and AF_XDP need root.
pub fn require_root() -> Result<(), Stop> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Stop::Skip(
        "not root, and network namespaces need it; run it with sudo".to_owned(),
    ))
}

/// Returns the root of the source tree.
pub fn source_root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// Returns cargo's target directory.
pub fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| source_root().join("target"), PathBuf::from)
}

/// Returns the path of one of Tidelane's binaries. Fails if the binary is not built. The
/// environment variable TIDELANE_BIN_DIR names the directory of the binaries. The default is the
/// directory of cargo's release binaries. Binaries of examples are in the subdirectory `examples`.
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

/// Returns the factor by which time limits are multiplied: the environment variable
/// TIDELANE_PATIENCE, which a slow machine sets, or 1 by default.
pub fn patience() -> u32 {
    u32::try_from(env_number("TIDELANE_PATIENCE", 1)).map_or(1, |times| times.max(1))
}

/// Calls `ready` every 10 ms until it returns true. Fails after `limit` times [`patience`]. `what`
/// names the awaited condition in the message.
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

/// Returns the number in the environment variable `name`, or `default` if the variable is not set
/// to a number.
pub fn env_number(name: &str, default: u64) -> u64 {
    env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}
