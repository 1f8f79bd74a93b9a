//! Socket options: `setsockopt` and `getsockopt` with the values and limits of Linux.

use std::collections::BTreeMap;

use tidelane_engine::{
    Algorithm, Duration, FinWait2, FlowId, IpFields, PACING_RATE_UNLIMITED, SocketOptions, State,
};

use crate::{
    errno::{CallResult, Errno},
    info,
    role::Role,
    settings::Settings,
    stack::{Fd, Stack},
};

/// Least SO_SNDBUF of Linux in bytes (SOCK_MIN_SNDBUF). Linux doubles the program's value, and then
/// applies this limit.
const SNDBUF_MIN: u32 = 4608;
/// Least SO_RCVBUF of Linux in bytes (SOCK_MIN_RCVBUF). Linux doubles the program's value, and then
/// applies this limit.
const RCVBUF_MIN: u32 = 2304;
/// Largest TCP_LINGER2 in seconds.
const LINGER2_MAX: i32 = 120;
/// The DSCP bits of IP_TOS and IPV6_TCLASS. The other two bits are the ECN field.
const DSCP: u8 = 0xfc;
/// Options with an integer value that is stored and returned, but not passed to the engine
/// (Tidelane's TCP). Some of these options, such as SO_OOBINLINE, change the socket calls of this
/// stack.
const STORED_ONLY: [(i32, i32); 19] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_DONTROUTE),
    (libc::SOL_SOCKET, libc::SO_BROADCAST),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::SOL_SOCKET, libc::SO_MARK),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
    (libc::IPPROTO_TCP, libc::TCP_THIN_LINEAR_TIMEOUTS),
    (libc::IPPROTO_TCP, libc::TCP_INQ),
    (libc::SOL_SOCKET, libc::SO_INCOMING_CPU),
    (libc::IPPROTO_IP, libc::IP_FREEBIND),
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
    (libc::IPPROTO_IP, libc::IP_RECVERR),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
];

/// The options of a socket.
#[derive(Clone, Debug)]
pub struct Options {
    /// The options that the engine applies to listeners and connections.
    pub engine: SocketOptions,
    /// SO_SNDBUF in bytes, as Linux reports SO_SNDBUF: twice the value that the program set.
    pub sndbuf: u32,
    /// True if the program set SO_SNDBUF. The buffer then does not grow automatically.
    pub sndbuf_fixed: bool,
    /// SO_RCVBUF in bytes, as Linux reports SO_RCVBUF: twice the value that the program set.
    pub rcvbuf: u32,
    /// SO_LINGER in seconds. `None` if the option is off.
    pub linger: Option<u32>,
    /// SO_RCVTIMEO. `None` means no timeout.
    pub receive_timeout: Option<Duration>,
    /// SO_SNDTIMEO. `None` means no timeout.
    pub send_timeout: Option<Duration>,
    /// SO_RCVLOWAT in bytes.
    pub rcvlowat: u32,
    /// TCP_NOTSENT_LOWAT in bytes. 0 selects the sysctl's value.
    notsent_lowat: u32,
    /// Value of the sysctl `tcp_notsent_lowat` in bytes.
    notsent_lowat_default: u32,
    /// Default of TCP_SYNCNT: the value of the sysctl `tcp_syn_retries`.
    syn_retries_default: u32,
    /// TCP_CONGESTION: the name of the algorithm.
    congestion: String,
    /// Values of the options in [`STORED_ONLY`].
    stored_values: BTreeMap<(i32, i32), i32>,
}

impl Options {
    /// Returns the options of a new socket.
    pub fn new(settings: &Settings) -> Self {
        Self {
            engine: SocketOptions::default(),
            sndbuf: settings.sndbuf(),
            sndbuf_fixed: false,
            rcvbuf: settings.rcvbuf(),
            linger: None,
            receive_timeout: None,
            send_timeout: None,
            rcvlowat: 1,
            notsent_lowat: 0,
            notsent_lowat_default: settings.notsent_lowat(),
            syn_retries_default: settings.engine().syn_retries.into(),
            congestion: settings.congestion().to_owned(),
            stored_values: BTreeMap::new(),
        }
    }

