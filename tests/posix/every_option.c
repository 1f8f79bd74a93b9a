/* The options of a TCP socket by number, and two cases about the ports of bound sockets. */
#include "posix.h"

/* The levels of options. The case every_option tries the option numbers below `end`. */
static const struct level {
	const char *name;
	int number, end;
} levels[] = {
	{"SOCKET", SOL_SOCKET, 85},
	{"IP", IPPROTO_IP, 55},
	{"IPV6", IPPROTO_IPV6, 84},
	{"TCP", IPPROTO_TCP, 47},
};

/* Options that the case does not set. If `skip_get` is 1, the case does not read the option either.
 * Tidelane does not implement most of these options: the preload library refuses to set them on a
 * connection. If a program sets such an option before connect, the kernel keeps the socket. */
static const struct {
	int level, name, skip_get;
} left_out[] = {
	{SOL_SOCKET, SO_DONTROUTE, 0},
	{SOL_SOCKET, SO_PEERNAME, 1},
	{SOL_SOCKET, SO_TIMESTAMP_OLD, 0},
	{SOL_SOCKET, SO_TIMESTAMPNS_OLD, 0},
	{SOL_SOCKET, SO_TIMESTAMPING_OLD, 0},
	{SOL_SOCKET, SO_TIMESTAMP_NEW, 0},
	{SOL_SOCKET, SO_TIMESTAMPNS_NEW, 0},
	{SOL_SOCKET, SO_TIMESTAMPING_NEW, 0},
	{SOL_SOCKET, SO_SNDBUFFORCE, 0},
	{SOL_SOCKET, SO_RCVBUFFORCE, 0},
	{SOL_SOCKET, SO_MARK, 0},
	{SOL_SOCKET, SO_PEEK_OFF, 0},
	{SOL_SOCKET, SO_ZEROCOPY, 0},
	{SOL_SOCKET, SO_LOCK_FILTER, 0},
	{SOL_SOCKET, SO_BINDTOIFINDEX, 0},
	{SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, 0},
	{SOL_SOCKET, 75 /* SO_RCVMARK */, 0},
	{SOL_SOCKET, 82 /* SO_RCVPRIORITY */, 0},
	{IPPROTO_IP, IP_OPTIONS, 0},
	{IPPROTO_IP, IP_MTU_DISCOVER, 0},
	{IPPROTO_IP, IP_MINTTL, 0},
	{IPPROTO_IP, 51 /* IP_LOCAL_PORT_RANGE */, 0},
	{IPPROTO_TCP, TCP_INFO, 1},
	{IPPROTO_TCP, TCP_CC_INFO, 1},
	{IPPROTO_TCP, TCP_SAVE_SYN, 0},
	{IPPROTO_TCP, TCP_REPAIR, 1},
	{IPPROTO_TCP, TCP_QUEUE_SEQ, 0},
	{IPPROTO_TCP, TCP_INQ, 0},
	{IPPROTO_TCP, TCP_TX_DELAY, 0},
};

/* If `is_get` is 1, returns true if the case does not read the option. If `is_get` is 0, returns
 * true if the case does not set the option. */
static int is_left_out(int level, int name, int is_get)
{
	for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++) {
		if (left_out[i].level == level && left_out[i].name == name)
			return !is_get || left_out[i].skip_get;
	}
	return 0;
}

/* Reads an option, and prints the error or the length of the value. */
static void get(const char *what, int fd, const struct level *level, int name)
{
	char value[512];
	socklen_t len = sizeof value;
	memset(value, 0, sizeof value);
	int result = getsockopt(fd, level->number, name, value, &len);
	if (result)
		say("%s get %s %d: %s", what, level->name, name, strerrorname_np(errno));
	else
		say("%s get %s %d: %u bytes", what, level->name, name, len);
}

/* Sets an option to 1, and prints the error if there is one. */
static void set(const char *what, int fd, const struct level *level, int name)
{
	int value = 1;
	int result = setsockopt(fd, level->number, name, &value, sizeof value);
	say("%s set %s %d: %s", what, level->name, name, result ? strerrorname_np(errno) : "done");
}

/* Reads and sets the options of a connection by number, except the options in `left_out`. Prints
 * the errors and the lengths of the values, but not the values. */
void every_option(void)
{
	for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
		int other, fd = accepted(0, &other);
		for (int name = 0; name < levels[i].end; name++) {
			if (!is_left_out(levels[i].number, name, 1))
				get("connection", fd, &levels[i], name);
		}
		for (int name = 0; name < levels[i].end; name++) {
			if (!is_left_out(levels[i].number, name, 0))
				set("connection", fd, &levels[i], name);
		}
		close(fd);
		peer("close %d", other);
	}
}

/* IP_BIND_ADDRESS_NO_PORT, which proxies use: bind sets the local address, and connect chooses the
 * local port. */
void bound_without_port(void)
{
	int listener, on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in name = peer_listener(&listener), own = {.sin_family = AF_INET};
	socklen_t len = sizeof own;
	inet_pton(AF_INET, getenv("POSIX_OWN_ADDRESS"), &own.sin_addr);
	show(setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on));
	show(bind(fd, (void *)&own, sizeof own));
	must(getsockname(fd, (void *)&own, &len) == 0);
	say("port %d", ntohs(own.sin_port));
	show(connect(fd, (void *)&name, sizeof name));
	must(getsockname(fd, (void *)&own, &len) == 0);
	say("a port %d", own.sin_port != 0);
	int other = peer_must("accept %d", listener);
	peer_sends(other, 10, 1);
	read_exactly(fd, 10, 1);
	on = 0;
	len = sizeof on;
	must(getsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, &len) == 0);
	say("option %d", on);
}

/* This program closes a connection before the peer does, so that the connection is in TIME-WAIT.
 * Another socket can be bound to the connection's local port only with SO_REUSEADDR. */
void bound_in_time_wait(void)
{
	int listener, on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in name = peer_listener(&listener), own = {.sin_family = AF_INET};
	socklen_t len = sizeof own;
	show(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
	show(bind(fd, (void *)&own, sizeof own));
	show(connect(fd, (void *)&name, sizeof name));
	must(getsockname(fd, (void *)&own, &len) == 0);
	int other = peer_must("accept %d", listener);
	show(close(fd));
	peer_receives(other, -1, 0);
	peer_must("close %d", other);
	usleep(300000);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	show(bind(fd, (void *)&own, sizeof own));
	show(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
	show(bind(fd, (void *)&own, sizeof own));
}
