//! Detects programs that the library cannot serve, before they start.
//!
//! The library needs the dynamic loader to load it, and sees only the calls that a program makes
//! through libc. See `docs/socket-calls.md`.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{File, Metadata},
    io::{BufRead, BufReader, Read},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use object::{
    Endianness, FileKind, ReadCache, ReadRef,
    elf::FileHeader64,
    read::elf::{FileHeader, ProgramHeader},
};
use rustix::{
    fs::getxattr,
    process::{getegid, geteuid},
};

/// Depth to which interpreters of interpreters are followed, the same as in Linux.
const INTERPRETERS_MAX: u32 = 4;
/// Longest first line of a script that Linux reads, in bytes.
const SCRIPT_LINE_MAX: u64 = 256;
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
/// Extended attribute that holds the capabilities of a file.
const CAPABILITIES: &str = "security.capability";
/// ELF section of every program that Go's linker made.
const GO_SECTION: &[u8] = b".go.buildinfo";

/// Returns the reason why a program's sockets stay with the kernel, as the rest of a sentence that
/// begins with the program's name. `None` if there is none, or if the program cannot be read.
pub fn obstacle(program: &OsStr) -> Option<String> {
    let path = find(program)?;
    obstacle_of(&path, INTERPRETERS_MAX)
}

/// Returns the program's file, as `execvp` finds it.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    let path = env::var_os("PATH")?;
    let places = env::split_paths(&path).map(|place| place.join(program));
    places
        .into_iter()
        .find(|place| place.metadata().is_ok_and(|file| is_executable(&file)))
}

fn is_executable(file: &Metadata) -> bool {
    file.is_file() && file.mode() & 0o111 != 0
}

fn obstacle_of(path: &Path, interpreters: u32) -> Option<String> {
    let file = File::open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if let Some(interpreter) = interpreter_of_script(&file) {
        let left = interpreters.checked_sub(1)?;
        let reason = obstacle_of(Path::new(&interpreter), left)?;
        return Some(format!("runs on {}, which {reason}", interpreter.display()));
    }
    if gains_rights(path, &metadata) {
        let reason = "is setuid, setgid or has capabilities: the dynamic loader takes no library \
                      into it";
        return Some(reason.to_owned());
    }
    obstacle_in(&ReadCache::new(File::open(path).ok()?))
}

/// Returns true if the program runs with another user, group or capabilities than its caller.
fn gains_rights(path: &Path, file: &Metadata) -> bool {
    let by_user = file.mode() & SET_USER != 0 && file.uid() != geteuid().as_raw();
    let by_group = file.mode() & SET_GROUP != 0 && file.gid() != getegid().as_raw();
    let mut capabilities = [0u8; 64];
    let by_capabilities =
        !geteuid().is_root() && getxattr(path, CAPABILITIES, &mut capabilities).is_ok();
    by_user || by_group || by_capabilities
}

/// Returns the interpreter that the first line of a script names.
fn interpreter_of_script(file: &File) -> Option<OsString> {
    let mut line = Vec::new();
    let mut start = BufReader::new(file.take(SCRIPT_LINE_MAX));
    start.read_until(b'\n', &mut line).ok()?;
    let words = line.strip_prefix(b"#!")?;
    let mut words = words.split(|byte| byte.is_ascii_whitespace());
    let interpreter = words.find(|word| !word.is_empty())?;
    Some(OsStr::from_bytes(interpreter).to_owned())
}

/// Returns the obstacle in an ELF file. Other kinds of files are left to `exec`.
fn obstacle_in<'data>(data: impl ReadRef<'data>) -> Option<String> {
    match FileKind::parse(data).ok()? {
        FileKind::Elf64 => {}
        FileKind::Elf32 => {
            return Some("is a program of 32 bits, the library one of 64".to_owned());
        }
        _ => return None,
    }
    let header = FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, data).ok();
    let is_go = sections.is_some_and(|sections| {
        let mut names = sections
            .iter()
            .map(|section| sections.section_name(endian, section));
        names.any(|name| name == Ok(GO_SECTION))
    });
    if is_go {
        return Some("is a Go program, which makes its system calls without libc".to_owned());
    }
    let segments = header.program_headers(endian, data).ok()?;
    let mut loaders = segments
        .iter()
        .filter_map(|segment| segment.interpreter(endian, data).ok().flatten());
    match loaders.next() {
        None => Some("is statically linked: no library can be loaded into it".to_owned()),
        Some(loader) if contains(loader, b"ld-musl") => {
            Some("is linked with musl, the library with glibc".to_owned())
        }
        Some(_) => None,
    }
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|part| part == word)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Returns a 64-bit ELF file without sections and with one segment: PT_INTERP, or code.
    fn elf(loader: Option<&[u8]>) -> Vec<u8> {
        let mut file = vec![0; 64 + 56];
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        (file[16], file[18], file[20]) = (2, 62, 1);
        // Program headers: offset, size and number.
        (file[32], file[54], file[56]) = (64, 56, 1);
        (file[52], file[58]) = (64, 64);
        file[64] = if loader.is_some() { 3 } else { 1 };
        let loader = loader.unwrap_or_default();
        file[64 + 8] = 120;
        file[64 + 32] = loader.len() as u8;
        file.extend(loader);
        file
    }

    #[test]
    fn the_loader_tells() {
        let text = |loader| obstacle_in(&elf(loader)[..]).unwrap_or_default();
        assert_eq!(text(Some(b"/lib64/ld-linux-x86-64.so.2\0")), "");
        assert!(text(Some(b"/lib/ld-musl-x86_64.so.1\0")).contains("musl"));
        assert!(text(None).contains("statically linked"));
        assert_eq!(obstacle_in(&b"no program"[..]), None);
        for len in 0..64 + 56 {
            // A truncated file must not cause a panic.
            let _ = obstacle_in(&elf(None)[..len]);
        }
        let mut narrow = elf(None);
        narrow[4] = 1;
        assert!(obstacle_in(&narrow[..]).is_some_and(|text| text.contains("32 bits")));
    }

    #[test]
    fn scripts_are_as_their_interpreters() {
        let place = env::temp_dir().join(format!("tidelane-inspect-{}", std::process::id()));
        fs::create_dir_all(&place).expect("a directory");
        let (program, script) = (place.join("program"), place.join("script"));
        fs::write(&program, elf(None)).expect("a file");
        fs::write(&script, format!("#! {} -e\necho\n", program.display())).expect("a file");
        let text = obstacle(script.as_os_str()).unwrap_or_default();
        assert!(
            text.starts_with("runs on ") && text.contains("statically"),
            "{text}"
        );
        // A script that is its own interpreter.
        fs::write(&program, format!("#!{}\n", program.display())).expect("a file");
        assert_eq!(obstacle(script.as_os_str()), None);
        fs::remove_dir_all(&place).expect("it is there");
        assert_eq!(obstacle(script.as_os_str()), None, "no such file");
    }

    #[test]
    fn programs_of_the_path_are_found() {
        assert_eq!(obstacle(OsStr::new("sh")), None);
        assert!(find(OsStr::new("no-such-program-anywhere")).is_none());
    }
}