    /// Returns the number of unsent bytes at which a writer blocks.
    pub fn unsent_max(&self) -> u32 {
        match self.notsent_lowat {
            0 => self.notsent_lowat_default,
            own => own,
        }
    }

    /// Returns true if the value of the [`STORED_ONLY`] option `(level, name)` is not zero.
    pub fn is_on(&self, level: i32, name: i32) -> bool {
        self.stored_values
            .get(&(level, name))
            .is_some_and(|value| *value != 0)
    }

    /// Sets an option. Fails with ENOPROTOOPT for an option that is not known.
    pub fn set(&mut self, level: i32, name: i32, value: &[u8]) -> CallResult<()> {
        match level {
            libc::SOL_SOCKET => self.set_of_socket(name, value),
            libc::IPPROTO_TCP => self.set_of_tcp(name, value),
            _ => self.set_of_ip(level, name, value),
        }
    }

    /// Returns the value of an option whose value does not depend on a connection. Returns `None`
    /// for any other option.
    pub fn get(&self, level: i32, name: i32) -> Option<Vec<u8>> {
        match level {
            libc::SOL_SOCKET => self.get_of_socket(name),
            libc::IPPROTO_TCP => self.get_of_tcp(name),
            _ => self.get_of_ip(level, name),
        }
    }

    /// Sets an option of level SOL_SOCKET.
    fn set_of_socket(&mut self, name: i32, value: &[u8]) -> CallResult<()> {
        let engine = &mut self.engine;
        match name {
            libc::SO_SNDBUF => {
                self.sndbuf = (int(value)? as u32).saturating_mul(2).max(SNDBUF_MIN);
                self.sndbuf_fixed = true;
            }
            libc::SO_RCVBUF => {
                self.rcvbuf = (int(value)? as u32).saturating_mul(2).max(RCVBUF_MIN);
                engine.window.buffer = self.rcvbuf / 2;
            }
            libc::SO_KEEPALIVE => engine.keepalive = int(value)? != 0,
            libc::SO_RCVLOWAT => self.rcvlowat = int(value)?.max(1) as u32,
            libc::SO_LINGER => {
                let seconds = int(value.get(4..).ok_or(Errno::INVAL)?)?;
                self.linger = (int(value)? != 0).then_some(seconds.max(0) as u32);
            }
            libc::SO_MAX_PACING_RATE => engine.pacing_rate_max = rate(value)?,
            libc::SO_RCVTIMEO => self.receive_timeout = timeval(value)?,
            libc::SO_SNDTIMEO => self.send_timeout = timeval(value)?,
            _ => return self.store(libc::SOL_SOCKET, name, value),
        }
        Ok(())
    }

    /// Sets an option of level IPPROTO_TCP.
    fn set_of_tcp(&mut self, name: i32, value: &[u8]) -> CallResult<()> {
        let engine = &mut self.engine;
        let seconds = |max: i32| match int(value)? {
            seconds if (1..=max).contains(&seconds) => Ok(seconds as u64),
            _ => Err(Errno::INVAL),
        };
        match name {
            libc::TCP_NODELAY => engine.nodelay = int(value)? != 0,
            libc::TCP_CORK => engine.cork = int(value)? != 0,
            libc::TCP_QUICKACK => engine.quickack = int(value)? != 0,
            libc::TCP_KEEPIDLE => engine.keepalive_idle = Duration::from_secs(seconds(32767)?),
            libc::TCP_KEEPINTVL => engine.keepalive_interval = Duration::from_secs(seconds(32767)?),
            libc::TCP_KEEPCNT => engine.keepalive_probes = seconds(127)? as u8,
            libc::TCP_USER_TIMEOUT => {
                let ms = u64::try_from(int(value)?).map_err(|_| Errno::INVAL)?;
                engine.user_timeout = Duration::from_millis(ms);
            }
            libc::TCP_MAXSEG => match int(value)? {
                mss if mss == 0 || (88..=32767).contains(&mss) => engine.mss_max = mss as u16,
                _ => return Err(Errno::INVAL),
            },
            libc::TCP_NOTSENT_LOWAT => self.notsent_lowat = int(value)? as u32,
            libc::TCP_SYNCNT => engine.syn_retries = seconds(127)? as u8,
            libc::TCP_LINGER2 => {
                engine.fin_wait_2 = match int(value)? {
                    ..0 => FinWait2::Never,
                    0 => FinWait2::Configured,
                    s => FinWait2::For(Duration::from_secs(s.min(LINGER2_MAX) as u64)),
                }
            }
            libc::TCP_DEFER_ACCEPT => engine.defer_accept = defer_timeouts(int(value)?),
            libc::TCP_WINDOW_CLAMP => {
                engine.window.clamp = match int(value)? {
                    0 => 0,
                    bytes => bytes.max(RCVBUF_MIN as i32 / 2) as u32,
                }
            }
            libc::TCP_CONGESTION => {
                let name = String::from_utf8_lossy(value);
                let name = name.trim_end_matches('\0');
                let known = Algorithm::ALL
                    .into_iter()
                    .find(|known| known.name() == name);
                let known = known.ok_or(Errno(libc::ENOENT))?;
                engine.congestion = Some(known);
                known.name().clone_into(&mut self.congestion);
            }
            _ => return self.store(libc::IPPROTO_TCP, name, value),
        }
        Ok(())
    }

