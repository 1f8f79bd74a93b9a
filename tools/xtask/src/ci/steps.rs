//! The steps of `cargo xtask ci`, in the order in which they run.

use tidelane_tests::tools::find_tool;

use crate::lab;

/// One step: a check, or a command that runs tests.
#[derive(Debug)]
pub struct Step {
    /// Name of the step, and of its log file.
    pub name: &'static str,
    /// The command and its arguments. The command runs in the root of the source tree.
    pub command: &'static [&'static str],
    /// Variables to add to the environment of the command.
    pub environment: &'static [(&'static str, &'static str)],
    /// True if the output lists tests, which are counted. False if the step counts as one check.
    pub tests: bool,
    /// Time limit in seconds. The limit of all steps together may end the step earlier.
    pub seconds: u64,
    /// If fewer seconds than this number remain of the limit of all steps together, the step is
    /// skipped. If the number is 0, the step always runs, and fails if it does not end in the
    /// remaining time.
    pub seconds_min: u64,
    /// Function that returns the reason why the step cannot run on this machine, if there is one.
    pub skip: fn() -> Option<String>,
}

/// The command that builds the binaries for tests and benchmarks: service, tools, libtidelane.so,
/// tidelane-impair, and examples.
pub const BUILD: &[&str] = &[
    "cargo",
    "build",
    "--release",
    "--workspace",
    "--exclude",
    "xtask",
    "--exclude",
    "tidelane-conformance",
    "--exclude",
    "tidelane-fuzz",
    "--exclude",
    "tidelane-hostile",
    "--exclude",
    "tidelane-micro",
    "--exclude",
    "tidelane-packetdrill",
    "--exclude",
    "tidelane-programs",
    "--exclude",
    "tidelane-sim",
    "--exclude",
    "tidelane-suites",
    "--exclude",
    "tidelane-tests",
    "--lib",
    "--bins",
    "--examples",
];

/// Default values of the fields that a step of [`STEPS`] does not set.
const STEP_DEFAULTS: Step = Step {
    name: "",
    command: &[],
    environment: &[],
    tests: false,
    seconds: 900,
    seconds_min: 0,
    skip: || None,
};

/// All steps.
pub const STEPS: &[Step] = &[
    Step {
        name: "tidy",
        command: &["cargo", "xtask", "tidy"],
        ..STEP_DEFAULTS
    },
    Step {
        name: "deps",
        command: &["cargo", "xtask", "deps"],
        ..STEP_DEFAULTS
    },
    // `--missing` makes the log list the missing requirements.
    Step {
        name: "spec",
        command: &["cargo", "xtask", "spec", "--missing"],
        ..STEP_DEFAULTS
    },
    Step {
        name: "format",
        command: &["cargo", "fmt", "--all", "--check"],
        ..STEP_DEFAULTS
    },
    Step {
        name: "clippy",
        command: &[
            "cargo",
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ],
        ..STEP_DEFAULTS
    },
    Step {
        name: "doc",
        command: &[
            "cargo",
            "doc",
            "--workspace",
            "--no-deps",
            "--document-private-items",
        ],
        environment: &[(
            "RUSTDOCFLAGS",
            "-D warnings -A rustdoc::private_intra_doc_links",
        )],
        ..STEP_DEFAULTS
    },
    // Builds the tests of the next step, so that the time limit of that step covers only the tests.
    Step {
        name: "unit-build",
        command: &[
            "cargo",
            "test",
            "--workspace",
            "--exclude",
            "tidelane-tests",
            "--tests",
            "--no-run",
        ],
        seconds: 1200,
        ..STEP_DEFAULTS
    },
    // The examples are left out: the step "build" builds them.
    Step {
        name: "unit",
        command: &[
            "cargo",
            "test",
            "--workspace",
            "--exclude",
            "tidelane-tests",
            "--tests",
            "--no-fail-fast",
            "--",
            "--show-output",
        ],
        tests: true,
        ..STEP_DEFAULTS
    },
    Step {
        name: "doc-examples",
        command: &[
            "cargo",
            "test",
            "--workspace",
            "--exclude",
            "tidelane-tests",
            "--doc",
        ],
        tests: true,
        ..STEP_DEFAULTS
    },
    // Runs the tests for the model checker loom.
    Step {
        name: "loom",
        // Use a separate target directory, because the flag in RUSTFLAGS would make cargo rebuild
        // the packages of the other steps.
        command: &[
            "sh",
            "-c",
            "CARGO_TARGET_DIR=\"${CARGO_TARGET_DIR:-target}/loom\" \
             cargo test --release --package tidelane-ring --package tidelane-sockets --test loom",
        ],
        // The tests need no optimization across crates. This optimization takes a third of the
        // build time.
        environment: &[
            ("RUSTFLAGS", "--cfg loom"),
            ("CARGO_PROFILE_RELEASE_LTO", "off"),
        ],
        tests: true,
        ..STEP_DEFAULTS
    },
    // Builds the binaries that the tests below start.
    Step {
        name: "build",
        command: BUILD,
        ..STEP_DEFAULTS
    },
    // Checks the stack frames of libtidelane.so, because threads of programs may have small stacks.
    Step {
        name: "frames",
        command: &["cargo", "xtask", "frames"],
        ..STEP_DEFAULTS
    },
    // Fails if a case of the packet path needs more instructions than its limit in `bench/micro`.
    // Unlike times, instruction counts do not depend on the machine's load.
    Step {
        name: "instructions",
        command: &[
            "cargo",
            "run",
            "--release",
            "--package",
            "tidelane-micro",
            "--",
            "--check",
        ],
        skip: || {
            find_tool("valgrind")
                .is_none()
                .then(|| "no valgrind here; apt-get install valgrind".to_owned())
        },
        ..STEP_DEFAULTS
    },
    // Runs simulations of each theme (a kind of scenario, such as programs that die), each with
    // some seeds. If a simulation fails, the step prints the command that replays its seed.
    Step {
        name: "sim",
        command: &[
            "cargo",
            "run",
            "--release",
            "--package",
            "tidelane-sim",
            "--",
            "lite",
        ],
        seconds: 600,
        ..STEP_DEFAULTS
    },
    Step {
        name: "interop",
        command: &[
            "cargo",
            "test",
            "--package",
            "tidelane-tests",
            "--test",
            "interop",
        ],
        tests: true,
        seconds: 1500,
        ..STEP_DEFAULTS
    },
    // Runs a part of the interop tests on a service with two fast-path cores (polling threads).
    Step {
        name: "cores",
        command: &[
            "env",
            "TIDELANE_CORES=2",
            "cargo",
            "test",
            "--package",
            "tidelane-tests",
            "--test",
            "interop",
            "--",
            "servers::",
            "clients::",
            "local_path::",
            "deaths::",
            "forks::",
        ],
        tests: true,
        seconds: 900,
        ..STEP_DEFAULTS
    },
    Step {
        name: "posix",
        command: &[
            "cargo",
            "test",
            "--package",
            "tidelane-tests",
            "--test",
            "posix",
        ],
        tests: true,
        ..STEP_DEFAULTS
    },
    // Runs the smallest part of the laboratory (tests in emulated machines): Linux 6.1 with veth
    // and virtio-net. With the option `--seconds`, the tests that have not ended in time are
    // skipped.
    Step {
        name: "lab",
        command: &["cargo", "xtask", "lab", "--small", "--seconds", "180"],
        tests: true,
        seconds: 600,
        seconds_min: 240,
        skip: lab::missing_requirement,
        ..STEP_DEFAULTS
    },
];
