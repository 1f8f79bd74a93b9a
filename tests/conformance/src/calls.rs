//! The system calls that scripts can make, and the comparison of their results.
//!
//! [`resolve`] converts a call of the script to a [`Call`]: numbers replace the names of constants,
//! and descriptors of the stack replace the script's descriptors. [`check`] compares the result
//! with the script.

use std::collections::HashMap;

use crate::{
    ast::{CallSpec, Expr},
    call_result::CallResult,
};

/// A file descriptor of the stack under test.
pub type Fd = i32;

/// Local port of every `bind`.
pub const LISTEN_PORT: u16 = 8080;
/// Remote port of every `connect`.
pub const CONNECT_PORT: u16 = 8080;

/// A system call to make on a stack. Calls contain ports but no addresses, because all calls of a
/// run use the same local and remote address.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Call {
    Socket {
        domain: i32,
        kind: i32,
        protocol: i32,
    },
    Bind {
        fd: Fd,
        port: u16,
    },
    Listen {
        fd: Fd,
        backlog: i32,
    },
    Accept {
        fd: Fd,
    },
    Connect {
        fd: Fd,
        port: u16,
    },
    Receive {
        fd: Fd,
        len: usize,
        flags: i32,
    },
    Send {
        fd: Fd,
        bytes: Vec<u8>,
        flags: i32,
    },
    /// `sendto` with MSG_FASTOPEN, which opens the connection (RFC 7413).
    SendConnect {
        fd: Fd,
        port: u16,
        bytes: Vec<u8>,
        flags: i32,
    },
    Shutdown {
        fd: Fd,
        how: i32,
    },
    Close {
        fd: Fd,
    },
    SetOption {
        fd: Fd,
        level: i32,
        name: i32,
        value: Vec<u8>,
    },
    GetOption {
        fd: Fd,
        level: i32,
        name: i32,
        len: usize,
    },
    /// `fcntl` with F_GETFL.
    Flags {
        fd: Fd,
    },
    /// `fcntl` with F_SETFL.
    SetFlags {
        fd: Fd,
        flags: i32,
    },
    Poll {
        entries: Vec<(Fd, i16)>,
        timeout_ms: i32,
    },
    /// An `ioctl` that writes one `int`, such as FIONREAD.
    Ioctl {
        fd: Fd,
        request: u64,
    },
}

macro_rules! constants {
    ($($name:ident)*) => {
        &[$((stringify!($name), libc::$name as i64),)*]
    };
}

/// Constants that scripts may name.
const CONSTANTS: &[(&str, i64)] = constants! {
    AF_INET SOCK_STREAM SOCK_NONBLOCK SOCK_CLOEXEC IPPROTO_TCP IPPROTO_IP IPPROTO_ICMP
    SOL_SOCKET SOL_TCP SOL_IP
    SO_REUSEADDR SO_REUSEPORT SO_KEEPALIVE SO_LINGER SO_SNDBUF SO_RCVBUF SO_ERROR SO_RCVTIMEO
    SO_SNDTIMEO SO_RCVLOWAT SO_ACCEPTCONN SO_TYPE SO_MAX_PACING_RATE
    TCP_NODELAY TCP_CORK TCP_QUICKACK TCP_KEEPIDLE TCP_KEEPINTVL TCP_KEEPCNT TCP_USER_TIMEOUT
    TCP_MAXSEG TCP_CONGESTION TCP_INFO TCP_NOTSENT_LOWAT TCP_SYNCNT TCP_LINGER2 TCP_DEFER_ACCEPT
    TCP_WINDOW_CLAMP TCP_FASTOPEN TCP_FASTOPEN_CONNECT IP_TOS IP_MTU_DISCOVER
    IP_PMTUDISC_DONT IP_PMTUDISC_DO IP_RECVERR SO_OOBINLINE
    MSG_DONTWAIT MSG_PEEK MSG_MORE MSG_NOSIGNAL MSG_WAITALL MSG_OOB MSG_FASTOPEN MSG_TRUNC
    F_GETFL F_SETFL O_RDWR O_NONBLOCK SHUT_RD SHUT_WR SHUT_RDWR
    POLLIN POLLPRI POLLOUT POLLERR POLLHUP POLLRDHUP POLLRDNORM POLLWRNORM FIONREAD TIOCOUTQ
};

