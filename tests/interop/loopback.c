/* Connections within the host. In the mode `table`, the program opens both ends of each connection,
 * and its output must be the same on the kernel and on Tidelane.
 *
 *     loopback table OWN OTHER    connects to listeners at every kind of address; OWN is an address
 *                                 of the served interface, and OTHER is an address of another
 *                                 interface
 *     loopback leave PORT         connects to PORT at 127.0.0.1, moves to a new network namespace,
 *                                 and tries to connect to PORT at 127.0.0.1 again
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "must.h"

/* Time limit for each event, in milliseconds. */
#define PATIENCE_MS 5000

/* A socket address of either IP version. */
union name {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

/* Returns the socket address of an IPv4 or IPv6 address and a port. */
static union name name_of(const char *text, unsigned short port)
{
	union name name;
	memset(&name, 0, sizeof name);
	if (inet_pton(AF_INET, text, &name.v4.sin_addr) == 1) {
		name.v4.sin_family = AF_INET;
		name.v4.sin_port = htons(port);
	} else {
		must(inet_pton(AF_INET6, text, &name.v6.sin6_addr) == 1);
		name.v6.sin6_family = AF_INET6;
		name.v6.sin6_port = htons(port);
	}
	return name;
}

/* Returns the local port of a socket. */
static unsigned short port_of(int fd)
{
	union name name;
	socklen_t len = sizeof name;
	must(getsockname(fd, &name.any, &len) == 0);
	return ntohs(name.any.sa_family == AF_INET ? name.v4.sin_port : name.v6.sin6_port);
}

/* Type of get_own and get_peer, which call getsockname and getpeername. */
typedef int (*name_call)(int, struct sockaddr *, socklen_t *);

/* Prints the address of one end of `fd`, and a letter instead of the port, because port numbers
 * differ from run to run. The letter is L for the port `listener`, B for the port `bound` (0 stands
 * for no port), and E for any other port. `ask` selects the end. If `ask` fails, prints only the
 * error. */
static void print_end(int fd, name_call ask, unsigned short listener, unsigned short bound)
{
	union name name;
	char text[INET6_ADDRSTRLEN];
	socklen_t len = sizeof name;
	unsigned short port;
	if (ask(fd, &name.any, &len) != 0) {
		printf(" %s", strerror(errno));
		return;
	}
	if (name.any.sa_family == AF_INET)
		must(inet_ntop(AF_INET, &name.v4.sin_addr, text, sizeof text));
	else
		must(inet_ntop(AF_INET6, &name.v6.sin6_addr, text, sizeof text));
	port = ntohs(name.any.sa_family == AF_INET ? name.v4.sin_port : name.v6.sin6_port);
	printf(" %s:%s", text, port == listener ? "L" : bound && port == bound ? "B" : "E");
}

/* Calls getpeername, whose type in the C library differs from name_call. */
static int get_peer(int fd, struct sockaddr *name, socklen_t *len)
{
	return getpeername(fd, name, len);
}

/* Calls getsockname, whose type in the C library differs from name_call. */
static int get_own(int fd, struct sockaddr *name, socklen_t *len)
{
	return getsockname(fd, name, len);
}

/* Returns a listener at the address `text`, at a free port that the stack chooses. If `v6_only` is
 * true, an IPv6 listener accepts no IPv4 connections (IPV6_V6ONLY). If `reuse_port` is true, other
 * listeners may share the port (SO_REUSEPORT). */
static int listener_at(const char *text, int v6_only, int reuse_port)
{
	union name name = name_of(text, 0);
	int fd = socket(name.any.sa_family, SOCK_STREAM, 0);
	must(fd >= 0);
	if (name.any.sa_family == AF_INET6)
		must(setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof v6_only) == 0);
	if (reuse_port)
		must(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &reuse_port, sizeof reuse_port) == 0);
	must(bind(fd, &name.any, sizeof name) == 0);
	must(listen(fd, 8) == 0);
	return fd;
}

/* Waits until poll reports an event of `fd`. */
static void wait_for(int fd, short events)
{
	struct pollfd wanted = {.fd = fd, .events = events};
	must(poll(&wanted, 1, PATIENCE_MS) == 1);
}

