//! The `tidelane` command: messages and exit statuses.
//!
//! An accelerated program runs under `tidelane run`: the service (`tidelaned`), not the kernel,
//! carries the program's TCP connections.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, connect, listen, recv, send, socket_with,
};
use tidelane_abi::{ABI_VERSION, MESSAGE_MAGIC, message, refusal};
use tidelane_tests::{
    Finished, Outcome, Program, Side, Stop, Wire, ensure, service::run_dir, tools,
};

use crate::support::{SHORT, check_load, echo_client, echo_server};

/// A version number of the shared-memory layout, other than this build's [`ABI_VERSION`]. Programs
/// and the service share memory.
const OTHER_VERSION: u32 = ABI_VERSION + 1;

/// Returns the command `tidelane` with the arguments in `line`, to run in the server's network
/// namespace.
pub fn tidelane(wire: &Wire, line: &str) -> Result<Program, Stop> {
    let path = tools::binary("tidelane")?;
    Ok(wire
        .program(Side::Server, &path.to_string_lossy())
        .args(line))
}

/// Fails if the exit status is 0, or if standard error is not exactly one line that contains
/// `words`.
pub fn check_refusal(finished: &Finished, words: &str) -> Outcome {
    ensure!(!finished.status.success(), "no failure: {finished}");
    ensure!(
        finished.stderr.lines().count() == 1,
        "not one line: {finished}"
    );
    ensure!(
        finished.stderr.contains(words),
        "no {words:?} in: {finished}"
    );
    Ok(())
}

/// `tidelane up` fails with one line if the interface does not exist, if the user is not root, or
/// if a service of this name is already running.
pub fn up_names_the_cause_of_a_failure() -> Outcome {
    let wire = Wire::new()?;
    let finished = tidelane(&wire, "up nosuch0 --name never")?.finish(SHORT)?;
    check_refusal(&finished, "no interface nosuch0")?;

    let path = tools::binary("tidelane")?;
    let line = format!(
        "--reuid 65534 --clear-groups {} up eth1 --name never",
        path.display()
    );
    let unprivileged = wire
        .program(Side::Server, "setpriv")
        .args(&line)
        .finish(SHORT)?;
    // If other users may not read the source tree, setpriv cannot start the program.
    if !unprivileged.stderr.starts_with("setpriv") {
        check_refusal(&unprivileged, "root")?;
    }

    let service = wire.service()?;
    let again = format!("up eth1 --name {}", service.name());
    check_refusal(&tidelane(&wire, &again)?.finish(SHORT)?, "already running")?;
    ensure!(
        service.alive(),
        "the refused second service ended the first"
    );
    Ok(())
}

/// On a kernel without AF_XDP, which `without_af_xdp.c` simulates, `tidelane up` and `tidelaned`
/// fail with one line.
pub fn a_kernel_without_af_xdp() -> Outcome {
    let wire = Wire::new()?;
    let without = wire.scratch().join("without_af_xdp");
    let source = tools::source_root().join("tests/interop/without_af_xdp.c");
    tools::compile(&without, &[source])?;
    for (binary, line) in [
        ("tidelane", "up eth1 --name td-no-af-xdp"),
        ("tidelaned", "--interface eth1 --name td-no-af-xdp"),
    ] {
        let finished = wire
            .program(Side::Server, &without.to_string_lossy())
            .arg(tools::binary(binary)?.display())
            .args(line)
            .finish(SHORT)?;
        check_refusal(&finished, "this kernel has no AF_XDP")?;
        ensure!(
            !run_dir("td-no-af-xdp").exists(),
            "the run directory exists"
        );
    }
    Ok(())
}

/// The commands `ss`, `stat`, `down` and `run` fail with one line if the service does not exist.
pub fn without_a_service() -> Outcome {
    let wire = Wire::new()?;
    for line in ["ss", "stat", "down", "run"] {
        let rest = if line == "run" { "-- true" } else { "" };
        let line = format!("{line} --name td-no-such-service {rest}");
        let finished = tidelane(&wire, &line)?.finish(SHORT)?;
        check_refusal(&finished, "not running")?;
    }
    Ok(())
}

/// The test simulates a service with another version of the shared memory. `tidelane run` refuses
/// to start a program on this service. A program that preloads `libtidelane.so` without
/// `tidelane run` prints one line about the mismatch and uses the kernel.
pub fn another_shared_memory_version() -> Outcome {
    let wire = Wire::new()?;
    let name = format!("{}-other", wire.namespace(Side::Server));
    let other = OtherVersion::start(&name)?;
    let run = tidelane(&wire, &format!("run --name {name} -- true"))?.finish(SHORT)?;
    check_refusal(&run, "shared-memory version mismatch")?;
    let versions = format!("this release has {ABI_VERSION}, the running service {OTHER_VERSION}");
    for words in [versions.as_str(), "stop the service and start it"] {
        ensure!(run.stderr.contains(words), "no {words:?} in: {run}");
    }
    let server = wire
        .load_tool(Side::Server, "echo-server")?
        .env("TIDELANE_SOCKET", &other.socket().to_string_lossy())
        .env(
            "LD_PRELOAD",
            &tools::binary("libtidelane.so")?.to_string_lossy(),
        );
    let server = wire.start_server(server.args("--port 7000"), None, 7000)?;
    let client = echo_client(&wire, Side::Client, 7000)?.args("--seconds 0.3");
    check_load(&client.run(SHORT)?.json()?)?;
    let said = server.output().1;
    let lines = said
        .lines()
        .filter(|line| line.contains("version mismatch"));
    ensure!(lines.count() == 1, "not one line: {said}");
    Ok(())
}

