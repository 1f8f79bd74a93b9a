//! The runner: executes the events of a script on a stack, in their order, and checks the results.

use std::fmt;

use crate::{
    ast::{Action, Assertion, CallSpec, Event, PacketSpec, Position, Script, Time},
    calls::{self, Call, Descriptors, Fd},
    flows::Flows,
    ip::Version,
    stack::{Micros, Returned, Sent, Stack},
    tcp_info::{TCP_INFO_LEN, TcpInfo},
};

/// Default of the option `--tolerance_usecs`: the permitted deviation of a time from the script.
const TOLERANCE: Micros = 10_000;
/// Time limit for a packet that the script expects at any time (`*`).
const ANY_TIME_MAX: Micros = 10_000_000;
/// Time to wait for a packet or a call that is later than permitted, so that the message of the
/// failure can state the actual time. Also the time limit for reading `tcp_info`.
const LATE_MAX: Micros = 1_000_000;

/// The failure of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Position of the failed event.
    pub at: Position,
    /// Description of the failure.
    pub message: String,
}

impl Failure {
    fn new(at: Position, message: impl Into<String>) -> Self {
        Self {
            at,
            message: message.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.at.line, self.at.column, self.message)
    }
}

/// A call that was started and whose result is not checked yet.
struct Pending<'a> {
    /// Position of the call in the script.
    at: Position,
    /// The call as the script has it, with its expected result.
    spec: &'a CallSpec,
    /// Expected time of return.
    until: Micros,
    /// Descriptor of a write, or of a read without MSG_PEEK. `None` for other calls.
    fd: Option<Fd>,
    /// True if the call reads urgent data (MSG_OOB).
    urgent: bool,
}

/// The state of a run.
struct Run<'a, S> {
    stack: &'a mut S,
    version: Version,
    /// The connections, which translate between the numbers in the script and in packets.
    flows: Flows,
    /// The stack's descriptor for each descriptor of the script.
    descriptors: Descriptors,
    /// The descriptor that was opened last. Assertions read its `tcp_info`.
    last_opened_fd: Option<Fd>,
    pending: Option<Pending<'a>>,
    /// Time of the previous event, from which relative times count.
    base: Micros,
    /// Permitted deviation of times.
    tolerance: Micros,
}

/// Runs `script` over the IP version `version` on `stack`, on which no script has run before. Fails
/// if an option of the script is unknown. Otherwise fails at the first event whose result differs
/// from the script.
pub fn run(script: &Script, version: Version, stack: &mut impl Stack) -> Result<(), Failure> {
    let start = Position { line: 1, column: 1 };
    let mut tolerance = TOLERANCE;
    let mut flows = Flows::new(version);
    for (name, value) in &script.options {
        match (name.as_str(), value.parse()) {
            ("tolerance_usecs", Ok(micros)) => tolerance = micros,
            // The caller runs the script only over the versions that this option names.
            ("ip_version", _) => {}
            (name, _) if name.starts_with("define") => {}
            ("push", _) if value == "any" => flows.ignore_push(),
            _ => {
                return Err(Failure::new(
                    start,
                    format!("--{name}={value} is not known"),
                ));
            }
        }
    }
    let mut run = Run {
        stack,
        version,
        flows,
        descriptors: Descriptors::default(),
        last_opened_fd: None,
        pending: None,
        base: 0,
        tolerance,
    };
    let mut steps = script.events.iter().map(|event| run.step(event));
    let result = steps.find(Result::is_err).unwrap_or(Ok(()));
    result.and_then(|()| run.finish_call())
}

