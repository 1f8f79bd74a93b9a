//! Two machines on one link with a kernel each: accelerated programs on both, or on one of them
//! with the kernel's TCP on the other.
//!
//! Each test runs on both machines, as a server or as a client: [`tidelane_tests::far`].

use std::{path::PathBuf, time::Duration};

use tidelane_tests::{
    Nginx, Outcome, Program, Running, Service, Side, Stop, Wire, command, ensure, fail,
    far::{Far, Talk},
    nginx::{FILES, NginxOptions},
    tools::{binary, env_number, require_tools, wait_until},
    wire::{INTERFACE, SERVER, SERVER_V6, write_random_file},
};

use crate::support::{SHORT, check_load, check_same};

/// A file beside nginx's own, of TIDELANE_BULK_MIB, and the seed of its bytes.
const BULK: &str = "bulk";
const BULK_SEED: u64 = 99;
/// Time limit that suffices for the bulk file.
const LONG: Duration = Duration::from_secs(60);
/// Port of the echo server. Its concurrent connections follow.
const ECHO_PORT: u16 = 7000;
const ECHOES: usize = 8;
/// Concurrent connections of one client program.
const PARALLEL: u32 = 4;

/// The tests, in the order in which both machines run them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    BothAccelerated = 1,
    KernelClient,
    KernelServer,
    OverIpv6,
    LossBeforeAKernelClient,
    LossBeforeAKernelServer,
}

/// nginx, redis and the echo on one machine, their clients on the other, all accelerated.
pub fn both_accelerated() -> Outcome {
    run(Test::BothAccelerated)
}

/// Accelerated servers, and clients on the other kernel's stack.
pub fn kernel_client() -> Outcome {
    run(Test::KernelClient)
}

/// Accelerated clients, and servers on the other kernel's stack.
pub fn kernel_server() -> Outcome {
    run(Test::KernelServer)
}

/// As [`both_accelerated`], over IPv6.
pub fn over_ipv6() -> Outcome {
    run(Test::OverIpv6)
}

/// 1 % of the frames of each direction is lost at the kernel that is the client of accelerated
/// servers.
pub fn loss_before_a_kernel_client() -> Outcome {
    run(Test::LossBeforeAKernelClient)
}

/// 1 % of the frames of each direction is lost at the kernel that serves accelerated clients.
pub fn loss_before_a_kernel_server() -> Outcome {
    run(Test::LossBeforeAKernelServer)
}

fn run(test: Test) -> Outcome {
    let far = Far::here()?;
    require_tools(&[
        "curl",
        "nginx",
        "redis-server",
        "redis-cli",
        "tc",
        "ethtool",
    ])?;
    let wire = far.wire()?;
    let service = match test.accelerates(far.side) {
        true => Some(wire.service_with(far.side, &[])?),
        false => None,
    };
    if test.has_loss() && service.is_none() {
        lose_frames(&wire, far.side)?;
    }
    let end = End {
        test,
        side: far.side,
        wire: &wire,
        service: service.as_ref(),
    };
    match far.side {
        Side::Server => end.serve(&far),
        _ => end.ask(&far),
    }
}

impl Test {
    fn accelerates(self, side: Side) -> bool {
        match self {
            Self::BothAccelerated | Self::OverIpv6 => true,
            Self::KernelClient | Self::LossBeforeAKernelClient => side == Side::Server,
            Self::KernelServer | Self::LossBeforeAKernelServer => side == Side::Client,
        }
    }

    fn has_loss(self) -> bool {
        matches!(
            self,
            Self::LossBeforeAKernelClient | Self::LossBeforeAKernelServer
        )
    }

    /// Returns the server's address in the form that stands before a port.
    fn host(self) -> String {
        match self {
            Self::OverIpv6 => format!("[{SERVER_V6}]"),
            _ => SERVER.to_string(),
        }
    }

    fn bulk_len(self) -> u64 {
        let variable = match self.has_loss() {
            true => "TIDELANE_LOSS_MIB",
            false => "TIDELANE_BULK_MIB",
        };
        env_number(variable, 8) << 20
    }
}