/// Errors that scripts may name.
const ERRORS: &[(&str, i64)] = constants! {
    EAGAIN EWOULDBLOCK EINPROGRESS EALREADY EISCONN ENOTCONN ECONNREFUSED ECONNRESET ECONNABORTED
    ETIMEDOUT EPIPE EINVAL EBADF EADDRINUSE EADDRNOTAVAIL EHOSTUNREACH ENETUNREACH EMSGSIZE
    EOPNOTSUPP ENOPROTOOPT EPROTO EINTR ENOTSOCK EDESTADDRREQ ENOBUFS EACCES EPERM
};

/// `ioctl` request that writes 1 if the next byte to read is the urgent byte, and otherwise 0
/// (`asm/sockios.h`).
pub const SIOCATMARK: u64 = 0x8905;
/// Further `ioctl` requests that scripts may name (`linux/sockios.h`).
const SOCKIOS: [(&str, i64); 4] = [
    ("SIOCINQ", libc::FIONREAD as i64),
    ("SIOCOUTQ", libc::TIOCOUTQ as i64),
    ("SIOCOUTQNSD", 0x894b),
    ("SIOCATMARK", SIOCATMARK as i64),
];

/// Returns the number of the error called `name`.
pub fn errno(name: &str) -> Option<i32> {
    let found = ERRORS.iter().find(|(known, _)| *known == name);
    found.map(|(_, number)| *number as i32)
}

/// Returns the name of an error, or its number if scripts cannot name it.
pub fn errno_name(number: i32) -> String {
    let found = ERRORS.iter().find(|(_, known)| *known == i64::from(number));
    found.map_or_else(|| format!("errno {number}"), |(name, _)| (*name).to_owned())
}

/// Returns the value of an expression: a number, a constant, numbers and constants joined by `|`,
/// or a list of one such expression.
pub fn number(expr: &Expr) -> Result<i64, String> {
    match expr {
        Expr::Number(number) => Ok(*number),
        Expr::Word(word) => CONSTANTS
            .iter()
            .chain(&SOCKIOS)
            .chain(ERRORS)
            .find(|(known, _)| known == word)
            .map(|(_, value)| *value)
            .ok_or(format!("{word} is not a constant that scripts may name")),
        Expr::Or(parts) => parts
            .iter()
            .try_fold(0, |all, part| Ok(all | number(part)?)),
        Expr::List(parts) if parts.len() == 1 => number(&parts[0]),
        other => Err(format!("expected a number, found {other:?}")),
    }
}

/// The stack's descriptor for each descriptor of the script.
#[derive(Debug, Default)]
pub struct Descriptors(HashMap<i64, Fd>);

impl Descriptors {
    /// Records `live` as the stack's descriptor for the script's descriptor `scripted`.
    pub fn add(&mut self, scripted: i64, live: Fd) {
        self.0.insert(scripted, live);
    }

    /// Returns the stack's descriptor for the descriptor `expr` of the script.
    fn live(&self, expr: &Expr) -> Result<Fd, String> {
        let scripted = number(expr)?;
        // The script may use a descriptor that it never opened, to test the error (EBADF). The
        // stack never opens a descriptor with a number of 900 or more.
        Ok(self
            .0
            .get(&scripted)
            .copied()
            .unwrap_or(900 + scripted as Fd))
    }
}

/// The arguments of a call in a script, and the descriptors to resolve them with.
struct Arguments<'a> {
    spec: &'a CallSpec,
    descriptors: &'a Descriptors,
}

