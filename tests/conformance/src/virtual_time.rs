//! A stack under test in virtual time.
//!
//! The clock jumps from timer to timer, up to the time that the runner requests, and no thread
//! sleeps. The script's program makes one call at a time. A call that would block is tried again
//! after every timer and every injected packet. The functions of [`Sockets`] make the program's
//! calls, and never block.

use std::net::IpAddr;

use tidelane_engine::{Duration, Endpoint, Instant, IpAddress};
use tidelane_packetdrill::{clock, errno::Errno, settings::Settings, socket::Shutdown};

use crate::{
    call_result::CallResult,
    calls::{Call, Fd, SIOCATMARK},
    ip::Version,
    sockets::Sockets,
    stack::{Micros, Returned, Sent, Stack},
};

/// Number of the first descriptor that the program opens.
const FD_FIRST: Fd = 3;
/// Sysctls that scripts set for the kernel. The stacks in virtual time ignore these sysctls.
const KERNEL_ONLY: [&str; 3] = [
    "tcp_invalid_ratelimit",
    "tcp_comp_sack_nr",
    "tcp_autocorking",
];

/// Settings of every run. `offload=0` switches segmentation offload off. `service=1` selects the
/// rules by which the service (`tidelaned`) times ACKs and tail loss probes, instead of the rules
/// of Linux. `tcp_fastopen=1` permits Fast Open for clients only.
const RUN: &str = "offload=0,service=1,tcp_fastopen=1";

/// The call that the program is making.
#[derive(Debug)]
struct Pending {
    call: Call,
    /// True after the call was tried once.
    begun: bool,
    /// True if the call is a [`Call::Send`] that opens the connection, because a `connect` is
    /// deferred. A deferred `connect` (TCP_FASTOPEN_CONNECT) leaves the SYN to the first write.
    opens: bool,
    /// Number of bytes that the call has written so far.
    done: usize,
    /// Time at which `poll` times out. `None` for other calls, for a `poll` without a timeout, and
    /// before the first try.
    deadline: Option<Instant>,
}

/// A stack under test in virtual time, with the socket calls `S`.
#[derive(Debug)]
pub struct VirtualTime<S> {
    version: Version,
    /// The sockets. `None` until their first use, so that the script can set its sysctls first.
    sockets: Option<S>,
    /// Settings of the script as `name=value`.
    settings: Vec<String>,
    /// Number of the next descriptor.
    next_fd: Fd,
    /// The call under way, if it blocks.
    pending: Option<Pending>,
    /// The finished call whose result the runner has not taken yet.
    returned: Option<Returned>,
}

fn endpoint(ip: IpAddr, port: u16) -> Endpoint {
    Endpoint::new(IpAddress::from(ip), port)
}

impl<S: Sockets> VirtualTime<S> {
    /// Returns a stack for a script that runs over `version`.
    pub fn new(version: Version) -> Self {
        Self {
            version,
            sockets: None,
            settings: Vec::new(),
            next_fd: FD_FIRST,
            pending: None,
            returned: None,
        }
    }

    /// Returns the sockets. Creates them at the first call.
    fn sockets(&mut self) -> &mut S {
        let (mtu, settings) = (self.version.mtu(), self.settings.join(","));
        let flags = format!("{RUN},mtu={mtu},{settings}");
        self.sockets.get_or_insert_with(|| {
            // `set` has checked each setting.
            let settings = Settings::new(&flags).unwrap_or_else(|why| unreachable!("{why}"));
            S::new(settings, self.version)
        })
    }

    fn micros(at: Instant) -> Micros {
        at.as_micros() - clock::START.as_micros()
    }

    fn instant(at: Micros) -> Instant {
        clock::START + Duration::from_micros(at)
    }

