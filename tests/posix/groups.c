/* Groups of listeners that share a port (SO_REUSEPORT), and repeated calls of listen. */
#include <linux/filter.h>

#include "posix.h"

/* A case opens CONNECTIONS connections to find the shares of two listeners. Each listener must get
 * at least SHARE_MIN connections. If each connection goes to a random listener, the probability
 * that a listener gets fewer connections is below 10^-9. */
#define CONNECTIONS 64
#define SHARE_MIN 8

/* Returns a new listener of the group on `port`, or on an ephemeral port if `port` is 0. Stores the
 * listener's port in `bound_port`. */
static int member(int port, int *bound_port)
{
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(port)};
	socklen_t len = sizeof name;
	int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	must(fd >= 0);
	must(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0);
	must(bind(fd, (void *)&name, sizeof name) == 0);
	must(getsockname(fd, (void *)&name, &len) == 0);
	must(listen(fd, 2 * CONNECTIONS) == 0);
	want_connections(fd);
	*bound_port = ntohs(name.sin_port);
	return fd;
}

/* Makes the peer open `count` connections to `port`, and transfers data on each. Adds the number of
 * connections of each listener to `counts`. */
static void open_and_count(int port, int count, const int *listeners, int *counts,
			   int listener_count)
{
	struct pollfd polled[4];
	for (int i = 0; i < listener_count; i++)
		polled[i] = (struct pollfd){.fd = listeners[i], .events = POLLIN};
	for (int opened = 0; opened < count; opened++) {
		int other = peer_connects(port), fd = -1;
		must(poll(polled, listener_count, TIMEOUT_MS) > 0);
		for (int i = 0; i < listener_count && fd < 0; i++) {
			fd = polled[i].revents ? accept(listeners[i], NULL, NULL) : -1;
			counts[i] += fd >= 0;
		}
		must(fd >= 0);
		peer_sends(other, 10, 1);
		wait_readable(fd);
		read_exactly(fd, 10, 1);
		close(fd);
		peer("close %d", other);
	}
}

/* Two listeners share the connections. When one listener is closed, the other listener gets all
 * connections. A new member of the group gets a share again. */
void group_shares(void)
{
	int port, listeners[2], counts[2] = {0}, alone[1] = {0};
	listeners[0] = member(0, &port);
	listeners[1] = member(port, &port);
	open_and_count(port, CONNECTIONS, listeners, counts, 2);
	say("all %d, shared %d %d", counts[0] + counts[1] == CONNECTIONS, counts[0] >= SHARE_MIN,
	    counts[1] >= SHARE_MIN);
	close(listeners[0]);
	open_and_count(port, 8, listeners + 1, alone, 1);
	say("the other one %d", alone[0]);
	listeners[0] = member(port, &port);
	counts[0] = counts[1] = 0;
	open_and_count(port, CONNECTIONS, listeners, counts, 2);
	say("shared again %d %d", counts[0] >= SHARE_MIN, counts[1] >= SHARE_MIN);
}

/* Two processes, each with its own listener, share the connections, as worker processes of a server
 * do. When one process has ended, the other process gets all connections. */
void group_of_processes(void)
{
	int port, listener = member(0, &port), ready[2], end[2], count[1] = {0};
	int mine = 0, theirs = 0;
	char byte;
	must(pipe(ready) == 0 && pipe(end) == 0);
	pid_t child = fork();
	if (child == 0) {
		int own = member(port, &port);
		close(listener);
		must(write(ready[1], "x", 1) == 1);
		struct pollfd both[] = {{.fd = own, .events = POLLIN}, {.fd = end[0]}};
		close(end[1]);
		while (poll(both, 2, TIMEOUT_MS) > 0 && !both[1].revents) {
			int fd = accept(own, NULL, NULL);
			must(fd >= 0);
			write_exactly(fd, 10, 2);
			close(fd);
			must(write(ready[1], "x", 1) == 1);
		}
		exit(0);
	}
	must(read(ready[0], &byte, 1) == 1);
	struct pollfd polled[] = {{.fd = listener, .events = POLLIN},
				  {.fd = ready[0], .events = POLLIN}};
	for (int opened = 0; opened < CONNECTIONS; opened++) {
		int other = peer_connects(port);
		must(poll(polled, 2, TIMEOUT_MS) == 1);
		if (polled[0].revents) {
			int fd = accept(listener, NULL, NULL);
			must(fd >= 0);
			write_exactly(fd, 10, 2);
			close(fd);
			mine++;
		} else {
			must(read(ready[0], &byte, 1) == 1);
			theirs++;
		}
		struct answer got = peer_receives(other, -1, 2);
		must(got.first == 10 && got.second == 0);
		peer("close %d", other);
	}
	say("shared %d %d", mine >= SHARE_MIN, theirs >= SHARE_MIN);
	close(end[1]);
	must(waitpid(child, NULL, 0) == child);
	open_and_count(port, 8, &listener, count, 1);
	say("alone %d", count[0]);
}

/* Attaches to the group a BPF program that always selects the second listener. */
static int choose_second(int fd)
{
	struct sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, 1)};
	struct sock_fprog program = {.len = 1, .filter = code};
	return setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program);
}

/* A BPF program (SO_ATTACH_REUSEPORT_CBPF) selects the listener of a connection. */
void group_with_a_program(void)
{
	int port, listeners[2], counts[2] = {0};
	listeners[0] = member(0, &port);
	listeners[1] = member(port, &port);
	open_and_count(port, CONNECTIONS, listeners, counts, 2);
	say("shared %d %d", counts[0] >= SHARE_MIN, counts[1] >= SHARE_MIN);
	counts[0] = counts[1] = 0;
	show(choose_second(listeners[0]));
	open_and_count(port, 16, listeners, counts, 2);
	say("%d %d", counts[0], counts[1]);
}

/* listen is called again, with a backlog of 0 and then of 64. Afterwards eight connections can wait
 * for accept. */
void listen_again(void)
{
	int port, listener = member(0, &port), others[8];
	show(listen(listener, 0));
	show(listen(listener, 64));
	for (int i = 0; i < 8; i++)
		others[i] = peer_connects(port);
	for (int i = 0; i < 8; i++) {
		wait_readable(listener);
		int fd = accept(listener, NULL, NULL);
		must(fd >= 0);
		close(fd);
	}
	say("all %d", others[7] >= 0);
}