impl Arguments<'_> {
    fn at(&self, index: usize) -> Result<&Expr, String> {
        let found = self.spec.arguments.get(index);
        found.ok_or(format!("{} has no argument {}", self.spec.name, index + 1))
    }

    fn int(&self, index: usize) -> Result<i32, String> {
        Ok(number(self.at(index)?)? as i32)
    }

    fn len(&self, index: usize) -> Result<usize, String> {
        usize::try_from(number(self.at(index)?)?).map_err(|_| "a negative length".to_owned())
    }

    fn fd(&self) -> Result<Fd, String> {
        self.descriptors.live(self.at(0)?)
    }

    /// Returns the bytes of an option's value, which the script writes as a number, a string, a
    /// list or a structure.
    fn value(&self, index: usize) -> Result<Vec<u8>, String> {
        let int = |expr: &Expr| Ok::<_, String>((number(expr)? as i32).to_ne_bytes().to_vec());
        match self.at(index)? {
            Expr::Text(text) => Ok(text.clone().into_bytes()),
            Expr::List(parts) => match parts.first() {
                Some(Expr::Text(text)) => Ok(text.clone().into_bytes()),
                _ => Ok(parts
                    .iter()
                    .map(int)
                    .collect::<Result<Vec<_>, _>>()?
                    .concat()),
            },
            Expr::Struct(fields) => {
                let is_time = fields.iter().any(|(name, _)| name.starts_with("tv_"));
                let field = |(_, value): &(String, Expr)| match is_time {
                    true => Ok(number(value)?.to_ne_bytes().to_vec()),
                    false => int(value),
                };
                Ok(fields
                    .iter()
                    .map(field)
                    .collect::<Result<Vec<_>, _>>()?
                    .concat())
            }
            other => int(other),
        }
    }

    /// Returns the descriptors and requested events of `[{fd=4, events=POLLIN, revents=POLLIN}]`.
    fn poll_entries(&self) -> Result<Vec<(Fd, i16)>, String> {
        let Expr::List(entries) = self.at(0)? else {
            return Err("poll takes a list of {fd=, events=, revents=}".to_owned());
        };
        let entry = |entry: &Expr| {
            let fd = self.descriptors.live(field(entry, "fd")?)?;
            Ok((fd, number(field(entry, "events")?)? as i16))
        };
        entries.iter().map(entry).collect()
    }
}

/// Returns the value of the field `name` of a structure.
fn field<'a>(entry: &'a Expr, name: &str) -> Result<&'a Expr, String> {
    let Expr::Struct(fields) = entry else {
        return Err(format!("expected {{{name}=...}}"));
    };
    let found = fields.iter().find(|(known, _)| known == name);
    found
        .map(|(_, value)| value)
        .ok_or(format!("there is no {name}="))
}

/// Resolves a call of the script. `domain` is the socket domain if the script writes `...` for it.
/// `pattern(fd, len)` returns the next `len` bytes that the program writes to `fd`.
pub fn resolve(
    spec: &CallSpec,
    descriptors: &Descriptors,
    domain: i32,
    pattern: impl Fn(Fd, usize) -> Vec<u8>,
) -> Result<Call, String> {
    let arguments = Arguments { spec, descriptors };
    match spec.name.as_str() {
        "socket" => {
            let domain = match arguments.at(0)? {
                Expr::Any => domain,
                other => number(other)? as i32,
            };
            let (kind, protocol) = (arguments.int(1)?, arguments.int(2)?);
            Ok(Call::Socket {
                domain,
                kind,
                protocol,
            })
        }
        "poll" => Ok(Call::Poll {
            entries: arguments.poll_entries()?,
            timeout_ms: arguments.int(2)?,
        }),
        "read" | "recv" | "recvfrom" | "write" | "send" | "sendto" => {
            resolve_transfer(&arguments, pattern)
        }
        "setsockopt" | "getsockopt" | "fcntl" | "ioctl" => resolve_option(&arguments),
        _ => resolve_plain(&arguments),
    }
}

/// Resolves a call that reads or writes bytes.
fn resolve_transfer(
    arguments: &Arguments<'_>,
    pattern: impl Fn(Fd, usize) -> Vec<u8>,
) -> Result<Call, String> {
    let (fd, len) = (arguments.fd()?, arguments.len(2)?);
    let flags = match arguments.spec.name.as_str() {
        "read" | "write" => 0,
        _ => arguments.int(3)?,
    };
    if ["read", "recv", "recvfrom"].contains(&arguments.spec.name.as_str()) {
        return Ok(Call::Receive { fd, len, flags });
    }
    let bytes = pattern(fd, len);
    let connects = flags & libc::MSG_FASTOPEN != 0;
    // MSG_NOSIGNAL prevents SIGPIPE, which could end the runner.
    let flags = flags | libc::MSG_NOSIGNAL;
    Ok(match connects {
        true => Call::SendConnect {
            fd,
            port: CONNECT_PORT,
            bytes,
            flags,
        },
        false => Call::Send { fd, bytes, flags },
    })
}

/// Resolves `setsockopt`, `getsockopt`, `fcntl` or `ioctl`.
fn resolve_option(arguments: &Arguments<'_>) -> Result<Call, String> {
    let (fd, command) = (arguments.fd()?, arguments.int(1)?);
    Ok(match arguments.spec.name.as_str() {
        "setsockopt" => Call::SetOption {
            fd,
            level: command,
            name: arguments.int(2)?,
            value: arguments.value(3)?,
        },
        "getsockopt" => Call::GetOption {
            fd,
            level: command,
            name: arguments.int(2)?,
            len: arguments.len(4)?,
        },
        "fcntl" if command == libc::F_GETFL => Call::Flags { fd },
        "fcntl" if command == libc::F_SETFL => Call::SetFlags {
            fd,
            flags: arguments.int(2)?,
        },
        "fcntl" => return Err("fcntl: F_GETFL and F_SETFL only".to_owned()),
        _ => Call::Ioctl {
            fd,
            request: command as u64,
        },
    })
}

