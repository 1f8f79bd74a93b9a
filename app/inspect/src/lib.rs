//! Detects programs that the preload library `libtidelane.so` cannot serve, before `exec` starts
//! them. The callers are `tidelane run`, and the library when a program calls `exec`.
//!
//! glibc's dynamic loader loads the library (LD_PRELOAD), which then intercepts the calls that the
//! program makes through glibc (`docs/socket-calls.md`). The library cannot serve a program that
//! has another loader or none, or that makes system calls without glibc. [`inspect`] finds the
//! reason in the program's file, or for a script in the file of the script's interpreter.
//!
//! The inspection allocates no memory, takes no lock and needs little stack, so that a child may
//! run it between `vfork` and `exec`.

use std::{ffi::CStr, fmt};

use object::{
    Endianness, FileKind,
    elf::{FileHeader64, PT_INTERP, ProgramHeader64, SectionHeader64},
    pod::{Pod, from_bytes},
    read::elf::FileHeader,
};
use rustix::{
    fd::OwnedFd,
    fs::{Access, CWD, FileType, Mode, OFlags, fstat},
    io::Errno,
    process::{getegid, geteuid},
};

mod path;

pub use path::InlinePath;

/// Maximum number of nested script interpreters that the inspection follows. Linux has a similar
/// limit.
const INTERPRETERS_MAX: u32 = 4;
/// Maximum length of a script's `#!` line in bytes, as in Linux (BINPRM_BUF_SIZE).
const SCRIPT_LINE_MAX: usize = 256;
/// Name of the ELF section that Go's linker writes into each program, with the final NUL.
const GO_SECTION: &[u8] = b".go.buildinfo\0";
/// Maximum length of the dynamic loader's path (PT_INTERP), in bytes.
const LOADER_MAX: usize = 128;
/// Start of the file name of musl's dynamic loader.
const MUSL: &[u8] = b"ld-musl";
/// Set-user-ID bit of a file's mode.
const S_ISUID: u32 = 0o4000;
/// Set-group-ID bit of a file's mode.
const S_ISGID: u32 = 0o2000;
/// Extended attribute with the capabilities of a file.
const XATTR_NAME_CAPS: &CStr = c"security.capability";

/// A property of a program's file that keeps the library from serving the program's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// `exec` raises the program's privileges (AT_SECURE), so the dynamic loader ignores
    /// LD_PRELOAD.
    RaisesPrivileges,
    /// The program is a 32-bit ELF file, but the library is 64-bit.
    Not64Bit,
    /// The program is a Go program, which makes its system calls without libc.
    Go,
    /// The program is statically linked: the ELF file names no dynamic loader.
    Static,
    /// The program uses musl's dynamic loader, and the library needs glibc.
    Musl,
}

impl Reason {
    const fn text(self) -> &'static str {
        match self {
            Self::RaisesPrivileges => {
                "is setuid, setgid or has capabilities, so the dynamic loader ignores LD_PRELOAD"
            }
            Self::Not64Bit => "is a 32-bit program, but the library is 64-bit",
            Self::Go => "is a Go program, which makes its system calls without libc",
            Self::Static => "is statically linked: no library can be loaded into it",
            Self::Musl => "is linked with musl, but the library needs glibc",
        }
    }
}

/// The result of inspecting a program that the library cannot serve. `Display` writes the rest of a
/// sentence that begins with the program's name.
#[derive(Clone, Copy, Debug)]
pub struct Unsupported {
    reason: Reason,
    /// If the program is a script, the interpreter to which `reason` applies. Otherwise `None`.
    interpreter: Option<InlinePath>,
}

impl Unsupported {
    /// Returns the property of the program that the library does not support.
    pub fn reason(&self) -> Reason {
        self.reason
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(interpreter) = &self.interpreter {
            write!(f, "runs on {interpreter}, which ")?;
        }
        f.write_str(self.reason.text())
    }
}

