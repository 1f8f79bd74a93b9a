//! Builds the library of the C interface, and compiles C programs that link the library.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// Returns the folder of the crate.
pub fn crate_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Builds the library, and returns the path of the file with this extension: `a` for the static
/// library, `so` for the shared library. Cargo does not build the library for tests, because
/// nothing in Rust links it.
pub fn library(extension: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let test = std::env::current_exe().expect("a path");
        let profile = test.parent().and_then(Path::parent).expect("a folder");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "tidelane-rings-c"]);
        cargo.arg("--target-dir");
        cargo.arg(profile.parent().expect("a folder"));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo starts").success());
        profile.to_path_buf()
    });
    folder.join(format!("libtidelane_rings_c.{extension}"))
}

/// Compiles the C file `source` of the crate to a program with this name, and links the program
/// with `library`. Returns the path of the program.
pub fn compile(name: &str, source: &str, library: &Path) -> PathBuf {
    let program = scratch().join(name);
    let status = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-o"])
        .arg(&program)
        .arg(crate_root().join(source))
        .arg(library)
        .args(["-lpthread", "-ldl", "-lm"])
        .status()
        .expect("a C compiler; apt-get install gcc");
    assert!(status.success(), "{source} does not compile");
    program
}

/// Returns the folder for the files of this test process, within cargo's target directory. The
/// first call removes the folders of test processes that have ended.
pub fn scratch() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c_api");
        let folder = all.join(std::process::id().to_string());
        std::fs::create_dir_all(&folder).expect("a folder");
        for entry in std::fs::read_dir(&all).expect("a folder").flatten() {
            if !Path::new("/proc").join(entry.file_name()).exists() {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
        folder
    });
    folder.clone()
}

/// Sets the soft limit of open file descriptors to 20,000, or to the hard limit if that is lower.
pub fn allow_many_descriptors() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls get a valid structure.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max.min(20_000);
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}
