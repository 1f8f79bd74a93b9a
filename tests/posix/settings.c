/* Socket options that limit buffers, decide when waiters are woken, or change the sent packets. */
#include "posix.h"

/* Returns the value of an integer option, or -errno if the call fails. */
static int number_of(int fd, int level, int name)
{
	int value = -7;
	socklen_t len = sizeof value;
	return getsockopt(fd, level, name, &value, &len) ? -errno : value;
}

/* Sets an integer option. */
static int set(int fd, int level, int name, int value)
{
	return setsockopt(fd, level, name, &value, sizeof value);
}

/* An option, and values that a case tries. */
struct tried {
	const char *name;
	int level, option, values[7];
};

/* Sets an option to each value, and prints the result and the option's value afterwards. */
static void try_values(int fd, const struct tried *tried)
{
	for (int i = 0; i < 7; i++) {
		int result = set(fd, tried->level, tried->option, tried->values[i]);
		say("%s %d: %d %s, then %d", tried->name, tried->values[i], result,
		    result ? strerrorname_np(errno) : "",
		    number_of(fd, tried->level, tried->option));
	}
}

/* Options of a connection with values within and beyond the ranges of the options. The kernel
 * accepts, changes or refuses a value. */
void setting_ranges(void)
{
	static const struct tried tried[] = {
		{"LINGER2", IPPROTO_TCP, TCP_LINGER2, {0, 1, 120, 121, 100000, -1, -5}},
		{"DEFER_ACCEPT", IPPROTO_TCP, TCP_DEFER_ACCEPT, {0, 1, 2, 4, 100, 300, -1}},
		{"WINDOW_CLAMP", IPPROTO_TCP, TCP_WINDOW_CLAMP, {1, 5000, 0, -1, 1151, 1153, 30000}},
		{"NOTSENT_LOWAT", IPPROTO_TCP, TCP_NOTSENT_LOWAT, {0, 1, 100000, -1, -5, 7, 0}},
		{"SYNCNT", IPPROTO_TCP, TCP_SYNCNT, {0, 1, 127, 128, -1, 3, 200}},
		{"RCVBUF", SOL_SOCKET, SO_RCVBUF, {1, 1152, 1153, 5000, 300000, 50000000, -1}},
		{"SNDBUF", SOL_SOCKET, SO_SNDBUF, {1, 2304, 2305, 5000, 300000, 50000000, -1}},
		{"RCVLOWAT", SOL_SOCKET, SO_RCVLOWAT, {0, 1, 5000, 2000000, -1, 2, 1}},
		{"TOS", IPPROTO_IP, IP_TOS, {0, 0xb8, 0xff, 0x104, -1, 3, 0x28}},
		{"TTL", IPPROTO_IP, IP_TTL, {0, 1, 255, 256, -1, -2, 7}},
		{"RECVTOS", IPPROTO_IP, IP_RECVTOS, {0, 1, 2, 256, -1, 0, 1}},
		{"RECVTTL", IPPROTO_IP, IP_RECVTTL, {0, 1, 2, 256, -1, 0, 1}},
		{"RECVTCLASS", IPPROTO_IPV6, IPV6_RECVTCLASS, {0, 1, 2, 256, -1, 0, 1}},
		{"RECVHOPS", IPPROTO_IPV6, IPV6_RECVHOPLIMIT, {0, 1, 2, 256, -1, 0, 1}},
		{"TCLASS", IPPROTO_IPV6, IPV6_TCLASS, {0, 0xb8, 0xff, 256, -1, -2, 1}},
		{"HOPS", IPPROTO_IPV6, IPV6_UNICAST_HOPS, {0, 1, 255, 256, -1, -2, 7}},
	};
	int other, fd = accepted(0, &other);
	for (size_t i = 0; i < sizeof tried / sizeof *tried; i++)
		try_values(fd, &tried[i]);
	unsigned char byte = 0x4b;
	show(setsockopt(fd, IPPROTO_IP, IP_TOS, &byte, 1));
	say("one byte: %d", number_of(fd, IPPROTO_IP, IP_TOS));
	show(setsockopt(fd, IPPROTO_IP, IP_TTL, &byte, 1));
	show(setsockopt(fd, IPPROTO_TCP, TCP_LINGER2, &byte, 1));
	show(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &byte, 1));
	socklen_t len = 1;
	byte = 0;
	show(getsockopt(fd, IPPROTO_IP, IP_TOS, &byte, &len));
	say("byte %x, length %u", byte, len);
}

