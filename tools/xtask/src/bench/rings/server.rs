//! The HTTP servers of the figures (experiments of `bench/figures`) of the ring API, and their
//! start.

use std::time::Duration;

use serde::Deserialize;
use tidelane_tests::{
    Side, Stop, Wire, tools,
    wire::{INTERFACE, SERVER},
};

use super::{
    super::{kv::Path, programs::Programs},
    LIMIT, PORT,
};

/// A variant of the HTTP server: the API through which the server uses TCP, and how the server
/// waits for work.
#[derive(Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// The kernel's sockets with epoll. The server sleeps when there is nothing to do.
    Epoll,
    /// The kernel's sockets with epoll. The server polls without a sleep.
    EpollPoll,
    /// The kernel back end of the ring API. The server sleeps when there is nothing to do.
    IoUring,
    /// The kernel back end of the ring API. The server polls without a sleep.
    IoUringPoll,
    /// The service back end of the ring API, with TCP in the service. The service runs on the CPU
    /// of the server. The server sleeps when there is nothing to do.
    Service,
    /// The direct back end of the ring API, with TCP in the server's process. With [`Path::Veth`],
    /// the server owns the queue of the interface. With [`Path::Local`], the server exchanges
    /// packets with the service through a mux port (a pair of packet rings). The server sleeps when
    /// there is nothing to do.
    Direct,
    /// The server [`Self::Direct`] with the client `tidelane-http-client`. The TCP of this client
    /// runs in the client's process, on another mux port of the service. Only for [`Path::Local`]
    /// in a closed loop.
    DirectEmbedded,
    /// The direct back end, on the same queue or mux port as [`Self::Direct`]. The server polls
    /// without a sleep.
    DirectPoll,
}

impl Server {
    /// Returns the name in the results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Epoll => "epoll",
            Self::EpollPoll => "polling epoll",
            Self::IoUring => "io_uring",
            Self::IoUringPoll => "polling io_uring",
            Self::Service => "service",
            Self::Direct => "direct",
            Self::DirectEmbedded => "direct, embedded client",
            Self::DirectPoll => "polling direct",
        }
    }

    /// Returns the arguments of the example `ring-http`.
    fn arguments(self, path: Path) -> String {
        let direct = match path {
            Path::Veth => format!("--back-end direct --interface {INTERFACE}"),
            Path::Local => "--back-end direct".to_owned(),
        };
        match self {
            Self::Epoll => "--back-end epoll".to_owned(),
            Self::EpollPoll => "--back-end epoll --poll".to_owned(),
            Self::IoUring => "--back-end io-uring".to_owned(),
            Self::IoUringPoll => "--back-end io-uring --poll".to_owned(),
            Self::Service => "--back-end service".to_owned(),
            Self::Direct | Self::DirectEmbedded => direct,
            Self::DirectPoll => direct + " --poll",
        }
    }

    /// Returns true if the server needs the service.
    fn needs_service(self, path: Path) -> bool {
        match self {
            Self::Epoll | Self::EpollPoll | Self::IoUring | Self::IoUringPoll => false,
            Self::Service => true,
            Self::Direct | Self::DirectEmbedded | Self::DirectPoll => path == Path::Local,
        }
    }

    /// Returns the baseline, which is the server with epoll that waits in the same way.
    pub fn baseline(self) -> Self {
        match self {
            Self::EpollPoll | Self::IoUringPoll | Self::DirectPoll => Self::EpollPoll,
            _ => Self::Epoll,
        }
    }
}

/// Starts a server on `cpus`, and its service if the server needs the service. `time` is the
/// duration of the measurement. The server ends by itself when this time plus [`LIMIT`] has passed.
pub fn start(
    wire: &Wire,
    server: Server,
    path: Path,
    time: Duration,
    cpus: &str,
) -> Result<Programs, Stop> {
    let example = tools::binary("ring-http")?;
    let program = wire.program(Side::Server, &example.to_string_lossy());
    let seconds = (time + LIMIT).as_secs();
    let program = program.cpus(cpus).args(&format!(
        "--listen {SERVER}:{PORT} --seconds {seconds} {}",
        server.arguments(path)
    ));
    let (program, service) = match server.needs_service(path) {
        true => {
            let service = wire.service_on_cores(Side::Server, cpus, &[])?;
            (program.registering_at(&service), Some(service))
        }
        false => (program, None),
    };
    Ok(Programs {
        server: program.spawn_ready(LIMIT)?,
        service,
    })
}
