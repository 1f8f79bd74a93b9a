//! Checks of the counters of a mux port with a well-behaved program. A mux port is a pair of packet
//! rings through which a program with a TCP/IP stack of its own shares the NIC.

use tidelane_mux::{PortCounters, SendRate, SendRefusal};
use tidelane_time::Instant;

use super::{frame, owners::PortKey, rate_check::RateCheck, tap_check::TapCheck};
use crate::ledger::{Violation, violation};

/// Name of the rule that the mux refuses no packet of a well-behaved stack.
const HONEST: &str = "no packet of an honest stack is refused";
/// Name of the rule about the rate at which the mux port sends.
const RATE: &str = "a port sends at most at its rate";
/// Length of an Ethernet header in bytes.
const ETHERNET: usize = 14;
/// Length of the longest headers of a segment in bytes: Ethernet, IPv6, and TCP with all options.
const HEADERS_LEN_MAX: usize = ETHERNET + 40 + 60;

/// The checks of the mux port of a well-behaved program.
#[derive(Debug)]
pub struct ProgramChecks {
    key: PortKey,
    /// Number of packets that the program has published.
    published: u64,
    /// Number of published frames that may be too long for the smallest MTU of the run: frames that
    /// are longer than this MTU permits, and GSO frames (which the mux splits into segments) whose
    /// segments may be longer.
    long: u64,
    /// Number of packets in the frames that `long` counts, minus the number of these frames.
    long_segments: u64,
    /// The smallest MTU of the run in bytes. `None` if the MTU does not change.
    mtu_min: Option<u32>,
    /// Number of RSTs that smoltcp has published. The operator's rules may refuse these RSTs,
    /// because smoltcp also sends a RST for a connection whose SYN it has not sent.
    stray_resets: u64,
    /// True if the program uses smoltcp.
    is_smoltcp: bool,
    /// Number of packets that have found no room in the ring to the program, as the mux had counted
    /// them at the most recent check.
    pub overruns: u64,
    /// True if the claims have moved to another mux port, so that the mux refuses the program's
    /// packets.
    pub is_retired: bool,
    /// The check of the rate at which the mux port sends.
    pub rate: RateCheck,
    /// The check of the mux port's tap, which copies the frames for a capture. `None` without a
    /// tap.
    pub tap: Option<TapCheck>,
}

impl ProgramChecks {
    /// Creates the checks of a mux port without a rate limit and without a tap. The caller may then
    /// set the fields `rate` and `tap`. `mtu_min` is the smallest MTU of the run in bytes, or
    /// `None` if the MTU does not change.
    pub fn new(key: PortKey, mtu_min: Option<u32>, is_smoltcp: bool) -> Self {
        Self {
            key,
            published: 0,
            long: 0,
            long_segments: 0,
            mtu_min,
            stray_resets: 0,
            is_smoltcp,
            overruns: 0,
            is_retired: false,
            rate: RateCheck::new(Instant::ZERO, SendRate::default()),
            tap: None,
        }
    }

    /// Records a frame that the program has published. `segment_size` is the number of payload
    /// bytes of a segment, and zero for a frame without GSO. `packets` is the number of packets in
    /// the frame.
    pub fn publish(&mut self, frame: &[u8], segment_size: u16, packets: u64) {
        self.published += packets;
        let is_reset = frame::read(frame).is_some_and(|seen| seen.is_reset());
        self.stray_resets += u64::from(self.is_smoltcp && is_reset);
        let len = match segment_size {
            0 => frame.len(),
            size => HEADERS_LEN_MAX + usize::from(size),
        };
        if self
            .mtu_min
            .is_some_and(|mtu| len > ETHERNET + mtu as usize)
        {
            self.long += 1;
            self.long_segments += packets - 1;
        }
        if let Some(tap) = &self.tap {
            tap.observe(frame);
        }
    }

    fn broken(&self, now: Instant, rule: &'static str, counters: &PortCounters) -> Violation {
        violation(now, rule, format!("{:?}: {counters:?}; {self:?}", self.key))
    }

    /// Checks the counters after a step of the service. `may_overrun` is true if a packet of the
    /// step may have found no room in the ring to the program.
    pub fn check_step(
        &mut self,
        now: Instant,
        counters: &PortCounters,
        may_overrun: bool,
    ) -> Result<(), Violation> {
        if !self.rate.permits_packets(now, counters.sent) {
            return Err(self.broken(now, RATE, counters));
        }
        if counters.overruns > self.overruns && !may_overrun {
            return Err(self.broken(now, "only a full ring loses packets", counters));
        }
        self.overruns = counters.overruns;
        Ok(())
    }

    /// Checks that the limit of bytes per second permits a frame that has left the host.
    pub fn check_leaving(&mut self, now: Instant, frame: &[u8]) -> Result<(), Violation> {
        match self.rate.leaves(now, frame.len()) {
            true => Ok(()),
            false => Err(self.broken(now, RATE, &PortCounters::default())),
        }
    }

    /// Checks that each refusal of a packet has one of three reasons: the program is retired and
    /// has lost its 3-tuples, the packet may have been longer than the MTU, or the packet may have
    /// been a RST of smoltcp that a rule refuses.
    fn check_refused(&self, now: Instant, counters: &PortCounters) -> Result<(), Violation> {
        let is_right = |(refusal, count): (&SendRefusal, &u64)| match refusal {
            SendRefusal::SourcePort => self.is_retired,
            SendRefusal::TooLong => *count <= self.long,
            SendRefusal::Rule => *count <= self.stray_resets,
            _ => false,
        };
        match counters.refused.iter().all(is_right) {
            true => Ok(()),
            false => Err(self.broken(now, HONEST, counters)),
        }
    }

    /// Checks that the mux has lost no packet, and has refused no packet without a reason. If the
    /// NIC has no room for a packet, the mux must let the packet wait.
    pub fn check_unsent(&self, now: Instant, counters: &PortCounters) -> Result<(), Violation> {
        self.check_refused(now, counters)?;
        match counters.lost {
            0 => Ok(()),
            _ => Err(self.broken(now, "the mux loses no packet of a port", counters)),
        }
    }

    /// Checks the counters of the closed mux port. `is_drained` is true if the mux had taken all
    /// packets of the program, and no packet waited for the NIC. If `is_drained` is false, checks
    /// only the refused packets.
    pub fn check_end(
        &self,
        now: Instant,
        counters: &PortCounters,
        is_drained: bool,
    ) -> Result<(), Violation> {
        self.check_refused(now, counters)?;
        if !is_drained {
            return Ok(());
        }
        // A refused GSO frame counts as one packet, so the mux may have counted fewer packets than
        // the program has published.
        let counted = counters.sent + counters.refused.values().sum::<u64>();
        let fewest = self.published - self.long_segments;
        if !self.is_retired && !(fewest..=self.published).contains(&counted) {
            return Err(self.broken(now, "each packet is sent or refused", counters));
        }
        match &self.tap {
            Some(tap) if !tap.is_balanced() => {
                Err(self.broken(now, "a tap sees each frame once", counters))
            }
            _ => Ok(()),
        }
    }
}
