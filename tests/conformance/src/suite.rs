//! Reads the scripts of a folder, runs them on a stack and over the IP versions, and judges the
//! results.
//!
//! A remark (a comment in a script, or an entry in the table of exceptions) says that the script
//! fails on a stack, and gives the reason. The failure of the script is then expected.

use std::{
    collections::VecDeque,
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::{
    ast::{Remark, Script},
    embedded::Embedded,
    engine::Engine,
    ip::Version,
    kernel::{self, Kernel},
    parse,
    release::Release,
    run::{self, Failure},
};

/// Default number of concurrent runs on the kernel. The number is large because the runs sleep
/// nearly always.
pub const KERNEL_RUNS: usize = 12;
/// Largest number of runs of a script that fails on the kernel, including the first run.
const KERNEL_TRIES: u32 = 8;
/// The pause before a repeated run is this time multiplied by the number of earlier repeated runs.
const KERNEL_PAUSE: Duration = Duration::from_millis(500);

/// A stack under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StackName {
    /// Tidelane's TCP engine, in virtual time (with a simulated clock).
    Engine,
    /// Tidelane's embedded stack (the library in `app/embedded`), in virtual time.
    Embedded,
    /// The Linux kernel, behind a tun device.
    Kernel,
}

impl StackName {
    /// All stacks.
    pub const ALL: [Self; 3] = [Self::Engine, Self::Embedded, Self::Kernel];
}

impl fmt::Display for StackName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Engine => "engine",
            Self::Embedded => "embedded",
            Self::Kernel => "kernel",
        })
    }
}

/// A stack under test, and the IP version of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Platform {
    /// Stack under test.
    pub stack: StackName,
    /// IP version of the run.
    pub version: Version,
}

impl fmt::Display for Platform {
    /// Formats the name of the platform in results, such as `engine` for IPv4 and `engine-ipv6` for
    /// IPv6. Remarks use these names, too, but a remark on `engine` applies to all IP versions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.version {
            Version::V4 => write!(f, "{}", self.stack),
            other => write!(f, "{}-{other}", self.stack),
        }
    }
}

/// A script file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Path of the file below the folder of scripts, without `.pkt`.
    pub name: String,
    /// Path of the file.
    path: PathBuf,
    /// Entries for the IP versions: the parsed script for each version that the script supports, or
    /// the message of the error if the script has an error for the version.
    scripts: Vec<(Version, Result<Script, String>)>,
}

/// The verdict on the run of a script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The stack behaves as the script says.
    Passed,
    /// The stack behaves differently, and a remark gives this reason.
    Differs(String),
    /// The stack lacks a feature, which a remark names.
    Lacks(String),
    /// The stack cannot be tested on this machine, for this reason.
    Skipped(String),
    /// The stack behaves differently and no remark says so, or a remark is wrong, or the script has
    /// an error.
    Failed(String),
}

/// The result of the run of a script.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Name of the script.
    pub name: String,
    /// Stack and IP version.
    pub platform: Platform,
    /// Verdict on the run.
    pub verdict: Verdict,
    /// Duration of the run.
    pub took: Duration,
}

impl Source {
    /// Reads and parses the script at `path` in `folder`. An error in the script, such as a syntax
    /// error or a first line that does not name an RFC, becomes the verdict of its runs.
    pub fn read(path: &Path, folder: &Path) -> io::Result<Self> {
        let text = fs::read_to_string(path)?;
        let short = path.strip_prefix(folder).unwrap_or(path);
        let read = |version: Version| {
            let script = parse::parse(&parse::expand(&text, version.name()));
            let script = script.map_err(|error| {
                let (line, column) = (error.at.line, error.at.column);
                format!("{}:{line}:{column}: {}", path.display(), error.message)
            })?;
            let is_for = is_for(version, &script);
            match (text.starts_with("// RFC "), is_for) {
                (true, Ok(is_for)) => Ok((is_for, script)),
                (_, Err(why)) => Err(format!("{}: {why}", path.display())),
                _ => Err(format!(
                    "{}:1:1: the clause: expected \"// RFC\"",
                    path.display()
                )),
            }
        };
        let scripts = Version::ALL
            .into_iter()
            .filter_map(|version| match read(version) {
                Ok((is_for, script)) => is_for.then_some((version, Ok(script))),
                Err(why) => Some((version, Err(why))),
            });
        Ok(Self {
            name: short.with_extension("").display().to_string(),
            path: path.to_owned(),
            scripts: scripts.collect(),
        })
    }

    /// Returns the script for an IP version, or `None` if the script does not support the version.
    fn script(&self, version: Version) -> Option<&Result<Script, String>> {
        let mut scripts = self.scripts.iter();
        let found = scripts.find(|(own, _)| *own == version);
        found.map(|(_, script)| script)
    }

    /// Adds a remark to the script.
    pub fn add_remark(&mut self, remark: &Remark) {
        for (_, script) in &mut self.scripts {
            if let Ok(script) = script {
                script.remarks.push(remark.clone());
            }
        }
    }

    /// Reads all scripts in and below `folder`, in the order of their names.
    pub fn read_all(folder: &Path) -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(next) = folders.pop() {
            for entry in fs::read_dir(next)? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "pkt") {
                    found.push(Self::read(&path, folder)?);
                }
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Runs the script once.
    pub fn run(&self, platform: Platform) -> Outcome {
        let begun = Instant::now();
        let verdict = match self.script(platform.version) {
            None => Verdict::Failed("the script does not support this IP version".to_owned()),
            Some(Err(why)) => Verdict::Failed(why.clone()),
            Some(Ok(script)) => {
                self.verdict_of(platform, script, self.run_script(platform, script))
            }
        };
        Outcome {
            name: self.name.clone(),
            platform,
            verdict,
            took: begun.elapsed(),
        }
    }