/// The test simulates a program with another version of the shared memory. The service refuses the
/// program's REGISTER message and continues to run. The refusal has the service's own version.
pub fn a_program_of_another_version() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let flags = SocketFlags::CLOEXEC;
    let program = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let path = service.control_socket();
    connect(&program, &SocketAddrUnix::new(path)?)?;
    // A REGISTER message. Only the header (magic number, version and kind) is the same in all
    // versions.
    let mut request = vec![0; 200];
    request[..8].copy_from_slice(&MESSAGE_MAGIC.to_ne_bytes());
    request[8..12].copy_from_slice(&OTHER_VERSION.to_ne_bytes());
    request[12..16].copy_from_slice(&message::REGISTER.to_ne_bytes());
    send(&program, &request, SendFlags::NOSIGNAL)?;
    let mut answer = vec![0; 4096];
    let (len, _) = recv(&program, &mut answer, RecvFlags::empty())?;
    ensure!(len >= 20, "an answer of {len} bytes");
    let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|i| answer[at + i]));
    ensure!(answer[..8] == request[..8], "not the service's answer");
    let (version, why) = (word(8), word(16));
    ensure!(
        (version, why) == (ABI_VERSION, refusal::ABI_VERSION),
        "version {version}, refusal {why}"
    );
    ensure!(service.alive(), "the service ended");
    service.ask("status").map(|_| ())
}

/// A simulated service with another version of the shared memory. The service answers the first
/// message of each connection with a refusal. `drop` removes the run directory.
struct OtherVersion {
    /// Run directory of the simulated service.
    directory: PathBuf,
}

impl OtherVersion {
    /// Starts the service under the name `name`, on a thread.
    fn start(name: &str) -> Result<Self, Stop> {
        let directory = run_dir(name);
        std::fs::create_dir_all(&directory)?;
        let other = Self { directory };
        let flags = SocketFlags::CLOEXEC;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&listener, &SocketAddrUnix::new(other.socket())?)?;
        listen(&listener, 16)?;
        // The thread runs until the process of this case ends.
        thread::spawn(move || {
            while let Ok(program) = accept_with(&listener, SocketFlags::CLOEXEC) {
                let mut message = vec![0; 4096];
                let Ok((len, _)) = recv(&program, &mut message, RecvFlags::empty()) else {
                    continue;
                };
                message.truncate(len.max(20));
                message[8..12].copy_from_slice(&OTHER_VERSION.to_ne_bytes());
                message[16..20].copy_from_slice(&refusal::ABI_VERSION.to_ne_bytes());
                // Sending fails if the program has ended.
                let _ = send(&program, &message, SendFlags::NOSIGNAL);
            }
        });
        Ok(other)
    }

    /// Returns the path of the service's registration socket.
    fn socket(&self) -> PathBuf {
        self.directory.join("control.sock")
    }
}

impl Drop for OtherVersion {
    fn drop(&mut self) {
        // A failure leaves an unused directory, which does no harm.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A service starts, stops and starts again. `tidelane run` exits with 127 if the program does not
/// exist, and otherwise with the program's status.
pub fn up_down_up() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let name = service.name().to_owned();
    let run = format!("run --name {name} -- no-such-program-anywhere");
    let finished = tidelane(&wire, &run)?.finish(SHORT)?;
    check_refusal(&finished, "no-such-program-anywhere")?;
    ensure!(
        finished.status.code() == Some(127),
        "exit status is not 127: {finished}"
    );
    let run = tidelane(&wire, &format!("run --name {name} -- sh -c"))?.arg("exit 7");
    ensure!(
        run.finish(SHORT)?.status.code() == Some(7),
        "the program's status was lost"
    );

    service.down()?;
    tools::wait_until(Duration::from_secs(5), "the service to end", || {
        Ok(!service.alive())
    })?;
    ensure!(!run_dir(&name).exists(), "the run directory still exists");
    let again = wire.service()?;
    ensure!(again.alive(), "the second service is not there");
    Ok(())
}

/// `tidelane ss` shows connections with local address, program and TCP information.
/// `tidelane stat` shows counters.
pub fn ss_names_the_sockets() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let server = echo_server(&wire, Some(&service), 7000)?;
    let client = echo_client(&wire, Side::Client, 7000)?.args("--connections 3 --seconds 3");
    let client = client.spawn()?;
    tools::wait_until(SHORT, "three connections", || {
        let sockets = service.sockets_of(server.pid())?;
        Ok(sockets
            .iter()
            .filter(|socket| socket["state"] == "ESTABLISHED")
            .count()
            == 3)
    })?;
    let line = format!("ss --name {}", service.name());
    let text = tidelane(&wire, &line)?.run(SHORT)?.stdout;
    ensure!(
        text.contains("10.77.0.1:7000"),
        "no local address in\n{text}"
    );
    ensure!(
        text.matches("ESTAB").count() == 3,
        "not three connections in\n{text}"
    );
    ensure!(text.contains("tidelane-load"), "no program in\n{text}");
    ensure!(text.contains("cwnd:"), "no TCP information in\n{text}");
    check_load(&client.wait(SHORT)?.success()?.json()?)?;
    let line = format!("stat --name {}", service.name());
    let text = tidelane(&wire, &line)?.run(SHORT)?.stdout;
    ensure!(text.lines().count() > 3, "no counters in\n{text}");
    Ok(())
}

