//! Tests on two machines joined by a network, each with its own kernel. Programs are accelerated on
//! both machines, or on one machine while the programs of the other machine use the kernel's TCP.
//!
//! Each test runs on both machines at the same time, on one as the server and on the other as the
//! client ([`tidelane_tests::two_machines`]).
//!
//! An accelerated program runs under `tidelane run`: the service (`tidelaned`) carries its TCP
//! connections instead of the kernel.

use std::{path::PathBuf, time::Duration};

use tidelane_tests::{
    Nginx, Outcome, Program, Running, Service, Side, Stop, Wire, command, command_in, ensure, fail,
    nginx::{FILES, NginxOptions},
    tools::{binary, env_number, require_tools, wait_until},
    two_machines::{ControlConnection, PairRole},
    wire::{INTERFACE, SERVER, SERVER_V6, write_random_file},
};

use crate::support::{SHORT, check_load, check_same};

/// Name of a large file that nginx serves beside [`FILES`].
const BULK: &str = "bulk";
/// Seed of the large file's bytes.
const BULK_SEED: u64 = 99;
/// Time limit of a step, which suffices for the large file.
const LONG: Duration = Duration::from_secs(60);
/// Port of the echo server.
const ECHO_PORT: u16 = 7000;
/// Number of concurrent connections to the echo server.
const ECHOES: usize = 8;
/// Number of times that curl gets each small file in parallel.
const PARALLEL: u32 = 4;

/// The tests, in the order in which both machines run them. The numbers identify a test when the
/// machines connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    BothAccelerated = 1,
    KernelClient,
    KernelServer,
    OverIpv6,
    LossBeforeAKernelClient,
    LossBeforeAKernelServer,
}

/// Servers and clients are accelerated. The servers are nginx, redis and an echo server.
pub fn both_accelerated() -> Outcome {
    run(Test::BothAccelerated)
}

/// The servers are accelerated, and the clients use the kernel's TCP.
pub fn kernel_client() -> Outcome {
    run(Test::KernelClient)
}

/// The clients are accelerated, and the servers use the kernel's TCP.
pub fn kernel_server() -> Outcome {
    run(Test::KernelServer)
}

/// Servers and clients are accelerated and use IPv6.
pub fn over_ipv6() -> Outcome {
    run(Test::OverIpv6)
}

/// The servers are accelerated. The clients' kernel loses 1 % of the frames in each direction.
pub fn loss_before_a_kernel_client() -> Outcome {
    run(Test::LossBeforeAKernelClient)
}

/// The clients are accelerated. The servers' kernel loses 1 % of the frames in each direction.
pub fn loss_before_a_kernel_server() -> Outcome {
    run(Test::LossBeforeAKernelServer)
}

/// Runs this machine's half of a test.
fn run(test: Test) -> Outcome {
    let role = PairRole::from_env()?;
    require_tools(&[
        "curl",
        "nginx",
        "redis-server",
        "redis-cli",
        "tc",
        "ethtool",
    ])?;
    let wire = role.wire()?;
    let service = match test.accelerates(role.side) {
        true => Some(wire.service_with(role.side, &[])?),
        false => None,
    };
    if test.has_loss() && service.is_none() {
        lose_frames(&wire, role.side)?;
    }
    let half = TestHalf {
        test,
        side: role.side,
        wire: &wire,
        service: service.as_ref(),
    };
    match role.side {
        Side::Server => half.run_server(&role),
        _ => half.run_client(&role),
    }
}

impl Test {
    /// Returns true if the programs of `side` are accelerated.
    fn accelerates(self, side: Side) -> bool {
        match self {
            Self::BothAccelerated | Self::OverIpv6 => true,
            Self::KernelClient | Self::LossBeforeAKernelClient => side == Side::Server,
            Self::KernelServer | Self::LossBeforeAKernelServer => side == Side::Client,
        }
    }

    /// Returns true if netem drops frames in this test.
    fn has_loss(self) -> bool {
        matches!(
            self,
            Self::LossBeforeAKernelClient | Self::LossBeforeAKernelServer
        )
    }

    /// Returns the server's address in the form of a URL, with brackets around an IPv6 address.
    fn host(self) -> String {
        match self {
            Self::OverIpv6 => format!("[{SERVER_V6}]"),
            _ => SERVER.to_string(),
        }
    }

    /// Returns the length of the large file in bytes.
    fn bulk_len(self) -> u64 {
        let variable = match self.has_loss() {
            true => "TIDELANE_LOSS_MIB",
            false => "TIDELANE_BULK_MIB",
        };
        env_number(variable, 8) << 20
    }
}

