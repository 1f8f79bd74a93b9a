//! The catalogue: a file of `catalog/` for each program.
//!
//! Texts may contain names of places: `{home}` (the server's folder), `{www}` (its random files),
//! `{out}` (for output of clients), `{tools}` (packages of PyPI and npm), `{server}` and `{client}`
//! (addresses), `{port}`, and `{origin}` (address and port of the HTTP server behind proxies).

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;
use tidelane_programs::{folder, packages::tools_dir};
use tidelane_tests::Stop;

/// Repeats the check for three seconds, at least once, and prints the microseconds of each.
const CHECKS: &str = "end=$(($(date +%s%N) + 3000000000))
while start=$(date +%s%N); [ $start -lt $end ]; do
    { CHECK
    } > {out}/load || exit 1
    echo $((($(date +%s%N) - start) / 1000))
done";

/// The entry of a program.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Name of the file without `.toml`.
    #[serde(skip)]
    pub name: String,
    /// The title of its row.
    pub title: String,
    /// The kind of program.
    pub kind: String,
    /// A shell command that prints the version.
    pub version: String,
    /// Debian packages of server and client.
    #[serde(default)]
    pub packages: Vec<String>,
    /// Packages of PyPI, with their versions.
    #[serde(default)]
    pub pip: Vec<String>,
    /// Packages of npm, with their versions.
    #[serde(default)]
    pub npm: Vec<String>,
    /// A shell command that builds something in `{tools}`; executed once per run.
    pub build: Option<String>,
    /// A part of the reason for which the program stays with the kernel under `tidelane run`, if it
    /// does.
    pub kernel: Option<String>,
    /// The port of the server.
    pub port: u16,
    /// Start an HTTP server with the files on the client's side, on port 8000 of the kernel.
    #[serde(default)]
    pub origin: bool,
    /// Files in `{home}` by name.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// The server.
    pub server: Server,
    /// The client, whose output is compared.
    pub check: Check,
    /// The load. Without one, the check is repeated.
    #[serde(default)]
    pub load: Option<Load>,
}

/// The start of the server.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// A shell command that is executed before the start, not under `tidelane run`.
    pub prepare: Option<String>,
    /// The server's command, without a shell.
    pub command: String,
    /// The user that the server runs as, if not root.
    pub user: Option<String>,
    /// A shell command on the server's side that succeeds when the server is ready. It is executed
    /// once the port listens.
    pub ready: Option<String>,
    /// Time limit of the start.
    #[serde(default = "thirty")]
    pub seconds: u64,
}

/// A client whose output is compared.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// A shell command on the client's side.
    pub client: String,
    /// The file of `{www}` or `{home}` that the client must write to standard output.
    pub gives: String,
    /// Time limit in seconds without loss.
    #[serde(default = "thirty")]
    pub seconds: u64,
}

/// A load on the server.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// A shell command on the client's side, which ends by itself.
    pub client: String,
    /// The format of its output.
    pub reads: Reads,
    /// The description of one request.
    pub request: String,
}

/// Load clients whose output can be parsed.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Reads {
    /// `wrk --latency`.
    Wrk,
    /// `redis-benchmark --csv` with one test.
    RedisBenchmark,
    /// `ab`.
    Ab,
    /// `sysbench --percentile=99`.
    Sysbench,
    /// A line of JSON, as `tidelane-load` prints it.
    Json,
    /// A line with the microseconds of each request.
    Microseconds,
}

fn thirty() -> u64 {
    30
}

impl Entry {
    /// Returns the load, or else whole checks in sequence for some seconds.
    pub fn load(&self) -> Load {
        let checks = || Load {
            client: CHECKS.replace("CHECK", &self.check.client),
            reads: Reads::Microseconds,
            request: "the check, 1 client".to_owned(),
        };
        self.load.clone().unwrap_or_else(checks)
    }

    /// Replaces `{tools}` by the folder of the installed packages, and `{port}`.
    pub fn fill(&self, text: &str) -> String {
        let tools = tools_dir().display().to_string();
        text.replace("{tools}", &tools)
            .replace("{port}", &self.port.to_string())
    }
}

/// Reads the entries with these names, or all.
pub fn read(folder: &Path, names: &[String]) -> Result<Vec<Entry>, Stop> {
    let named = |(name, entry)| Entry { name, ..entry };
    let mut entries: Vec<Entry> = folder::read(folder, names)?
        .into_iter()
        .map(named)
        .collect();
    entries.sort_by(|a, b| (&a.kind, &a.name).cmp(&(&b.kind, &b.name)));
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_can_be_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("catalog");
        let entries = read(&folder, &[]).expect("a catalogue");
        assert!(!entries.is_empty());
        for entry in entries {
            let bounded = entry.check.seconds <= 120 && entry.server.seconds <= 120;
            assert!(bounded, "{} may take too long", entry.name);
        }
    }
}
