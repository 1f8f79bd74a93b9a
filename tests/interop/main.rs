//! The interop tests: programs on Tidelane, most of them unmodified. In most tests, the peer is on
//! the kernel's stack, at the other end of a veth pair (the wire).
//!
//! Run them as root after `make build`: `cargo test -p tidelane-tests --test interop -- FILTER`.
//! Environment variables set the length of the long tests:
//!
//! ```text
//! TIDELANE_KILLS              programs killed by `deaths`                    default 20
//! TIDELANE_SERVICE_KILLS      services killed by `both_stacks`               default 4
//! TIDELANE_STARTS             servers started while clients connect          default 15
//! TIDELANE_BULK_MIB           MiB of a large file                            default 64
//! TIDELANE_LOSS_MIB           MiB through a lossy wire                       default 64
//! TIDELANE_LOSS_CONNECTIONS   connections through a lossy wire               default 1000
//! TIDELANE_SCRIBBLES          runs of a program that overwrites its memory   default 10
//! TIDELANE_FLOOD_RATE         SYNs per second                                default 50,000
//! TIDELANE_FLOOD_SECONDS      duration of a flood                            default 2
//! TIDELANE_BARRAGE            seconds of each measurement beside attacks     default 4
//! ```
//!
//! In the module `machines`, the default of TIDELANE_BULK_MIB and of TIDELANE_LOSS_MIB is 8.
//!
//! TIDELANE_PEER and TIDELANE_PEER_NIC enable the tests of `machines`, which need two machines.
//! TIDELANE_CORES is the default number of fast-path cores (packet-processing threads) of a
//! service. If this number is more than 1, the cores run on the first CPUs. Otherwise a service has
//! one core, which may run on any CPU.

use std::process::ExitCode;

use tidelane_tests::runner::{self, Case};

mod backlog;
mod both_stacks;
mod capture;
mod clients;
mod coexist;
mod commands;
mod cores;
mod deaths;
mod direct;
mod embedded;
mod exceptions;
mod fast_open;
mod flood;
mod forks;
mod fragments;
mod harness;
mod headers;
mod hostile;
mod idle;
mod interfaces;
mod io_uring;
mod ipv6;
mod jumbo;
mod kernels;
mod kv;
mod links;
mod local_path;
mod loopback;
mod loss;
mod machines;
mod offloads;
mod options;
mod port_rates;
mod port_rules;
mod ports;
mod ring_http;
mod rings_c;
mod security;
mod servers;
mod support;
mod waiting;

/// Makes a list of [`Case`]s from lines of the form `module::function SECONDS,`. SECONDS is the
/// time limit of the case. If the word `alone` follows this number, no other case runs at the same
/// time.
macro_rules! cases {
    ($($module:ident $(:: $rest:ident)+ $seconds:literal $($alone:ident)?,)*) => {
        &[$(Case {
            name: concat!(stringify!($module) $(, "::", stringify!($rest))+),
            run: $module $(:: $rest)+,
            seconds: $seconds,
            alone: cases!(@is_alone $($alone)?),
        },)*]
    };
    (@is_alone alone) => { true };
    (@is_alone) => { false };
}

