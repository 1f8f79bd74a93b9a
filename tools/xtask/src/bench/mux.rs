//! Figures (experiments of `bench/figures`) of the mux: packets per second in each direction, by
//! frame length and number of mux ports.
//!
//! The mux (`service/mux`) shares one NIC between programs with a network stack of their own. Each
//! program has a mux port, a pair of packet rings.
//!
//! A case has a direction, a frame length, a number of mux ports and a number of cores. The NIC of
//! a case is a substitute in memory, or an AF_XDP socket on the wire. The wire is a veth pair
//! between two network namespaces. For a case on the wire, each round also measures a program that
//! sends or receives on the AF_XDP socket without a mux. The rate of this program is the upper
//! limit of the interface.
//!
//! A case may have a baseline, which is another case. Each round measures the baseline once more,
//! directly before or after the case, so that both rates come from the same phase of a machine
//! whose speed changes within seconds.

use std::{collections::BTreeMap, io::Write, time::Duration};

use serde::Deserialize;
use tidelane_tests::{
    Side, Stop, Wire, command_in,
    machine::median,
    wire::{CLIENT, INTERFACE, SERVER},
};

use super::{
    heading::{Heading, Target},
    plot,
    programs::number,
    rows::{Row, value_row},
};

/// Time limit of a measurement.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the default of [`Case::train`].
fn one() -> u32 {
    1
}

/// The plan of a mux figure.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct MuxPlan {
    /// Title of the table, one line.
    pub title: String,
    /// Source of the target.
    pub paper: String,
    /// Number of rounds. A round measures each case once, and its baseline once.
    pub rounds: u32,
    /// Seconds of a measurement.
    pub seconds: f64,
    /// The cases.
    #[serde(rename = "case")]
    pub cases: Vec<Case>,
    /// Targets for single rows.
    #[serde(default, rename = "target")]
    pub targets: Vec<Target>,
}

/// One case of a mux figure.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Name of the case.
    pub name: String,
    /// Direction of the packets, as the programs see it: `send` to the NIC, `receive` from the NIC,
    /// or `between` mux ports.
    pub direction: String,
    /// Length of a frame in bytes, with its frame check sequence of 4 bytes.
    pub bytes: u32,
    /// Number of mux ports of each mux.
    pub ports: u32,
    /// Number of packets in a row that the NIC in memory delivers to the same mux port. The default
    /// is 1.
    #[serde(default = "one")]
    pub train: u32,
    /// CPUs of the muxes, separated by commas. Each CPU has one mux.
    pub mux_cpus: String,
    /// CPU of the programs. `None` if the CPU of each mux also runs the programs of this mux.
    pub program_cpu: Option<String>,
    /// True if the NIC is an AF_XDP socket on a veth. False if it is a substitute in memory.
    #[serde(default)]
    pub veth: bool,
    /// Time in microseconds for which the program thread pauses after each turn over its mux ports.
    /// The default is zero.
    #[serde(default)]
    pub program_pause_us: u32,
    /// Name of another case in memory. The result has the ratio of this case's rate to the rate of
    /// the other case. A case on a veth has no baseline.
    pub baseline: Option<String>,
}

impl MuxPlan {
    /// Returns the baseline of `case`; `None` if the case has none. Fails if the plan has no case
    /// of this name, or if one of the two cases is on a veth.
    fn baseline_of(&self, case: &Case) -> Result<Option<&Case>, Stop> {
        let Some(name) = &case.baseline else {
            return Ok(None);
        };
        let found = self.cases.iter().find(|other| other.name == *name);
        match found.filter(|other| !other.veth && !case.veth) {
            Some(other) => Ok(Some(other)),
            None => Err(Stop::Fail(format!(
                "the plan has no baseline {name:?} in memory for the case {:?}",
                case.name
            ))),
        }
    }

    /// Returns the fields that the plans of all kinds of figures have in common.
    pub fn heading(&self) -> Heading {
        Heading {
            title: self.title.clone(),
            paper: self.paper.clone(),
            rounds: self.rounds,
            placement: "a mux on CPU 1 and the programs on CPU 0, unless the case says otherwise; \
                        all headers and checksums of sent packets are checked"
                .to_owned(),
            targets: self.targets.clone(),
        }
    }
}

