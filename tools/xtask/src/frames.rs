//! `cargo xtask frames`: checks the sizes of the stack frames of `libtidelane.so`.
//!
//! The library runs on the stacks of a program's threads and signal handlers. These stacks may be
//! small. The check adds up the subtractions from the stack pointer in the machine code of each
//! function. For a large frame, the compiler subtracts page by page in a loop, to touch each page
//! (stack probes). The code before such a loop computes in `%r11` the stack pointer at the end of
//! the loop. The check reads the size of the frame from this computation.

use std::{collections::BTreeMap, path::Path, process::Command};

use tidelane_tests::tools::target_dir;

/// Largest permitted frame in bytes. Two frames of this size take a quarter of a signal stack of
/// 32 KiB.
const FRAME_MAX: u64 = 4096;
/// Path of the library below the target directory.
const LIBRARY: &str = "release/libtidelane.so";
/// Parts of the names of functions that may have larger frames. These functions of the standard
/// library serve the backtrace of a panic, which is printed only if the user has set
/// RUST_BACKTRACE.
const BACKTRACE: [&str; 4] = [
    "backtrace_rs::",
    "sys::backtrace::",
    "addr2line::",
    "gimli::",
];

/// Checks all functions of the library except [`BACKTRACE`]. Fails with a list of the frames that
/// are too large.
pub fn run() -> Result<(), String> {
    let library = target_dir().join(LIBRARY);
    let frames = frames(&disassembled(&library)?);
    if frames.is_empty() {
        return Err(format!("no function of {} has a frame", library.display()));
    }
    let is_exempt = |name: &str| BACKTRACE.iter().any(|part| name.contains(part));
    let checked = frames.iter().filter(|(name, _)| !is_exempt(name));
    let mut large = Vec::new();
    let mut largest = ("", 0);
    for (name, size) in checked {
        if *size > FRAME_MAX {
            large.push(format!("{name}: a frame of {size} bytes"));
        }
        if *size > largest.1 {
            largest = (name, *size);
        }
    }
    if large.is_empty() {
        println!(
            "{} functions; the largest frame, of {}, has {} bytes",
            frames.len(),
            largest.0,
            largest.1
        );
        return Ok(());
    }
    Err(format!(
        "{}\n{} frames exceed {FRAME_MAX} bytes: a program's thread may have a small stack",
        large.join("\n"),
        large.len()
    ))
}

/// Returns the output of objdump for the library.
fn disassembled(library: &Path) -> Result<String, String> {
    let mut objdump = Command::new("objdump");
    objdump.args(["--disassemble", "--demangle", "--no-show-raw-insn"]);
    let output = objdump.arg(library).output();
    let output = output.map_err(|error| format!("objdump: {error}; apt-get install binutils"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("{}; build it: make build", text.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the frame size in bytes of each function in a disassembly. The size is the sum of all
/// [`Step::Down`], or the largest [`Step::Target`] if this is more. Functions without a [`Step`]
/// are left out.
fn frames(text: &str) -> BTreeMap<String, u64> {
    let mut steps: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut function = "";
    for line in text.lines() {
        if let Some(name) = function_begun(line) {
            function = name;
        } else if let Some(step) = step_of(line) {
            let (down, target) = steps.entry(function).or_default();
            match step {
                Step::Down(size) => *down += size,
                Step::Target(size) => *target = size.max(*target),
            }
        }
    }
    let frames = steps
        .iter()
        .map(|(name, (down, target))| ((*name).to_owned(), *down.max(target)));
    frames.collect()
}

/// The effect of one instruction on the size of the frame.
enum Step {
    /// The instruction decreases the stack pointer by this number of bytes.
    Down(u64),
    /// The instruction computes the stack pointer at which a loop of stack probes ends. This stack
    /// pointer is lower than the current one by this number of bytes.
    Target(u64),
}

/// Returns the name of the function that begins in a line such as `0000000000001000 <name>:`.
fn function_begun(line: &str) -> Option<&str> {
    let (address, name) = line.strip_suffix(">:")?.split_once(" <")?;
    let is_hex = address.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then_some(name)
}

/// Parses an instruction such as `sub $0x18,%rsp` or `lea -0x18(%rsp),%r11`. Returns `None` for any
/// other instruction, even for `push`.
fn step_of(line: &str) -> Option<Step> {
    let (_, instruction) = line.split_once(":\t")?;
    let (name, operands) = instruction.split_once(' ')?;
    let operands = operands.trim();
    let (source, target) = operands.rsplit_once(',')?;
    let step = match target {
        "%rsp" => Step::Down,
        "%r11" => Step::Target,
        _ => return None,
    };
    let digits = match name {
        "sub" => source.strip_prefix("$0x")?,
        "lea" => source.strip_prefix("-0x")?.strip_suffix("(%rsp)")?,
        _ => return None,
    };
    u64::from_str_radix(digits, 16).ok().map(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_steps_of_the_stack_pointer_count() {
        let text = "0000000000001000 <tidelane::small>:\n    1000:\tsub    $0x18,%rsp\n    \
                    1004:\tsub    $0x20,%rax\n0000000000002000 <tidelane::paged>:\n    \
                    2000:\tlea    -0xd000(%rsp),%r11\n    2008:\tsub    $0x1000,%rsp\n    \
                    2010:\tcall   1000 <tidelane::small>\n0000000000003000 <leaf>:\n    \
                    3000:\tret\n0000000000004000 <tidelane::two_pages>:\n    \
                    4000:\tsub    $0x1000,%rsp\n    4008:\tsub    $0x868,%rsp\n";
        let frames = frames(text);
        assert_eq!(frames.len(), 3);
        assert_eq!(frames["tidelane::two_pages"], 0x1868);
        assert_eq!(frames["tidelane::small"], 0x18);
        assert_eq!(frames["tidelane::paged"], 0xd000);
    }
}