/// Makes netem lose 1 % of the frames that this machine's kernel sends and receives.
fn lose_frames(wire: &Wire, side: Side) -> Outcome {
    let space = wire.namespace(side);
    // Joined segments would be lost together, and rarely.
    let line = format!("-K {INTERFACE} tso off gso off gro off");
    wire.program(side, "ethtool").args(&line).run(SHORT)?;
    let inside = |line: &str| {
        let words = ["ip", "netns", "exec", &space].into_iter();
        command(&words.chain(line.split(' ')).collect::<Vec<_>>()).map(drop)
    };
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

/// Returns the number of frames that netem has dropped on an interface.
fn lost(wire: &Wire, side: Side, interface: &str) -> Result<u64, Stop> {
    let space = wire.namespace(side);
    let text = command(&["tc", "-n", &space, "-s", "qdisc", "show", "dev", interface])?;
    let netem = text.split("netem").nth(1).unwrap_or_default();
    let dropped = netem.split("(dropped ").nth(1);
    let number = dropped.and_then(|rest| rest.split(',').next());
    Ok(number.unwrap_or_default().parse()?)
}

/// One end of a test.
struct End<'a> {
    test: Test,
    side: Side,
    wire: &'a Wire,
    service: Option<&'a Service>,
}

impl End<'_> {
    /// Runs the server's half: serves until the client is done.
    fn serve(&self, far: &Far) -> Outcome {
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
        let mut talk = far.meet(self.wire, self.test as u32)?;
        loop {
            match talk.hear()?.as_str() {
                "connections" => {
                    let (accelerated, kernel) = self.connections()?;
                    talk.say(&format!("{accelerated} {kernel}"))?;
                }
                "done" => break,
                other => fail!("the client said {other}"),
            }
        }
        self.check_counters()?;
        talk.say("done")
    }

    fn echo_server(&self) -> Result<Running, Stop> {
        let tool = self.wire.load_tool(Side::Server, "echo-server")?;
        let tool = match self.test {
            Test::OverIpv6 => tool.arg("--address").arg("::"),
            _ => tool,
        };
        let tool = tool.arg("--port").arg(ECHO_PORT);
        self.wire.start_server(tool, self.service, ECHO_PORT)
    }

    /// Runs the client's half.
    fn ask(&self, far: &Far) -> Outcome {
        let mut talk = far.meet(self.wire, self.test as u32)?;
        self.fetch_files()?;
        self.fetch_in_parallel()?;
        self.store_values()?;
        self.echo(&mut talk)?;
        self.check_counters()?;
        ensure!(talk.ask("done")? == "done", "the server is not content");
        Ok(())
    }

    /// Returns a program of this end, on the stack that the test gives it. A fall back to the
    /// kernel fails.
    fn program(&self, name: &str) -> Program {
        self.wire.program(self.side, name).on(self.service).strict()
    }

    /// Returns the expected bytes of a file, which follow from its seed on either machine.
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
            // The value is text, so that redis-cli's output differs by the line end only.
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

    /// Runs long connections, while both machines check which stack has them.
    fn echo(&self, talk: &mut Talk) -> Outcome {
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
            let answer = talk.ask("connections")?;
            let numbers = answer.split_once(' ').and_then(|(accelerated, kernel)| {
                Some((accelerated.parse().ok()?, kernel.parse().ok()?))
            });
            Ok(numbers.is_some_and(|found| is_expected(Side::Server, found)))
        })?;
        check_load(&client.wait(LONG)?.success()?.json()?)
    }

    /// Returns the numbers of established echo connections here: accelerated ones, and the
    /// kernel's.
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

    /// Demands that the service carried all connections of the test, and that frames were lost if
    /// the test demands this.
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
        // Single files, some of them in parallel, two connections for each of four values, and the
        // echo.
        let least = FILES.len() as u64 + 1 + u64::from(PARALLEL) + 8 + ECHOES as u64;
        let count = |name: &str| counters[name].as_u64().unwrap_or(0);
        ensure!(
            count(opens) >= least,
            "{opens} is {}, not {least}: {counters}",
            count(opens)
        );
        ensure!(
            !lossy || count("retrans_segs") > 0,
            "no segment was sent again: {counters}"
        );
        Ok(())
    }
}