/// The values of one measurement.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Packets per second through the mux.
    packets: f64,
    /// Packets per second without a mux. `None` if the NIC is in memory.
    without_mux: Option<f64>,
    /// Packets per second of the baseline. `None` for a case without a baseline.
    baseline: Option<f64>,
}

impl Sample {
    /// Returns the text that follows the rate of a case.
    fn suffix(&self) -> String {
        let mut suffix = String::new();
        if let Some(without_mux) = self.without_mux {
            suffix += &format!(", without a mux {:.3}", without_mux / 1e6);
        }
        if let Some(baseline) = self.baseline {
            suffix += &format!(", baseline {:.3}", baseline / 1e6);
        }
        suffix
    }
}

/// The results, in the order of the rounds.
#[derive(Debug, Default)]
pub struct Results {
    /// Samples of each case, by the name of the case.
    cases: BTreeMap<String, Vec<Sample>>,
    /// Rates at which one core copies memory, in bytes per second. Each round has one rate.
    copy: Vec<f64>,
}

/// Runs all rounds of a plan.
pub fn run(plan: &MuxPlan) -> Result<Results, Stop> {
    let heading = plan.heading();
    heading.print();
    for case in &plan.cases {
        plan.baseline_of(case)?;
    }
    let wire = Wire::new()?;
    let mut results = Results::default();
    for round in 0..plan.rounds {
        println!("round {} of {}", round + 1, plan.rounds);
        results.copy.push(copy_rate(&wire)?);
        let is_reversed = round % 2 == 1;
        let mut cases: Vec<&Case> = plan.cases.iter().collect();
        if is_reversed {
            cases.reverse();
        }
        for case in cases {
            let sample = measure(plan, &wire, case, is_reversed)?;
            println!(
                "  {:<36} {:>8.3} M/s{}",
                case.name,
                sample.packets / 1e6,
                sample.suffix()
            );
            let _ = std::io::stdout().flush();
            results
                .cases
                .entry(case.name.clone())
                .or_default()
                .push(sample);
        }
    }
    Ok(results)
}

/// Returns the bandwidth of one core that copies memory, in bytes per second.
fn copy_rate(wire: &Wire) -> Result<f64, Stop> {
    let tool = wire.load_tool(Side::Server, "mux")?;
    let line = tool.args("--direction send --copy").run(LIMIT)?.json()?;
    number(&line, "bytes_per_second")
}

/// Measures a case once, and its baseline once. If `baseline_first` is true, measures the baseline
/// before the case.
fn measure(plan: &MuxPlan, wire: &Wire, case: &Case, baseline_first: bool) -> Result<Sample, Stop> {
    if case.veth {
        return Ok(Sample {
            packets: load_on_veth(plan, wire, case, false)?,
            without_mux: Some(load_on_veth(plan, wire, case, true)?),
            baseline: None,
        });
    }
    let rate = |case: &Case| load(plan, wire, case, &[]);
    let baseline = plan.baseline_of(case)?;
    let (packets, baseline) = if baseline_first {
        let baseline = baseline.map(rate).transpose()?;
        (rate(case)?, baseline)
    } else {
        (rate(case)?, baseline.map(rate).transpose()?)
    };
    Ok(Sample {
        packets,
        without_mux: None,
        baseline,
    })
}

/// Measures a case on the wire, with the mux or without it. If the direction is `receive`, a
/// program at the other end of the wire sends the packets. This program has no mux.
fn load_on_veth(plan: &MuxPlan, wire: &Wire, case: &Case, without_mux: bool) -> Result<f64, Stop> {
    let server_mac = link_address(wire, Side::Server)?;
    let client_mac = link_address(wire, Side::Client)?;
    let sender = if case.direction == "receive" {
        let tool = wire.load_tool(Side::Client, "mux")?;
        let tool = tool.args("--direction send --bare --mux-cpus 0");
        let tool = tool.args(&format!("--interface {INTERFACE} --ports {}", case.ports));
        let tool = tool.args(&format!("--address {CLIENT} --peer {SERVER}"));
        let tool = tool.args(&format!("--mac {client_mac} --peer-mac {server_mac}"));
        let tool = tool.arg("--bytes").arg(case.bytes);
        Some(tool.arg("--seconds").arg(plan.seconds + 1.5).spawn()?)
    } else {
        None
    };
    let mut more = vec![
        format!("--interface {INTERFACE} --address {SERVER} --peer {CLIENT}"),
        format!("--mac {server_mac} --peer-mac {client_mac}"),
    ];
    if without_mux {
        more.push("--bare".to_owned());
    }
    let packets = load(plan, wire, case, &more)?;
    if let Some(sender) = sender {
        sender.wait(LIMIT)?.success()?;
    }
    Ok(packets)
}

