/*
 * Test cases for POSIX sockets. The output of each case must be the same on the kernel's stack and
 * on Tidelane.
 *
 *   posix CASE      runs a case
 *   posix --list    lists all cases
 *
 * The peer (peer.c) is the program at the other end of the connections. The environment variable
 * POSIX_PEER is the path of the peer's command socket. POSIX_OWN_ADDRESS and POSIX_PEER_ADDRESS are
 * the addresses of this program and of the peer. POSIX_PORT_SHIFT is optional: see `peer_tries` in
 * support.c.
 */
#include "posix.h"

#define CASES(X)                                                                                \
	X(basics) X(nonblocking) X(messages) X(wait_all) X(message_arrays) X(shutdowns) \
	X(resets) X(bulk) X(counts) X(level_triggered) X(data_and_end) X(edge_triggered)        \
	X(one_shot) X(mixed) X(added_early) X(listening) X(added_while_asleep) X(polled) X(selected)      \
	X(blocking_connect) X(refused) X(bound_connect) X(options) X(timeouts) X(both_stacks)     \
	X(duplicates) X(closes_all) X(connection_as_standard_error) X(forked_listener)           \
	X(forked_connection) X(process_exits) X(threads)                                         \
	X(small_stack) X(signal_stack)                                                           \
	X(signals) X(files) X(spliced) X(fork_serves) X(fork_saves) X(fork_keeps_open)            \
	X(fork_takes_turns) X(fork_reads_and_writes) X(fork_both_read) X(fork_unacknowledged)     \
	X(fork_writes_beside_reader) X(fork_both_end)                                             \
	X(fork_twice) X(fork_looks_the_same) X(fork_lingers) X(fork_connected)                    \
	X(fork_serves_many) X(fork_beside_threads) X(fork_after_the_end)                          \
	X(option_ranges) X(congestion_names) X(info_numbers) X(vectors) X(receive_flags)          \
	X(accept_flags) X(names) X(shutdown_states) X(shutdown_wakes) X(poll_errors)              \
	X(epoll_errors) X(timeout_values) X(peer_closes_all)                                      \
	X(setting_ranges) X(settings_inherited) X(receive_low) X(receive_low_large)               \
	X(receive_buffer) X(send_buffer) X(unsent_low) X(deferred_accept)               \
	X(urgent_received) X(urgent_alone) X(urgent_often) X(urgent_in_line) X(urgent_sent)       \
	X(urgent_bulk) X(urgent_events) X(urgent_edges) X(urgent_while_waiting)                    \
	X(fast_open_options) X(fast_open_deferred) X(fast_open_unwritten) X(fast_open_sendto)     \
	X(fast_open_accepted) X(pacing_values) X(paced) X(congestion_details)                     \
	X(armed_while_asleep) X(listener_armed_while_asleep) X(accept_then_wait)                  \
	X(accepting_while_added) X(polled_while_added) X(several_asleep) X(one_shot_listener)    \
	X(group_shares) X(group_of_processes) X(group_with_a_program) X(listen_again) \
	X(every_option)                                                                          \
	X(bound_without_port) X(bound_in_time_wait)                                              \
	X(handler_forks) X(handler_writes) X(handler_jumps_out) X(fork_by_other_names)            \
	X(temporary_epoll) X(nested_epoll) X(nested_one_shot) X(nested_same_data)                 \
	X(nested_number_reused) X(nested_added_later) X(nested_reported_once)                     \
	X(nested_polled_beside) X(nested_beside_calls) X(nested_quiet_additions)                  \
	X(nested_after_fork) X(nested_does_not_spin)                                              \
	X(streams) X(formatted_writes) X(standard_streams)                                        \
	X(fork_standard_streams) X(vectors_without_position)                                      \
	X(resets_after_data) X(reset_after_end) X(connects_at_once) X(killed_listener)            \
	X(cancelled_asleep) X(cancelled_before) X(cancelled_disabled) X(cancelled_at_any_moment)  \
	X(cancelled_and_signalled) X(cancelled_in_syscall) X(message_array_error)                 \
	X(cancelled_in_lock) X(spliced_into_full_pipe) X(spliced_and_interrupted)                  \
	X(splice_arguments)                                                                        \
	X(message_headers) X(owner_of_group) X(shutdown_arguments) X(listener_shut_down)           \
	X(listener_shut_down_wakes) X(interrupting_signals)                                        \
	X(fork_shuts_listener_down) X(fork_shuts_down_before_listen) X(fork_listens_again)          \
	X(fork_counts_received) X(fork_shuts_down_unnoticed)                                       \
	X(waiters_of_connections) X(waiters_take_turns) X(waiters_by_the_hundred)                 \
	X(waiters_of_one_connection) X(waiters_beside_epoll) X(fork_beside_waiters)

#define DECLARE(name) void name(void);
CASES(DECLARE)

#define ENTRY(name) {#name, name},
static const struct test_case cases[] = {CASES(ENTRY)};

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		if (!strcmp(argv[1], "--list")) {
			puts(cases[i].name);
		} else if (!strcmp(argv[1], cases[i].name)) {
			/* Lead a process group, so that the runner can kill all processes that the
			 * case leaves behind. */
			setpgid(0, 0);
			cases[i].run();
			return 0;
		}
	}
	return strcmp(argv[1], "--list") ? 2 : 0;
}
