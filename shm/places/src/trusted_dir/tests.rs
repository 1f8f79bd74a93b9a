//! Tests of trusted directories: creation and removal of entries, and the refusals of links, of
//! pipes, of directories that others may write to, and of entries of other users.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    sync::atomic::{AtomicU32, Ordering},
};

use super::*;

/// A temporary directory of a test. Removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidelane-places-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a scratch directory");
        Self(path)
    }

    fn dir(&self) -> TrustedDir {
        TrustedDir::of_system(&self.0).expect("it opens")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn create() -> OFlags {
    OFlags::CREATE | OFlags::RDWR
}

fn owner_only() -> Mode {
    Mode::RUSR | Mode::WUSR
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path)
        .expect("it is there")
        .permissions()
        .mode()
        & 0o777
}

#[test]
fn a_directory_is_made_once_and_found_again() {
    let scratch = Scratch::new();
    let created = scratch.dir().child("run").expect("it is made");
    assert_eq!(mode_of(created.path()), 0o755);
    created.open("pid", create(), owner_only()).expect("a file");
    let again = scratch.dir().child("run").expect("it is found");
    assert!(again.path().join("pid").exists());
    assert_eq!(mode_of(&again.path().join("pid")), 0o600);
    again.remove("pid").expect("it is removed");
    again.remove("pid").expect("it is not there any more");
    scratch.dir().remove_dir("run").expect("it is empty");
}

#[test]
fn links_are_not_followed() {
    let scratch = Scratch::new();
    let victim = scratch.0.join("victim");
    fs::write(&victim, "precious").expect("a file");
    fs::create_dir(scratch.0.join("elsewhere")).expect("a directory");
    symlink(scratch.0.join("elsewhere"), scratch.0.join("run")).expect("a link");
    let error = scratch
        .dir()
        .child("run")
        .expect_err("a link to a directory");
    assert!(error.to_string().contains("a link"), "{error}");

    let own = scratch.dir().child("own").expect("a directory");
    symlink(&victim, own.path().join("log")).expect("a link");
    let error = own.open("log", create(), owner_only()).expect_err("a link");
    assert!(error.to_string().contains("is a link"), "{error}");
    symlink(scratch.0.join("new"), own.path().join("dangling")).expect("a link");
    own.open("dangling", create(), owner_only())
        .expect_err("a link to nothing");
    fs::hard_link(&victim, own.path().join("second")).expect("a second name");
    own.open("second", create(), owner_only())
        .expect_err("a file with two names");
    assert_eq!(fs::read_to_string(victim).expect("it is there"), "precious");
    assert!(!scratch.0.join("new").exists());
}

#[test]
fn a_pipe_does_not_make_the_service_wait() {
    let scratch = Scratch::new();
    let own = scratch.dir().child("own").expect("a directory");
    let mode = owner_only();
    rustix::fs::mknodat(&own, "pid", FileType::Fifo, mode, 0).expect("a pipe");
    own.open("pid", create(), mode).expect_err("a pipe");
    own.open("pid", OFlags::WRONLY, mode).expect_err("a pipe");
}

#[test]
fn directories_that_others_may_write_to_are_refused() {
    let scratch = Scratch::new();
    for mode in [0o775, 0o757, 0o1777] {
        let path = scratch.0.join(format!("open-{mode:o}"));
        fs::create_dir(&path).expect("a directory");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
        let name = format!("open-{mode:o}");
        let error = scratch.dir().child(&name).expect_err("others may write");
        assert!(error.to_string().contains("chmod go-w"), "{error}");
    }
}

#[test]
fn entries_of_another_user_are_refused() {
    if !geteuid().is_root() {
        eprintln!("skipped: needs root to make files of another user");
        return;
    }
    let scratch = Scratch::new();
    let own = scratch.dir().child("own").expect("a directory");
    fs::create_dir(scratch.0.join("theirs")).expect("a directory");
    std::os::unix::fs::chown(scratch.0.join("theirs"), Some(65534), None).expect("root may");
    let error = scratch.dir().child("theirs").expect_err("another user's");
    assert!(error.to_string().contains("user 65534"), "{error}");
    fs::write(own.path().join("log"), "").expect("a file");
    std::os::unix::fs::chown(own.path().join("log"), Some(65534), None).expect("root may");
    own.open("log", create(), owner_only())
        .expect_err("another user's");
}