/// Returns the MAC address of the wire's interface at `side`.
fn link_address(wire: &Wire, side: Side) -> Result<String, Stop> {
    let (space, file) = (
        wire.namespace(side),
        format!("/sys/class/net/{INTERFACE}/address"),
    );
    let text = command_in(&space, &["cat", &file])?;
    Ok(text.trim().to_owned())
}

/// Runs the load tool `mux` for a case, and returns the packets per second. `more` are further
/// arguments.
fn load(plan: &MuxPlan, wire: &Wire, case: &Case, more: &[String]) -> Result<f64, Stop> {
    let mut tool = wire.load_tool(Side::Server, "mux")?;
    tool = tool.arg("--direction").arg(&case.direction);
    tool = tool.arg("--bytes").arg(case.bytes);
    tool = tool.arg("--ports").arg(case.ports);
    tool = tool.arg("--train").arg(case.train);
    tool = tool.arg("--seconds").arg(plan.seconds);
    tool = tool.arg("--mux-cpus").arg(&case.mux_cpus);
    if case.program_pause_us > 0 {
        tool = tool.arg("--program-pause-us").arg(case.program_pause_us);
    }
    if let Some(cpu) = &case.program_cpu {
        tool = tool.arg("--program-cpu").arg(cpu);
    }
    for arguments in more {
        tool = tool.args(arguments);
    }
    number(&tool.run(LIMIT)?.json()?, "packets_per_second")
}

impl Results {
    fn values(&self, case: &str, of: impl Fn(&Sample) -> Option<f64>) -> Vec<f64> {
        let samples = self.cases.get(case).into_iter().flatten();
        samples.filter_map(of).collect()
    }

    /// Returns the rows of the result.
    pub fn rows(&self, plan: &MuxPlan) -> Vec<Row> {
        let heading = plan.heading();
        let mut rows = vec![value_row(
            &heading,
            "memory",
            "copied_bytes_per_second",
            &self.copy,
        )];
        for case in &plan.cases {
            let name = &case.name;
            let packets = self.values(name, |sample| Some(sample.packets));
            let bits: Vec<f64> = packets
                .iter()
                .map(|packets| packets * f64::from(case.bytes) * 8.0)
                .collect();
            rows.push(value_row(&heading, name, "packets_per_second", &packets));
            rows.push(value_row(&heading, name, "bits_per_second", &bits));
            let of_bare_socket =
                self.values(name, |sample| Some(sample.packets / sample.without_mux?));
            if !of_bare_socket.is_empty() {
                rows.push(value_row(
                    &heading,
                    name,
                    "share_of_bare_af_xdp",
                    &of_bare_socket,
                ));
            }
            if let Some(other) = &case.baseline {
                let share = |sample: &Sample| Some(sample.packets / sample.baseline?.max(1.0));
                let shares = self.values(name, share);
                let metric = format!("share_of_{}", other.replace([' ', ','], "_"));
                rows.push(value_row(&heading, name, &metric, &shares));
            }
        }
        rows
    }

    /// Returns the plot: one bar for each case.
    pub fn svg(&self, plan: &MuxPlan) -> String {
        let groups: Vec<(&str, Vec<f64>)> = plan
            .cases
            .iter()
            .map(|case| {
                let packets = self.values(&case.name, |sample| Some(sample.packets / 1e6));
                (case.name.as_str(), vec![median(&packets)])
            })
            .collect();
        plot::bars(&plan.title, "million packets/s", &["mux"], &groups)
    }
}
