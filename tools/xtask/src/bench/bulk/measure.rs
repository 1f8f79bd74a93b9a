//! Measures bulk transfer from a sender to a receiver, on a new wire for each measurement. A wire
//! is a veth pair between two network namespaces. The case of the plan says which impairments the
//! wire has, and the pairing says which stack each end uses.

use std::{thread, time::Duration};

use tidelane_tests::{
    Program, Running, Service, Side, Stop, Wire, WireOptions, command_in,
    impair::{Impairment, impaired_wire},
    wire::{INTERFACE, SERVER},
};

use super::plan::{BulkPlan, Case, Pairing};
use crate::bench::{machine::CpuTimes, programs::number};

/// TCP port of the sink, the receiving program.
const PORT: u16 = 7000;
/// Seconds that a measurement may take beyond the plan, because a slow machine opens connections
/// slowly.
const GRACE: f64 = 25.0;

/// The values of one measurement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Bits per second that the receiving program read, summed over all flows.
    pub goodput_bps: f64,
    /// Jain's fairness index of the flows' goodput.
    pub jain: f64,
    /// Number of segments that the sender's stack retransmitted from the start of the sender to the
    /// end of the sink (the receiving program), including the warm-up.
    pub retransmitted: f64,
    /// Number of DSACK blocks that the sender's stack received in the same time. The wire does not
    /// duplicate packets, so that each block reports a spurious retransmission.
    pub dsacks: f64,
    /// Mean number of busy CPUs among the CPUs of both ends, during about the middle 80 % of the
    /// counted time.
    pub busy: f64,
}

/// Side of the wire on which the sender runs.
const SENDER: Side = Side::Client;
/// Side of the wire on which the receiver runs.
const RECEIVER: Side = Side::Server;

/// A wire, with the services and the forwarding program that run on it. `wire` is the last field,
/// because the services and the program must be dropped before the wire.
struct Testbed {
    /// The sender's service. `None` if the sender is on the kernel.
    sender: Option<Service>,
    /// The receiver's service. `None` if the receiver is on the kernel.
    receiver: Option<Service>,
    /// The program that forwards packets in the middle namespace, if there is one.
    _impair: Option<Running>,
    wire: Wire,
}

/// Measures one case with one pairing of stacks.
pub fn measure(plan: &BulkPlan, case: &Case, pairing: Pairing) -> Result<Sample, Stop> {
    let testbed = Testbed::new(plan, case, pairing)?;
    let sink = testbed.sink(plan)?;
    let sink = testbed
        .wire
        .start_server(sink, testbed.receiver.as_ref(), PORT)?;
    let before = testbed.retransmissions()?;
    let source = testbed.source(plan)?.spawn()?;
    thread::sleep(Duration::from_secs_f64(plan.warmup + 0.1 * plan.seconds));
    let clock = CpuTimes::now();
    thread::sleep(Duration::from_secs_f64(0.8 * plan.seconds));
    let later = CpuTimes::now();
    let limit = Duration::from_secs_f64(plan.seconds + GRACE);
    let line = sink.wait(limit)?.success()?.json()?;
    let after = testbed.retransmissions()?;
    source.wait(limit)?.success()?;
    let cpus = [&plan.sender_cpus, &plan.receiver_cpus];
    let cpus = cpus.into_iter().flat_map(|list| list.split(','));
    let busy = cpus
        .filter_map(|cpu| cpu.parse().ok())
        .map(|cpu| later.busy_since(&clock, cpu));
    Ok(Sample {
        goodput_bps: number(&line, "goodput_bps")?,
        jain: number(&line, "jain")?,
        retransmitted: after.0 - before.0,
        dsacks: after.1 - before.1,
        busy: busy.sum(),
    })
}

impl Testbed {
    /// Builds the wire of a case, and starts the services of a pairing.
    fn new(plan: &BulkPlan, case: &Case, pairing: Pairing) -> Result<Self, Stop> {
        let (wire, impair) = make_wire(plan, case)?;
        let options = ["--congestion", &plan.congestion];
        let service = |wanted: bool, side, cpus| {
            wanted
                .then(|| wire.service_on_cores(side, cpus, &options))
                .transpose()
        };
        let sender = service(pairing.tidelane_sends(), SENDER, &plan.sender_cpus)?;
        let receiver = service(pairing.tidelane_receives(), RECEIVER, &plan.receiver_cpus)?;
        Ok(Self {
            sender,
            receiver,
            _impair: impair,
            wire,
        })
    }

    /// Returns the receiving program.
    fn sink(&self, plan: &BulkPlan) -> Result<Program, Stop> {
        let tool = self.wire.load_tool(RECEIVER, "bulk-sink")?;
        let tool = tool.cpus(&plan.receiver_cpus).arg("--port").arg(PORT);
        let tool = tool.arg("--flows").arg(plan.flows);
        let tool = tool.arg("--warmup").arg(plan.warmup);
        Ok(tool.arg("--seconds").arg(plan.seconds))
    }

