/* How connections are opened, and the addresses and options of connections. */
#include "posix.h"

/* A blocking connect, and calls that fail on a connected socket. */
void blocking_connect(void)
{
	int other, fd = connected(&other);
	struct sockaddr_in own, its;
	socklen_t len = sizeof own;
	show(getsockname(fd, (void *)&own, &len));
	say("own address %d, port %d", own.sin_addr.s_addr == inet_addr(getenv("POSIX_OWN_ADDRESS")),
	    own.sin_port != 0);
	len = sizeof its;
	show(getpeername(fd, (void *)&its, &len));
	say("its port %d", ntohs(its.sin_port) == peer_must("port %d", other));
	show(connect(fd, (void *)&its, sizeof its));
	write_exactly(fd, 1000, 1);
	struct answer got = peer_receives(other, 1000, 1);
	say("peer got %ld %ld", got.first, got.second);
	peer_sends(other, 1000, 2);
	read_exactly(fd, 1000, 2);
	show(listen(fd, 5));
	show(accept(fd, NULL, NULL));
	show(close(fd));
}

/* A non-blocking connect fails with EINPROGRESS, even if the peer answers immediately. After the
 * handshake, the next connect succeeds, and a further connect fails with EISCONN. */
void connects_at_once(void)
{
	int listener, others = 0;
	struct sockaddr_in name = peer_listener(&listener);
	for (int i = 0; i < 50; i++) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		must(fd >= 0);
		others += connect(fd, (void *)&name, sizeof name) == 0 || errno != EINPROGRESS;
		await_events(fd, POLLOUT);
		others += connect(fd, (void *)&name, sizeof name) != 0;
		others += connect(fd, (void *)&name, sizeof name) == 0 || errno != EISCONN;
		peer_must("close %ld", peer_must("accept %d", listener));
		close(fd);
	}
	say("other results %d", others);
}

/* A connect to a closed port is refused, for a blocking socket and for a non-blocking socket. */
void refused(void)
{
	int listener, error = -1;
	socklen_t len = sizeof error;
	struct sockaddr_in name = peer_listener(&listener);
	char byte = 0;
	signal(SIGPIPE, SIG_IGN);
	peer_must("close %d", listener);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	show(connect(fd, (void *)&name, sizeof name));
	show(connect(fd, (void *)&name, sizeof name));
	show(write(fd, &byte, 1));
	close(fd);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	int result = connect(fd, (void *)&name, sizeof name);
	say("under way %d", result < 0 && (errno == EINPROGRESS || errno == ECONNREFUSED));
	if (errno == ECONNREFUSED)
		return;
	struct pollfd entry = {.fd = fd, .events = POLLIN | POLLOUT};
	show(poll(&entry, 1, TIMEOUT_MS));
	say("events%s", events_text(entry.revents));
	show(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
	say("error %s", strerrorname_np(error));
	show(read(fd, &byte, 1));
	show(write(fd, &byte, 1));
	show(getpeername(fd, (void *)&name, &(socklen_t){sizeof name}));
	close(fd);
}

/* bind with an address and without a port number gives a socket a port. The socket keeps this port
 * when it connects. */
void bound_connect(void)
{
	int listener;
	struct sockaddr_in name = peer_listener(&listener), own = {.sin_family = AF_INET};
	socklen_t len = sizeof own;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	inet_pton(AF_INET, getenv("POSIX_OWN_ADDRESS"), &own.sin_addr);
	show(bind(fd, (void *)&own, sizeof own));
	must(getsockname(fd, (void *)&own, &len) == 0);
	int port = ntohs(own.sin_port);
	show(connect(fd, (void *)&name, sizeof name));
	must(getsockname(fd, (void *)&own, &len) == 0);
	say("same port %d", ntohs(own.sin_port) == port);
	int other = peer_must("accept %d", listener);
	peer_sends(other, 10, 1);
	read_exactly(fd, 10, 1);
}

/* Returns the value of an integer option, or the negative error. */
static int option(int fd, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof value;
	if (getsockopt(fd, level, name, &value, &len))
		return -errno;
	return value;
}

/* Sets an integer option. */
static int set(int fd, int level, int name, int value)
{
	return setsockopt(fd, level, name, &value, sizeof value);
}

/* Reads and sets the usual options of a connection. */
static void all_options(int fd)
{
	show(option(fd, SOL_SOCKET, SO_TYPE));
	show(option(fd, SOL_SOCKET, SO_DOMAIN));
	show(option(fd, SOL_SOCKET, SO_PROTOCOL));
	show(option(fd, SOL_SOCKET, SO_ACCEPTCONN));
	show(option(fd, SOL_SOCKET, SO_ERROR));
	show(option(fd, IPPROTO_TCP, TCP_NODELAY));
	show(set(fd, IPPROTO_TCP, TCP_NODELAY, 1));
	show(option(fd, IPPROTO_TCP, TCP_NODELAY));
	show(set(fd, IPPROTO_TCP, TCP_CORK, 1));
	show(option(fd, IPPROTO_TCP, TCP_CORK));
	show(set(fd, IPPROTO_TCP, TCP_CORK, 0));
	show(set(fd, SOL_SOCKET, SO_KEEPALIVE, 1));
	show(option(fd, SOL_SOCKET, SO_KEEPALIVE));
	show(set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 100));
	show(option(fd, IPPROTO_TCP, TCP_KEEPIDLE));
	show(option(fd, IPPROTO_TCP, TCP_KEEPINTVL));
	show(option(fd, IPPROTO_TCP, TCP_KEEPCNT));
	show(set(fd, SOL_SOCKET, SO_RCVBUF, 100000));
	show(option(fd, SOL_SOCKET, SO_RCVBUF));
	show(set(fd, SOL_SOCKET, SO_SNDBUF, 1));
	show(option(fd, SOL_SOCKET, SO_SNDBUF));
	show(set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 5000));
	show(option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT));
	show(set(fd, IPPROTO_TCP, 12345, 1));
	show(option(fd, IPPROTO_TCP, 12345));
	show(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, "", 1));
	struct tcp_info info;
	socklen_t len = sizeof info;
	show(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
	say("state %d", info.tcpi_state);
}