impl<'a, S: Stack> Run<'a, S> {
    /// Executes one event.
    fn step(&mut self, event: &'a Event) -> Result<(), Failure> {
        let from_base = |span: Micros| self.base + span;
        let (earliest, latest) = match event.time {
            Time::Absolute(at) => (at, at),
            Time::Relative(span) => (from_base(span), from_base(span)),
            Time::AbsoluteRange(from, to) => (from, to),
            Time::RelativeRange(from, to) => (from_base(from), from_base(to)),
            Time::Any => (0, self.stack.now() + ANY_TIME_MAX),
        };
        if let Action::Expect(spec) = &event.action {
            let at = self.expect(event.at, spec, earliest, latest)?;
            self.base = if earliest == latest { earliest } else { at };
            return Ok(());
        }
        self.stack.sleep_until(earliest);
        let base = std::mem::replace(&mut self.base, earliest);
        self.check_lateness(event.at, earliest)?;
        match &event.action {
            Action::Call(spec) => self.call(event, spec, base, earliest),
            Action::Inject(spec) => self.inject(event.at, spec),
            Action::Settings(settings) => self.set(event.at, settings),
            Action::Assert(assertions) => self.assert_all(assertions),
            Action::Expect(_) => Ok(()),
        }
    }

    /// Fails if the event was due at `due` and the runner is later than permitted. `at` is the
    /// position of the event.
    fn check_lateness(&self, at: Position, due: Micros) -> Result<(), Failure> {
        let late = self.stack.now().saturating_sub(due);
        if late <= self.tolerance + self.stack.lateness_allowed() {
            return Ok(());
        }
        let message = format!("the runner executed the event {} late", seconds(late));
        Err(Failure::new(at, message))
    }

    fn set(&mut self, at: Position, settings: &[(String, String)]) -> Result<(), Failure> {
        for (name, value) in settings {
            self.stack
                .set(name, value)
                .map_err(|why| Failure::new(at, format!("net.ipv4.{name}={value}: {why}")))?;
        }
        Ok(())
    }

    /// Waits for the pending call, if there is one, and then starts a call. If the script does not
    /// say that the new call blocks, also waits for its return and checks its result. `base` is the
    /// time of the previous event, and `now` is the time of the call's event.
    fn call(
        &mut self,
        event: &'a Event,
        spec: &'a CallSpec,
        base: Micros,
        now: Micros,
    ) -> Result<(), Failure> {
        self.finish_call()?;
        let flows = &self.flows;
        let pattern = |fd, len| flows.pattern(fd, len);
        let call = calls::resolve(spec, &self.descriptors, self.version.domain(), pattern)
            .map_err(|why| Failure::new(event.at, why))?;
        let origin = match event.time {
            Time::Absolute(_) => 0,
            _ => base,
        };
        let urgent = matches!(call, Call::Receive { flags, .. } if flags & libc::MSG_OOB != 0);
        let fd = match call {
            // A read with MSG_PEEK does not advance the stream position.
            Call::Receive { flags, .. } if flags & libc::MSG_PEEK != 0 => None,
            Call::Receive { fd, .. } | Call::Send { fd, .. } => Some(fd),
            Call::SendConnect { fd, .. } => Some(fd),
            _ => None,
        };
        self.stack.start(call);
        self.pending = Some(Pending {
            at: event.at,
            spec,
            until: spec.until.map_or(now, |until| origin + until),
            fd,
            urgent,
        });
        match spec.until {
            None => self.finish_call(),
            Some(_) => Ok(()),
        }
    }

    /// Waits for the return of the pending call, if there is one, and checks the call's result and
    /// time.
    fn finish_call(&mut self) -> Result<(), Failure> {
        let Some(Pending {
            at,
            spec,
            until,
            fd,
            urgent,
        }) = self.pending.take()
        else {
            return Ok(());
        };
        let allowed = self.tolerance + self.stack.lateness_allowed();
        let Some(Returned {
            at: when,
            call_result,
        }) = self.stack.returned(until + allowed + LATE_MAX)
        else {
            return Err(Failure::new(at, format!("{} did not return", spec.name)));
        };
        calls::check(spec, &call_result).map_err(|why| Failure::new(at, why))?;
        if when.abs_diff(until) > allowed {
            let (should, did) = (seconds(until), seconds(when));
            let message = format!("{} should return at {should}, did at {did}", spec.name);
            return Err(Failure::new(at, message));
        }
        if let (Ok(value), Some(fd)) = (call_result.result, fd) {
            let noted = match urgent {
                true => self.flows.check_urgent(&call_result.output),
                false => self.flows.on_transfer(fd, value, &call_result.output),
            };
            noted.map_err(|why| Failure::new(at, format!("{}: {why}", spec.name)))?;
        }
        if let (Ok(live), "socket" | "accept") = (call_result.result, spec.name.as_str()) {
            self.descriptors
                .add(calls::number(&spec.result).unwrap_or(live), live as Fd);
            self.last_opened_fd = Some(live as Fd);
        }
        Ok(())
    }

