//! All scripts of a folder on both stacks, over IPv4 and IPv6, and one line for each.

use std::{
    collections::VecDeque,
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::{
    ast::Script,
    engine::Engine,
    ip::Version,
    kernel::{self, Kernel},
    parse,
    release::Release,
    run::{self, Failure},
};

/// Scripts that wait for the kernel at the same time, unless told otherwise. They sleep nearly
/// always.
pub const KERNEL_RUNS: usize = 12;
/// Runs on the kernel before a failure counts that is one of time: the machine has other work.
const KERNEL_TRIES: u32 = 8;
/// The pause before such a run, times the number of those before it: that work may last.
const KERNEL_PAUSE: Duration = Duration::from_millis(500);

/// A stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StackName {
    /// Tidelane's, in virtual time.
    Engine,
    /// Linux's, behind a tun device.
    Kernel,
}

impl fmt::Display for StackName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Engine => "engine",
            Self::Kernel => "kernel",
        })
    }
}

/// What a script runs on: a stack, and what lies under TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Platform {
    /// The stack.
    pub stack: StackName,
    /// What the script is over.
    pub version: Version,
}

impl fmt::Display for Platform {
    /// `engine` over IPv4, `engine-ipv6`: so remarks name them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.version {
            Version::V4 => write!(f, "{}", self.stack),
            other => write!(f, "{}-{other}", self.stack),
        }
    }
}

/// A script that was read.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its path below the folder of scripts, without `.pkt`.
    pub name: String,
    path: PathBuf,
    /// What is in it, or what is wrong with it, by what it is for.
    scripts: Vec<(Version, Result<Script, String>)>,
}

/// How a script fared on a stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// As the script says.
    Passed,
    /// Not as the script says, which a remark says too: why.
    Differs(String),
    /// Not as the script says, and it should be: what is lacking, as a remark says.
    Lacks(String),
    /// The stack cannot be tested here.
    Skipped(String),
    /// Not as the script says.
    Failed(String),
}

/// A script on a stack.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The script.
    pub name: String,
    /// What it ran on.
    pub platform: Platform,
    /// How it fared.
    pub verdict: Verdict,
    /// How long that took.
    pub took: Duration,
    /// It failed, and a busy machine may be to blame.
    may_repeat: bool,
}

impl Source {
    /// Reads the script at `path`.
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

    fn script(&self, version: Version) -> Option<&Result<Script, String>> {
        let mut scripts = self.scripts.iter();
        let found = scripts.find(|(own, _)| *own == version);
        found.map(|(_, script)| script)
    }

    /// All scripts in and below `folder`, by name.
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
        let (verdict, may_repeat) = match self.script(platform.version) {
            None => (Verdict::Failed("not for this".to_owned()), false),
            Some(Err(why)) => (Verdict::Failed(why.clone()), false),
            Some(Ok(script)) => match self.run_script(platform, script) {
                Ok(()) => (self.judge(platform, script, Ok(())), false),
                Err((why, timing)) => (self.judge(platform, script, Err(why)), timing),
            },
        };
        Outcome {
            name: self.name.clone(),
            platform,
            may_repeat: may_repeat && matches!(verdict, Verdict::Failed(_)),
            verdict,
            took: begun.elapsed(),
        }
    }

    /// Runs the script in a thread of its own: the stack may panic, or keep the thread's
    /// namespace. Says what failed, and whether a busy machine may be to blame.
    fn run_script(&self, platform: Platform, script: &Script) -> Result<(), (String, bool)> {
        let copy = script.clone();
        let run = thread::spawn(move || run_on(platform, &copy));
        match run.join() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(failure)) => Err((format!("{}:{failure}", self.path.display()), failure.timing)),
            Err(_) => Err((
                format!("{}: the stack panicked", self.path.display()),
                false,
            )),
        }
    }

    /// What a remark makes of a result. A remark that is not true any more is a failure.
    fn judge(&self, platform: Platform, script: &Script, result: Result<(), String>) -> Verdict {
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

/// Whether a script is for `version`: its `--ip_version=` names it, or it has none.
fn is_for(version: Version, script: &Script) -> Result<bool, String> {
    let mut options = script.options.iter();
    let Some((_, names)) = options.find(|(name, _)| name == "ip_version") else {
        return Ok(true);
    };
    let named = |name| Version::named(name).ok_or(format!("--ip_version={name} is not known"));
    let named: Vec<Version> = names.split(',').map(named).collect::<Result<_, _>>()?;
    Ok(named.contains(&version))
}

fn run_on(platform: Platform, script: &Script) -> Result<(), Failure> {
    let no_stack = |error: io::Error| Failure {
        at: Default::default(),
        message: format!("no stack to test: {error}"),
        timing: false,
    };
    let version = platform.version;
    match platform.stack {
        StackName::Engine => run::run(script, version, &mut Engine::new(version)),
        StackName::Kernel => {
            let mut kernel = Kernel::new(version).map_err(no_stack)?;
            run::run(script, version, &mut kernel)
        }
    }
}

/// Runs a script again by itself that may have failed because the machine was busy.
fn repeat(sources: &[Source], outcome: &mut Outcome) {
    let Some(source) = sources.iter().find(|source| source.name == outcome.name) else {
        return;
    };
    for tries in 1..KERNEL_TRIES {
        if outcome.may_repeat {
            thread::sleep(KERNEL_PAUSE * (tries - 1));
            *outcome = source.run(outcome.platform);
        }
    }
}

/// Runs those of `sources` that are for one of `versions` on `stack`, on the kernel `kernel_runs`
/// at a time; `tell` hears of each in order.
pub fn run_all(
    sources: &[Source],
    stack: StackName,
    versions: &[Version],
    kernel_runs: usize,
    mut tell: impl FnMut(&Outcome),
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
        StackName::Engine => None,
        StackName::Kernel => kernel::why_not(),
    };
    if let Some(reason) = missing {
        for (platform, source) in runs {
            tell(&Outcome {
                name: source.name.clone(),
                platform,
                verdict: Verdict::Skipped(reason.clone()),
                took: Duration::ZERO,
                may_repeat: false,
            });
        }
        return;
    }
    let workers = match stack {
        StackName::Engine => 1,
        StackName::Kernel => kernel_runs,
    };
    let mut done = run_together(runs.collect(), workers);
    for outcome in &mut done {
        repeat(sources, outcome);
    }
    done.sort_by(|a, b| (a.platform.version, &a.name).cmp(&(b.platform.version, &b.name)));
    done.iter().for_each(tell);
}

/// Runs all of `queue`, `workers` at a time.
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
