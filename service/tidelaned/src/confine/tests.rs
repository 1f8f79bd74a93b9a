//! Tests of the confinement, in child processes that confine themselves.

use std::{
    fs::{self, File},
    io::ErrorKind,
    path::Path,
    process::{Command, Output},
};

use rustix::thread::CapabilitySet;

use super::*;

/// Environment variable that is set only in child processes. The value is the part of the test that
/// the child process runs, or another argument of the test.
pub(crate) const PART: &str = "TIDELANED_TEST_PART";

/// Runs the test with the name `test` in a child process, which the test can confine. `part` is the
/// value of [`PART`].
pub(crate) fn child(test: &str, part: &str) -> Output {
    let own = std::env::current_exe().expect("this program");
    Command::new(own)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(PART, part)
        .output()
        .expect("it runs")
}

#[test]
fn a_confined_process_has_only_the_rights_that_serving_needs() {
    const TEST: &str = "confine::tests::a_confined_process_has_only_the_rights_that_serving_needs";
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    let run = std::env::temp_dir().join(format!("tidelaned-confined-{}", std::process::id()));
    if let Some(run) = std::env::var_os(PART) {
        return be_confined(Path::new(&run));
    }
    let output = child(TEST, &run.to_string_lossy());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    // The confined process removed its run directory, which was in the directory `run`.
    fs::remove_dir(run).expect("nothing is left in it");
}

fn be_confined(run: &Path) {
    let name = "one".parse().expect("a name");
    let run_dir = RunDir::open_in(run, &name).expect("a run directory");
    let confinement =
        enter(&run_dir, &Readable::default(), false).expect("root may give up what it has");

    let status = fs::read_to_string("/proc/thread-self/status").expect("its status");
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let bits = line.map(|line| u64::from_str_radix(line.trim(), 16));
        let bits = bits.expect("a set").expect("a hexadecimal number");
        CapabilitySet::from_bits_retain(bits)
    };
    let effective = set("CapEff:");
    // Only some systems make these two capabilities necessary.
    let spare = CapabilitySet::BPF | CapabilitySet::SYS_NICE;
    let needed = CapabilitySet::NET_ADMIN | CapabilitySet::NET_BIND_SERVICE | CapabilitySet::CHOWN;
    assert_eq!(effective - spare, needed);
    assert_eq!(set("CapPrm:"), effective);
    for none in ["CapInh:", "CapBnd:", "CapAmb:"] {
        assert!(set(none).is_empty(), "{none} in {status}");
    }
    assert!(confinement.bounded);
    assert!(confinement.capabilities.contains(&"CAP_NET_ADMIN"));

    if confinement.landlock.is_some() {
        for forbidden in ["/etc/shadow", "/root", "/etc/hostname", "/sys/kernel"] {
            let error = File::open(forbidden).expect_err("not a file that serving needs");
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{forbidden}");
        }
    }
    for needed in ["/proc/1/comm", "/proc/self/status", "/etc/passwd"] {
        assert!(fs::read(needed).is_ok(), "{needed}");
    }
    // Threads inherit the confinement.
    let status = std::thread::spawn(|| fs::read_to_string("/proc/thread-self/status"));
    let status = status.join().expect("it ends").expect("its status");
    assert!(status.contains("Seccomp:\t2"), "{status}");
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    drop(run_dir);
}

#[test]
fn missing_features_are_listed() {
    let complete = Confinement {
        capabilities: vec!["CAP_NET_ADMIN"],
        bounded: true,
        landlock: Some(7),
        core_dumps: false,
    };
    assert!(complete.missing_features().is_empty());
    let lacking = Confinement {
        bounded: false,
        landlock: None,
        ..complete
    };
    assert_eq!(lacking.missing_features().len(), 2);
    assert!(lacking.missing_features()[0].contains("Landlock"));
    assert_eq!(lacking.to_json()["landlock"], Value::Null);
}
