//! `tidelane-load`: servers, clients and hostile programs for the benches and the interop tests.
//!
//! The tools call libc's exported functions, as a C program does. The same binary therefore runs on
//! the kernel's TCP or on Tidelane: `tidelane run` preloads a library that replaces these
//! functions. The echo, HTTP and key-value clients print one line of JSON with the number and rate
//! of requests, latency quantiles, errors, and CPU time.

use std::{fs, path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};

use crate::{
    client::{Closer, Load, Plan},
    exchange::Exchange,
};

mod block_doorbells;
mod bulk;
mod client;
mod corrupt_memory;
mod echo_server;
mod exchange;
mod idle;
mod kv;
mod mux;
mod ping;
mod report;
mod schedule;
mod spin;
mod sys;
mod xsk_echo;

/// Servers, clients and hostile programs for Tidelane's benches and tests.
#[derive(Parser, Debug)]
#[command(name = "tidelane-load")]
struct Command {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(Subcommand, Debug)]
enum Tool {
    /// TCP echo server with one thread and level-triggered epoll.
    EchoServer(echo_server::Options),
    /// Echo client on long connections, in a closed loop or at a fixed rate.
    EchoClient(EchoClient),
    /// Echo client that repeatedly opens a connection, makes a few requests and closes it
    ShortClient(ShortClient),
    /// HTTP client, keep-alive or `Connection: close`, in a closed loop or at a fixed rate.
    HttpClient(HttpClient),
    /// Key-value client with memcached's text protocol, in a closed loop or at a fixed rate.
    KvClient(kv::Options),
    /// Opens many idle connections, and reports their memory
    IdleClient(idle::Options),
    /// Receives one-way streams and counts them.
    BulkSink(bulk::SinkOptions),
    /// Sends one-way streams to a sink.
    BulkSource(bulk::SourceOptions),
    /// Stateless TCP echo on AF_XDP, which shows the highest rate that the link allows
    XskEcho(xsk_echo::Options),
    /// Measures how fast the mux forwards packets between its ports and a NIC
    Mux(mux::Options),
    /// A hostile program: writes random values to the memory that it shares with the service
    CorruptMemory(corrupt_memory::Options),
    /// A hostile program: tries to block the service in a write to a doorbell
    BlockDoorbells(block_doorbells::Options),
    /// Sends ICMP echo requests.
    Ping(ping::Options),
    /// Keeps cores awake by threads of the idle scheduling class, to measure the kernel without
    /// wake-ups from the idle state
    Spin(spin::Options),
}

/// Options of `echo-client`.
#[derive(Args, Debug)]
struct EchoClient {
    #[command(flatten)]
    load: Load,
    /// Bytes of a request.
    #[arg(long, default_value_t = 64)]
    bytes: usize,
    /// Requests in flight per connection.
    #[arg(long, default_value_t = 1)]
    pipeline: usize,
}

/// Options of `short-client`.
#[derive(Args, Debug)]
struct ShortClient {
    #[command(flatten)]
    load: Load,
    /// Bytes of a request.
    #[arg(long, default_value_t = 64)]
    bytes: usize,
    /// Requests per connection.
    #[arg(long, default_value_t = 1)]
    requests: u64,
    /// The end that closes first. If the server closes first, start the server with the same
    /// --requests and --bytes
    #[arg(long, value_enum, default_value = "client")]
    closer: Closer,
}

/// Options of `http-client`.
#[derive(Args, Debug)]
struct HttpClient {
    #[command(flatten)]
    load: Load,
    /// Path of the GET request.
    #[arg(long, default_value = "/")]
    path: String,
    /// One request per connection, with `Connection: close`.
    #[arg(long)]
    close: bool,
    /// A file with the expected body. The body of every response is compared with this file.
    #[arg(long)]
    body: Option<PathBuf>,
}

fn main() -> ExitCode {
    let result = match Command::parse().tool {
        Tool::EchoServer(options) => echo_server::run(&options),
        Tool::EchoClient(options) => run_echo(&options),
        Tool::ShortClient(options) => run_short(&options),
        Tool::HttpClient(options) => run_http(&options),
        Tool::KvClient(options) => kv::run(&options),
        Tool::IdleClient(options) => idle::run(&options),
        Tool::BulkSink(options) => bulk::sink(&options),
        Tool::BulkSource(options) => bulk::source(&options),
        Tool::Mux(options) => mux::run(&options),
        Tool::XskEcho(options) => xsk_echo::run(&options),
        Tool::CorruptMemory(options) => corrupt_memory::run(&options),
        Tool::BlockDoorbells(options) => block_doorbells::run(&options),
        Tool::Ping(options) => ping::run(&options),
        Tool::Spin(options) => spin::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidelane-load: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_echo(options: &EchoClient) -> std::io::Result<()> {
    let plan = Plan {
        exchange: Exchange::echo(options.bytes.max(1)),
        pipeline: options.pipeline.max(1),
        per_connection: 0,
        closer: Closer::Client,
        latency_includes_handshake: false,
    };
    client::run(&options.load, &plan)
}

fn run_short(options: &ShortClient) -> std::io::Result<()> {
    let plan = Plan {
        exchange: Exchange::echo(options.bytes.max(1)),
        pipeline: 1,
        per_connection: options.requests.max(1),
        closer: options.closer,
        latency_includes_handshake: true,
    };
    client::run(&options.load, &plan)
}

fn run_http(options: &HttpClient) -> std::io::Result<()> {
    let body = options.body.as_ref().map(fs::read).transpose()?;
    let plan = Plan {
        exchange: Exchange::http(options.load.connect, &options.path, options.close, body),
        pipeline: 1,
        per_connection: u64::from(options.close),
        closer: Closer::Server,
        latency_includes_handshake: options.close,
    };
    client::run(&options.load, &plan)
}
