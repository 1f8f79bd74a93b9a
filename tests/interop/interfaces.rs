//! The interface of a service (`tidelaned`) goes down, changes or disappears while connections are
//! open. Two further tests start a service on an interface without a carrier, and on an interface
//! that another service serves.
//!
//! A wire is two network namespaces, the server's and the client's, joined by a veth pair or by two
//! NICs that TIDELANE_WIRE_NICS names. An accelerated program runs under `tidelane run`: the
//! service carries its TCP connections instead of the kernel.

use std::{fs, path::PathBuf, thread, time::Duration};

use tidelane_tests::{
    Nginx, Outcome, Running, Service, Side, Stop, Wire, ensure,
    nginx::NginxOptions,
    nics,
    tools::{patience, require_tools, wait_until},
    wire::{SERVER, write_random_file},
};

use crate::{
    commands::{check_refusal, tidelane},
    support::{SHORT, check_load, check_not_in_kernel, check_same, echo_client, echo_server, ip},
};

/// Length in bytes of the transfer during which the driver is reset. nginx limits the transfer to
/// 1 MiB/s, so that the transfer outlasts all resets.
const RESET_BYTES: u64 = 6 << 20;
/// Time that traffic runs before a change.
const WHILE: Duration = Duration::from_millis(700);

/// Starts an echo client on the kernel, with four connections to an accelerated server. A message
/// almost fills a segment. The client runs for 4 seconds, or longer on a slow machine
/// ([`patience`]), and verifies every byte. Fails if the kernel, instead of the service, has a
/// connection of the server.
fn begin_traffic(wire: &Wire) -> Result<Running, Stop> {
    let client = echo_client(wire, Side::Client, 7000)?;
    let client = client.args("--connections 4 --bytes 1400 --warmup 0");
    let running = client.arg("--seconds").arg(2 + 2 * patience()).spawn()?;
    thread::sleep(WHILE);
    check_not_in_kernel(wire, 7000)?;
    Ok(running)
}

/// Waits for the end of the echo client. Fails if the service does not receive more than 1000
/// further segments in time, or if a connection of the client fails.
fn check_traffic(running: Running, service: &Service) -> Outcome {
    let segments = || Ok::<_, Stop>(service.counters()?["in_segs"].as_u64().unwrap_or(0));
    let before = segments()?;
    let went_on = wait_until(SHORT, "traffic after the change", || {
        Ok(segments()? > before + 1000)
    });
    if let Err(Stop::Fail(reason)) = went_on {
        let state = service.ask("stat")?;
        return Err(Stop::Fail(format!("{reason}: {state}")));
    }
    check_load(&running.wait(SHORT)?.success()?.json()?)
}

/// The service starts on an interface without a carrier, as during boot, and serves clients once
/// the carrier is up.
pub fn a_service_starts_without_a_carrier() -> Outcome {
    let wire = Wire::new()?;
    ip(&wire, Side::Client, "link set eth1 down")?;
    let link = wire.program(Side::Server, "ip").args("link show eth1");
    if link.run(SHORT)?.stdout.contains("LOWER_UP") {
        let reason = "this NIC has a carrier while the other end is down";
        return Err(Stop::Skip(reason.to_owned()));
    }
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    ip(&wire, Side::Client, "link set eth1 up")?;
    check_traffic(begin_traffic(&wire)?, &service)
}

/// Connections continue after the interface was down for 0.3 seconds.
pub fn down_and_up_again() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    let running = begin_traffic(&wire)?;
    ip(&wire, Side::Server, "link set eth1 down")?;
    thread::sleep(Duration::from_millis(300));
    ip(&wire, Side::Server, "link set eth1 up")?;
    check_traffic(running, &service)
}

/// When the MTU of both interfaces becomes smaller, open connections continue, and no connection
/// needs repeated timeouts to find the smaller MTU. Connections that start with the smaller MTU
/// continue when the MTU grows again.
pub fn the_mtu_changes() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    let running = begin_traffic(&wire)?;
    for side in [Side::Client, Side::Server] {
        ip(&wire, side, "link set eth1 mtu 1300")?;
    }
    check_traffic(running, &service)?;
    let lost = service.counters()?["mtu_black_holes"].take();
    ensure!(lost == 0, "{lost} connections found the MTU by losses");
    let running = begin_traffic(&wire)?;
    for side in [Side::Server, Side::Client] {
        ip(&wire, side, "link set eth1 mtu 1500")?;
    }
    check_traffic(running, &service)
}

/// Connections continue when the interface gets another name.
pub fn renamed() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    let running = begin_traffic(&wire)?;
    // Linux before 6.2 cannot rename an interface that is up.
    for change in ["eth1 down", "eth1 name eth7", "eth7 up"] {
        ip(&wire, Side::Server, &format!("link set {change}"))?;
    }
    check_traffic(running, &service)?;
    check_traffic(begin_traffic(&wire)?, &service)
}

/// The driver of the server's NIC, if the wire has NICs instead of a veth pair. Unbinding the
/// driver removes the interface, as unplugging the NIC does.
struct Driver {
    /// Directory of the driver in sysfs.
    directory: PathBuf,
    /// Name of the device, to write into the driver's files `bind` and `unbind`.
    device: String,
}