/// Resolves a call that needs a descriptor and at most one number. Ignores addresses in the script.
fn resolve_plain(arguments: &Arguments<'_>) -> Result<Call, String> {
    let name = arguments.spec.name.as_str();
    if !["bind", "listen", "accept", "connect", "shutdown", "close"].contains(&name) {
        return Err(format!("{name} is not a call that scripts can make"));
    }
    let fd = arguments.fd()?;
    Ok(match name {
        "bind" => Call::Bind {
            fd,
            port: LISTEN_PORT,
        },
        "listen" => Call::Listen {
            fd,
            backlog: arguments.int(1)?,
        },
        "accept" => Call::Accept { fd },
        "connect" => Call::Connect {
            fd,
            port: CONNECT_PORT,
        },
        "shutdown" => Call::Shutdown {
            fd,
            how: arguments.int(1)?,
        },
        _ => Call::Close { fd },
    })
}

/// Compares the result of a call with the script. Fails with a message that names the difference.
pub fn check(spec: &CallSpec, call_result: &CallResult) -> Result<(), String> {
    let expected = match (&spec.errno, &spec.result) {
        (Some(name), _) => Some(Err(
            errno(name).ok_or(format!("{name} is not a known error"))?
        )),
        (None, Expr::Any) => None,
        (None, result) => Some(Ok(number(result)?)),
    };
    let formatted = |result: &Result<i64, i32>| match result {
        Ok(value) => value.to_string(),
        Err(number) => format!("-1 {}", errno_name(*number)),
    };
    // The descriptor numbers of scripts and stacks differ, so any new descriptor is right.
    let opens = ["socket", "accept"].contains(&spec.name.as_str());
    match expected {
        Some(Ok(_)) if opens && call_result.result.is_ok() => Ok(()),
        Some(expected) if expected != call_result.result => Err(format!(
            "{} should give {}, gave {}",
            spec.name,
            formatted(&expected),
            formatted(&call_result.result)
        )),
        _ if call_result.result.is_err() => Ok(()),
        _ => check_output(spec, &call_result.output),
    }
}

/// Compares the output of a successful `poll`, `getsockopt` or `ioctl` with the list in the script.
/// Other output is not compared here.
fn check_output(spec: &CallSpec, output: &[u8]) -> Result<(), String> {
    let word = |at: usize| {
        let bytes = output
            .get(at..at + 4)
            .and_then(|bytes| bytes.try_into().ok());
        bytes.map(i32::from_ne_bytes)
    };
    let expected = match (spec.name.as_str(), spec.arguments.as_slice()) {
        ("poll", [Expr::List(entries), ..]) => return check_poll(entries, output),
        ("getsockopt", [_, _, _, Expr::List(value), ..]) => value.as_slice(),
        ("ioctl", [_, _, Expr::List(value)]) => value.as_slice(),
        _ => return Ok(()),
    };
    for (index, part) in expected.iter().enumerate() {
        if let Expr::Text(text) = part {
            let found = String::from_utf8_lossy(output);
            let found = found.trim_end_matches('\0');
            if found != text {
                return Err(format!(
                    "{}: should be \"{text}\", is \"{found}\"",
                    spec.name
                ));
            }
        } else if *part != Expr::Any {
            let (should, is) = (number(part)? as i32, word(index * 4));
            if Some(should) != is {
                return Err(format!("{}: should be {should}, is {is:?}", spec.name));
            }
        }
    }
    Ok(())
}

/// Compares the events that `poll` returned. `output` has the two bytes of `revents` for each
/// entry.
fn check_poll(entries: &[Expr], output: &[u8]) -> Result<(), String> {
    for (entry, found) in entries.iter().zip(output.chunks_exact(2)) {
        let should = number(field(entry, "revents")?)? as i16;
        let is = i16::from_ne_bytes([found[0], found[1]]);
        if should != is {
            return Err(format!("poll: revents should be {should:#x}, are {is:#x}"));
        }
    }
    Ok(())
}