    /// Sets an option of level IPPROTO_IP or IPPROTO_IPV6. The value is an `int` or a single byte.
    fn set_of_ip(&mut self, level: i32, name: i32, value: &[u8]) -> CallResult<()> {
        let number = match value {
            [byte] => i32::from(*byte),
            value => int(value)?,
        };
        let ip = &mut self.engine.ip;
        let hops = |number| match number {
            -1 => Ok(IpFields::default().hop_limit),
            number => u8::try_from(number).map_err(|_| Errno::INVAL),
        };
        match (level, name) {
            (libc::IPPROTO_IP, libc::IP_TOS) => ip.v4.traffic_class = number as u8 & DSCP,
            (libc::IPPROTO_IP, libc::IP_TTL) if number == 0 => return Err(Errno::INVAL),
            (libc::IPPROTO_IP, libc::IP_TTL) => ip.v4.hop_limit = hops(number)?,
            (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => ip.v6.hop_limit = hops(number)?,
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) if !(-1..=255).contains(&number) => {
                return Err(Errno::INVAL);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                ip.v6.traffic_class = number.max(0) as u8 & DSCP;
            }
            _ => return self.store(level, name, &number.to_ne_bytes()),
        }
        Ok(())
    }

    fn get_of_ip(&self, level: i32, name: i32) -> Option<Vec<u8>> {
        let ip = &self.engine.ip;
        Some(of_int(match (level, name) {
            (libc::IPPROTO_IP, libc::IP_TOS) => ip.v4.traffic_class.into(),
            (libc::IPPROTO_IP, libc::IP_TTL) => ip.v4.hop_limit.into(),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => ip.v6.traffic_class.into(),
            (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => ip.v6.hop_limit.into(),
            _ => return self.stored(level, name),
        }))
    }

    /// Stores the value of a [`STORED_ONLY`] option. Fails with ENOPROTOOPT for any other option.
    fn store(&mut self, level: i32, name: i32, value: &[u8]) -> CallResult<()> {
        if !STORED_ONLY.contains(&(level, name)) {
            return Err(Errno(libc::ENOPROTOOPT));
        }
        self.stored_values.insert((level, name), int(value)?);
        Ok(())
    }

    fn get_of_socket(&self, name: i32) -> Option<Vec<u8>> {
        let of_time = |span: Option<Duration>| {
            let us = span.map_or(0, |span| span.0 / 1000);
            [us / 1_000_000, us % 1_000_000]
                .map(u64::to_ne_bytes)
                .concat()
        };
        Some(match name {
            libc::SO_SNDBUF => of_int(self.sndbuf),
            libc::SO_RCVBUF => of_int(self.rcvbuf),
            libc::SO_MAX_PACING_RATE => {
                let rate = self.engine.pacing_rate_max;
                of_int(rate.min(u64::from(u32::MAX)) as u32)
            }
            libc::SO_KEEPALIVE => of_int(self.engine.keepalive.into()),
            libc::SO_RCVLOWAT => of_int(self.rcvlowat),
            libc::SO_LINGER => {
                let on = of_int(self.linger.is_some().into());
                [on, of_int(self.linger.unwrap_or(0))].concat()
            }
            libc::SO_RCVTIMEO => of_time(self.receive_timeout),
            libc::SO_SNDTIMEO => of_time(self.send_timeout),
            libc::SO_TYPE => of_int(libc::SOCK_STREAM as u32),
            libc::SO_PROTOCOL => of_int(libc::IPPROTO_TCP as u32),
            _ => return self.stored(libc::SOL_SOCKET, name),
        })
    }

    fn get_of_tcp(&self, name: i32) -> Option<Vec<u8>> {
        let engine = &self.engine;
        let seconds = |span: Duration| of_int((span.0 / 1_000_000_000) as u32);
        Some(match name {
            libc::TCP_NODELAY => of_int(engine.nodelay.into()),
            libc::TCP_CORK => of_int(engine.cork.into()),
            libc::TCP_QUICKACK => of_int(engine.quickack.into()),
            libc::TCP_KEEPIDLE => seconds(engine.keepalive_idle),
            libc::TCP_KEEPINTVL => seconds(engine.keepalive_interval),
            libc::TCP_KEEPCNT => of_int(engine.keepalive_probes.into()),
            libc::TCP_USER_TIMEOUT => of_int((engine.user_timeout.0 / 1_000_000) as u32),
            libc::TCP_NOTSENT_LOWAT => of_int(self.notsent_lowat),
            libc::TCP_SYNCNT => of_int(match engine.syn_retries {
                0 => self.syn_retries_default,
                own => own.into(),
            }),
            libc::TCP_LINGER2 => match engine.fin_wait_2 {
                FinWait2::Configured => of_int(60),
                FinWait2::For(span) => seconds(span),
                FinWait2::Never => of_int(u32::MAX),
            },
            libc::TCP_DEFER_ACCEPT => of_int(timeouts_as_seconds(engine.defer_accept)),
            libc::TCP_WINDOW_CLAMP => of_int(engine.window.clamp),
            libc::TCP_CONGESTION => self.congestion.clone().into_bytes(),
            _ => return self.stored(libc::IPPROTO_TCP, name),
        })
    }

    /// Returns the stored value of a [`STORED_ONLY`] option, or `None` for any other option.
    fn stored(&self, level: i32, name: i32) -> Option<Vec<u8>> {
        let value = self.stored_values.get(&(level, name)).copied();
        STORED_ONLY
            .contains(&(level, name))
            .then(|| of_int(value.unwrap_or(0) as u32))
    }
}

/// Converts TCP_DEFER_ACCEPT from seconds to a number of SYN,ACK timeouts: the least number of
/// timeouts that together last at least `seconds`. The first timeout lasts 1 s. Each further
/// timeout lasts twice as long as the previous timeout, but at most 120 s.
fn defer_timeouts(seconds: i32) -> u8 {
    let long_enough = |count: &u8| i64::from(timeouts_as_seconds(*count)) >= seconds.into();
    (0..=u8::MAX).find(long_enough).unwrap_or(u8::MAX)
}

/// Returns the sum of the first `count` SYN,ACK timeouts, in seconds.
fn timeouts_as_seconds(count: u8) -> u32 {
    (0..count).map(|nth| 120.min(1 << nth.min(7))).sum()
}

/// Parses an `int`. Fails with EINVAL if `value` is too short.
fn int(value: &[u8]) -> CallResult<i32> {
    let bytes = value.first_chunk().ok_or(Errno::INVAL)?;
    Ok(i32::from_ne_bytes(*bytes))
}

/// Parses SO_MAX_PACING_RATE, in bytes per second. The value has 32 or 64 bits. A value in which
/// all bits are 1 means no limit.
fn rate(value: &[u8]) -> CallResult<u64> {
    if let Some(long) = value.first_chunk() {
        return Ok(u64::from_ne_bytes(*long));
    }
    let rate = int(value)? as u32;
    Ok(if rate == u32::MAX {
        PACING_RATE_UNLIMITED
    } else {
        rate.into()
    })
}

/// Returns `value` as the bytes of an `int`.
fn of_int(value: u32) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

/// Parses a `struct timeval`. Returns `None` for zero, which means no timeout.
fn timeval(value: &[u8]) -> CallResult<Option<Duration>> {
    let word = |at: usize| {
        let bytes = value.get(at..).and_then(|rest| rest.first_chunk());
        bytes
            .map(|bytes| i64::from_ne_bytes(*bytes))
            .ok_or(Errno::INVAL)
    };
    let (seconds, micros) = (word(0)?, word(8)?);
    if !(0..1_000_000).contains(&micros) {
        return Err(Errno(libc::EDOM));
    }
    let us = seconds.max(0) as u64 * 1_000_000 + micros as u64;
    Ok((us > 0).then(|| Duration::from_micros(us)))
}

impl Stack {
    /// Implements `setsockopt(2)`.
    pub fn set_option(&mut self, fd: Fd, level: i32, name: i32, value: &[u8]) -> CallResult<()> {
        if level == libc::IPPROTO_TCP
            && let Some(result) = self.set_fast_open(fd, name, value)
        {
            return result;
        }
        let options = &mut self.socket_mut(fd)?.options;
        options.set(level, name, value)?;
        let engine_options = options.engine;
        if (level, name) == (libc::SOL_SOCKET, libc::SO_TIMESTAMPING) {
            self.set_stamping(fd, int(value)?)?;
        }
        if let Role::Listener { id, .. } = self.socket(fd)?.role {
            self.drive(|engine, _, _| engine.set_listener_options(id, engine_options));
        }
        let Some(id) = self.flow_of(fd)? else {
            return Ok(());
        };
        if (level, name) == (libc::IPPROTO_TCP, libc::TCP_NODELAY) && engine_options.nodelay {
            // In Linux, setting TCP_NODELAY sends corked data. Remove the cork for a moment.
            let free = SocketOptions {
                cork: false,
                ..engine_options
            };
            self.drive(|engine, now, wire| engine.set_options(now, id, free, wire));
        }
        self.drive(|engine, now, wire| engine.set_options(now, id, engine_options, wire));
        Ok(())
    }