/* Accepted connections inherit several options of the listener. */
void settings_inherited(void)
{
	int port, listener = open_listener(0, &port);
	must(set(listener, IPPROTO_TCP, TCP_LINGER2, 9) == 0);
	must(set(listener, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 12345) == 0);
	must(set(listener, IPPROTO_TCP, TCP_SYNCNT, 3) == 0);
	must(set(listener, SOL_SOCKET, SO_RCVBUF, 30000) == 0);
	must(set(listener, SOL_SOCKET, SO_SNDBUF, 40000) == 0);
	must(set(listener, SOL_SOCKET, SO_RCVLOWAT, 50) == 0);
	must(set(listener, IPPROTO_IP, IP_TOS, 0x48) == 0);
	must(set(listener, IPPROTO_IP, IP_TTL, 77) == 0);
	must(set(listener, IPPROTO_IP, IP_RECVTOS, 1) == 0);
	want_connections(listener);
	peer_connects(port);
	int fd = accept(listener, NULL, NULL);
	must(fd >= 0);
	say("%d %d %d", number_of(fd, IPPROTO_TCP, TCP_LINGER2),
	    number_of(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT),
	    number_of(fd, IPPROTO_TCP, TCP_SYNCNT));
	say("%d %d %d", number_of(fd, SOL_SOCKET, SO_RCVBUF), number_of(fd, SOL_SOCKET, SO_SNDBUF),
	    number_of(fd, SOL_SOCKET, SO_RCVLOWAT));
	say("%x %d", number_of(fd, IPPROTO_IP, IP_TOS), number_of(fd, IPPROTO_IP, IP_TTL));
	say("%d", number_of(fd, IPPROTO_IP, IP_RECVTOS));
}

/* Returns the present events of a socket. */
static int events_now(int fd)
{
	struct pollfd entry = {.fd = fd, .events = POLLIN | POLLOUT};
	must(poll(&entry, 1, 0) >= 0);
	return entry.revents;
}

/* Returns the number of unread bytes. */
static int waiting(int fd)
{
	int count = -1;
	must(ioctl(fd, FIONREAD, &count) == 0);
	return count;
}

/* poll and epoll report a connection as readable only if at least SO_RCVLOWAT bytes are unread, or
 * if the peer's FIN has arrived. */
void receive_low(void)
{
	int other, fd = accepted(0, &other), epfd = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN}, got;
	unsigned char bytes[4096];
	must(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event) == 0);
	show(set(fd, SOL_SOCKET, SO_RCVLOWAT, 1000));
	peer_sends(other, 500, 1);
	await(waiting(fd) == 500);
	say("events%s", events_text(events_now(fd)));
	show(epoll_wait(epfd, &got, 1, 0));
	show(recv(fd, bytes, 100, 0));
	show(recv(fd, bytes, sizeof bytes, MSG_DONTWAIT));
	/* Two segments arrive. Only both together reach the low-water mark. */
	peer_sends(other, 600, 2);
	await(waiting(fd) == 600);
	say("events%s", events_text(events_now(fd)));
	peer_sends(other, 600, 3);
	wait_readable(fd);
	show(recv(fd, bytes, sizeof bytes, 0));
	peer_sends(other, 1000, 4);
	show(epoll_wait(epfd, &got, 1, TIMEOUT_MS));
	say("events%s", events_text(events_now(fd)));
	show(recv(fd, bytes, sizeof bytes, 0));
	/* Lowering the option makes the socket readable, and so does the arrival of a FIN. */
	peer_sends(other, 10, 5);
	await(waiting(fd) == 10);
	say("events%s", events_text(events_now(fd)));
	show(set(fd, SOL_SOCKET, SO_RCVLOWAT, 1));
	say("events%s", events_text(events_now(fd)));
	show(set(fd, SOL_SOCKET, SO_RCVLOWAT, 1000));
	peer_must("close %d", other);
	await_events(fd, POLLIN);
	show(recv(fd, bytes, sizeof bytes, 0));
	show(recv(fd, bytes, sizeof bytes, 0));
}

/* SO_RCVLOWAT of more bytes than the initial receive window. */
void receive_low_large(void)
{
	int other, fd = accepted(0, &other);
	show(set(fd, SOL_SOCKET, SO_RCVLOWAT, 300000));
	long job = peer_must("send %d %ld %u", other, 300000L, 1);
	wait_readable(fd);
	/* Linux also wakes the reader when the receive buffer or the window is full. */
	say("there %d", waiting(fd) > 100000);
	/* With the old value, Linux would wake the reader after a partial read only when 300000
	 * bytes are unread again. */
	show(set(fd, SOL_SOCKET, SO_RCVLOWAT, 1));
	read_exactly(fd, 300000, 1);
	struct answer sent = peer("join %ld", job);
	say("sent %ld %ld", sent.first, sent.second);
}