    /// Advances the clock to `to`, and runs the timers that are due. Stops early when `enough`
    /// returns true.
    fn advance(&mut self, to: Instant, enough: impl Fn(&Self) -> bool) {
        while !enough(self) {
            let deadline = self.pending.as_ref().and_then(|pending| pending.deadline);
            let timer = self.sockets().next_timeout();
            let next = [deadline, timer].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= to) else {
                self.sockets().advance_to(to);
                self.try_pending();
                return;
            };
            self.sockets().advance_to(next);
            self.try_pending();
        }
    }

    /// Tries the pending call, if there is a pending call, and records its result if the call has
    /// finished.
    fn try_pending(&mut self) {
        let Some(mut pending) = self.pending.take() else {
            return;
        };
        let call_result = self.attempt(&mut pending);
        let at = Self::micros(self.sockets().now());
        match call_result {
            Some(call_result) => self.returned = Some(Returned { at, call_result }),
            None => self.pending = Some(pending),
        }
    }

    /// Tries a call. Returns `None` if the call blocks.
    fn attempt(&mut self, pending: &mut Pending) -> Option<CallResult> {
        let begun = std::mem::replace(&mut pending.begun, true);
        let call = &pending.call;
        let result = match call {
            Call::Accept { fd } => self.accept(*fd),
            Call::Connect { fd, port } => self.connect(*fd, *port, begun),
            Call::Send { fd, bytes, flags } => {
                let deferred = self.sockets().sends_with_syn(*fd, *flags) == Ok(true);
                pending.opens |= deferred;
                match pending.opens {
                    true => self.send_connect((*fd, None), bytes, *flags, &mut pending.done, begun),
                    false => self.send(*fd, bytes, *flags, &mut pending.done, begun),
                }
            }
            Call::SendConnect {
                fd,
                port,
                bytes,
                flags,
            } => {
                let to = Some(endpoint(self.version.remote(), *port));
                self.send_connect((*fd, to), bytes, *flags, &mut pending.done, begun)
            }
            Call::Receive { fd, len, flags } => match self.sockets().receive(*fd, *len, *flags) {
                Ok(output) => {
                    let result = Ok(output.len() as i64);
                    return Some(CallResult { result, output });
                }
                Err(error) => Err(error),
            },
            Call::GetOption {
                fd,
                level,
                name,
                len,
            } => {
                return Some(match self.sockets().option(*fd, *level, *name) {
                    Ok(mut output) => {
                        output.truncate(*len);
                        CallResult {
                            result: Ok(0),
                            output,
                        }
                    }
                    Err(error) => CallResult::of(Err(error.0)),
                });
            }
            Call::Poll { .. } => return self.poll(pending),
            Call::Ioctl { fd, request } => return Some(self.ioctl(*fd, *request)),
            other => self.call_without_blocking(&other.clone()),
        };
        match result {
            Err(Errno::AGAIN) if !self.fails_instead_of_blocking(&pending.call) => None,
            Err(error) => Some(CallResult::of(Err(error.0))),
            Ok(value) => Some(CallResult::of(Ok(value))),
        }
    }

    /// Returns true if `call` fails instead of blocking.
    fn fails_instead_of_blocking(&mut self, call: &Call) -> bool {
        let (fd, flags) = match call {
            Call::Accept { fd } | Call::Connect { fd, .. } => (*fd, 0),
            Call::Receive { fd, flags, .. }
            | Call::Send { fd, flags, .. }
            | Call::SendConnect { fd, flags, .. } => (*fd, *flags),
            _ => return true,
        };
        self.is_nonblocking(fd, flags)
    }

    /// Returns true if a call on `fd` does not block: because of O_NONBLOCK or MSG_DONTWAIT, or
    /// because `fd` is not open.
    fn is_nonblocking(&mut self, fd: Fd, flags: i32) -> bool {
        let nonblocking = match self.sockets().control(fd, libc::F_GETFL, 0) {
            Ok(bits) => bits & i64::from(libc::O_NONBLOCK) != 0,
            Err(_) => true,
        };
        nonblocking || flags & libc::MSG_DONTWAIT != 0
    }

    fn new_fd(&mut self) -> Fd {
        self.next_fd += 1;
        self.next_fd - 1
    }

    /// Makes a call that never blocks and has no output.
    fn call_without_blocking(&mut self, call: &Call) -> Result<i64, Errno> {
        match *call {
            Call::Socket {
                domain,
                kind,
                protocol,
            } => {
                let fd = self.new_fd();
                self.sockets().socket(fd, domain, kind, protocol)?;
                return Ok(fd.into());
            }
            Call::Bind { fd, port } => {
                let local = endpoint(self.version.local(), port);
                self.sockets().bind(fd, local)
            }
            Call::Listen { fd, backlog } => self.sockets().listen(fd, backlog),
            Call::Shutdown { fd, how } => {
                let how = Shutdown {
                    read: how != libc::SHUT_WR,
                    write: how != libc::SHUT_RD,
                };
                self.sockets().shutdown(fd, how)
            }
            Call::Close { fd } => self.sockets().close(fd),
            Call::SetOption {
                fd,
                level,
                name,
                ref value,
            } => self.sockets().set_option(fd, level, name, value),
            Call::Flags { fd } => return self.sockets().control(fd, libc::F_GETFL, 0),
            Call::SetFlags { fd, flags } => {
                return self.sockets().control(fd, libc::F_SETFL, flags);
            }
            _ => Err(Errno(libc::EOPNOTSUPP)),
        }
        .map(|()| 0)
    }

    fn accept(&mut self, fd: Fd) -> Result<i64, Errno> {
        let new = self.next_fd;
        self.sockets().accept(fd, new)?;
        Ok(self.new_fd().into())
    }

    fn connect(&mut self, fd: Fd, port: u16, begun: bool) -> Result<i64, Errno> {
        let call = Call::Connect { fd, port };
        if !begun {
            let remote = endpoint(self.version.remote(), port);
            self.sockets().connect(fd, remote)?;
        }
        if self.sockets().sends_with_syn(fd, 0)? {
            return Ok(0);
        }
        match self.sockets().connect_result(fd) {
            Ok(()) => Ok(0),
            Err(Errno::AGAIN) if self.fails_instead_of_blocking(&call) => {
                Err(Errno(libc::EINPROGRESS))
            }
            Err(error) => Err(error),
        }
    }

    /// Tries a write that opens the connection: `sendto` with MSG_FASTOPEN and the address `to`, or
    /// the first write after a deferred `connect`. `done` is the number of bytes written so far.
    /// `begun` is true if the call was tried before.
    fn send_connect(
        &mut self,
        (fd, to): (Fd, Option<Endpoint>),
        bytes: &[u8],
        flags: i32,
        done: &mut usize,
        begun: bool,
    ) -> Result<i64, Errno> {
        let waits = !self.is_nonblocking(fd, flags);
        if !begun {
            match self.sockets().send_with_syn(fd, bytes, to, waits)? {
                Some(sent) => *done = sent,
                None => return self.send(fd, bytes, flags, done, false),
            }
        }
        match self.sockets().connect_result(fd) {
            Ok(()) => self.send(fd, bytes, flags, done, true),
            Err(Errno::AGAIN) if !waits && *done > 0 => Ok(*done as i64),
            Err(Errno::AGAIN) if !waits => Err(Errno(libc::EINPROGRESS)),
            Err(error) => Err(error),
        }
    }

    fn send(
        &mut self,
        fd: Fd,
        bytes: &[u8],
        flags: i32,
        done: &mut usize,
        begun: bool,
    ) -> Result<i64, Errno> {
        if !begun {
            self.sockets()
                .more_to_come(fd, flags & libc::MSG_MORE != 0)?;
        }
        while *done < bytes.len() {
            match self.sockets().send(fd, &bytes[*done..], flags) {
                Ok(count) => *done += count,
                Err(error) if *done == 0 => return Err(error),
                Err(Errno::AGAIN) => {
                    return match self.is_nonblocking(fd, flags) {
                        true => Ok(*done as i64),
                        false => Err(Errno::AGAIN),
                    };
                }
                Err(_) => break,
            }
        }
        Ok(*done as i64)
    }

    fn poll(&mut self, pending: &mut Pending) -> Option<CallResult> {
        let Call::Poll {
            entries,
            timeout_ms,
        } = &pending.call
        else {
            return None;
        };
        let now = self.sockets().now();
        let wait = u64::try_from(*timeout_ms).ok().map(Duration::from_millis);
        let deadline = pending.deadline.or(wait.map(|wait| now + wait));
        let always = (libc::POLLERR | libc::POLLHUP) as u32;
        let ready = |(fd, events): &(Fd, i16)| {
            (self.sockets().readiness(*fd) & (*events as u16 as u32 | always)) as i16
        };
        let ready: Vec<i16> = entries.iter().map(ready).collect();
        let count = ready.iter().filter(|events| **events != 0).count() as i64;
        pending.deadline = deadline;
        let over = count > 0 || deadline.is_some_and(|deadline| deadline <= now);
        over.then(|| CallResult {
            result: Ok(count),
            output: ready
                .iter()
                .flat_map(|events| events.to_ne_bytes())
                .collect(),
        })
    }

    fn ioctl(&mut self, fd: Fd, request: u64) -> CallResult {
        let sockets = self.sockets();
        let count = match request {
            libc::FIONREAD => sockets.unread(fd),
            libc::TIOCOUTQ => sockets.unacknowledged(fd),
            SIOCATMARK => sockets.at_mark(fd),
            _ => sockets.unsent(fd),
        };
        match count {
            Ok(count) => CallResult {
                result: Ok(0),
                output: count.to_ne_bytes().to_vec(),
            },
            Err(error) => CallResult::of(Err(error.0)),
        }
    }
}