    /// Sets SO_TIMESTAMPING. The byte numbers in time stamps count from the present SND.UNA, as in
    /// Linux.
    fn set_stamping(&mut self, fd: Fd, value: i32) -> CallResult<()> {
        let flow = self.flow_of(fd)?.and_then(|id| self.flow(id));
        let base = flow.map_or(0, |flow| flow.tx_acked());
        self.socket_mut(fd)?.error_queue.set_stamping(value, base);
        Ok(())
    }

    /// Implements `getsockopt(2)`. Returns the bytes of the value, which the caller may truncate.
    pub fn option(&mut self, fd: Fd, level: i32, name: i32) -> CallResult<Vec<u8>> {
        let state = self.state_of(fd)?;
        let id = self.flow_of(fd)?;
        if level == libc::IPPROTO_TCP
            && let Some(value) = self.fast_open_option(fd, name)
        {
            return Ok(value);
        }
        let socket = self.socket_mut(fd)?;
        let value = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                let error = socket.error.take().or_else(|| socket.soft_error.take());
                Some(of_int(error.map_or(0, |error| error.0 as u32)))
            }
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
                Some(of_int((state == State::Listen).into()))
            }
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => Some(of_int(socket.domain as u32)),
            (libc::SOL_SOCKET, libc::SO_MEMINFO) => Some(self.memory_info(fd, id)?),
            (libc::IPPROTO_TCP, libc::TCP_INFO) => Some(self.tcp_info(fd)?),
            // The value is empty, as in Linux for CUBIC. This stack does not report the state of
            // other congestion controls either.
            (libc::IPPROTO_TCP, libc::TCP_CC_INFO) => Some(Vec::new()),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => Some(self.mss(fd, id)?),
            _ => socket.options.get(level, name),
        };
        value.ok_or(Errno(libc::ENOPROTOOPT))
    }

    /// Implements `getsockopt` of TCP_MAXSEG. Returns the send MSS of the connection `id`. Without
    /// a connection, returns the value that the program set, or the default if the program set
    /// none.
    fn mss(&self, fd: Fd, id: Option<FlowId>) -> CallResult<Vec<u8>> {
        let wanted = u32::from(self.socket(fd)?.options.engine.mss_max);
        let flow = id.and_then(|id| self.flow_info(id));
        Ok(of_int(match flow {
            Some(info) => info.mss,
            None if wanted > 0 => wanted,
            None => info::MSS_DEFAULT,
        }))
    }
}
