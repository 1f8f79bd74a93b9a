//! Loads `libtidelane_packetdrill.so` as packetdrill does, and declares the C structure of
//! packetdrill's interface: a table of the functions of a stack under test.

use std::{
    ffi::{CString, c_char, c_int, c_void},
    fs,
    mem::MaybeUninit,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Serializes the tests. The functions with which the library replaces functions of libc use the
/// stack that was created most recently in the process.
static ONE: Mutex<()> = Mutex::new(());

/// A function of the interface that these tests do not call.
type Unused = *mut c_void;
/// A function of the interface that takes `userdata`, a descriptor and two pointers.
type Plain = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut c_void) -> c_int;
type GetSockOpt = unsafe extern "C" fn(c_int, c_int, c_int, *mut c_void, *mut u32) -> c_int;

/// The function table of the interface, in the order of packetdrill's header.
#[repr(C)]
pub struct Interface {
    userdata: *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
    pub socket: unsafe extern "C" fn(*mut c_void, c_int, c_int, c_int) -> c_int,
    pub bind: unsafe extern "C" fn(*mut c_void, c_int, *const c_void, u32) -> c_int,
    pub listen: unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int,
    pub accept: Plain,
    connect: Unused,
    pub read: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, usize) -> isize,
    readv_to_recvmsg: [Unused; 4],
    pub write: unsafe extern "C" fn(*mut c_void, c_int, *const c_void, usize) -> isize,
    writev_to_ioctl: [Unused; 6],
    pub close: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    shutdown_to_poll: [Unused; 4],
    pub netdev_send: unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> c_int,
    pub netdev_receive:
        unsafe extern "C" fn(*mut c_void, *mut c_void, *mut usize, *mut i64) -> c_int,
    pub usleep: unsafe extern "C" fn(*mut c_void, u32) -> c_int,
    pub gettimeofday: unsafe extern "C" fn(*mut c_void, *mut libc::timeval, *mut c_void) -> c_int,
    epoll_create_to_splice: [Unused; 5],
}

const _: () = assert!(size_of::<Interface>() == 33 * size_of::<usize>());

/// The `userdata` argument of the interface's functions. Any thread may use the pointer.
#[derive(Clone, Copy)]
pub struct User(pub *mut c_void);

// SAFETY: the library locks the stack behind the pointer.
unsafe impl Send for User {}

/// The loaded library, and the interface to one stack. Dropping a `Library` frees the stack.
pub struct Library {
    pub interface: Interface,
    handle: *mut c_void,
    _one: MutexGuard<'static, ()>,
}

// SAFETY: the library locks the stack behind `userdata`, and the other fields are constant.
unsafe impl Sync for Library {}

/// Builds the library and returns its path. This build is necessary, because Cargo does not always
/// put the library at this path when it builds only this test.
fn build() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "tidelane-packetdrill"]);
    cargo.arg("--target-dir").arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success());
    profile.join("libtidelane_packetdrill.so")
}

impl Library {
    /// Loads the library, and lets the library fill in the interface.
    pub fn load() -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let path = CString::new(build().as_os_str().as_bytes()).unwrap();
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE | libc::RTLD_DEEPBIND;
        // SAFETY: the library has no constructors.
        let handle = unsafe { libc::dlopen(path.as_ptr(), flags) };
        assert!(!handle.is_null(), "{path:?}");
        let mut interface = MaybeUninit::<Interface>::uninit();
        // SAFETY: the symbol has this type, and the function fills in the whole interface.
        let interface = unsafe {
            let init = libc::dlsym(handle, c"packetdrill_interface_init".as_ptr());
            assert!(!init.is_null());
            type Init = unsafe extern "C" fn(*const c_char, *mut Interface);
            let init: Init = std::mem::transmute(init);
            init(std::ptr::null(), interface.as_mut_ptr());
            interface.assume_init()
        };
        Self {
            interface,
            handle,
            _one: one,
        }
    }

    pub fn user(&self) -> User {
        User(self.interface.userdata)
    }

    /// Returns the library's `getsockopt`, which replaces libc's if the library is preloaded.
    pub fn preloaded_getsockopt(&self) -> GetSockOpt {
        // SAFETY: the symbol has this type.
        unsafe {
            let symbol = libc::dlsym(self.handle, c"getsockopt".as_ptr());
            assert!(!symbol.is_null());
            std::mem::transmute(symbol)
        }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: this is the last use of the interface.
        unsafe { (self.interface.free)(self.interface.userdata) };
    }
}

/// Returns a `struct sockaddr_in`.
pub fn address(v4: [u8; 4], port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes(v4),
        },
        sin_zero: [0; 8],
    }
}

/// Returns the name that a test gives to the thread that makes a blocking call.
pub fn thread_name() -> String {
    format!("waits-{}", std::process::id() % 100_000)
}

/// Names the calling thread.
pub fn set_thread_name(name: &str) {
    fs::write("/proc/thread-self/comm", name).unwrap();
}

/// Waits until the thread with the name [`thread_name`] sleeps, or until `over` returns true.
/// packetdrill also waits until its second thread sleeps.
pub fn await_sleeping_thread(over: impl Fn() -> bool) {
    let name = format!("({})", thread_name());
    let sleeps = || {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let stat = |task: fs::DirEntry| fs::read_to_string(task.path().join("stat")).ok();
        tasks
            .filter_map(|task| stat(task.ok()?))
            .any(|stat| stat.contains(&format!("{name} S")))
    };
    while !over() && !sleeps() {
        std::thread::yield_now();
    }
}