/// Makes netem drop 1 % of the frames that this machine's kernel sends and receives. Received
/// frames pass through an `ifb` interface, because netem works on sent frames only.
fn lose_frames(wire: &Wire, side: Side) -> Outcome {
    let space = wire.namespace(side);
    // With segmentation offload, netem would drop whole GSO frames, and few of them.
    let line = format!("-K {INTERFACE} tso off gso off gro off");
    wire.program(side, "ethtool").args(&line).run(SHORT)?;
    let inside = |line: &str| command_in(&space, &line.split(' ').collect::<Vec<_>>()).map(drop);
    inside("ip link add ifb0 type ifb")?;
    inside("ip link set ifb0 up")?;
    inside(&format!("tc qdisc add dev {INTERFACE} ingress"))?;
    inside(&format!(
        "tc filter add dev {INTERFACE} ingress matchall action mirred egress redirect dev ifb0"
    ))?;
    for interface in ["ifb0", INTERFACE] {
        inside(&format!(
            "tc qdisc add dev {interface} root netem loss 1% limit 10000"
        ))?;
    }
    Ok(())
}

/// Returns the number of frames that netem has dropped on `interface`.
fn lost(wire: &Wire, side: Side, interface: &str) -> Result<u64, Stop> {
    let space = wire.namespace(side);
    let text = command(&["tc", "-n", &space, "-s", "qdisc", "show", "dev", interface])?;
    let netem = text.split("netem").nth(1).unwrap_or_default();
    let dropped = netem.split("(dropped ").nth(1);
    let number = dropped.and_then(|rest| rest.split(',').next());
    Ok(number.unwrap_or_default().parse()?)
}

/// One half of a test, as this machine runs it. `service` is `None` if the half uses the kernel.
struct TestHalf<'a> {
    test: Test,
    side: Side,
    wire: &'a Wire,
    service: Option<&'a Service>,
}

