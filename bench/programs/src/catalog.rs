//! The catalogue: the folder `catalog/` with a TOML file for each program.
//!
//! Commands and files may contain placeholders:
//!
//! | placeholder | value |
//! |---|---|
//! | `{home}` | folder of the server |
//! | `{www}` | folder of random files that servers serve |
//! | `{out}` | folder for the output of clients |
//! | `{tools}` | folder of packages of PyPI and npm |
//! | `{server}`, `{client}` | IP addresses of the two sides |
//! | `{port}` | port of the server |
//! | `{origin}` | address and port of the HTTP server behind proxies |
//!
//! In the commands `version` and `build`, only `{tools}` and `{port}` are replaced.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;
use tidelane_programs::{folder, packages::tools_dir};
use tidelane_tests::Stop;

/// Shell script that repeats the command CHECK for three seconds, but at least once, and prints the
/// duration of each repetition in microseconds.
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
    /// Name of the program: the name of the file without `.toml`.
    #[serde(skip)]
    pub name: String,
    /// Title of the program's row in `TABLE.md`.
    pub title: String,
    /// Kind of program, such as "web server".
    pub kind: String,
    /// A shell command that prints the version.
    pub version: String,
    /// Debian packages of server and client.
    #[serde(default)]
    pub packages: Vec<String>,
    /// Packages of PyPI, as `NAME==VERSION`.
    #[serde(default)]
    pub pip: Vec<String>,
    /// Packages of npm, as `NAME@VERSION`.
    #[serde(default)]
    pub npm: Vec<String>,
    /// A shell command that builds files in `{tools}`. It is executed once per run.
    pub build: Option<String>,
    /// Reason for which `tidelane run` leaves the program to the kernel, such as "Go". The testbed
    /// then waits only briefly for the service to learn of the server's listener. `None` if no
    /// reason is known in advance.
    pub kernel: Option<String>,
    /// Port of the server.
    pub port: u16,
    /// True if the program is a proxy that forwards requests to an HTTP server. The testbed then
    /// runs this HTTP server, the origin, on the client's side, on the kernel, at port 8000.
    #[serde(default)]
    pub origin: bool,
    /// Files to write to `{home}`, by name.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// The server.
    pub server: Server,
    /// The client that checks the server.
    pub check: Check,
    /// The load on the server. `None` if the load repeats the check.
    #[serde(default)]
    pub load: Option<Load>,
}

/// The commands that start the server.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// A shell command that is executed on the kernel before the server starts.
    pub prepare: Option<String>,
    /// The server's command. It is split at blanks and executed without a shell.
    pub command: String,
    /// User that the server runs as. `None` for root.
    pub user: Option<String>,
    /// A shell command on the server's side that succeeds when the server is ready. After the
    /// server listens on its port, the testbed repeats the command until it succeeds.
    pub ready: Option<String>,
    /// Time limit in seconds until the server listens, and the same limit again until `ready`
    /// succeeds.
    #[serde(default = "thirty")]
    pub seconds: u64,
}

/// A client that checks the server: its output must be equal to a file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// A shell command on the client's side.
    pub client: String,
    /// The file of `{www}` or `{home}` that the client must write to standard output.
    pub expected_file: String,
    /// Time limit in seconds without packet loss. The limit is doubled in the checks with packet
    /// loss.
    #[serde(default = "thirty")]
    pub seconds: u64,
}

/// A load on the server.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// A shell command on the client's side that ends by itself.
    pub client: String,
    /// Format of the command's output, which contains the measured rate.
    pub output_format: OutputFormat,
    /// Description of one request and of the connections, such as "1 KiB, 16 connections".
    pub request: String,
}

/// The format in which a load client prints its results.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum OutputFormat {
    /// `wrk --latency`.
    Wrk,
    /// `redis-benchmark --csv` with one test.
    RedisBenchmark,
    /// `ab`.
    Ab,
    /// `sysbench --percentile=99`.
    Sysbench,
    /// A line of JSON with fields of `tidelane-load`: `rps`, and optionally `errors`, `requests`
    /// and `latency_us.p99`.
    Json,
    /// A line for each request, with its duration in microseconds. Requests are sequential.
    Microseconds,
}

fn thirty() -> u64 {
    30
}

impl Entry {
    /// Returns the load of the entry or, if the entry has none, a load that repeats the check.
    pub fn load(&self) -> Load {
        let checks = || Load {
            client: CHECKS.replace("CHECK", &self.check.client),
            output_format: OutputFormat::Microseconds,
            request: "the check, 1 client".to_owned(),
        };
        self.load.clone().unwrap_or_else(checks)
    }

    /// Replaces the placeholders `{tools}` and `{port}`.
    pub fn fill(&self, text: &str) -> String {
        let tools = tools_dir().display().to_string();
        text.replace("{tools}", &tools)
            .replace("{port}", &self.port.to_string())
    }
}

/// Reads the entries with these names, or all entries if there are no names. Returns them in the
/// order of kind and name.
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