    fn inject(&mut self, at: Position, spec: &PacketSpec) -> Result<(), Failure> {
        let bytes = match spec {
            PacketSpec::Tcp(spec) => {
                let packet = self.flows.inbound(spec);
                packet.map(|packet| packet.emit(self.version))
            }
            PacketSpec::Icmp(spec) => self.flows.inbound_icmp(spec),
        };
        let bytes = bytes.map_err(|why| Failure::new(at, why))?;
        self.stack.inject(&bytes);
        Ok(())
    }

    /// Waits for the next packet of the stack, and compares it with the script. Returns the time of
    /// the packet.
    fn expect(
        &mut self,
        at: Position,
        spec: &PacketSpec,
        earliest: Micros,
        latest: Micros,
    ) -> Result<Micros, Failure> {
        let PacketSpec::Tcp(spec) = spec else {
            return Err(Failure::new(at, "only segments can be expected"));
        };
        let allowed = self.tolerance + self.stack.lateness_allowed();
        let by = latest + allowed;
        let Some(Sent { at: when, bytes }) = self.stack.next_packet(by + LATE_MAX) else {
            let message = format!("no packet came, until {}", seconds(by + LATE_MAX));
            return Err(Failure::new(at, message));
        };
        self.flows
            .check_outbound(spec, &bytes)
            .map_err(|why| Failure::new(at, format!("{why} (at {})", seconds(when))))?;
        if (earliest.saturating_sub(allowed)..=by).contains(&when) {
            return Ok(when);
        }
        let should = match earliest == latest {
            true => seconds(earliest),
            false => format!("{} to {}", seconds(earliest), seconds(latest)),
        };
        let message = format!(
            "the packet should leave at {should}, left at {}",
            seconds(when)
        );
        Err(Failure::new(at, message))
    }

    fn assert_all(&mut self, assertions: &[Assertion]) -> Result<(), Failure> {
        let Some(first) = assertions.first() else {
            return Ok(());
        };
        let info = self.tcp_info().map_err(|why| Failure::new(first.at, why))?;
        for assertion in assertions {
            let failed = |why: String| Failure::new(assertion.at, why);
            if assertion.condition.value(&info).map_err(failed)? != 0 {
                continue;
            }
            let shown = match &assertion.shown {
                Some(term) => format!(": {term} is {}", term.value(&info).map_err(failed)?),
                None => String::new(),
            };
            return Err(failed(format!("{} does not hold{shown}", assertion.text)));
        }
        Ok(())
    }

    /// Reads the `tcp_info` of the descriptor that was opened last.
    fn tcp_info(&mut self) -> Result<TcpInfo, String> {
        let fd = self
            .last_opened_fd
            .ok_or("there is no socket to ask for tcp_info")?;
        if self.pending.is_some() {
            return Err("tcp_info cannot be asked for while a call blocks".to_owned());
        }
        self.stack.start(Call::GetOption {
            fd,
            level: libc::IPPROTO_TCP,
            name: libc::TCP_INFO,
            len: TCP_INFO_LEN,
        });
        let by = self.stack.now() + LATE_MAX;
        let returned = self
            .stack
            .returned(by)
            .ok_or("getsockopt(TCP_INFO) did not return")?;
        match returned.call_result.result {
            Ok(_) => Ok(TcpInfo::new(returned.call_result.output)),
            Err(number) => Err(format!(
                "getsockopt(TCP_INFO): {}",
                calls::errno_name(number)
            )),
        }
    }
}

/// Formats a time in seconds, with six digits after the point.
fn seconds(at: Micros) -> String {
    format!("{}.{:06} s", at / 1_000_000, at % 1_000_000)
}