/// Returns the reason why the library cannot serve a program. Returns `None` if the library can
/// serve the program, or if the inspection cannot tell, for example because the program's file
/// cannot be read.
///
/// If `search` (the value of PATH) is given and `program` has no slash, `program` is a name. As
/// `execvp` does, the function then looks for the name in the directories of `search`. Otherwise
/// `program` is a path.
pub fn inspect(program: &CStr, search: Option<&[u8]>) -> Option<Unsupported> {
    let bytes = program.to_bytes();
    match search {
        Some(search) if !bytes.contains(&b'/') => {
            inspect_file(find(bytes, search)?, INTERPRETERS_MAX)
        }
        _ => inspect_file(InlinePath::new(&[bytes])?, INTERPRETERS_MAX),
    }
}

/// Returns the first executable file `name` in the directories of `search`.
fn find(name: &[u8], search: &[u8]) -> Option<InlinePath> {
    let dirs = search.split(|byte| *byte == b':');
    let mut paths = dirs.filter_map(|dir| match dir {
        // An empty entry of PATH stands for the working directory.
        [] => InlinePath::new(&[name]),
        dir => InlinePath::new(&[dir, b"/", name]),
    });
    paths.find(|path| is_executable(path.as_c_str()))
}

/// Returns true if `path` is a regular file that this process may execute.
fn is_executable(path: &CStr) -> bool {
    let file = rustix::fs::stat(path);
    file.is_ok_and(|file| FileType::from_raw_mode(file.st_mode) == FileType::RegularFile)
        && rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

/// Inspects the file at `path`. If the file is a script, inspects its interpreter instead.
/// `interpreters` is the maximum number of nested interpreters to follow from this file on.
fn inspect_file(path: InlinePath, interpreters: u32) -> Option<Unsupported> {
    let file = open(path.as_c_str())?;
    let mut start = [0; SCRIPT_LINE_MAX];
    let len = read(&file, &mut start, 0)?;
    if let Some(interpreter) = interpreter_of_script(&start[..len]) {
        let left = interpreters.checked_sub(1)?;
        let interpreter = InlinePath::new(&[interpreter])?;
        let below = inspect_file(interpreter, left)?;
        return Some(Unsupported {
            interpreter: Some(below.interpreter.unwrap_or(interpreter)),
            ..below
        });
    }
    let reason = if raises_privileges(path.as_c_str(), &file) {
        Some(Reason::RaisesPrivileges)
    } else {
        reason_in_elf(&file)
    };
    Some(Unsupported {
        reason: reason?,
        interpreter: None,
    })
}

/// Opens `path` for reading, if it is a regular file.
fn open(path: &CStr) -> Option<OwnedFd> {
    // O_NONBLOCK keeps `open` from waiting for the other end of a FIFO or for a device.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::openat(CWD, path, flags, Mode::empty()).ok()?;
    let kind = FileType::from_raw_mode(fstat(&file).ok()?.st_mode);
    (kind == FileType::RegularFile).then_some(file)
}

/// Reads from byte `offset` of the file until `into` is full or the file ends. Returns the number
/// of bytes read.
fn read(file: &OwnedFd, into: &mut [u8], offset: u64) -> Option<usize> {
    let mut done = 0;
    while done < into.len() {
        match rustix::io::pread(file, &mut into[done..], offset.checked_add(done as u64)?) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some(done)
}

/// Returns true if `exec` of the program changes the effective user or group. Also returns true if
/// the file has capabilities and the effective user of this process is not root.
fn raises_privileges(path: &CStr, file: &OwnedFd) -> bool {
    let Ok(stat) = fstat(file) else {
        return false;
    };
    let by_user = stat.st_mode & S_ISUID != 0 && stat.st_uid != geteuid().as_raw();
    let by_group = stat.st_mode & S_ISGID != 0 && stat.st_gid != getegid().as_raw();
    let mut capabilities = [0u8; 64];
    let by_capabilities = !geteuid().is_root()
        && rustix::fs::getxattr(path, XATTR_NAME_CAPS, &mut capabilities).is_ok();
    by_user || by_group || by_capabilities
}

/// Returns the path of the interpreter in the `#!` line of a script. `start` has the first bytes of
/// the file. Returns `None` if the file is not a script or the line names no interpreter.
fn interpreter_of_script(start: &[u8]) -> Option<&[u8]> {
    let line = start.split(|byte| *byte == b'\n').next()?;
    let words = line.strip_prefix(b"#!")?;
    let mut words = words.split(|byte| byte.is_ascii_whitespace());
    words.find(|word| !word.is_empty())
}

/// The bytes of one header of an ELF file. The size and the alignment suffice for each kind of
/// header: file header, program header and section header.
#[repr(align(8))]
struct HeaderBytes([u8; size_of::<FileHeader64<Endianness>>()]);

impl HeaderBytes {
    /// Reads the header at byte `offset` of the file. Bytes beyond the end of the file are zero.
    fn read(file: &OwnedFd, offset: u64) -> Option<Self> {
        let mut bytes = Self([0; _]);
        read(file, &mut bytes.0, offset)?;
        Some(bytes)
    }

    /// Returns the bytes as a header of type `T`.
    fn parse<T: Pod>(&self) -> Option<&T> {
        Some(from_bytes(&self.0).ok()?.0)
    }
}

/// Returns the reason why the library cannot serve the program in an ELF file. Returns `None` if
/// the ELF file shows no reason, if the file cannot be read, or if the file is not an ELF file.
fn reason_in_elf(file: &OwnedFd) -> Option<Reason> {
    let start = HeaderBytes::read(file, 0)?;
    match FileKind::parse(&start.0[..]).ok()? {
        FileKind::Elf64 => {}
        FileKind::Elf32 => return Some(Reason::Not64Bit),
        _ => return None,
    }
    let header = FileHeader64::<Endianness>::parse(&start.0[..]).ok()?;
    let endian = header.endian().ok()?;
    if has_section(file, header, endian, GO_SECTION) {
        return Some(Reason::Go);
    }
    let mut segments = header_offsets(
        header.e_phoff.get(endian),
        header.e_phentsize.get(endian),
        header.e_phnum.get(endian),
    );
    let loader = segments.find_map(|at| {
        let bytes = HeaderBytes::read(file, at?)?;
        let segment: &ProgramHeader64<Endianness> = bytes.parse()?;
        (segment.p_type.get(endian) == PT_INTERP).then(|| segment.p_offset.get(endian))
    });
    let Some(loader) = loader else {
        return Some(Reason::Static);
    };
    let mut name = [0; LOADER_MAX];
    let len = read(file, &mut name, loader)?;
    let name = name[..len].split(|byte| *byte == 0).next()?;
    let is_musl = name.windows(MUSL.len()).any(|part| part == MUSL);
    is_musl.then_some(Reason::Musl)
}

/// Returns true if the ELF file has a section with the name `wanted`. `wanted` has a final NUL, and
/// the length of [`GO_SECTION`].
fn has_section(
    file: &OwnedFd,
    header: &FileHeader64<Endianness>,
    endian: Endianness,
    wanted: &[u8],
) -> bool {
    let sections = header_offsets(
        header.e_shoff.get(endian),
        header.e_shentsize.get(endian),
        header.e_shnum.get(endian),
    );
    let section = |at: Option<u64>| {
        let bytes = HeaderBytes::read(file, at?)?;
        let section: &SectionHeader64<Endianness> = bytes.parse()?;
        Some(*section)
    };
    let index = usize::from(header.e_shstrndx.get(endian));
    let Some(names) = sections.clone().nth(index).and_then(section) else {
        return false;
    };
    let names = names.sh_offset.get(endian);
    sections.filter_map(section).any(|section| {
        let name = u64::from(section.sh_name.get(endian));
        let mut bytes = [0; GO_SECTION.len()];
        let len = names
            .checked_add(name)
            .and_then(|at| read(file, &mut bytes, at));
        len.is_some_and(|len| &bytes[..len] == wanted)
    })
}

/// Returns the file offsets of the headers in a table that begins at byte `start` and has `count`
/// headers of `size` bytes. An offset that overflows is `None`.
fn header_offsets(start: u64, size: u16, count: u16) -> impl Iterator<Item = Option<u64>> + Clone {
    (0..u64::from(count)).map(move |index| start.checked_add(index * u64::from(size)))
}

#[cfg(test)]
mod tests {
    use std::{env, ffi::CString, fs, os::unix::ffi::OsStrExt, path::PathBuf};

    use super::*;

    /// A temporary directory, which is removed when the value is dropped.
    struct TempDir(PathBuf);

    impl TempDir {
        fn new(name: &str) -> Self {
            let place = env::temp_dir().join(format!("tidelane-{name}-{}", std::process::id()));
            fs::create_dir_all(&place).expect("a directory");
            Self(place)
        }

        fn write(&self, name: &str, contents: &[u8]) -> CString {
            let path = self.0.join(name);
            fs::write(&path, contents).expect("a file");
            CString::new(path.as_os_str().as_bytes()).expect("no zero")
        }
    }

    impl Drop for TempDir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Returns a 64-bit ELF file that has no section and one segment. If `loader` is given, the
    /// segment is PT_INTERP with the path `loader`. Otherwise the segment is PT_LOAD.
    fn elf(loader: Option<&[u8]>) -> Vec<u8> {
        let mut file = vec![0; 64 + 56];
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        (file[16], file[18], file[20]) = (2, 62, 1);
        // e_phoff, e_phentsize and e_phnum; then e_ehsize and e_shentsize.
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
    fn the_elf_headers_show_the_reason() {
        let dir = TempDir::new("loaders");
        let reason = |file: &[u8]| {
            let path = dir.write("program", file);
            inspect(&path, None).map(|unsupported| unsupported.reason())
        };
        assert_eq!(reason(&elf(Some(b"/lib64/ld-linux-x86-64.so.2\0"))), None);
        let musl = elf(Some(b"/lib/ld-musl-x86_64.so.1\0"));
        assert_eq!(reason(&musl), Some(Reason::Musl));
        assert_eq!(reason(&elf(None)), Some(Reason::Static));
        assert_eq!(reason(b"no program"), None);
        for len in 0..musl.len() {
            // A truncated file must not cause a panic.
            let _ = reason(&musl[..len]);
        }
        let mut narrow = elf(None);
        narrow[4] = 1;
        assert_eq!(reason(&narrow), Some(Reason::Not64Bit));
    }

    #[test]
    fn damaged_files_do_no_harm() {
        let dir = TempDir::new("damaged");
        let whole = elf(Some(b"/lib64/ld-linux-x86-64.so.2\0"));
        for at in 16..120 {
            let mut damaged = whole.clone();
            damaged[at] = 0xff;
            let _ = inspect(&dir.write("program", &damaged), None);
        }
    }

    #[test]
    fn a_script_has_the_reason_of_its_interpreter() {
        let dir = TempDir::new("scripts");
        let program = dir.write("program", &elf(None));
        let name = program.to_str().expect("text");
        let script = dir.write("script", format!("#! {name} -e\necho\n").as_bytes());
        let found = inspect(&script, None).expect("unsupported");
        assert_eq!(found.reason(), Reason::Static);
        let text = found.to_string();
        assert!(
            text.starts_with(&format!("runs on {name}, which is stat")),
            "{text}"
        );
        // Replace the interpreter by a script that names itself as its interpreter.
        dir.write("program", format!("#!{name}\n").as_bytes());
        assert!(inspect(&script, None).is_none());
        drop(dir);
        assert!(inspect(&script, None).is_none(), "inspected a removed file");
    }

    #[test]
    fn programs_are_searched_for_in_path() {
        let dir = TempDir::new("path");
        dir.write("program", &elf(None));
        let search = format!("/nowhere:{}:/bin", dir.0.display());
        let found = || inspect(c"program", Some(search.as_bytes()));
        assert!(found().is_none(), "found a file without the x bit");
        let path = dir.0.join("program");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&path, mode).expect("it is there");
        assert_eq!(found().map(|found| found.reason()), Some(Reason::Static));
        assert!(inspect(c"sh", Some(b"/nowhere:/bin")).is_none());
        assert!(inspect(c"no-such-program-anywhere", Some(b"/bin")).is_none());
    }
}
