//! Measures the request figures (experiments of `bench/figures` in which clients send requests to a
//! server): builds the wires of each round, and runs the loads on them. A wire is a veth pair
//! between two network namespaces.

use std::{io::Write, thread, time::Duration};

use tidelane_tests::{
    Nginx, Program, Running, Service, Side, Stop, Wire, WireOptions,
    nginx::NginxOptions,
    tools,
    wire::{INTERFACE, SERVER},
};

use super::{
    machine::CpuTimes,
    plan::{Plan, Series, Workload},
    programs::number,
    result::{Results, Sample, Variant},
};

/// Port of the echo servers.
const ECHO_PORT: u16 = 7000;
/// Port of nginx.
const HTTP_PORT: u16 = 80;
/// Time by which a measurement may exceed the planned time before it fails.
const GRACE: Duration = Duration::from_secs(20);

/// Runs all rounds of a plan. If `with_tidelane` is false, leaves out the variants with Tidelane.
pub fn run(plan: &Plan, with_tidelane: bool) -> Result<Results, Stop> {
    let mut results = Results::default();
    let heading = plan.heading();
    heading.print();
    for round in 0..plan.rounds {
        println!("round {} of {}", round + 1, plan.rounds);
        let setup = Setup::new(plan, with_tidelane)?;
        for (index, series) in plan.series.iter().enumerate() {
            for connections in &series.connections {
                let mut variants = setup.variants(series);
                if round % 2 == 1 {
                    variants.reverse();
                }
                for variant in variants {
                    let sample = setup.measure(series, variant, *connections)?;
                    print_sample(series, variant, *connections, &sample);
                    results.add((index, *connections, variant), sample);
                }
            }
        }
    }
    Ok(results)
}

fn print_sample(series: &Series, variant: Variant, connections: u32, sample: &Sample) {
    let case = series.case(variant.name(), connections);
    println!(
        "  {case:<44} {:>9.0} requests/s  p50 {:>7.1} us  p99 {:>8.1} us",
        sample.requests_per_second, sample.p50_us, sample.p99_us
    );
    let _ = std::io::stdout().flush();
}

/// A wire with its servers. The fields with programs stand before `wire`, so that the programs are
/// dropped before the wire.
struct Testbed {
    _servers: Vec<Running>,
    nginx: Option<Nginx>,
    service: Option<Service>,
    wire: Wire,
}

/// The wires of one round.
struct Setup<'a> {
    plan: &'a Plan,
    /// The wire with the servers on the kernel.
    kernel: Testbed,
    /// The wire with the servers on Tidelane. `None` if the run leaves out Tidelane.
    tidelane: Option<Testbed>,
    /// The wire with the stateless AF_XDP echo, if a series uses the echo. The echo answers each
    /// segment without TCP, and thereby shows the upper limit of the rate.
    limit: Option<Testbed>,
}

impl<'a> Setup<'a> {
    fn new(plan: &'a Plan, with_tidelane: bool) -> Result<Self, Stop> {
        let limit = plan.series.iter().any(|series| series.limit);
        Ok(Self {
            plan,
            kernel: Testbed::new(plan, false)?,
            tidelane: with_tidelane
                .then(|| Testbed::new(plan, true))
                .transpose()?,
            limit: limit.then(|| Testbed::limit(plan)).transpose()?,
        })
    }

    /// Returns the variants (combinations of stack and path) to measure for a series, in the order
    /// of the first round.
    fn variants(&self, series: &Series) -> Vec<Variant> {
        let mut variants = vec![Variant::Kernel];
        if self.tidelane.is_some() {
            variants.push(Variant::Tidelane);
        }
        variants.push(Variant::KernelNoIdle);
        if series.limit {
            variants.push(Variant::Limit);
        }
        if series.memory {
            variants.push(Variant::Loopback);
            if self.tidelane.is_some() {
                variants.push(Variant::LocalPath);
            }
        }
        variants
    }

