//! All scripts of a folder on both stacks, and one line for each.

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
    kernel::{self, Kernel},
    parse,
    run::{self, Failure},
};

/// Scripts that wait for the kernel at the same time. They sleep nearly always.
const KERNEL_RUNS: usize = 12;
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

/// A script that was read.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its path below the folder of scripts, without `.pkt`.
    pub name: String,
    path: PathBuf,
    /// What is in it, or what is wrong with it.
    script: Result<Script, String>,
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
    /// The stack.
    pub stack: StackName,
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
        let script = parse::parse(&text).map_err(|error| {
            let (line, column) = (error.at.line, error.at.column);
            format!("{}:{line}:{column}: {}", path.display(), error.message)
        });
        let named = text.starts_with("// RFC ");
        let script = match named {
            true => script,
            false => Err(format!(
                "{}:1:1: the clause: expected \"// RFC\"",
                path.display()
            )),
        };
        Ok(Self {
            name: short.with_extension("").display().to_string(),
            path: path.to_owned(),
            script,
        })
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
    pub fn run(&self, stack: StackName) -> Outcome {
        let begun = Instant::now();
        let (verdict, may_repeat) = match &self.script {
            Err(why) => (Verdict::Failed(why.clone()), false),
            Ok(script) => match self.run_script(stack, script) {
                Ok(()) => (self.judge(stack, script, Ok(())), false),
                Err((why, timing)) => (self.judge(stack, script, Err(why)), timing),
            },
        };
        Outcome {
            name: self.name.clone(),
            stack,
            may_repeat: may_repeat && matches!(verdict, Verdict::Failed(_)),
            verdict,
            took: begun.elapsed(),
        }
    }

    /// Runs the script in a thread of its own: the stack may panic, or keep the thread's
    /// namespace. Says what failed, and whether a busy machine may be to blame.
    fn run_script(&self, stack: StackName, script: &Script) -> Result<(), (String, bool)> {
        let copy = script.clone();
        let run = thread::spawn(move || run_on(stack, &copy));
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
    fn judge(&self, stack: StackName, script: &Script, result: Result<(), String>) -> Verdict {
        let name = stack.to_string();
        let remark = script.remarks.iter().find(|remark| remark.stack == name);
        match (remark, result, stack) {
            (None, Ok(()), _) => Verdict::Passed,
            (None, Err(why), _) => Verdict::Failed(why),
            (Some(remark), Ok(()), _) => Verdict::Failed(format!(
                "{}: passes, and a remark says that it does not: {}",
                self.path.display(),
                remark.reason
            )),
            (Some(remark), Err(_), StackName::Kernel) => Verdict::Differs(remark.reason.clone()),
            (Some(remark), Err(_), StackName::Engine) => Verdict::Lacks(remark.reason.clone()),
        }
    }
}

fn run_on(stack: StackName, script: &Script) -> Result<(), Failure> {
    let no_stack = |error: io::Error| Failure {
        at: Default::default(),
        message: format!("no stack to test: {error}"),
        timing: false,
    };
    match stack {
        StackName::Engine => run::run(script, &mut Engine::default()),
        StackName::Kernel => run::run(script, &mut Kernel::new().map_err(no_stack)?),
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
            *outcome = source.run(outcome.stack);
        }
    }
}

/// Runs all of `sources` on `stack`; `tell` hears of each in order.
pub fn run_all(sources: &[Source], stack: StackName, mut tell: impl FnMut(&Outcome)) {
    let missing = match stack {
        StackName::Engine => None,
        StackName::Kernel => kernel::why_not(),
    };
    if let Some(reason) = missing {
        for source in sources {
            tell(&Outcome {
                name: source.name.clone(),
                stack,
                verdict: Verdict::Skipped(reason.clone()),
                took: Duration::ZERO,
                may_repeat: false,
            });
        }
        return;
    }
    let workers = match stack {
        StackName::Engine => 1,
        StackName::Kernel => KERNEL_RUNS,
    };
    let queue: Mutex<VecDeque<&Source>> = Mutex::new(sources.iter().collect());
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
                while let Some(source) = next() {
                    let outcome = source.run(stack);
                    done.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(outcome);
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    for outcome in &mut done {
        repeat(sources, outcome);
    }
    done.sort_by(|a, b| a.name.cmp(&b.name));
    done.iter().for_each(tell);
}
