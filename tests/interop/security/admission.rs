//! Admission: the service (`tidelaned`) admits a program by its network namespace, user, group and
//! cgroup.
//!
//! An accelerated program runs under `tidelane run`: the service carries its TCP connections
//! instead of the kernel.

use std::{fs, path::PathBuf};

use rustix::fs::stat;
use tidelane_tests::{
    Nginx, Outcome, Program, Service, Side, Stop, Wire, ensure, fail, nginx::NginxOptions, tools,
};

use super::{ATTACKER_ID, Origin, attacker, readable_copy};
use crate::support::{SHORT, check_load, echo_client};

/// Returns the service's answer to a PROBE message of an attacker, or the attacker's error, as
/// text. By PROBE a program asks whether the service would admit it.
fn probe(wire: &Wire, service: &Service, origin: Origin) -> Result<String, Stop> {
    let program = attacker(wire, Side::Server, origin, service)?.arg("probe");
    Ok(program.run(SHORT)?.json()?["probe"].to_string())
}

/// Returns the permission bits of the registration socket.
fn mode(service: &Service) -> Result<u32, Stop> {
    let socket = service.control_socket();
    Ok(stat(socket)?.st_mode & 0o777)
}

/// With an empty configuration, the service does not admit a user who is neither root nor in the
/// group `tidelane`. A reloaded configuration can admit this user and exclude the user again. An
/// invalid configuration changes nothing.
pub fn users_are_admitted_by_group_or_by_name() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.configured_service("", &[])?;
    ensure!(mode(&service)? == 0o660, "mode is {:o}", mode(&service)?);
    let found = probe(&wire, &service, Origin::User)?;
    ensure!(found.contains("ermission denied"), "uid 65534: {found}");
    drop(service);
    let admits = |user: &str| format!("[access]\nusers = [{user}]\n");
    let service = wire.configured_service(&admits("65533"), &[])?;
    ensure!(mode(&service)? == 0o666, "mode is {:o}", mode(&service)?);
    let found = probe(&wire, &service, Origin::User)?;
    ensure!(
        found.contains("refused"),
        "another user is admitted: {found}"
    );
    for (users, expected) in [
        (ATTACKER_ID, "obtained"),
        ("65533", "refused"),
        ("'*'", "obtained"),
    ] {
        if let Err(error) = service.reload(&admits(users))? {
            fail!("users = [{users}]: {error}");
        }
        let found = probe(&wire, &service, Origin::User)?;
        ensure!(found.contains(expected), "users = [{users}]: {found}");
    }
    for nonsense in [admits("'there-is-no-such-user'"), "[acces]\n".to_owned()] {
        let Err(error) = service.reload(&nonsense)? else {
            fail!("{nonsense:?} was accepted");
        };
        let line = nonsense.contains("acces]") && !error.contains("line 1");
        ensure!(!line && error.contains(".toml"), "{nonsense:?}: {error}");
        let found = probe(&wire, &service, Origin::User)?;
        ensure!(found.contains("obtained"), "after {nonsense:?}: {found}");
    }
    if let Err(error) = service.reload("")? {
        fail!("an empty configuration was refused: {error}");
    }
    let found = probe(&wire, &service, Origin::User)?;
    ensure!(
        found.contains("refused"),
        "with an empty configuration: {found}"
    );
    Ok(())
}

/// A service with an empty configuration admits a member of the group `tidelane`. Another user
/// cannot connect to the registration socket.
pub fn members_of_the_group_are_admitted() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service_with_groups(&format!("root:x:0:\ntidelane:x:{ATTACKER_ID}:\n"))?;
    ensure!(mode(&service)? == 0o660, "mode is {:o}", mode(&service)?);
    let group = stat(service.control_socket())?.st_gid;
    ensure!(group.to_string() == ATTACKER_ID, "the group is {group}");
    let found = probe(&wire, &service, Origin::User)?;
    ensure!(found.contains("obtained"), "a member: {found}");
    let found = probe(&wire, &service, Origin::SecondUser)?;
    ensure!(found.contains("ermission denied"), "no member: {found}");
    Ok(())
}

/// Returns a program that makes a new network namespace and runs a script there. The script runs an
/// echo server under `tidelane run`, and an echo client that connects to the server over loopback.
fn in_a_namespace(wire: &Wire, service: &Service) -> Result<Program, Stop> {
    let tidelane = tools::binary("tidelane")?;
    let load = tools::binary("tidelane-load")?;
    let (tidelane, load) = (tidelane.display(), load.display());
    let name = service.name();
    // `kill` and `timeout` end the server in any case.
    let script = format!(
        "ip link set lo up
         timeout 30 {tidelane} run --name {name} -- {load} echo-server --port 7000 &
         until ss -Hltn | grep -q :7000; do :; done
         {load} echo-client --connect 127.0.0.1:7000 --seconds 2; status=$?
         kill $!; exit $status"
    );
    let program = wire.program(Side::Server, "unshare");
    Ok(program.args("--net timeout 30 sh -c").arg(script))
}

