//! The RAM disk from which `cargo xtask lab` boots an emulated machine.
//!
//! The program `init` on the RAM disk mounts the root file system of the host (the machine that
//! runs the emulator) as the root of the emulated machine. The mount is read-only, and an overlay
//! in memory takes the changes.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use tidelane_tests::tools::find_tool;

use super::{cpio::Archive, kernels::Kernel};

/// Modules that are needed to mount the root. The guest (the emulated machine) loads other modules
/// from the root.
const MODULES: [&str; 4] = ["virtio_pci", "9pnet_virtio", "9p", "overlay"];

/// The script `init`: mounts the host's root under an overlay in memory, makes the overlay the
/// root, and then runs the script whose path replaces `@GUEST@`.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs none /dev
for module in $(cat /modules/order); do insmod "/modules/$module"; done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 host /host ||
    { echo "no root"; poweroff -f; }
mount -t tmpfs none /up
mkdir /up/upper /up/work /up/root
mount -t overlay -o lowerdir=/host,upperdir=/up/upper,workdir=/up/work none /up/root ||
    { echo "no overlay"; poweroff -f; }
mount -t devtmpfs none /up/root/dev
exec switch_root /up/root /bin/sh @GUEST@
"#;

/// Returns the RAM disk for a kernel. The RAM disk's `init` mounts the root, and then runs the
/// script at the path `guest`.
pub fn ram_disk(kernel: &Kernel, guest: &Path) -> Result<Vec<u8>, String> {
    let busybox = find_tool("busybox").ok_or("no busybox here; apt-get install busybox-static")?;
    let read = |path: &Path| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let mut archive = Archive::default();
    for directory in ["bin", "dev", "host", "up", "modules"] {
        archive.directory(directory);
    }
    archive.file("bin/busybox", &read(&busybox)?);
    for library in libraries(&busybox) {
        let path = library.trim_start_matches('/');
        for (at, _) in path.match_indices('/') {
            archive.directory(&path[..at]);
        }
        archive.file(path, &read(Path::new(&library))?);
    }
    let guest = guest.to_string_lossy();
    archive.file("init", INIT.replace("@GUEST@", &guest).as_bytes());
    let modules = kernel.modules();
    let dependencies = fs::read_to_string(modules.join("modules.dep"))
        .map_err(|error| format!("modules.dep: {error}"))?;
    let mut order = String::new();
    for path in load_order(&dependencies, &MODULES) {
        let path = modules.join(path);
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let (name, data) = match path.extension().and_then(|extension| extension.to_str()) {
            Some("xz") => (name.into_owned(), decompressed("xz", &path)?),
            Some("zst") => (name.into_owned(), decompressed("zstd", &path)?),
            _ => (format!("{name}.ko"), read(&path)?),
        };
        archive.file(&format!("modules/{name}"), &data);
        order += &name;
        order += "\n";
    }
    archive.file("modules/order", order.as_bytes());
    Ok(archive.finish())
}

/// Returns the paths of the shared libraries of a program. The list is empty for a static program,
/// for which ldd fails.
fn libraries(program: &Path) -> Vec<String> {
    let output = Command::new("ldd").arg(program).output();
    let text = output.map(|output| output.stdout).unwrap_or_default();
    files_in(&String::from_utf8_lossy(&text))
}

/// Returns the paths in the output of ldd, which has lines `NAME => PATH (ADDRESS)` or `PATH
/// (ADDRESS)`.
fn files_in(text: &str) -> Vec<String> {
    let words = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        words.find(|word| word.starts_with('/'))
    });
    words.map(str::to_owned).collect()
}

/// Returns the output of a decompressor for the file at `path`.
fn decompressed(tool: &str, path: &Path) -> Result<Vec<u8>, String> {
    let output = Command::new(tool).arg("-dc").arg(path).output();
    let output = output.map_err(|error| format!("{tool}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{tool} {}: {}", path.display(), output.status));
    }
    Ok(output.stdout)
}

/// Returns the files of the `wanted` modules and of their dependencies, each after its
/// dependencies. `dependencies` is the text of `modules.dep`. Modules that are built into the
/// kernel are left out.
fn load_order(dependencies: &str, wanted: &[&str]) -> Vec<String> {
    let lines = dependencies.lines().filter_map(|line| line.split_once(':'));
    let known: BTreeMap<String, (&str, Vec<&str>)> = lines
        .map(|(path, needs)| {
            (
                module_name(path),
                (path, needs.split_whitespace().collect()),
            )
        })
        .collect();
    let mut order: Vec<String> = Vec::new();
    for name in wanted {
        let Some((path, needs)) = known.get(*name) else {
            continue;
        };
        // `modules.dep` lists a module's dependencies in the reverse of the order to load them.
        for path in needs.iter().rev().chain([path]) {
            if !order.iter().any(|earlier| earlier == path) {
                order.push((*path).to_owned());
            }
        }
    }
    order
}

/// Returns the kernel's name for the module in the file at `path`.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    let name = file.split(".ko").next().unwrap_or(file);
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_static_has_its_libraries() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        assert_eq!(
            files_in(text),
            ["/lib/x/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]
        );
        assert_eq!(files_in("\tnot a dynamic executable\n"), [""; 0]);
    }

    #[test]
    fn modules_come_after_what_they_need() {
        let text = "kernel/a/virtio-pci.ko.xz: kernel/a/ring.ko.xz kernel/a/virtio.ko.xz\n\
                    kernel/a/9p.ko.xz: kernel/a/9pnet.ko.xz kernel/a/virtio.ko.xz\n";
        assert_eq!(
            load_order(text, &["virtio_pci", "9p", "overlay"]),
            [
                "kernel/a/virtio.ko.xz",
                "kernel/a/ring.ko.xz",
                "kernel/a/virtio-pci.ko.xz",
                "kernel/a/9pnet.ko.xz",
                "kernel/a/9p.ko.xz"
            ]
        );
    }
}