/* Sends 4096 bytes from client to server and closes this direction. Then sends 7 bytes back and
 * closes both ends. Checks the lengths. */
static void exchange(int client, int server)
{
	char bytes[4096], got[4096];
	size_t have = 0;
	ssize_t len;
	memset(bytes, 'x', sizeof bytes);
	must(send(client, bytes, sizeof bytes, MSG_NOSIGNAL) == sizeof bytes);
	must(shutdown(client, SHUT_WR) == 0);
	for (;;) {
		wait_for(server, POLLIN);
		must((len = recv(server, got, sizeof got, 0)) >= 0);
		if (len == 0)
			break;
		have += (size_t)len;
	}
	must(have == sizeof bytes);
	must(send(server, bytes, 7, MSG_NOSIGNAL) == 7);
	wait_for(client, POLLIN);
	must(recv(client, got, sizeof got, 0) == 7);
	must(close(server) == 0);
	wait_for(client, POLLIN | POLLRDHUP);
	must(recv(client, got, sizeof got, 0) == 0);
	must(close(client) == 0);
}

/* Connects to the address `to` and the port of `listener`, and prints the result on one line. If
 * `from` is not NULL, binds the client to the address `from` first. If `nonblocking` is true, the
 * connect does not block, and epoll_wait waits for the end of the connect. */
static void attempt(int listener, const char *to, const char *from, int nonblocking)
{
	unsigned short port = port_of(listener), bound = 0;
	union name peer = name_of(to, port);
	int client = socket(peer.any.sa_family, SOCK_STREAM | (nonblocking ? SOCK_NONBLOCK : 0), 0);
	int server, error = 0;
	socklen_t len = sizeof error;
	must(client >= 0);
	printf("  to %s from %s%s:", to, from ? from : "anywhere",
	       nonblocking ? ", without waiting" : "");
	if (from) {
		union name local = name_of(from, 0);
		if (bind(client, &local.any, sizeof local) != 0) {
			printf(" bind: %s\n", strerror(errno));
			close(client);
			return;
		}
		bound = port_of(client);
	}
	if (connect(client, &peer.any, sizeof peer) != 0) {
		error = errno;
		if (nonblocking && error == EINPROGRESS) {
			printf(" in progress,");
			struct epoll_event event = {.events = EPOLLOUT};
			int set = epoll_create1(0);
			must(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, client, &event) == 0);
			must(epoll_wait(set, &event, 1, PATIENCE_MS) == 1);
			must(getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &len) == 0);
			close(set);
		}
	}
	if (error) {
		printf(" %s\n", strerror(error));
		must(close(client) == 0);
		return;
	}
	wait_for(listener, POLLIN);
	must((server = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0);
	print_end(client, get_own, port, bound);
	print_end(client, get_peer, port, bound);
	print_end(server, get_own, port, bound);
	print_end(server, get_peer, port, bound);
	must(fcntl(client, F_SETFL, 0) == 0);
	exchange(client, server);
	printf(" ok\n");
}

/* Connects to `listener` by each kind of destination address, from several source addresses. */
static void all_clients(int listener, const char *own, const char *other)
{
	char mapped[64];
	snprintf(mapped, sizeof mapped, "::ffff:%s", own);
	attempt(listener, "127.0.0.1", NULL, 0);
	attempt(listener, "127.0.0.1", NULL, 1);
	attempt(listener, "127.9.8.7", NULL, 0);
	attempt(listener, "127.0.0.1", "127.0.0.1", 0);
	attempt(listener, "127.0.0.1", "127.3.3.3", 0);
	attempt(listener, "127.0.0.1", "0.0.0.0", 0);
	attempt(listener, "127.0.0.1", own, 0);
	attempt(listener, "::1", NULL, 0);
	attempt(listener, "::1", "::1", 0);
	attempt(listener, "::1", "::", 0);
	attempt(listener, "::ffff:127.0.0.1", NULL, 0);
	attempt(listener, mapped, NULL, 0);
	attempt(listener, own, NULL, 0);
	attempt(listener, own, "127.0.0.1", 0);
	attempt(listener, other, NULL, 0);
	attempt(listener, other, other, 0);
	attempt(listener, other, own, 0);
	attempt(listener, "0.0.0.0", NULL, 0);
}

