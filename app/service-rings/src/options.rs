//! Parameters of a [`ServiceContext`](crate::ServiceContext).

use std::{path::PathBuf, time::Duration};

/// Path of the service's socket if the environment variable `TIDELANE_SOCKET` is not set.
const SOCKET_PATH: &str = "/run/tidelane/default/control.sock";

/// Parameters of a [`ServiceContext`](crate::ServiceContext).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceOptions {
    /// Path of the Unix socket over which the program registers with the service (the process
    /// `tidelaned`).
    pub socket: PathBuf,
    /// Name of the program in `tidelane ss`.
    pub name: String,
    /// Number of buffers in the context's pool, at most 32,768. Data in a pool buffer is copied
    /// when the program sends the buffer on a connection.
    pub buffers: u32,
    /// Capacity in bytes of the buffers of the pool and of
    /// [`allocate`](tidelane_rings::Context::allocate). Buffers of `allocate` may be smaller, for
    /// example just before the end of the circular send buffer.
    pub buffer_len: u32,
    /// Limit of the length in bytes of a buffer with received data.
    pub received_len_max: u32,
    /// Limit of the number of buffers that wait for sending on one descriptor.
    pub send_queue_max: usize,
    /// Time for which a wait polls the rings (queues with the service's events) before it sleeps. A
    /// wait does not poll if a core (a polling thread of the service) may run on the same CPU, or
    /// if all cores sleep.
    pub spin: Duration,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        let socket = std::env::var_os("TIDELANE_SOCKET");
        Self {
            socket: socket.map_or_else(|| SOCKET_PATH.into(), PathBuf::from),
            name: program_name(),
            buffers: 1024,
            buffer_len: 4096,
            received_len_max: 1 << 16,
            send_queue_max: 256,
            spin: Duration::from_micros(20),
        }
    }
}

/// Returns the file name in `argv[0]`, or `rings` if there is none.
fn program_name() -> String {
    let path = std::env::args_os().next().map(PathBuf::from);
    let name = path.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    name.unwrap_or_else(|| "rings".to_owned())
}
