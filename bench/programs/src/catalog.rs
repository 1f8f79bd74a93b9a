//! The catalogue of the programs that `make programs` measures: the folder `catalog/` with a TOML
//! file for each program.
//!
//! Commands and files may contain placeholders:
//!
//! | placeholder | value |
//! |---|---|
//! | `{home}` | folder of the server's files |
//! | `{www}` | folder of random files that servers serve |
//! | `{out}` | folder for the output of clients |
//! | `{tools}` | folder with the installed packages of PyPI and npm |
//! | `{server}`, `{client}` | IP addresses of the server's and the client's side |
//! | `{port}` | port of the server |
//! | `{origin}` | address and port of the HTTP server behind a proxy |
//!
//! In the commands `version` and `build`, only `{tools}` and `{port}` are replaced.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;
use tidelane_programs::{folder, packages::tools_dir};
use tidelane_tests::Stop;

/// Shell script that runs a command again and again for three seconds, and prints the duration of
/// each run in microseconds. [`Entry::load`] replaces the word CHECK by the command. The script
/// fails if a run of the command fails.
const CHECKS: &str = "end=$(($(date +%s%N) + 3000000000))
while start=$(date +%s%N); [ $start -lt $end ]; do
    { CHECK
    } > {out}/load || exit 1
    echo $((($(date +%s%N) - start) / 1000))
done";

/// The catalogue entry of a program.
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
    /// A shell command that builds files in `{tools}`. The command is executed each time before the
    /// program is measured. `None` if nothing must be built.
    pub build: Option<String>,
    /// Reason for which the kernel carries the program's connections even under `tidelane run`,
    /// such as "Go". If there is a reason, the testbed waits only briefly until the service learns
    /// of the server's listener. `None` if no reason is known in advance.
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
    /// The load on the server. If the field is `None`, the load repeats the check.
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
    /// A shell command that succeeds if the server is ready. After the server listens on its port,
    /// the testbed repeats the command on the server's side until the command succeeds. `None` if
    /// the server is ready as soon as it listens.
    pub ready: Option<String>,
    /// Time limit in seconds until the server listens on its port. `ready` must then succeed within
    /// another period of this length.
    #[serde(default = "thirty")]
    pub seconds: u64,
}

/// A client that checks the server: its output must be equal to a file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// A shell command that is executed on the client's side.
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
    /// A shell command that is executed on the client's side. The command ends by itself.
    pub client: String,
    /// Format of the command's output. The module `load` parses the output.
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
    /// A line of JSON with these fields of the output of `tidelane-load`: `rps` (requests per
    /// second), and optionally `errors`, `requests` (their numbers) and `latency_us.p99`.
    Json,
    /// A line for each request, with the request's duration in microseconds. Each request starts
    /// after the end of the previous request.
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

/// Reads the entries that `names` lists, or all entries if `names` is empty. Returns the entries in
/// the order of their kinds, and in the order of names within a kind.
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