impl<S: Sockets> Stack for VirtualTime<S> {
    fn now(&self) -> Micros {
        let sockets = self.sockets.as_ref();
        sockets.map_or(0, |sockets| Self::micros(sockets.now()))
    }

    fn lateness_allowed(&self) -> Micros {
        0
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        if KERNEL_ONLY.contains(&name) {
            return Ok(());
        }
        if self.sockets.is_some() {
            return Err("the stack takes its settings before the first event".to_owned());
        }
        let setting = format!("{name}={value}");
        Settings::new(&setting)?;
        self.settings.push(setting);
        Ok(())
    }

    fn sleep_until(&mut self, at: Micros) {
        // At time 0 do not create the sockets, because the script may still set sysctls.
        if at > 0 || self.sockets.is_some() {
            let at = Self::instant(at);
            if at > self.sockets().now() {
                self.advance(at, |_| false);
            }
        }
    }

    fn start(&mut self, call: Call) {
        self.pending = Some(Pending {
            call,
            begun: false,
            opens: false,
            done: 0,
            deadline: None,
        });
        self.try_pending();
    }

    fn returned(&mut self, by: Micros) -> Option<Returned> {
        self.advance(Self::instant(by), |stack| stack.returned.is_some());
        self.returned.take()
    }

    fn inject(&mut self, packet: &[u8]) {
        self.sockets().inject(packet);
        self.try_pending();
    }

    fn next_packet(&mut self, by: Micros) -> Option<Sent> {
        let by = Self::instant(by);
        loop {
            if let Some((at, bytes)) = self.sockets().next_sent() {
                let at = Self::micros(at);
                return Some(Sent { at, bytes });
            }
            let timer = self.sockets().next_timeout().filter(|next| *next <= by)?;
            self.advance(timer, |_| false);
        }
    }
}