    /// Runs the script in a new thread, because the stack may panic or move the thread to another
    /// network namespace.
    fn run_script(&self, platform: Platform, script: &Script) -> Result<(), String> {
        let copy = script.clone();
        let run = thread::spawn(move || run_on(platform, &copy));
        match run.join() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(failure)) => Err(format!("{}:{failure}", self.path.display())),
            Err(_) => Err(format!("{}: the stack panicked", self.path.display())),
        }
    }

    /// Returns the verdict on a result, considering the remarks of the script. If a remark applies
    /// to this platform and to the running kernel, the script must fail there. If the script
    /// passes, the verdict is [`Verdict::Failed`].
    fn verdict_of(
        &self,
        platform: Platform,
        script: &Script,
        result: Result<(), String>,
    ) -> Verdict {
        let names = [platform.stack.to_string(), platform.to_string()];
        let release = Release::running();
        let mut remarks = script.remarks.iter();
        let remark =
            remarks.find(|remark| names.contains(&remark.stack) && remark.releases.has(release));
        match (remark, result) {
            (None, Ok(())) => Verdict::Passed,
            (None, Err(why)) => Verdict::Failed(why),
            (Some(remark), Ok(())) => Verdict::Failed(format!(
                "{}: passes, and a remark says that it does not: {}",
                self.path.display(),
                remark.reason
            )),
            (Some(remark), Err(_)) if remark.lacks => Verdict::Lacks(remark.reason.clone()),
            (Some(remark), Err(_)) => Verdict::Differs(remark.reason.clone()),
        }
    }
}

/// Returns true if the script supports `version`: the option `--ip_version=` names the version, or
/// the script does not have the option.
fn is_for(version: Version, script: &Script) -> Result<bool, String> {
    let mut options = script.options.iter();
    let Some((_, names)) = options.find(|(name, _)| name == "ip_version") else {
        return Ok(true);
    };
    let named = |name| Version::named(name).ok_or(format!("--ip_version={name} is not known"));
    let named: Vec<Version> = names.split(',').map(named).collect::<Result<_, _>>()?;
    Ok(named.contains(&version))
}

/// Creates a stack and runs the script on it.
fn run_on(platform: Platform, script: &Script) -> Result<(), Failure> {
    let no_stack = |error: io::Error| Failure {
        at: Default::default(),
        message: format!("no stack to test: {error}"),
    };
    let version = platform.version;
    match platform.stack {
        StackName::Engine => run::run(script, version, &mut Engine::new(version)),
        StackName::Embedded => run::run(script, version, &mut Embedded::new(version)),
        StackName::Kernel => {
            let mut kernel = Kernel::new(version).map_err(no_stack)?;
            run::run(script, version, &mut kernel)
        }
    }
}

/// Repeats a failed run on the kernel until the verdict is not a failure. The script runs at most
/// [`KERNEL_TRIES`] times in total. No other script runs meanwhile. On a busy machine, the kernel's
/// timers may be late, and so the kernel may send another packet than the script expects. A wrong
/// script fails each time.
fn repeat(sources: &[Source], outcome: &mut Outcome) {
    let Some(source) = sources.iter().find(|source| source.name == outcome.name) else {
        return;
    };
    for tries in 1..KERNEL_TRIES {
        if matches!(outcome.verdict, Verdict::Failed(_)) {
            thread::sleep(KERNEL_PAUSE * (tries - 1));
            *outcome = source.run(outcome.platform);
        }
    }
}

/// Runs each script of `sources` on `stack`, over each of `versions` that the script supports.
/// `kernel_runs` is the number of concurrent runs on the kernel. Calls `report` with each result.
/// The results are ordered by IP version, and then by the name of the script.
pub fn run_all(
    sources: &[Source],
    stack: StackName,
    versions: &[Version],
    kernel_runs: usize,
    mut report: impl FnMut(&Outcome),
) {
    let runs = versions.iter().flat_map(|version| {
        let platform = Platform {
            stack,
            version: *version,
        };
        let fit = sources
            .iter()
            .filter(|source| source.script(*version).is_some());
        fit.map(move |source| (platform, source))
    });
    let missing = match stack {
        StackName::Engine | StackName::Embedded => None,
        StackName::Kernel => kernel::unavailable(),
    };
    if let Some(reason) = missing {
        for (platform, source) in runs {
            report(&Outcome {
                name: source.name.clone(),
                platform,
                verdict: Verdict::Skipped(reason.clone()),
                took: Duration::ZERO,
            });
        }
        return;
    }
    let workers = match stack {
        StackName::Engine | StackName::Embedded => 1,
        StackName::Kernel => kernel_runs,
    };
    let mut done = run_together(runs.collect(), workers);
    // In virtual time, a repeated run would have the same result.
    if stack == StackName::Kernel {
        done.iter_mut().for_each(|outcome| repeat(sources, outcome));
    }
    done.sort_by(|a, b| (a.platform.version, &a.name).cmp(&(b.platform.version, &b.name)));
    done.iter().for_each(report);
}

/// Runs the scripts of `queue` in `workers` threads, and returns their results.
fn run_together(queue: VecDeque<(Platform, &Source)>, workers: usize) -> Vec<Outcome> {
    let queue = Mutex::new(queue);
    let next = || {
        queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    };
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((platform, source)) = next() {
                    let outcome = source.run(platform);
                    done.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(outcome);
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}