/* Lets the peer send more than `bound` bytes, and prints 1 if at most `bound` bytes are unread in
 * each of five samples. Then reads all data. */
static void say_bound(int fd, int other, int bound)
{
	enum { ALL = 600000 };
	long job = peer_must("send %d %ld %u", other, (long)ALL, 1);
	int most = 0;
	await(waiting(fd) >= bound / 4);
	for (int i = 0; i < 5; i++) {
		pause_briefly();
		if (waiting(fd) > most)
			most = waiting(fd);
	}
	say("no more than %d: %d", bound, most <= bound);
	read_exactly(fd, ALL, 1);
	struct answer sent = peer("join %ld", job);
	say("sent %ld %ld", sent.first, sent.second);
}

/* SO_RCVBUF limits the unread data of a connection. The option is set on a listener, and then on
 * a socket before connect. Linux doubles the value, so the limit is twice the value. */
void receive_buffer(void)
{
	int port, other, listener = open_listener(0, &port);
	must(set(listener, SOL_SOCKET, SO_RCVBUF, 8000) == 0);
	want_connections(listener);
	other = peer_connects(port);
	int fd = accept(listener, NULL, NULL);
	must(fd >= 0);
	say_bound(fd, other, 16000);
	struct sockaddr_in name = peer_listener(&listener);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	must(set(fd, SOL_SOCKET, SO_RCVBUF, 8000) == 0);
	must(connect(fd, (void *)&name, sizeof name) == 0);
	other = peer_must("accept %d", listener);
	say_bound(fd, other, 16000);
}

/* Writes until the socket takes no more data. On a busy machine, bytes leave the send buffer late,
 * so the socket has to take no data for a second. */
static void fill(int fd)
{
	static const char bytes[30000];
	struct pollfd entry = {.fd = fd, .events = POLLOUT};
	do {
		while (send(fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
			;
		must(errno == EAGAIN);
	} while (poll(&entry, 1, 1000) > 0);
}

/* SO_SNDBUF limits unacknowledged data. */
void send_buffer(void)
{
	int other, fd = accepted(0, &other), unacked = 0;
	show(set(fd, SOL_SOCKET, SO_SNDBUF, 20000));
	fill(fd);
	must(ioctl(fd, TIOCOUTQ, &unacked) == 0);
	/* Linux accepts another packet of up to 64 KiB while the queued data is below the limit, so
	 * the data may exceed the limit by one packet. */
	say("bounded %d", unacked <= 120000);
	say("events%s", events_text(events_now(fd)));
	shutdown(fd, SHUT_WR);
	struct answer got = peer_receives(other, -1, ANY_BYTES);
	say("peer got %d, %ld", got.first > unacked, got.second);
}

/* TCP_NOTSENT_LOWAT limits unsent data. */
void unsent_low(void)
{
	int other, fd = accepted(0, &other);
	/* `unsent` is the field tcpi_notsent_bytes, which the struct of the C library lacks. */
	uint32_t info[40] = {0}, *unsent = &info[36];
	socklen_t len = sizeof info;
	show(set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 20000));
	fill(fd);
	must(getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &len) == 0);
	say("bounded %d", *unsent > 0 && *unsent < 150000);
	say("events%s", events_text(events_now(fd)));
	long job = peer_must("receive %d %ld %u", other, -1L, ANY_BYTES);
	await_events(fd, POLLOUT);
	int unacked;
	await(ioctl(fd, TIOCOUTQ, &unacked) == 0 && unacked == 0);
	write_exactly(fd, 1000000, 1);
	shutdown(fd, SHUT_WR);
	struct answer got = peer("join %ld", job);
	say("peer got %d, %ld", got.first > 1000000, got.second);
}

/* TCP_DEFER_ACCEPT: a connection can be accepted when its first data or its end has arrived. The
 * option is set before listen in the first round, and after listen in the second round. */