/// By default, the service admits only programs of its own network namespace. A program in another
/// namespace uses the kernel's stack, even if it is a program of root, and `tidelane ss` shows the
/// reason. The configuration can admit a further namespace, here the client's.
pub fn a_namespace_is_left_to_the_kernel() -> Outcome {
    let wire = Wire::new()?;
    let all_users = "[access]\nusers = ['*']\n";
    let service = wire.configured_service(all_users, &[])?;
    let found = probe(&wire, &service, Origin::User)?;
    ensure!(
        found.contains("obtained"),
        "this user in the service's namespace: {found}"
    );
    let found = probe(&wire, &service, Origin::Container)?;
    ensure!(found.contains("refused"), "a container: {found}");

    let served = in_a_namespace(&wire, &service)?.spawn()?;
    tools::wait_until(SHORT, "ss to name the program", || {
        let line = format!("ss --name {}", service.name());
        let tidelane = tools::binary("tidelane")?;
        let shown = wire.program(Side::Server, &tidelane.to_string_lossy());
        let shown = shown.args(&line).run(SHORT)?.stdout;
        Ok(shown.lines().any(|line| {
            line.contains("0.0.0.0:7000")
                && line.contains("tidelane-load")
                && line.ends_with("no: its network namespace is not admitted ([access])")
        }))
    })?;
    let finished = served.wait(SHORT)?.success()?;
    check_load(&finished.json()?)?;
    ensure!(
        finished
            .stderr
            .contains("the program stays with the kernel"),
        "run said nothing: {finished}"
    );
    let strict = wire.program(Side::Server, "unshare").arg("--net");
    let strict = strict.arg(tools::binary("tidelane")?.display());
    let line = format!("run --strict --name {} -- true", service.name());
    let strict = strict.args(&line).finish(SHORT)?;
    ensure!(
        !strict.status.success()
            && strict
                .stderr
                .contains("does not admit this network namespace"),
        "--strict: {strict}"
    );

    // The configuration names a namespace by the path of its file.
    let admitted = format!(
        "[access]\nusers = ['*']\nnamespaces = ['/run/netns/{}']\n",
        wire.namespace(Side::Client)
    );
    if let Err(error) = service.reload(&admitted)? {
        fail!("{admitted}: {error}");
    }
    let there = attacker(&wire, Side::Client, Origin::User, &service)?.arg("probe");
    let there = there.run(SHORT)?.json()?["probe"].to_string();
    ensure!(
        there.contains("obtained"),
        "the admitted namespace: {there}"
    );
    let found = probe(&wire, &service, Origin::Container)?;
    ensure!(
        found.contains("refused"),
        "a container, after the reload: {found}"
    );
    Ok(())
}

/// A server of root, such as Debian's nginx, has workers of another user. The service admits the
/// workers with their master, although it would not admit their user.
pub fn workers_of_another_user_come_with_their_master() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.configured_service("", &[])?;
    let nginx = Nginx::start(&wire, Some(&service), &NginxOptions::default())?;
    let copy = wire.scratch().join("copy");
    let url = format!("http://{}/1k", tidelane_tests::wire::SERVER);
    let curl = wire.program(Side::Client, "curl").args("-sS -m 10 -o");
    curl.arg(copy.display()).arg(url).run(SHORT)?;
    crate::support::check_same(&copy, &nginx.file("1k"))?;
    crate::support::check_not_in_kernel(&wire, 80)
}

/// Returns the mount point of the cgroup2 hierarchy. Skips the test if no hierarchy is mounted.
fn hierarchy() -> Result<PathBuf, Stop> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    match mount.and_then(|line| line.split(' ').nth(4)) {
        Some(path) => Ok(path.into()),
        None => Err(Stop::Skip("no cgroup2 hierarchy is mounted".to_owned())),
    }
}

/// If the cgroup of a program has a BPF program that can filter packets, the kernel carries the
/// connections of the program, because an accelerated connection would bypass the filter.
/// `tidelane ss` shows the reason.
pub fn a_filtered_cgroup_stays_with_the_kernel() -> Outcome {
    let wire = Wire::new()?;
    let group = wire.namespace(Side::Server);
    let guarded = hierarchy()?.join(&group);
    let sandbox = wire.scratch().join("sandbox");
    let source = tools::source_root().join("tests/interop/security/sandbox.c");
    tools::compile(&sandbox, &[source])?;
    wire.register("cgroup", &guarded.to_string_lossy())?;
    let service = wire.service()?;
    let run = |strict: &str| -> Result<Program, Stop> {
        let program = wire.program(Side::Server, &sandbox.to_string_lossy());
        let mount = wire.scratch().join("cgroup2");
        let program = program.arg(mount.display()).arg(&group);
        let program = program.arg(tools::binary("tidelane")?.display());
        let program = program.args(&format!("run {strict} --name {} --", service.name()));
        let load = readable_copy(&wire, "tidelane-load")?;
        Ok(program.arg(load.display()).args("echo-server --port 7000"))
    };
    let strict = run("--strict")?.finish(SHORT)?;
    ensure!(
        !strict.status.success() && strict.stderr.contains("BPF programs of the cgroup"),
        "--strict: {strict}"
    );
    let server = wire.start_server(run("")?, None, 7000)?;
    let client = echo_client(&wire, Side::Client, 7000)?.args("--connections 2 --seconds 0.5");
    check_load(&client.run(SHORT)?.json()?)?;
    let sockets = service.sockets_of(server.pid())?;
    let why = sockets.first().map(|socket| socket["reason"].to_string());
    let why = why.unwrap_or_default();
    ensure!(why.contains("cgroup"), "ss says {sockets:?}");
    ensure!(!service.has_listener(7000)?, "the service has the listener");
    Ok(())
}