/// The cases of all modules. The cases without `alone` start in this order, several at a time. The
/// cases with `alone` run afterwards, one after another.
const CASES: &[Case] = cases![
    harness::kernel_echo_over_the_wire 30,
    harness::a_killed_owner_leaves_nothing 90,
    harness::stateless_echo_on_af_xdp 60,
    commands::up_names_the_cause_of_a_failure 60,
    commands::a_kernel_without_af_xdp 30,
    commands::without_a_service 30,
    commands::another_shared_memory_version 60,
    commands::a_program_of_another_version 30,
    commands::up_down_up 60,
    kernels::starts_or_says_why 60,
    commands::ss_names_the_sockets 60,
    commands::run_reports_programs_that_cannot_be_accelerated 60,
    commands::strict_refuses_a_fall_back 60,
    capture::tcpdump_reads_the_packets 60,
    capture::a_killed_capture_ends 90,
    cores::both_have_connections 60 alone,
    cores::too_few_queues 60 alone,
    cores::no_such_cpu 60 alone,
    servers::echo 60,
    servers::nginx_bodies_by_curl 90,
    servers::nginx_keep_alive_and_close 90,
    servers::nginx_under_wrk 60,
    servers::nginx_reload 60,
    servers::nginx_worker_restart 60,
    servers::nginx_with_a_listener_for_each_worker 60,
    servers::redis_benchmark 90,
    servers::redis_values 60,
    servers::memcached_four_threads 90,
    servers::erlang_echo 60,
    clients::curl_from_a_kernel_server 60,
    clients::wrk_against_a_kernel_server 60,
    clients::redis_benchmark_against_a_kernel_server 60,
    clients::echo_client_against_a_kernel_server 60,
    clients::refused_and_unreachable 60,
    local_path::echo 60,
    local_path::nginx_and_curl 60,
    local_path::redis_and_redis_benchmark 60,
    coexist::ping_under_load 60,
    coexist::an_unaccelerated_server_on_another_port 60,
    coexist::loopback_client_of_an_accelerated_listener 60,
    coexist::address_in_use_both_ways 60,
    coexist::idle_service_sleeps 60 alone,
    loopback::redis_on_localhost 60,
    loopback::nginx_and_curl 60,
    loopback::all_addresses_as_on_the_kernel 60,
    loopback::mixed_ends_are_the_kernels 90,
    loopback::namespaces_do_not_connect_over_loopback 60,
    loopback::no_frame_with_a_loopback_address_is_accepted 60,
    loopback::deaths_reset_the_other_end 90,
    loopback::rules_hold 60,
    loopback::by_configuration 60,
    interfaces::a_service_starts_without_a_carrier 60,
    interfaces::down_and_up_again 60,
    interfaces::the_mtu_changes 60,
    interfaces::renamed 60,
    interfaces::gone 60,
    interfaces::the_driver_is_reset 120,
    interfaces::a_second_service_is_told_of_the_first 30,
    jumbo::nginx_bodies 120,
    jumbo::echoes_both_ways 90,
    jumbo::a_peer_of_a_smaller_mtu 60,
    jumbo::a_larger_mtu_than_at_the_start 60,
    links::kinds_are_refused_with_the_reason 60,
    links::programs_of_others_are_named 60,
    links::commands_of_one_name_state_their_own_reasons 60,
    links::a_port_of_a_bridge_ends_the_service 60,
    links::tagged_frames_reach_no_connection 60,
    links::vlans_beside_the_service 60,
    links::a_vlan_is_served 120,
    offloads::settings_are_as_before 120,
    offloads::the_operator_changes_an_offload 60,
    offloads::the_restorer_has_one_capability 30,
    offloads::bytes_are_right_with_offloads_on_and_off 180,
    ipv6::nginx_on_both_versions 60,
    ipv6::clients_of_a_kernel_server 60,
    ipv6::local_path 60,
    ipv6::addresses_come_and_go 60,
    both_stacks::no_client_is_reset_while_a_server_starts 900,
    both_stacks::connections_of_the_kernel_go_on_there 120,
    both_stacks::servers_find_the_service_again 900,
    both_stacks::listeners_of_an_outage_find_the_service 120,
    both_stacks::real_servers_find_the_service_again 300,
    deaths::killed_program_frees_all 3000,
    deaths::killed_client_frees_all 3000,
    deaths::killed_service_resets_and_comes_back 120,
    deaths::a_dead_connection_wakes_a_sleeper 60,
    exceptions::listeners_by_choice 60,
    idle::memory_goes_back 120 alone,
    exceptions::an_address_by_choice 60,
    exceptions::connections_by_choice 60,
    exceptions::a_server_that_hands_over 60,
    exceptions::a_server_that_forks_for_each_connection 60,
    exceptions::a_server_with_long_lived_children 60,
    exceptions::a_server_that_sends_connections_on 90,
    exceptions::git_daemon_is_known 60,
    backlog::a_child_for_each_of_a_hundred_clients 180,
    backlog::busybox_httpd 180,
    deaths::workers_of_memcached_find_the_next_service 60,
    deaths::a_polling_thread_finds_the_next_service 120,
    embedded::http_to_the_kernel 90,
    embedded::the_same_source_on_kernel_sockets 60,
    embedded::http_with_loss 90,
    embedded::a_c_program_in_a_libuv_loop 60,
    embedded::a_killed_server 60,
    direct::http_behind_a_device 90,
    direct::http_on_a_port 90,
    direct::http_on_a_nic_queue 90,
    direct::http_on_a_nic_queue_with_loss 90,
    direct::a_killed_owner_of_a_queue 90,
    ports::groups_reach_ports 90,
    ports::three_stacks_share_an_address 120,
    ports::the_mtu_changes 120,
    ports::two_ports_exchange_packets_in_memory 60,
    ports::a_port_reaches_a_server_on_the_service 60,
    ports::a_program_on_the_service_reaches_a_port 60,
    ports::a_dead_program_leaves_the_others 90,
    ports::a_claimed_3_tuple_is_in_use 60,
    ports::other_users_have_their_own_rights 60,
    ports::a_dead_service_ends_the_program 60,
    port_rates::a_port_sends_at_its_rate 60 alone,
    port_rules::clients_of_a_port_are_accepted_refused_and_dropped 60,
    port_rules::a_port_does_not_reach_a_refused_peer 60,
    port_rules::new_rules_stop_a_download_from_a_port 60,
    port_rules::new_rules_reset_the_client_of_a_port 60,
    kv::memcached_clients_on_the_service 60,
    kv::memcached_clients_on_a_nic_queue 60,
    kv::memcached_clients_on_a_port_of_the_service 60,
    kv::a_client_of_the_service_on_the_same_host 60,
    kv::a_client_of_a_port_on_the_same_host 60,
    ring_http::curl_and_wrk_on_the_service 90,
    ring_http::without_privileges 60,
    ring_http::curl_with_loss 120,
    ring_http::the_next_service_serves 120,
    ring_http::errors_say_what_to_do 60,
    rings_c::http_on_the_service 90,
    rings_c::http_on_a_nic_queue 90,
    rings_c::echo_on_the_service 60,
    rings_c::echo_on_a_nic_queue 60,
    rings_c::connections_on_the_service 60,
    rings_c::connections_on_a_nic_queue 60,
    rings_c::datagrams_beside_the_service 60,
    rings_c::datagrams_on_a_nic_queue 60,
    forks::a_child_for_each_connection 60,
    forks::redis_saves_under_load 90,
    forks::children_outlive_their_parent 60,
    forks::passing_on_an_accelerated_connection_is_reported 60,
    fragments::a_router_cuts_segments 240,
    fragments::segments_arrive_in_pieces_in_any_order 300,
    io_uring::a_server_without_a_ring_is_served 60,
    io_uring::io_uring_works_if_allowed 60,
    headers::ip_headers_are_as_chosen 180,
    options::keepalive_ends_a_silent_connection 180,
    options::user_timeout_ends_a_silent_connection 180,
    options::congestion_is_as_chosen 180,
    options::ecn_is_as_chosen 240,
    options::syn_count_is_as_chosen 180,
    options::a_silent_peer_is_looked_for 180,
    options::soft_errors_are_reported 240,
    hostile::scribbler_disturbs_nobody 300,
    hostile::jammed_doorbell_disturbs_nobody 60,
    hostile::nonsense_at_the_registration_socket 60,
    hostile::unprivileged_program 60,
    security::access::attackers_have_the_rights_that_the_tests_assume 60,
    security::access::another_user_is_answered 60,
    security::admission::users_are_admitted_by_group_or_by_name 60,
    security::admission::members_of_the_group_are_admitted 60,
    security::rules::a_hang_up_reads_the_rules_again 60,
    security::admission::a_namespace_is_left_to_the_kernel 60,
    security::admission::workers_of_another_user_come_with_their_master 60,
    security::admission::a_filtered_cgroup_stays_with_the_kernel 60,
    security::firewall::up_names_the_rules_that_would_be_bypassed 60,
    security::firewall::rules_that_appear_later_are_named 60,
    security::rules::clients_are_accepted_refused_and_dropped 60,
    security::rules::programs_are_refused_and_left_waiting 60,
    security::rules::new_rules_look_at_connections_that_are_open 60,
    security::bytes::bytes_that_waited_stay_with_their_user 60,
    security::bytes::a_program_cannot_punch_holes_under_the_service 60,
    security::confinement::each_thread_has_only_the_capabilities_that_it_needs 30,
    security::confinement::serving_makes_no_denied_call 60,
    security::confinement::links_are_not_followed 60,
    security::limits::idle_registrations_shut_nobody_out 90,
    security::limits::silent_registrations_end 60,
    security::limits::one_program_does_not_grow_the_service 180,
    security::limits::limits_are_as_configured 30,
    security::limits::unread_answers_end_a_session 30,
    security::limits::a_backlog_is_no_longer_than_somaxconn 60,
    security::network::martians_get_no_answer 90,
    security::network::frames_for_others_are_not_taken 60,
    security::network::only_the_resolved_neighbour_is_sent_to 60,
    security::pid_namespace::a_program_outside_is_served_and_freed 90,
    security::watchdog::a_stopped_service_leaves_new_connections_to_the_kernel 60 alone,
    security::watchdog::a_service_that_slept_has_the_next_frame 30 alone,
    security::watchdog::a_core_has_precedence_over_busy_programs 60 alone,
    security::together::attacks_at_once_take_nothing_from_others 120 alone,
    security::ports::a_socket_of_another_namespace_gives_no_claim 60,
    security::ports::a_socket_of_another_interface_gives_no_claim 60,
    security::ports::a_reservation_takes_nothing_from_a_listener 60,
    security::ports::a_claim_holds_the_port_after_its_socket_is_closed 60,
    security::ports::a_loop_of_reservations_ends_at_the_users_share 120,
    security::ports::each_user_has_the_ports_that_the_kernel_gives 60,
    security::ports::a_group_of_listeners_belongs_to_its_user 60,
    security::ports::a_lingering_descriptor_holds_up_nobody 120,
    fast_open::nginx_accepts_data_in_syn 60,
    fast_open::curl_sends_data_in_syn 60,
    fast_open::cookies_outlive_the_service 90,
    flood::an_upload_goes_on 300 alone,
    flood::a_download_goes_on 300 alone,
    machines::both_accelerated 180,
    machines::kernel_client 180,
    machines::kernel_server 180,
    machines::over_ipv6 180,
    machines::loss_before_a_kernel_client 180,
    machines::loss_before_a_kernel_server 180,
    waiting::peers_of_a_dead_service_are_reset 120,
    waiting::many_peers_are_reset 120,
    waiting::servers_of_dead_clients_are_reset 60,
    waiting::connections_are_reset_when_a_service_dies 180,
    waiting::clients_at_work_outlive_both_services 120,
    waiting::a_peer_that_reconnects_is_not_reset 120,
    waiting::peers_are_reset_despite_loss 120,
    waiting::a_service_that_ends_resets_its_peers 60,
    loss::kernel_bulk 90,
    loss::bulk_through_nginx 600,
    loss::one_percent_by_netem 180,
    loss::short_connections 600,
];

fn main() -> ExitCode {
    runner::main(CASES)
}