/* Options of an accepted connection, of a connection that this program opens, and of a listener. */
void options(void)
{
	int other, fd = accepted(0, &other);
	all_options(fd);
	close(fd);
	fd = connected(&other);
	all_options(fd);
	peer_must("close %d", other);
	await_events(fd, POLLRDHUP);
	struct tcp_info info;
	socklen_t len = sizeof info;
	show(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
	say("state %d", info.tcpi_state);
	close(fd);
	int port, listener = open_listener(0, &port);
	show(option(listener, SOL_SOCKET, SO_ACCEPTCONN));
	show(set(listener, IPPROTO_TCP, TCP_NODELAY, 1));
	want_connections(listener);
	say("flags %x", fcntl(listener, F_GETFL) & O_NONBLOCK);
	peer_connects(port);
	fd = accept(listener, NULL, NULL);
	show(option(fd, IPPROTO_TCP, TCP_NODELAY));
}

/* SO_RCVTIMEO and SO_SNDTIMEO of 50 ms limit read, write and accept. */
void timeouts(void)
{
	int other, port, fd = accepted(0, &other);
	struct timeval time = {.tv_usec = 50000}, got = {0};
	socklen_t len = sizeof got;
	char bytes[65536] = {0};
	show(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
	show(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time));
	show(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &got, &len));
	/* The kernel rounds the timeout to its timer ticks. */
	say("time %ld %d %u", (long)got.tv_sec, got.tv_usec >= 49000 && got.tv_usec <= 56000, len);
	long begin = now_ms();
	show(read(fd, bytes, 1));
	say("waited %d", now_ms() - begin >= 49);
	begin = now_ms();
	while (write(fd, bytes, sizeof bytes) > 0)
		;
	say("full %s, waited %d", strerrorname_np(errno), now_ms() - begin >= 49);
	int listener = open_listener(0, &port);
	show(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
	show(accept(listener, NULL, NULL));
}

/* A listener at all addresses accepts a connection over loopback and a connection from the peer.
 * Without `tidelane run --loopback`, Tidelane leaves the loopback connection to the kernel. */
void both_stacks(void)
{
	int port, listener = open_listener(0, &port);
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = 0};
	want_connections(listener);
	name.sin_port = htons(port);
	name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	int local = socket(AF_INET, SOCK_STREAM, 0);
	must(connect(local, (void *)&name, sizeof name) == 0);
	int other = peer_connects(port);
	int seen[2] = {0};
	for (int i = 0; i < 2; i++) {
		struct sockaddr_in from;
		socklen_t len = sizeof from;
		int fd = accept(listener, (void *)&from, &len);
		must(fd >= 0);
		struct sockaddr_in own;
		len = sizeof own;
		must(getsockname(local, (void *)&own, &len) == 0);
		int is_local = from.sin_port == own.sin_port &&
			       from.sin_addr.s_addr == own.sin_addr.s_addr;
		seen[is_local]++;
		write_exactly(fd, 10, 1);
		close(fd);
	}
	say("seen %d %d", seen[0], seen[1]);
	read_exactly(local, 10, 1);
	struct answer got = peer_receives(other, -1, 1);
	say("peer got %ld %ld", got.first, got.second);
}
