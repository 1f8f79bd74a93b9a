/*
 * Clients that wait for data from an echo server, and send nothing meanwhile.
 *
 *   waiting ADDRESS PORT CONNECTIONS SECONDS LOCAL_PORT poll|select|epoll|nested|recv
 *
 * The program opens the connections, sends a byte on each and reads the echo. Then it prints
 * "waiting" and waits in the given call, for SECONDS at most, until all connections have ended.
 * With epoll, one thread waits for all connections. With nested, every second connection is in an
 * inner epoll instance, which is registered with the outer one. With recv, each connection has a
 * thread that waits. At the end the program prints "reset N ended N silent N": the number of
 * connections that were reset, of connections that the peer closed, and of connections that are
 * still open.
 *
 * If LOCAL_PORT is not 0, CONNECTIONS must be 1 and ADDRESS must be an IPv4 address. The program
 * opens the connection from LOCAL_PORT. If the peer resets the connection, the program connects
 * again from LOCAL_PORT and exchanges bytes for SECONDS. Then the program prints "served N", the
 * number of echoed bytes, instead of the line above.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "must.h"

#define CONNECTIONS_MAX 10000

/* The server's address. */
static struct sockaddr_storage server;
static socklen_t server_len;
/* Local port of the connection, or 0 if the kernel chooses the port. */
static int local_port;
/* The connections. The descriptor of an ended connection is -1. */
static struct pollfd clients[CONNECTIONS_MAX];