/* Connects to listeners at each kind of address, and then tests three special cases. */
static void table(const char *own, const char *other)
{
	const struct {
		const char *at;
		int v6_only;
	} places[] = {
		{"127.0.0.1", 0}, {"127.9.8.7", 0}, {"::1", 0}, {"0.0.0.0", 0}, {"::", 0}, {"::", 1},
		{"::ffff:127.0.0.1", 0}, {own, 0}, {other, 0},
	};
	for (size_t n = 0; n < sizeof places / sizeof *places; n++) {
		int listener = listener_at(places[n].at, places[n].v6_only, 0);
		printf("%s%s\n", places[n].at, places[n].v6_only ? " alone" : "");
		all_clients(listener, own, other);
		must(close(listener) == 0);
	}
	/* Of two listeners on one port, the listener at 127.0.0.1 gets the connection, not the
	 * listener at 0.0.0.0. */
	int any = listener_at("0.0.0.0", 0, 1), on = 1, server;
	union name name = name_of("127.0.0.1", port_of(any));
	int one = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
	must(setsockopt(one, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0);
	must(bind(one, &name.any, sizeof name) == 0 && listen(one, 8) == 0);
	must(connect(client, &name.any, sizeof name) == 0);
	wait_for(one, POLLIN);
	must((server = accept(one, NULL, NULL)) >= 0);
	exchange(client, server);
	printf("the more specific one: ok\n");
	/* A reset arrives after the data that was written before it. */
	struct linger at_once = {.l_onoff = 1};
	char data[64];
	int listener = listener_at("127.0.0.1", 0, 0);
	name = name_of("127.0.0.1", port_of(listener));
	client = socket(AF_INET, SOCK_STREAM, 0);
	must(connect(client, &name.any, sizeof name) == 0);
	must((server = accept(listener, NULL, NULL)) >= 0);
	must(setsockopt(client, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
	must(send(client, "before the reset", 16, 0) == 16 && close(client) == 0);
	wait_for(server, POLLHUP);
	must(recv(server, data, sizeof data, 0) == 16);
	must(recv(server, data, sizeof data, 0) == -1);
	printf("after the data: %s\n", strerror(errno));
	/* A socket that connects to its own port gets a connection to itself, by a simultaneous
	 * open (RFC 9293 section 3.5) without a listener. */
	client = socket(AF_INET, SOCK_STREAM, 0);
	name = name_of("127.0.0.1", 0);
	must(bind(client, &name.any, sizeof name) == 0);
	name = name_of("127.0.0.1", port_of(client));
	must(connect(client, &name.any, sizeof name) == 0);
	printf("to itself:");
	print_end(client, get_own, port_of(client), 0);
	print_end(client, get_peer, port_of(client), 0);
	printf("\n");
}

/* Connects to `port`, moves to a new network namespace, and prints the error of a second connect.
 * The new namespace has another loopback interface. */
static int leave(unsigned short port)
{
	union name there = name_of("127.0.0.1", port);
	struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP};
	int here = socket(AF_INET, SOCK_STREAM, 0), elsewhere;
	must(connect(here, &there.any, sizeof there) == 0);
	must(unshare(CLONE_NEWNET) == 0);
	elsewhere = socket(AF_INET, SOCK_STREAM, 0);
	must(ioctl(elsewhere, SIOCSIFFLAGS, &loopback) == 0);
	must(connect(elsewhere, &there.any, sizeof there) == -1);
	printf("elsewhere: %s\n", strerror(errno));
	return 0;
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 4 && strcmp(argv[1], "table") == 0)
		table(argv[2], argv[3]);
	else if (argc == 3 && strcmp(argv[1], "leave") == 0)
		return leave((unsigned short)atoi(argv[2]));
	else
		return 2;
	return 0;
}