impl TestHalf<'_> {
    /// Runs the server's half: starts the servers, and answers requests until the client's half is
    /// done.
    fn run_server(&self, role: &PairRole) -> Outcome {
        let options = NginxOptions {
            server: "listen [::]:80 ipv6only=on;".to_owned(),
            ..NginxOptions::default()
        };
        let nginx = Nginx::start(self.wire, self.service, &options)?;
        write_random_file(&nginx.file(BULK), self.test.bulk_len(), BULK_SEED)?;
        let redis = self.wire.program(Side::Server, "redis-server");
        let redis = redis.args("--port 6379 --protected-mode no --appendonly no --bind * -::*");
        let _redis = self
            .wire
            .start_server(redis.arg("--save").arg(""), self.service, 6379)?;
        let _echo = self.echo_server()?;
        let mut control = role.join(self.wire, self.test as u32)?;
        loop {
            match control.recv_line()?.as_str() {
                "connections" => {
                    let (accelerated, kernel) = self.connections()?;
                    control.send_line(&format!("{accelerated} {kernel}"))?;
                }
                "done" => break,
                other => fail!("an unknown request of the client: {other}"),
            }
        }
        self.check_counters()?;
        control.send_line("done")
    }

    /// Starts the echo server.
    fn echo_server(&self) -> Result<Running, Stop> {
        let tool = self.wire.load_tool(Side::Server, "echo-server")?;
        let tool = match self.test {
            Test::OverIpv6 => tool.arg("--address").arg("::"),
            _ => tool,
        };
        let tool = tool.arg("--port").arg(ECHO_PORT);
        self.wire.start_server(tool, self.service, ECHO_PORT)
    }

    /// Runs the client's half: uses each server.
    fn run_client(&self, role: &PairRole) -> Outcome {
        let mut control = role.join(self.wire, self.test as u32)?;
        self.fetch_files()?;
        self.fetch_in_parallel()?;
        self.store_values()?;
        self.echo(&mut control)?;
        self.check_counters()?;
        ensure!(
            control.request("done")? == "done",
            "the server did not confirm the end"
        );
        Ok(())
    }

    /// Returns a program of this half, on the stack that the test requires. If a call of an
    /// accelerated program would fall back to the kernel, the call fails instead (`--strict`).
    fn program(&self, name: &str) -> Program {
        self.wire.program(self.side, name).on(self.service).strict()
    }

    /// Returns the path of a file with the expected bytes of nginx's file `name`. Both machines
    /// generate the bytes from the same seed.
    fn expected(&self, name: &str) -> Result<PathBuf, Stop> {
        let path = self.wire.scratch().join(format!("expected-{name}"));
        let own = FILES.iter().zip(1..).find(|((own, _), _)| *own == name);
        let (len, seed) = match own {
            Some(((_, len), seed)) => (*len, seed),
            None => (self.test.bulk_len(), BULK_SEED),
        };
        if !path.is_file() {
            write_random_file(&path, len, seed)?;
        }
        Ok(path)
    }

    /// Gets every file of nginx, one by one.
    fn fetch_files(&self) -> Outcome {
        for name in FILES.iter().map(|(name, _)| *name).chain([BULK]) {
            let got = self.wire.scratch().join(format!("got-{name}"));
            let curl = self.program("curl").args("-sS --fail -g");
            let curl = curl.arg("-o").arg(got.display());
            let url = format!("http://{}/{name}", self.test.host());
            curl.arg(url).run(LONG)?;
            check_same(&self.expected(name)?, &got)?;
        }
        Ok(())
    }

    /// Gets the small files of nginx several times, in parallel.
    fn fetch_in_parallel(&self) -> Outcome {
        let mut curl = self.program("curl").args("-sS --fail -g --parallel");
        let mut files = Vec::new();
        for number in 0..PARALLEL {
            for name in ["64", "1k", "1m"] {
                let got = self.wire.scratch().join(format!("par-{name}-{number}"));
                let url = format!("http://{}/{name}", self.test.host());
                curl = curl.arg(url).arg("-o").arg(got.display());
                files.push((name, got));
            }
        }
        curl.run(LONG)?;
        files
            .iter()
            .try_for_each(|(name, got)| check_same(&self.expected(name)?, got))
    }

    /// Stores values of several sizes in redis and reads them back.
    fn store_values(&self) -> Outcome {
        let host = self.test.host();
        let host = host.trim_matches(['[', ']']);
        for len in [1, 1448, 65_536, 2_000_000_usize] {
            let random = self.wire.scratch().join("random");
            let [value, got] = ["value", "got"].map(|name| self.wire.scratch().join(name));
            write_random_file(&random, len as u64, len as u64)?;
            // redis-cli prints a text unchanged and appends a line end.
            let bytes = std::fs::read(&random)?;
            let text: String = bytes.iter().map(|b| char::from(b'a' + b % 26)).collect();
            std::fs::write(&value, text)?;
            let cli = format!("redis-cli -h {host}");
            let line = format!(
                "{cli} -x set key < {} && {cli} get key > {}",
                value.display(),
                got.display()
            );
            self.program("sh").arg("-c").arg(line).run(LONG)?;
            let trimmed = std::fs::read_to_string(&got)?.trim_end().to_owned();
            std::fs::write(&got, trimmed)?;
            check_same(&value, &got)?;
        }
        Ok(())
    }

    /// Runs an echo client with several connections. Meanwhile checks that the connections are on
    /// the right stack on both machines.
    fn echo(&self, control: &mut ControlConnection) -> Outcome {
        let path = binary("tidelane-load")?;
        let to = format!("{}:{ECHO_PORT}", self.test.host());
        let client = self.program(&path.to_string_lossy()).arg("echo-client");
        let client = client.arg("--connect").arg(to);
        let client = client.arg("--connections").arg(ECHOES);
        let mut client = client.args("--bytes 20000 --seconds 8").spawn()?;
        let all_on = |accelerated: bool, found: (usize, usize)| match accelerated {
            true => found == (ECHOES, 0),
            false => found == (0, ECHOES),
        };
        let is_expected = |side, found| all_on(self.test.accelerates(side), found);
        wait_until(SHORT, "the client's connections on their stack", || {
            client.check_alive()?;
            Ok(is_expected(Side::Client, self.connections()?))
        })?;
        wait_until(SHORT, "the server's connections on their stack", || {
            client.check_alive()?;
            let answer = control.request("connections")?;
            let numbers = answer.split_once(' ').and_then(|(accelerated, kernel)| {
                Some((accelerated.parse().ok()?, kernel.parse().ok()?))
            });
            Ok(numbers.is_some_and(|found| is_expected(Side::Server, found)))
        })?;
        check_load(&client.wait(LONG)?.success()?.json()?)
    }

    /// Returns two numbers of established echo connections on this machine: the connections of the
    /// service, and the connections of the kernel.
    fn connections(&self) -> Result<(usize, usize), Stop> {
        let kernel = self.wire.kernel_connections(self.side, ECHO_PORT)?;
        let sockets = match self.service {
            Some(service) => service.sockets()?,
            None => Vec::new(),
        };
        let end = format!(":{ECHO_PORT}");
        let name = match self.side {
            Side::Server => "local",
            _ => "peer",
        };
        let accelerated = sockets.iter().filter(|socket| {
            socket["state"] == "ESTABLISHED"
                && socket["accelerated"] == true
                && socket[name]
                    .as_str()
                    .is_some_and(|name| name.ends_with(&end))
        });
        Ok((accelerated.count(), kernel))
    }

    /// Checks the counters of this half. A service must have had at least the connections that the
    /// test needs. If the test has loss, a service must also have sent segments again, and a half
    /// on the kernel must have lost frames.
    fn check_counters(&self) -> Outcome {
        let lossy = self.test.has_loss();
        let Some(service) = self.service else {
            for interface in ["ifb0", INTERFACE].into_iter().filter(|_| lossy) {
                let count = lost(self.wire, self.side, interface)?;
                ensure!(count > 0, "no frame was lost on {interface}");
            }
            return Ok(());
        };
        let counters = service.counters()?;
        let opens = match self.side {
            Side::Server => "passive_opens",
            _ => "active_opens",
        };
        // One connection for each file that curl gets alone, at least one for each parallel
        // repetition, two for each of four redis values, and the echo connections.
        let least = FILES.len() as u64 + 1 + u64::from(PARALLEL) + 8 + ECHOES as u64;
        let count = |name: &str| counters[name].as_u64().unwrap_or(0);
        ensure!(
            count(opens) >= least,
            "{opens} is {}, less than {least}: {counters}",
            count(opens)
        );
        ensure!(
            !lossy || count("retrans_segs") > 0,
            "no segment was sent again: {counters}"
        );
        Ok(())
    }
}
