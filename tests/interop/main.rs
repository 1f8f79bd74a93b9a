//! Unmodified programs on Tidelane, against the kernel at the other end of a veth pair.
//!
//! `cargo test -p tidelane-tests --test interop -- FILTER`, as root, after `make build`. How long
//! the long tests go on: TIDELANE_KILLS (kill -9 loops, default 20), TIDELANE_LOSS_MIB (bytes
//! through the lossy wire, default 64), TIDELANE_LOSS_CONNECTIONS (default 1000),
//! TIDELANE_SCRIBBLES (rounds of a hostile program, default 10), TIDELANE_FLOOD_RATE and
//! TIDELANE_FLOOD_SECONDS (SYNs per second, default 50,000, and for how long, default 2).
//! TIDELANE_CORES gives each service that many fast-path cores, on the first CPUs (default: one
//! that is not pinned).

use std::process::ExitCode;

use tidelane_tests::runner::{self, Case};

mod clients;
mod coexist;
mod commands;
mod cores;
mod deaths;
mod fast_open;
mod flood;
mod forks;
mod fragments;
mod harness;
mod headers;
mod hostile;
mod ipv6;
mod loss;
mod memory;
mod options;
mod servers;
mod support;

/// `module::function, seconds` as a [`Case`].
macro_rules! cases {
    ($($module:ident :: $function:ident $seconds:literal,)*) => {
        &[$(Case {
            name: concat!(stringify!($module), "::", stringify!($function)),
            run: $module::$function,
            seconds: $seconds,
        },)*]
    };
}

const CASES: &[Case] = cases![
    harness::kernel_echo_over_the_wire 30,
    harness::a_killed_owner_leaves_nothing 90,
    harness::stateless_echo_on_af_xdp 60,
    commands::up_says_what_is_wrong 60,
    commands::a_kernel_without_af_xdp 30,
    commands::without_a_service 30,
    commands::another_shared_memory_version 60,
    commands::a_program_of_another_version 30,
    commands::up_down_up 60,
    commands::ss_names_the_sockets 60,
    commands::strict_refuses_a_fall_back 60,
    cores::both_have_connections 60,
    cores::too_few_queues 60,
    servers::echo 60,
    servers::nginx_bodies_by_curl 90,
    servers::nginx_keep_alive_and_close 90,
    servers::nginx_under_wrk 60,
    servers::nginx_reload 60,
    servers::nginx_worker_restart 60,
    servers::redis_benchmark 90,
    servers::redis_values 60,
    servers::memcached_four_threads 90,
    clients::curl_from_a_kernel_server 60,
    clients::wrk_against_a_kernel_server 60,
    clients::redis_benchmark_against_a_kernel_server 60,
    clients::echo_client_against_a_kernel_server 60,
    clients::refused_and_unreachable 60,
    memory::echo 60,
    memory::nginx_and_curl 60,
    memory::redis_and_redis_benchmark 60,
    coexist::ping_under_load 60,
    coexist::an_unaccelerated_server_on_another_port 60,
    coexist::loopback_client_of_an_accelerated_listener 60,
    coexist::address_in_use_both_ways 60,
    coexist::idle_service_sleeps 60,
    ipv6::nginx_on_both_versions 60,
    ipv6::clients_of_a_kernel_server 60,
    ipv6::memory_wire 60,
    ipv6::addresses_come_and_go 60,
    deaths::killed_program_frees_all 600,
    deaths::killed_client_frees_all 300,
    deaths::killed_service_resets_and_comes_back 120,
    forks::a_child_for_each_connection 60,
    forks::redis_saves_under_load 90,
    forks::children_outlive_their_parent 60,
    forks::what_cannot_be_passed_on_is_said 60,
    fragments::a_router_cuts_segments 240,
    fragments::segments_arrive_in_pieces_in_any_order 300,
    headers::ip_headers_are_as_chosen 180,
    options::keepalive_ends_a_silent_connection 180,
    options::user_timeout_ends_a_silent_connection 180,
    options::congestion_is_as_chosen 180,
    options::ecn_is_as_chosen 240,
    options::syn_count_is_as_chosen 180,
    options::a_silent_peer_is_looked_for 180,
    options::soft_errors_are_told 240,
    hostile::scribbler_disturbs_nobody 300,
    hostile::jammed_doorbell_disturbs_nobody 60,
    hostile::nonsense_at_the_registration_socket 60,
    hostile::unprivileged_program 60,
    fast_open::nginx_takes_text_with_syn 60,
    fast_open::curl_sends_text_with_syn 60,
    fast_open::cookies_outlive_the_service 90,
    flood::an_upload_goes_on 300,
    flood::a_download_goes_on 300,
    loss::kernel_bulk 90,
    loss::bulk_through_nginx 600,
    loss::short_connections 600,
];

fn main() -> ExitCode {
    runner::main(CASES)
}
