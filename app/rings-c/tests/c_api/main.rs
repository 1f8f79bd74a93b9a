//! Tests of the C interface: C programs that are compiled here, and the manual pages.

mod pages;
mod programs;
mod servers;

/// The checks of `misuse.c` succeed: misuses of the interface return their errors.
#[test]
fn misuses_are_refused() {
    let program = programs::compile("misuse", "tests/c_api/misuse.c", &programs::library("a"));
    let output = std::process::Command::new(&program).output();
    let output = output.expect("the program starts");
    let (text, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    if text.starts_with("skipped") {
        return eprintln!("{text}");
    }
    assert!(output.status.success(), "{}: {errors}", output.status);
    assert_eq!(text, "ok\n");
}

/// `misuse.c`, which calls every function of the header, also succeeds with the shared library.
#[test]
fn programs_link_the_shared_library() {
    let library = programs::library("so");
    let program = programs::compile("misuse-so", "tests/c_api/misuse.c", &library);
    let output = std::process::Command::new(&program)
        .env("LD_LIBRARY_PATH", library.parent().expect("a folder"))
        .output()
        .expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
}
