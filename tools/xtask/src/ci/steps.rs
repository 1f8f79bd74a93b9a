//! The steps of `cargo xtask ci`, cheap ones first.

use tidelane_tests::tools::find_tool;

use crate::lab;

/// One step.
#[derive(Debug)]
pub struct Step {
    /// Short name.
    pub name: &'static str,
    /// The command, from the root of the tree.
    pub command: &'static [&'static str],
    /// Environment on top of the present one.
    pub environment: &'static [(&'static str, &'static str)],
    /// Whether the output tells of tests; else the step is one check.
    pub tests: bool,
    /// Time limit in seconds.
    pub seconds: u64,
    /// Why the step cannot run on this machine, if so.
    pub skip: fn() -> Option<String>,
}

const CHECK: Step = Step {
    name: "",
    command: &[],
    environment: &[],
    tests: false,
    seconds: 900,
    skip: || None,
};

/// All steps.
pub const STEPS: &[Step] = &[
    Step {
        name: "tidy",
        command: &["cargo", "xtask", "tidy"],
        ..CHECK
    },
    Step {
        name: "deps",
        command: &["cargo", "xtask", "deps"],
        ..CHECK
    },
    // Whether the citations hold, and not more is missing than before; what is, is in the log.
    Step {
        name: "spec",
        command: &["cargo", "xtask", "spec", "--missing"],
        ..CHECK
    },
    Step {
        name: "format",
        command: &["cargo", "fmt", "--all", "--check"],
        ..CHECK
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
        ..CHECK
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
        ..CHECK
    },
    Step {
        name: "unit",
        command: &[
            "cargo",
            "test",
            "--workspace",
            "--exclude",
            "tidelane-tests",
            "--no-fail-fast",
            "--",
            "--show-output",
        ],
        tests: true,
        seconds: 1200,
        ..CHECK
    },
    Step {
        name: "loom",
        // A target directory of its own: other flags would rebuild all that the others built.
        command: &[
            "sh",
            "-c",
            "CARGO_TARGET_DIR=\"${CARGO_TARGET_DIR:-target}/loom\" \
             cargo test --release --package tidelane-ring --package tidelane-sockets --test loom",
        ],
        environment: &[("RUSTFLAGS", "--cfg loom")],
        tests: true,
        ..CHECK
    },
    // What the tests below start: the service, the tools, libtidelane.so, the lossy wire.
    Step {
        name: "build",
        command: &[
            "cargo",
            "build",
            "--release",
            "--workspace",
            "--exclude",
            "xtask",
            "--exclude",
            "tidelane-tests",
            "--exclude",
            "tidelane-micro",
            "--exclude",
            "tidelane-sim",
            "--lib",
            "--bins",
            "--examples",
        ],
        ..CHECK
    },
    // Threads of programs may have small stacks.
    Step {
        name: "frames",
        command: &["cargo", "xtask", "frames"],
        ..CHECK
    },
    // Counts repeat, whatever else the machine does; so a change that costs shows here.
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
        ..CHECK
    },
    // Seeds of every theme; a failure says how to see it again.
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
        ..CHECK
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
        ..CHECK
    },
    // The same programs on a service of two fast-path cores.
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
            "memory::",
            "deaths::",
            "forks::",
        ],
        tests: true,
        seconds: 900,
        ..CHECK
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
        ..CHECK
    },
    // The smallest part of the laboratory: Linux 6.1, over veth and virtio-net. What has not run
    // after its seconds is skipped.
    Step {
        name: "lab",
        command: &["cargo", "xtask", "lab", "--small", "--seconds", "240"],
        tests: true,
        seconds: 600,
        skip: lab::lacks,
        ..CHECK
    },
];
