//! A panic of any thread immediately ends the Tidelane service.
//!
//! If only the panicking thread ended, the service would continue without the thread. The thread's
//! connections would hang, because the service's XDP program would still redirect their packets.
//! After the end of the process, the kernel gets all packets.

use std::panic;

/// Makes a panic of any thread end the process, with a log line that names the thread, the place
/// and the message.
pub fn abort_on_panic() {
    panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("without a name");
        let place = panic
            .location()
            .map_or_else(String::new, |l| format!(" at {l}"));
        let text = panic.payload_as_str().unwrap_or("without a text");
        eprintln!("tidelaned: thread {thread} panicked{place}: {text}; the service ends");
        std::process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use crate::confine::tests::{PART, child};

    /// The test runs itself in a child process, which has the environment variable [`PART`]. A
    /// thread of the child process panics.
    #[test]
    fn a_panic_of_a_thread_ends_the_process_and_names_its_place() {
        if std::env::var_os(PART).is_some() {
            super::abort_on_panic();
            let thread = std::thread::Builder::new().name("tdl-core-7".to_owned());
            let thread = thread.spawn(|| panic!("number {}", 42)).expect("a thread");
            let _ = thread.join();
            return;
        }
        let output = child(
            "panics::tests::a_panic_of_a_thread_ends_the_process_and_names_its_place",
            "panic",
        );
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{said}");
        let line = said
            .lines()
            .find(|line| line.contains("tdl-core-7 panicked at "));
        let line = line.unwrap_or_else(|| panic!("no line in {said}"));
        assert!(line.contains("panics.rs:"), "{line}");
        assert!(line.contains("number 42"), "{line}");
    }
}