/* Sets the server's address. */
static void name_server(const char *address, int port)
{
	struct sockaddr_in *v4 = (void *)&server;
	struct sockaddr_in6 *v6 = (void *)&server;

	if (inet_pton(AF_INET, address, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
		server_len = sizeof(*v4);
		return;
	}
	must(inet_pton(AF_INET6, address, &v6->sin6_addr) == 1);
	v6->sin6_family = AF_INET6;
	v6->sin6_port = htons(port);
	server_len = sizeof(*v6);
}

/* Sends a byte and reads the echo. */
static void echo(int fd)
{
	char byte = 'x';

	must(send(fd, &byte, 1, MSG_NOSIGNAL) == 1);
	must(recv(fd, &byte, 1, 0) == 1);
	must(byte == 'x');
}

/* Opens a connection to the server. */
static int open_connection(void)
{
	int fd = socket(server.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	must(fd >= 0);
	if (local_port) {
		struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(local_port)};

		must(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
		must(bind(fd, (struct sockaddr *)&here, sizeof(here)) == 0);
	}
	must(connect(fd, (struct sockaddr *)&server, server_len) == 0);
	return fd;
}

/* Returns the time in milliseconds. */
static long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Connects again from `local_port`, exchanges bytes for `seconds`, and prints the number of echoed
 * bytes. */
static void reconnect(int seconds)
{
	long end = now_ms() + 1000L * seconds, served = 0;
	int fd = open_connection();

	for (; now_ms() < end; served++) {
		echo(fd);
		usleep(5000);
	}
	printf("served %ld\n", served);
}

/* Numbers of connections that were reset, that the peer closed, and that are still open. */
static int reset, ended, left;

/* Determines by recv with `flags` how a connection ended, counts the end, and closes the
 * connection. */
static void count_end(struct pollfd *client, int flags)
{
	char byte;
	ssize_t len = recv(client->fd, &byte, 1, flags);

	must(len == 0 || errno == ECONNRESET);
	__atomic_add_fetch(len == 0 ? &ended : &reset, 1, __ATOMIC_SEQ_CST);
	close(client->fd);
	client->fd = -1;
	__atomic_sub_fetch(&left, 1, __ATOMIC_SEQ_CST);
}

static void wait_in_poll(int count, long end)
{
	while (left > 0 && now_ms() < end) {
		must(poll(clients, count, 100) >= 0);
		for (int i = 0; i < count; i++)
			if (clients[i].fd >= 0 && clients[i].revents)
				count_end(&clients[i], MSG_DONTWAIT);
	}
}

static void wait_in_select(int count, long end)
{
	while (left > 0 && now_ms() < end) {
		struct timeval wait = {.tv_usec = 100000};
		fd_set set;
		int last = -1;

		FD_ZERO(&set);
		for (int i = 0; i < count; i++) {
			if (clients[i].fd < 0)
				continue;
			must(clients[i].fd < FD_SETSIZE);
			FD_SET(clients[i].fd, &set);
			last = clients[i].fd > last ? clients[i].fd : last;
		}
		must(select(last + 1, &set, NULL, NULL, &wait) >= 0);
		for (int i = 0; i < count; i++)
			if (clients[i].fd >= 0 && FD_ISSET(clients[i].fd, &set))
				count_end(&clients[i], MSG_DONTWAIT);
	}
}

/* The epoll instances of the connections. */
struct watched {
	/* The epoll instance of every second connection: the inner instance if the instances are
	 * nested, or else `outer`. */
	int odd;
	/* The epoll instance of the other connections. The thread waits in this instance. */
	int outer;
};

/* User data with which the outer epoll instance reports the inner instance. */
#define INNER UINT32_MAX

/* Creates the epoll instances and adds the first `count` connections to them. */
static struct watched *watch(int count, int nested)
{
	static struct watched all;
	struct epoll_event event = {.events = EPOLLIN, .data.u32 = INNER};

	all = (struct watched){.outer = epoll_create1(0)};
	all.odd = nested ? epoll_create1(0) : all.outer;
	must(all.outer >= 0 && all.odd >= 0);
	if (nested)
		must(epoll_ctl(all.outer, EPOLL_CTL_ADD, all.odd, &event) == 0);
	for (int i = 0; i < count; i++) {
		event = (struct epoll_event){.events = EPOLLIN | EPOLLET, .data.u32 = i};
		must(epoll_ctl(i % 2 ? all.odd : all.outer, EPOLL_CTL_ADD, clients[i].fd,
			       &event) == 0);
	}
	return &all;
}

/* Counts the end of each connection. Waits in epoll_wait without a timeout, so that only an event
 * can wake the thread. */
static void *wait_in_epoll(void *argument)
{
	const struct watched *all = argument;
	struct epoll_event event;

	while (left > 0) {
		must(epoll_wait(all->outer, &event, 1, -1) == 1);
		if (event.data.u32 == INNER)
			must(epoll_wait(all->odd, &event, 1, -1) == 1);
		count_end(&clients[event.data.u32], MSG_DONTWAIT);
	}
	return NULL;
}

static void *wait_in_recv(void *argument)
{
	count_end(argument, 0);
	return NULL;
}

/* Starts the threads that wait in epoll or in recv. Returns when all connections have ended, or at
 * the time `end`. */
static void wait_in_threads(const char *how, int count, long end)
{
	pthread_t thread;

	if (strcmp(how, "epoll") == 0 || strcmp(how, "nested") == 0) {
		struct watched *all = watch(count, strcmp(how, "nested") == 0);

		must(pthread_create(&thread, NULL, wait_in_epoll, all) == 0);
	} else
		for (int i = 0; i < count; i++)
			must(pthread_create(&thread, NULL, wait_in_recv, &clients[i]) == 0);
	while (__atomic_load_n(&left, __ATOMIC_SEQ_CST) > 0 && now_ms() < end)
		usleep(1000);
}

int main(int argc, char **argv)
{
	must(argc == 7);
	int count = atoi(argv[3]), seconds = atoi(argv[4]);
	const char *how = argv[6];
	struct rlimit limit;

	must(count <= CONNECTIONS_MAX);
	must(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = limit.rlim_max;
	must(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	name_server(argv[1], atoi(argv[2]));
	local_port = atoi(argv[5]);
	left = count;
	for (int i = 0; i < count; i++) {
		clients[i] = (struct pollfd){.fd = open_connection(), .events = POLLIN};
		echo(clients[i].fd);
	}
	printf("waiting\n");
	fflush(stdout);
	long end = now_ms() + 1000L * seconds;

	if (strcmp(how, "poll") == 0)
		wait_in_poll(count, end);
	else if (strcmp(how, "select") == 0)
		wait_in_select(count, end);
	else
		wait_in_threads(how, count, end);
	if (local_port && reset == 1)
		reconnect(seconds);
	else
		printf("reset %d ended %d silent %d\n", reset, ended, left);
	fflush(stdout);
	_exit(0);
}
