//! Parameters of a context.

use std::{path::PathBuf, time::Duration};

/// Path of the service's socket, unless the environment variable `TIDELANE_SOCKET` has another one.
const SOCKET_PATH: &str = "/run/tidelane/default/control.sock";

/// Parameters of a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceOptions {
    /// Path of the service's socket.
    pub socket: PathBuf,
    /// Name of the program in `tidelane ss`.
    pub name: String,
    /// Number of buffers of the pool, at most 32,768. Data from the pool is copied when it is sent.
    pub buffers: u32,
    /// Length in bytes of each buffer of the pool, and of the buffers of
    /// [`allocate`](tidelane_rings::Context::allocate). The latter are shorter before the end of
    /// the circular send buffer.
    pub buffer_len: u32,
    /// Largest length of a buffer with received data in bytes.
    pub received_len_max: u32,
    /// Limit of buffers that wait for sending on one descriptor.
    pub send_queue_max: usize,
    /// Time for which a wait polls the rings before it sleeps, if the service runs on another CPU.
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

/// Returns the file name of the running program.
fn program_name() -> String {
    let path = std::env::args_os().next().map(PathBuf::from);
    let name = path.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    name.unwrap_or_else(|| "rings".to_owned())
}
