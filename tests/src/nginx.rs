//! An nginx server for tests: Debian's nginx with a generated configuration. The server runs in a
//! network namespace of a wire, the test network ([`crate::wire`]). All files lie in the wire's
//! directory.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    Service, Stop,
    program::Program,
    running::Running,
    tools::{require_tools, wait_until},
    wire::{Side, Wire, write_random_file},
};

/// The served files: name and size in bytes.
pub const FILES: [(&str, u64); 3] = [("64", 64), ("1k", 1024), ("1m", 1 << 20)];

/// Time limit for nginx to start listening, and for its workers to start.
const START_MAX: Duration = Duration::from_secs(10);

/// Configuration of nginx.
#[derive(Clone, Debug)]
pub struct NginxOptions {
    /// Number of worker processes.
    pub workers: u32,
    /// Port to listen on.
    pub port: u16,
    /// True if each worker has its own listener (SO_REUSEPORT).
    pub reuseport: bool,
    /// CPUs on which the master and the workers may run, such as `0,1`. `None` sets no limit.
    pub cpus: Option<String>,
    /// Further lines of the configuration's `http` block.
    pub extra: String,
    /// Further lines of the configuration's `server` block.
    pub server: String,
    /// Options of `tidelane run`.
    pub run_options: String,
}

impl Default for NginxOptions {
    fn default() -> Self {
        Self {
            workers: 2,
            port: 80,
            reuseport: false,
            cpus: None,
            extra: String::new(),
            server: String::new(),
            run_options: String::new(),
        }
    }
}

/// A running nginx with its workers. `drop` kills the master process. The workers end with the wire
/// at the latest.
#[derive(Debug)]
pub struct Nginx {
    /// The master process.
    pub master: Running,
    /// Directory of the served files.
    pub root: PathBuf,
    /// Port that nginx listens on.
    pub port: u16,
}

impl Nginx {
    /// Starts nginx on the server's side. If `service` is given, nginx runs on this service,
    /// otherwise on the kernel. Waits until the workers of nginx run.
    pub fn start(
        wire: &Wire,
        service: Option<&Service>,
        options: &NginxOptions,
    ) -> Result<Self, Stop> {
        let (program, home) = Self::prepare(wire, Side::Server, options)?;
        let master = wire.start_server(
            program.run_options(&options.run_options),
            service,
            options.port,
        );
        let master = master.map_err(|stop| explain(stop, &home))?;
        Self::with_workers(master, &home, options)
    }

    /// Starts nginx on the client's side, on the kernel. Waits until the workers of nginx run.
    pub fn start_behind(wire: &Wire, options: &NginxOptions) -> Result<Self, Stop> {
        let (program, home) = Self::prepare(wire, Side::Client, options)?;
        let mut master = program.spawn()?;
        wait_until(START_MAX, "nginx to listen", || {
            master.check_alive()?;
            wire.listens(Side::Client, options.port)
        })
        .map_err(|stop| explain(stop, &home))?;
        Self::with_workers(master, &home, options)
    }

    /// Waits until the master has started all its workers. The master listens before it forks them.
    fn with_workers(master: Running, home: &Path, options: &NginxOptions) -> Result<Self, Stop> {
        let mut nginx = Self {
            master,
            root: home.join("html"),
            port: options.port,
        };
        wait_until(START_MAX, "the workers of nginx", || {
            nginx.master.check_alive()?;
            Ok(nginx.workers()?.len() == options.workers as usize)
        })
        .map_err(|stop| explain(stop, home))?;
        Ok(nginx)
    }

    /// Writes the served files and the configuration. Returns the program to start, and the
    /// directory of its files.
    fn prepare(
        wire: &Wire,
        side: Side,
        options: &NginxOptions,
    ) -> Result<(Program, PathBuf), Stop> {
        require_tools(&["nginx"])?;
        let home = wire.scratch().join(format!("nginx-{}", options.port));
        write_files(&home.join("html"))?;
        let config = home.join("nginx.conf");
        fs::write(&config, config_text(&home, options))?;
        let program = wire.program(side, "nginx").arg("-c").arg(config.display());
        let program = program.arg("-e").arg(home.join("error.log").display());
        let program = match &options.cpus {
            Some(cpus) => program.cpus(cpus),
            None => program,
        };
        Ok((program, home))
    }

    /// Returns the path of a served file.
    pub fn file(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Returns the process ids of the workers.
    pub fn workers(&self) -> Result<Vec<u32>, Stop> {
        let pid = self.master.pid();
        let path = format!("/proc/{pid}/task/{pid}/children");
        let text = fs::read_to_string(path)?;
        Ok(text
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect())
    }
}

/// Appends nginx's error log to the text of a failure.
fn explain(stop: Stop, home: &Path) -> Stop {
    let log = fs::read_to_string(home.join("error.log")).unwrap_or_default();
    match stop {
        Stop::Fail(text) => Stop::Fail(format!("{text}\n{log}")),
        skip @ Stop::Skip(_) => skip,
    }
}

fn write_files(root: &Path) -> Result<(), Stop> {
    fs::create_dir_all(root)?;
    for (index, (name, len)) in FILES.iter().enumerate() {
        let path = root.join(name);
        if !path.is_file() {
            write_random_file(&path, *len, 1 + index as u64)?;
        }
    }
    Ok(())
}

fn config_text(home: &Path, options: &NginxOptions) -> String {
    let NginxOptions {
        workers,
        port,
        extra,
        server,
        reuseport,
        ..
    } = options;
    let reuseport = if *reuseport { " reuseport" } else { "" };
    let home = home.display();
    let temp: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("    {kind}_temp_path {home}/{kind};\n"))
        .concat();
    format!(
        "daemon off;
master_process on;
worker_processes {workers};
worker_rlimit_nofile 65536;
user www-data;
pid {home}/pid;
error_log {home}/error.log notice;
events {{
    worker_connections 16384;
}}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    tcp_nodelay on;
    keepalive_timeout 60s;
    keepalive_requests 1000000000;
    default_type application/octet-stream;
    open_file_cache max=100;
{temp}{extra}
    server {{
        listen {port} backlog=4096{reuseport};
{server}
        root {home}/html;
    }}
}}
"
    )
}
