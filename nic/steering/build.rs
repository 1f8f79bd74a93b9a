//! Compiles the eBPF programs with clang-14. If clang-14 is not installed or fails, copies the
//! checked-in objects.
//!
//! The objects are checked in so that a build needs neither clang nor the headers of libbpf. On a
//! machine with clang-14, a test compares the instructions of the checked-in objects with the
//! output of clang.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

const PROGRAMS: [&str; 2] = ["demux", "impair"];
const CLANG: &str = "clang-14";

/// Compiles one program. Returns true if the compiler succeeds, and false if the compiler cannot be
/// run. If the compiler fails, prints a warning and returns false.
fn compile(source: &Path, object: &Path) -> bool {
    let folder = source.parent().expect("a source lies in a folder");
    let include = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let compiled = Command::new(CLANG)
        .args([
            "-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3",
        ])
        .arg(include)
        .arg(format!("-ffile-prefix-map={}=.", folder.display()))
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(object)
        .status();
    match compiled {
        Ok(status) if status.success() => true,
        Ok(_) => {
            let source = source.display();
            println!(
                "cargo::warning={CLANG} cannot compile {source}, so the checked-in object is \
                 used; `apt-get install libbpf-dev` if headers are missing"
            );
            false
        }
        Err(_) => false,
    }
}

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo::rerun-if-changed=build.rs");
    for program in PROGRAMS {
        let folder = Path::new("../../ebpf").join(program);
        let source = folder.join(format!("{program}.bpf.c"));
        let checked_in = folder.join(format!("{program}.bpf.o"));
        println!("cargo::rerun-if-changed={}", source.display());
        println!("cargo::rerun-if-changed={}", checked_in.display());
        let object = out.join(format!("{program}.bpf.o"));
        if !compile(&source, &object) {
            fs::copy(&checked_in, &object).expect("the checked-in object is there");
        }
    }
}