/// Under `tidelane run --strict`, a connection that cannot be accelerated fails. Without the
/// option, the kernel carries the connection.
pub fn strict_refuses_a_fall_back() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _server = echo_server(&wire, None, 7000)?;
    let loopback = |wire: &Wire| -> Result<Program, Stop> {
        let tool = wire.load_tool(Side::Server, "echo-client")?;
        Ok(tool
            .args("--connect 127.0.0.1:7000 --seconds 0.3 --warmup 0.1")
            .accelerated(&service))
    };
    check_load(&loopback(&wire)?.run(SHORT)?.json()?)?;
    let strict = loopback(&wire)?.strict().finish(SHORT)?;
    ensure!(!strict.status.success(), "a fallback: {strict}");
    Ok(())
}

/// Runs a shell, Python and `env` under `tidelane run` on the service named `service`. Each of them
/// starts `program` by a call of the exec family or by posix_spawn. `program` cannot load the
/// preload library. Fails unless the standard error of each `tidelane run` is exactly one line that
/// contains `words`. The shell starts `program` several times.
fn check_named_as_child(wire: &Wire, service: &str, program: &Path, words: &str) -> Outcome {
    let (folder, file) = (program.parent().unwrap_or(program), program.display());
    let name = program.file_name().unwrap_or_default().display();
    let spawn = format!("import os; os.waitpid(os.posix_spawn('{file}', ['a'], os.environ), 0)");
    for (starter, argument) in [
        ("sh -c", format!("{file}; {file}; exec {file}")),
        ("sh -c", format!("{name}; {name}")),
        ("python3 -c", spawn),
        ("env", name.to_string()),
    ] {
        let line = tidelane(wire, &format!("run --name {service} -- {starter}"))?;
        let path = format!("{}:/usr/bin:/bin", folder.display());
        let ran = line.arg(&argument).env("PATH", &path).finish(SHORT)?;
        let only = ran.stderr.lines().count() == 1;
        ensure!(
            only && ran.stderr.contains(words),
            "{starter} {argument}: {ran}"
        );
    }
    Ok(())
}

/// `tidelane run` reports a program that cannot load the preload library, and starts the program.
/// With `--strict` the command fails. The programs are a statically linked program, a program
/// that looks like a Go program, and scripts with these programs as interpreters.
pub fn run_reports_programs_that_cannot_be_accelerated() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let source = wire.scratch().join("program.c");
    let go = r#"const char info[] __attribute__((section(".go.buildinfo"))) = "go";"#;
    for (name, text, option, words) in [
        ("static", "", "-static", "statically linked"),
        ("go", go, "-O0", "a Go program"),
    ] {
        let program = wire.scratch().join(name);
        std::fs::write(&source, format!("{text}\nint main(void) {{ return 7; }}\n"))?;
        let compile = wire.program(Side::Server, "cc").arg(option).arg("-o");
        let compile = compile.arg(program.display()).arg(source.display());
        compile.run(SHORT)?;
        let script = wire.scratch().join("script");
        std::fs::write(&script, format!("#!{}\n", program.display()))?;
        std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755))?;
        check_named_as_child(&wire, service.name(), &program, words)?;
        for file in [&program, &script] {
            let line = format!("run --name {} -- {}", service.name(), file.display());
            let ran = tidelane(&wire, &line)?.finish(SHORT)?;
            ensure!(ran.status.code() == Some(7), "not started: {ran}");
            ensure!(ran.stderr.lines().count() == 1, "not one line: {ran}");
            ensure!(ran.stderr.contains(words), "no {words:?} in: {ran}");
            let strict = line.replace("run ", "run --strict ");
            check_refusal(&tidelane(&wire, &strict)?.finish(SHORT)?, words)?;
        }
    }
    let line = format!("run --strict --name {} -- true", service.name());
    let ordinary = tidelane(&wire, &line)?.run(SHORT)?;
    ensure!(ordinary.stderr.is_empty(), "a warning: {ordinary}");
    Ok(())
}