void deferred_accept(void)
{
	for (int late = 0; late < 2; late++) {
		struct sockaddr_in name = {.sin_family = AF_INET};
		socklen_t len = sizeof name;
		char bytes[32];
		int listener = socket(AF_INET, SOCK_STREAM, 0);
		must(bind(listener, (void *)&name, sizeof name) == 0);
		if (!late)
			must(set(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, 60) == 0);
		must(listen(listener, 8) == 0);
		if (late)
			must(set(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, 60) == 0);
		must(getsockname(listener, (void *)&name, &len) == 0);
		want_connections(listener);
		int other = peer_connects(ntohs(name.sin_port));
		pause_briefly();
		say("events%s", events_text(events_now(listener)));
		peer_sends(other, 10, 1);
		wait_readable(listener);
		int fd = accept(listener, NULL, NULL);
		must(fd >= 0);
		show(recv(fd, bytes, sizeof bytes, MSG_DONTWAIT));
		/* A connection that ends without data is accepted, too. */
		other = peer_connects(ntohs(name.sin_port));
		peer_must("close %d", other);
		wait_readable(listener);
		fd = accept(listener, NULL, NULL);
		must(fd >= 0);
		show(recv(fd, bytes, sizeof bytes, 0));
		say("defer %d", number_of(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT));
		close(listener);
	}
}

/* Returns SO_MAX_PACING_RATE in bytes per second. */
static unsigned long pacing_of(int fd)
{
	unsigned long rate = 5;
	socklen_t len = sizeof rate;
	must(getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &len) == 0 && len == sizeof rate);
	return rate;
}

/* SO_MAX_PACING_RATE, set with values of 3 to 8 bytes, on a new socket, a connection and a
 * listener. An accepted connection inherits the rate of the listener. */
void pacing_values(void)
{
	static const unsigned long rates[] = {0, 1000, 0xfffffffe, 0xffffffff, 123456789012, ~0ul};
	int other, port, fds[] = {socket(AF_INET, SOCK_STREAM, 0), connected(&other),
				  open_listener(0, &port)};
	for (int i = 0; i < 3; i++) {
		say("%lu", pacing_of(fds[i]));
		for (size_t at = 0; at < sizeof rates / sizeof *rates; at++) {
			for (unsigned len = 3; len <= 8; len++) {
				int result = setsockopt(fds[i], SOL_SOCKET, SO_MAX_PACING_RATE,
							&rates[at], len);
				say("%lu in %u bytes: %s, then %lu, %d", rates[at], len,
				    result ? strerrorname_np(errno) : "ok", pacing_of(fds[i]),
				    number_of(fds[i], SOL_SOCKET, SO_MAX_PACING_RATE));
			}
		}
	}
	must(set(fds[2], SOL_SOCKET, SO_MAX_PACING_RATE, 777) == 0);
	want_connections(fds[2]);
	peer_connects(port);
	say("inherited %lu", pacing_of(accept(fds[2], NULL, NULL)));
}

/* A transfer of 4 MB at a rate limit of 4 MB/s takes more than 400 ms. Each round sets the limit in
 * another way: on a socket before connect, on a connection, or on a listener before accept. */
void paced(void)
{
	for (int how = 0; how < 3; how++) {
		int port, other, listener = open_listener(0, &port), fd = listener;
		struct sockaddr_in name = peer_listener(&other);
		unsigned long rate = 4000000;
		if (how == 0)
			fd = socket(AF_INET, SOCK_STREAM, 0);
		else if (how == 1)
			fd = connected(&other);
		must(setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate) == 0);
		if (how == 0) {
			must(connect(fd, (void *)&name, sizeof name) == 0);
			other = peer_must("accept %d", other);
		} else if (how == 2) {
			want_connections(listener);
			other = peer_connects(port);
			fd = accept(listener, NULL, NULL);
			must(fd >= 0);
		}
		long begin = now_ms(), count = 4000000;
		long job = peer_must("receive %d %ld 4", other, count);
		write_exactly(fd, count, 4);
		struct answer got = peer("join %ld", job);
		say("arrived %ld, error %ld", got.first, got.second);
		must(now_ms() - begin > 400);
		close(fd);
	}
}

/* TCP_CC_INFO is empty for CUBIC and NewReno. */
void congestion_details(void)
{
	static const char *const names[] = {"cubic", "reno"};
	for (int how = 0; how < 4; how++) {
		int other, fd = how < 2 ? connected(&other) : accepted(0, &other);
		const char *name = names[how % 2];
		must(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, strlen(name)) == 0);
		unsigned char bytes[64] = {7};
		socklen_t len = sizeof bytes;
		int result = getsockopt(fd, IPPROTO_TCP, TCP_CC_INFO, bytes, &len);
		say("%s: %d, %u bytes, %d", name, result, len, bytes[0]);
	}
}