    /// Measures one workload once, in one variant and with one number of connections.
    fn measure(&self, series: &Series, variant: Variant, connections: u32) -> Result<Sample, Stop> {
        let missing = || Stop::Fail("the wire of this variant was not set up".to_owned());
        let testbed = match variant {
            Variant::Kernel | Variant::KernelNoIdle | Variant::Loopback => &self.kernel,
            Variant::Tidelane | Variant::LocalPath => self.tidelane.as_ref().ok_or_else(missing)?,
            Variant::Limit => self.limit.as_ref().ok_or_else(missing)?,
        };
        // The tool `spin` keeps all CPUs from going idle. The tool ends when `_awake` is dropped.
        let _awake = (variant == Variant::KernelNoIdle)
            .then(|| testbed.wire.load_tool(Side::Server, "spin")?.spawn())
            .transpose()?;
        let client = testbed.client(self.plan, series.workload, variant)?;
        let client = client.arg("--connections").arg(connections);
        let running = client.spawn()?;
        let sleep = |seconds: f64| thread::sleep(Duration::from_secs_f64(seconds.max(0.0)));
        // Measure the CPU usage in the middle of the time in which requests are counted, without
        // the first and the last tenth.
        sleep(self.plan.warmup + 0.1 * self.plan.seconds);
        let before = CpuTimes::now();
        sleep(0.8 * self.plan.seconds);
        let after = CpuTimes::now();
        let finished = running.wait(Duration::from_secs_f64(self.plan.seconds) + GRACE)?;
        let line = finished.success()?.json()?;
        let cpu = |cpus: &str| {
            let cpus = cpus.split(',').filter_map(|cpu| cpu.parse::<usize>().ok());
            cpus.map(|cpu| after.busy_since(&before, cpu)).sum::<f64>()
        };
        Ok(Sample {
            requests_per_second: number(&line, "rps")?,
            p50_us: number(&line["latency_us"], "p50")?,
            p99_us: number(&line["latency_us"], "p99")?,
            client_busy: cpu(&self.plan.client_cpus),
            server_busy: cpu(&self.plan.server_cpus),
        })
    }
}

impl Testbed {
    /// Builds a wire and starts the servers of the plan. If `accelerated` is true, the servers use
    /// a new service. Otherwise the servers use the kernel's TCP.
    fn new(plan: &Plan, accelerated: bool) -> Result<Self, Stop> {
        let wire = new_wire(plan)?;
        let service = accelerated
            .then(|| wire.service_on_cores(Side::Server, &plan.server_cpus, &[]))
            .transpose()?;
        let uses = |workload: &dyn Fn(Workload) -> bool| {
            plan.series.iter().any(|series| workload(series.workload))
        };
        let mut servers = Vec::new();
        if uses(&|workload| workload == Workload::Echo) {
            let server = wire
                .load_tool(Side::Server, "echo-server")?
                .cpus(&plan.server_cpus);
            let server = server.arg("--port").arg(ECHO_PORT);
            servers.push(wire.start_server(server, service.as_ref(), ECHO_PORT)?);
        }
        let nginx = if uses(&|workload| workload != Workload::Echo) {
            let cpus = Some(plan.server_cpus.clone());
            let options = NginxOptions {
                workers: 1,
                port: HTTP_PORT,
                cpus,
                ..Default::default()
            };
            Some(Nginx::start(&wire, service.as_ref(), &options)?)
        } else {
            None
        };
        Ok(Self {
            _servers: servers,
            nginx,
            service,
            wire,
        })
    }

    /// Builds a wire and starts the stateless AF_XDP echo on it.
    fn limit(plan: &Plan) -> Result<Self, Stop> {
        let wire = new_wire(plan)?;
        let echo = wire
            .load_tool(Side::Server, "xsk-echo")?
            .cpus(&plan.server_cpus);
        let echo = echo
            .arg("--interface")
            .arg(INTERFACE)
            .arg("--address")
            .arg(SERVER);
        let mut echo = echo.arg("--port").arg(ECHO_PORT).spawn()?;
        tools::wait_until(Duration::from_secs(10), "the AF_XDP echo", || {
            if !echo.alive() {
                return Err(Stop::Fail(format!("xsk-echo ended: {:?}", echo.output())));
            }
            Ok(echo.output().0.contains("echoing"))
        })?;
        Ok(Self {
            _servers: vec![echo],
            nginx: None,
            service: None,
            wire,
        })
    }

    /// Returns the client of one measurement, without the option for the number of connections.
    fn client(&self, plan: &Plan, workload: Workload, variant: Variant) -> Result<Program, Stop> {
        let local = matches!(variant, Variant::LocalPath | Variant::Loopback);
        let side = if local { Side::Server } else { Side::Client };
        let address = if variant == Variant::Loopback {
            "127.0.0.1".to_owned()
        } else {
            SERVER.to_string()
        };
        let (tool, port) = match workload {
            Workload::Echo => ("echo-client", ECHO_PORT),
            Workload::NginxKeepAlive | Workload::NginxClose => ("http-client", HTTP_PORT),
        };
        let mut client = self.wire.load_tool(side, tool)?.cpus(&plan.client_cpus);
        client = client.arg("--connect").arg(format!("{address}:{port}"));
        client = client
            .arg("--seconds")
            .arg(plan.seconds)
            .arg("--warmup")
            .arg(plan.warmup);
        if let (Some(nginx), true) = (&self.nginx, workload != Workload::Echo) {
            client = client
                .args("--path /64 --body")
                .arg(nginx.file("64").display());
        }
        if workload == Workload::NginxClose {
            client = client.arg("--close");
        }
        if variant == Variant::LocalPath {
            client = client.on(self.service.as_ref());
        }
        Ok(client)
    }
}

fn new_wire(plan: &Plan) -> Result<Wire, Stop> {
    let congestion = Some(plan.congestion.clone());
    Wire::with(&WireOptions {
        congestion,
        ..Default::default()
    })
}