    /// Returns the sending program.
    fn source(&self, plan: &BulkPlan) -> Result<Program, Stop> {
        let tool = self.wire.load_tool(SENDER, "bulk-source")?;
        let tool = tool.cpus(&plan.sender_cpus).arg("--flows").arg(plan.flows);
        let tool = tool.arg("--connect").arg(format!("{SERVER}:{PORT}"));
        let seconds = plan.warmup + plan.seconds + GRACE;
        Ok(tool.arg("--seconds").arg(seconds).on(self.sender.as_ref()))
    }

    /// Returns two counters of the sender's stack: the number of retransmitted segments, and the
    /// number of received DSACK blocks.
    fn retransmissions(&self) -> Result<(f64, f64), Stop> {
        if let Some(service) = &self.sender {
            let counters = service.counters()?;
            let segments = number(&counters, "retrans_segs")?;
            return Ok((segments, number(&counters, "dsack_recv")?));
        }
        let space = self.wire.namespace(SENDER);
        let read = |file: &str| command_in(&space, &["cat", file]);
        kernel_retransmissions(&read("/proc/net/snmp")?, &read("/proc/net/netstat")?)
    }
}

/// Builds the wire of a case. If the wire has a third namespace between the ends, also starts
/// `tidelane-impair` there, which forwards the packets, and drops and delays as many of them as
/// `case` says.
fn make_wire(plan: &BulkPlan, case: &Case) -> Result<(Wire, Option<Running>), Stop> {
    let middle = case.middle || !case.is_clean();
    let options = WireOptions {
        congestion: Some(plan.congestion.clone()),
        bottleneck: plan.bottleneck_mbit.filter(|_| middle),
        ..Default::default()
    };
    let (wire, impair) = if middle {
        let impairment = Impairment {
            loss_ppm: case.loss_ppm,
            reorder_ppm: case.reorder_ppm,
        };
        let seconds = (plan.warmup + plan.seconds + 2.0 * GRACE) as u64;
        let (wire, impair) = impaired_wire(&options, &impairment, seconds)?;
        (wire, Some(impair))
    } else {
        (Wire::with(&options)?, None)
    };
    if !plan.offloads {
        for side in [SENDER, RECEIVER] {
            wire.set_offloads(side, INTERFACE, "tso off gso off")?;
        }
    }
    Ok((wire, impair))
}

/// Returns the number of retransmitted segments and the number of received DSACK blocks from the
/// texts of `/proc/net/snmp` and `/proc/net/netstat`. The kernel counts each DSACK block in one of
/// two counters: TCPDSACKRecv if the block lies below the cumulative ACK, else TCPDSACKOfoRecv.
fn kernel_retransmissions(snmp: &str, netstat: &str) -> Result<(f64, f64), Stop> {
    let of = |text: &str, group: &str, name: &str| {
        let missing = || Stop::Fail(format!("the kernel does not count {name}"));
        counter(text, group, name).ok_or_else(missing)
    };
    let blocks = of(netstat, "TcpExt:", "TCPDSACKRecv")?;
    let blocks = blocks + of(netstat, "TcpExt:", "TCPDSACKOfoRecv")?;
    Ok((of(snmp, "Tcp:", "RetransSegs")?, blocks))
}

/// Returns the counter `name` of `group` from the text of `/proc/net/snmp` or `/proc/net/netstat`.
/// Each group, such as `Tcp:`, has a line of names and then a line of values.
fn counter(text: &str, group: &str, name: &str) -> Option<f64> {
    let mut lines = text.lines().filter(|line| line.starts_with(group));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|word| word == name)?;
    values.split_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{counter, kernel_retransmissions};

    #[test]
    fn dsack_blocks_above_the_cumulative_ack_count() {
        let snmp = "Tcp: InSegs RetransSegs\nTcp: 5 42\n";
        let netstat = "TcpExt: TCPDSACKRecv TCPDSACKOfoRecv\nTcpExt: 7 2\n";
        let counts = kernel_retransmissions(snmp, netstat);
        assert_eq!(counts.expect("all counters"), (42.0, 9.0));
        let netstat = "TcpExt: TCPDSACKRecv\nTcpExt: 7\n";
        assert!(kernel_retransmissions(snmp, netstat).is_err());
    }

    #[test]
    fn counters_are_found_by_group_and_name() {
        let text = "Ip: InReceives A\nIp: 7 8\nTcp: InSegs RetransSegs\nTcp: 5 42\n";
        assert_eq!(counter(text, "Tcp:", "RetransSegs"), Some(42.0));
        assert_eq!(counter(text, "Ip:", "RetransSegs"), None);
        assert_eq!(counter(text, "Udp:", "RetransSegs"), None);
    }
}