impl Driver {
    /// Unbinds the driver from the server's NIC.
    fn unbind(wire: &Wire) -> Result<Self, Stop> {
        let path = |link: &str| {
            let readlink = wire.program(Side::Server, "readlink").arg("-f");
            let output = readlink
                .arg(format!("/sys/class/net/eth1/{link}"))
                .run(SHORT)?;
            Ok::<_, Stop>(PathBuf::from(output.stdout.trim()))
        };
        let device = path("device")?;
        let name = device.file_name().unwrap_or_default().to_string_lossy();
        let driver = Self {
            directory: path("device/driver")?,
            device: name.into_owned(),
        };
        fs::write(driver.directory.join("unbind"), &driver.device)?;
        Ok(driver)
    }

    /// Binds the driver to the NIC again.
    fn bind(&self) -> Outcome {
        Ok(fs::write(self.directory.join("bind"), &self.device)?)
    }
}

/// When the interface is removed or moved to another namespace, the service ends and logs the
/// reason. Afterwards, an echo client on the same host does not reach the server.
pub fn gone() -> Outcome {
    for change in ["link del eth1", "link set eth1 netns"] {
        let wire = Wire::new()?;
        let mut driver = None;
        let service = wire.service()?;
        let _server = echo_server(&wire, Some(&service), 7000)?;
        let running = begin_traffic(&wire)?;
        let line = match change.ends_with("netns") {
            true => format!("{change} {} name moved", wire.namespace(Side::Client)),
            false => change.to_owned(),
        };
        if change.starts_with("link del") && nics::are_named() {
            driver = Some(Driver::unbind(&wire)?);
        } else {
            ip(&wire, Side::Server, &line)?;
        }
        let ended = wait_until(SHORT, "the end of the service", || Ok(!service.alive()));
        driver.map_or(Ok(()), |driver| driver.bind())?;
        ended?;
        let log = fs::read_to_string(format!("/var/log/tidelane/{}.log", service.name()))?;
        ensure!(log.contains("the interface eth1 is gone"), "{line}: {log}");
        running.signal_and_wait(rustix::process::Signal::KILL, SHORT)?;
        let local = echo_client(&wire, Side::Server, 7000)?;
        let local = local.args("--seconds 0.3").finish(SHORT)?;
        ensure!(
            !local.status.success(),
            "an echo client reached 10.77.0.1, whose interface is gone"
        );
    }
    Ok(())
}

/// The driver is reset during a transfer: by `ethtool -G` and `ethtool -r`, as far as the driver
/// supports them, and by `ip link set`. The transfer completes with the right bytes.
pub fn the_driver_is_reset() -> Outcome {
    require_tools(&["curl", "nginx", "ethtool"])?;
    let wire = Wire::new()?;
    let ethtool = |line: &str| {
        wire.program(Side::Server, "ethtool")
            .args(line)
            .finish(SHORT)
    };
    let rings = ethtool("-g eth1")?.stdout;
    let rings = rings
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("RX:"));
    let service = wire.service()?;
    let options = NginxOptions {
        server: "limit_rate 1m;".to_owned(),
        ..NginxOptions::default()
    };
    let nginx = Nginx::start(&wire, Some(&service), &options)?;
    write_random_file(&nginx.file("bulk"), RESET_BYTES, 5)?;
    // Some NICs lose the carrier for seconds when the service starts.
    wait_until(SHORT, "the server to be reached", || {
        let small = wire.program(Side::Client, "curl").args("-sS --max-time 5");
        let small = small.arg(format!("http://{SERVER}/64")).finish(SHORT)?;
        Ok(small.status.success())
    })?;
    let got = wire.scratch().join("got");
    let curl = wire.program(Side::Client, "curl");
    let curl = curl.args("-sS --fail").arg("-o").arg(got.display());
    let mut curl = curl.arg(format!("http://{SERVER}/bulk")).spawn()?;
    let mut done = Vec::new();
    let mut reset = |line: &str| {
        thread::sleep(WHILE);
        ensure!(
            curl.alive(),
            "the transfer was over before {line}: {:?}",
            curl.output()
        );
        if ethtool(line)?.status.success() {
            done.push(line[..2].to_owned());
        }
        Ok(())
    };
    if let Some(present) = rings.map(str::trim) {
        reset("-G eth1 rx 128")?;
        reset(&format!("-G eth1 rx {present}"))?;
    }
    reset("-r eth1")?;
    thread::sleep(WHILE);
    for change in ["down", "up"] {
        ip(&wire, Side::Server, &format!("link set eth1 {change}"))?;
    }
    done.push("down".to_owned());
    done.dedup();
    ensure!(
        curl.alive(),
        "the transfer was over before the last reset: {:?}",
        curl.output()
    );
    if let Err(Stop::Fail(reason)) = curl.wait(SHORT * 3)?.success() {
        let state = service.ask("stat")?;
        return Err(Stop::Fail(format!("{reason} after {done:?}: {state}")));
    }
    check_same(&nginx.file("bulk"), &got)?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    check_traffic(begin_traffic(&wire)?, &service)?;
    println!("NOTE: {}", done.join(", "));
    Ok(())
}

/// A second service on the same interface does not start. Its error names the first service.
pub fn a_second_service_is_told_of_the_first() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let second = tidelane(&wire, "up eth1 --name second")?.finish(SHORT)?;
    let words = format!("eth1 is served by service {:?}", service.name());
    check_refusal(&second, &words)?;
    ensure!(service.alive(), "the refused service ended the other one");
    Ok(())
}
