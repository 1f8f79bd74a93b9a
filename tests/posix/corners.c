/* Corner cases: option values, flags, iovec arrays, invalid arguments, and shutdown in several
 * states. */
#include "posix.h"

/* Returns the value of an integer option, or the negative error. */
static int number_of(int fd, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof value;
	return getsockopt(fd, level, name, &value, &len) ? -errno : value;
}

/* Sets an integer option. */
static int set(int fd, int level, int name, int value)
{
	return setsockopt(fd, level, name, &value, sizeof value);
}

/* Option values that the kernel accepts, and values that it refuses. */
void option_ranges(void)
{
	static const struct {
		const char *name;
		int level, option, values[6];
	} options[] = {
		{"KEEPIDLE", IPPROTO_TCP, TCP_KEEPIDLE, {0, 1, 32767, 32768, -1, 100}},
		{"KEEPINTVL", IPPROTO_TCP, TCP_KEEPINTVL, {0, 1, 32767, 32768, -1, 100}},
		{"KEEPCNT", IPPROTO_TCP, TCP_KEEPCNT, {0, 1, 127, 128, -1, 5}},
		{"USER_TIMEOUT", IPPROTO_TCP, TCP_USER_TIMEOUT, {0, 1, -1, 100000, 7, 0}},
		{"SYNCNT", IPPROTO_TCP, TCP_SYNCNT, {0, 1, 127, 128, -1, 3}},
	};
	int other, fd = accepted(0, &other);
	for (size_t i = 0; i < sizeof options / sizeof *options; i++)
		for (int j = 0; j < 6; j++) {
			int value = options[i].values[j];
			int result = set(fd, options[i].level, options[i].option, value);
			say("%s %d: %d %s, then %d", options[i].name, value, result,
			    result ? strerrorname_np(errno) : "",
			    number_of(fd, options[i].level, options[i].option));
		}
	write_exactly(fd, 100, 1);
	struct answer got = peer_receives(other, 100, 1);
	say("peer got %ld %ld", got.first, got.second);
}

/* Prints the result of getsockopt of TCP_CONGESTION into a buffer of `room` bytes. */
static void say_congestion(int fd, socklen_t room)
{
	char name[32];
	memset(name, 'x', sizeof name);
	socklen_t len = room;
	int result = getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len);
	say("congestion %d, %u bytes, %.*s", result, len, (int)len, result ? "" : name);
}

/* TCP_CONGESTION returns the name that was set. */
void congestion_names(void)
{
	int other, fd = accepted(0, &other), port, listener = open_listener(0, &port);
	show(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
	say_congestion(fd, 16);
	show(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 6));
	say_congestion(fd, 32);
	say_congestion(fd, 3);
	show(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "no-such-thing", 13));
	show(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "", 0));
	say_congestion(fd, 16);
	/* Accepted connections inherit the algorithm of the listener. */
	show(setsockopt(listener, IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
	want_connections(listener);
	peer_connects(port);
	fd = accept(listener, NULL, NULL);
	say_congestion(fd, 16);
}

/* Offsets of fields in the kernel's struct tcp_info. The struct in <netinet/tcp.h> may lack the
 * last fields. */
enum {
	SND_MSS = 16,
	LAST_DATA_SENT = 44,
	LAST_DATA_RECV = 52,
	LAST_ACK_RECV = 56,
	TOTAL_RETRANS = 100,
	PACING_RATE = 104,
	BYTES_ACKED = 120,
	BYTES_RECEIVED = 128,
	SEGS_OUT = 136,
	SEGS_IN = 140,
	DATA_SEGS_IN = 152,
	DATA_SEGS_OUT = 156,
	BUSY_TIME = 168,
	RWND_LIMITED = 176,
	DELIVERED = 192,
	DELIVERED_CE = 196,
	BYTES_SENT = 200,
	BYTES_RETRANS = 208,
	SND_WND = 228,
	RCV_WND = 232,
};

/* Returns the 32-bit field at `offset`. */
static uint32_t word_at(const unsigned char *info, size_t offset)
{
	uint32_t word;
	memcpy(&word, info + offset, sizeof word);
	return word;
}

/* Returns the 64-bit field at `offset`. */
static uint64_t long_at(const unsigned char *info, size_t offset)
{
	uint64_t value;
	memcpy(&value, info + offset, sizeof value);
	return value;
}

/*
 * Compares counters in tcp_info with each other and with bounds, and prints the results. The
 * connection has sent 300,000 bytes and received 5,000 bytes. The results do not depend on
 * segmentation, delay, loss or retransmission.
 */
static void say_counts(const unsigned char *info)
{
	uint32_t mss = word_at(info, SND_MSS), total_retrans = word_at(info, TOTAL_RETRANS);
	uint32_t out = word_at(info, SEGS_OUT), in = word_at(info, SEGS_IN);
	uint32_t data_in = word_at(info, DATA_SEGS_IN), data_out = word_at(info, DATA_SEGS_OUT);
	uint32_t delivered = word_at(info, DELIVERED), least = 300000 / mss;
	say("data out %d, in %d", data_out - total_retrans >= least, data_in > 0 && data_in <= 5000);
	say("all out %d, in %d", out > data_out, in > data_in);
	/* tcpi_delivered counts the SYN,ACK, and each data segment once. */
	say("delivered %d, by marks %u", delivered > least && delivered <= data_out + 1,
	    word_at(info, DELIVERED_CE));
	say("since data %d %d, since ACK %d", word_at(info, LAST_DATA_SENT) < TIMEOUT_MS,
	    word_at(info, LAST_DATA_RECV) < TIMEOUT_MS, word_at(info, LAST_ACK_RECV) < TIMEOUT_MS);
	uint64_t busy = long_at(info, BUSY_TIME), rwnd_limited = long_at(info, RWND_LIMITED);
	/* The kernel measures these times in jiffies, so that a time may be 0. */
	say("busy %d, of it by the window %d", busy < TIMEOUT_MS * 1000ull, rwnd_limited <= busy);
	say("bytes acknowledged %d, received %llu", long_at(info, BYTES_ACKED) - 300000 <= 1,
	    (unsigned long long)long_at(info, BYTES_RECEIVED));
}

/* Fields of tcp_info after a transfer. The case prints values that are equal on the kernel's stack
 * and on Tidelane, and compares other values with bounds. */
void info_numbers(void)
{
	int other, fd = accepted(0, &other);
	struct tcp_info info = {0};
	socklen_t len = sizeof info;
	write_exactly(fd, 300000, 1);
	struct answer got = peer_receives(other, 300000, 1);
	must(got.first == 300000);
	peer_sends(other, 5000, 2);
	read_exactly(fd, 5000, 2);
	int unacked = -1;
	await(ioctl(fd, TIOCOUTQ, &unacked) == 0 && unacked == 0);
	show(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
	say("state %d, lost %u, sacked %u, unacked %u", info.tcpi_state, info.tcpi_lost,
	    info.tcpi_sacked, info.tcpi_unacked);
	say("timestamps, SACK, scales: %x", info.tcpi_options & 7);
	say("round trip %d, timeout %d", info.tcpi_rtt > 0, info.tcpi_rto >= 200000);
	say("segments %d %d", info.tcpi_snd_mss > 500, info.tcpi_pmtu > info.tcpi_snd_mss);
	say("window %d", info.tcpi_snd_cwnd >= 2);
	say("delay of ACKs %d", info.tcpi_ato >= 10000 && info.tcpi_ato <= 500000);
	say("scale of the peer %d", info.tcpi_snd_wscale > 0);
	/* tcpi_reordering grows if the path reorders segments. Linux caches the value for the next
	 * connection to the same peer, so the value may be high although tcpi_reord_seen is 0. */
	say("reordering %d, sent again now %u", info.tcpi_reordering >= 3, info.tcpi_retrans);
	/* Read the fields that the struct in <netinet/tcp.h> may lack. */
	unsigned char all[236];
	len = sizeof all;
	show(getsockopt(fd, IPPROTO_TCP, TCP_INFO, all, &len));
	uint64_t sent = long_at(all, BYTES_SENT), retrans = long_at(all, BYTES_RETRANS);
	say("length %u, pacing %d, sent %llu", len, long_at(all, PACING_RATE) > 0,
	    (unsigned long long)(sent - retrans));
	say("windows %d %d", word_at(all, SND_WND) > 0, word_at(all, RCV_WND) > 0);
	say_counts(all);
}

/* iovec arrays with IOV_MAX parts and more, and with empty parts. Calls that a socket refuses. */
void vectors(void)
{
	int other, fd = accepted(0, &other);
	unsigned char bytes[1024];
	struct iovec parts[1025];
	pattern_fill(bytes, sizeof bytes, 1, 0);
	for (int i = 0; i < 1025; i++)
		parts[i] = (struct iovec){bytes + (i < 1024 ? i : 0), 1};
	show(writev(fd, parts, 1024));
	struct answer got = peer_receives(other, 1024, 1);
	say("peer got %ld %ld", got.first, got.second);
	show(writev(fd, parts, 1025));
	show(readv(fd, parts, 1025));
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 1025};
	show(sendmsg(fd, &message, MSG_NOSIGNAL));
	show(recvmsg(fd, &message, MSG_DONTWAIT));
	struct iovec holes[4] = {{bytes, 0}, {bytes, 10}, {NULL, 0}, {bytes + 10, 20}};
	show(writev(fd, holes, 4));
	got = peer_receives(other, 30, 1);
	say("peer got %ld %ld", got.first, got.second);
	peer_sends(other, 30, 2);
	wait_readable(fd);
	show(readv(fd, holes, 4));
	say("scattered %d", pattern_matches(bytes, 30, 2, 0));
	show(writev(fd, holes, 1));
	message.msg_iovlen = 0;
	show(sendmsg(fd, &message, MSG_NOSIGNAL));
	show(pread(fd, bytes, 1, 0));
	show(pwrite(fd, bytes, 1, 0));
	show(lseek(fd, 0, SEEK_END));
	show(ftruncate(fd, 0));
	show(fsync(fd));
}

/* Combinations of the flags of recv. */
void receive_flags(void)
{
	int other, fd = accepted(0, &other);
	unsigned char bytes[64] = {0};
	struct iovec part = {bytes, 8};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	show(recv(fd, bytes, 8, MSG_DONTWAIT | MSG_PEEK));
	show(recv(fd, bytes, 8, MSG_DONTWAIT | MSG_WAITALL));
	show(recv(fd, bytes, 8, MSG_DONTWAIT | MSG_TRUNC));
	show(recv(fd, bytes, 8, MSG_ERRQUEUE));
	show(recv(fd, bytes, 8, MSG_OOB));
	peer_sends(other, 40, 1);
	wait_readable(fd);
	show(recv(fd, bytes, 64, MSG_PEEK));
	show(recv(fd, bytes, 4, MSG_PEEK | MSG_TRUNC));
	show(recv(fd, bytes, 64, MSG_PEEK | MSG_DONTWAIT));
	say("peeked %d", pattern_matches(bytes, 40, 1, 0));
	show(recv(fd, bytes, 4, MSG_TRUNC));
	message.msg_flags = -1;
	show(recvmsg(fd, &message, MSG_DONTWAIT));
	say("flags %x, bytes %d", message.msg_flags, pattern_matches(bytes, 8, 1, 4));
	show(recv(fd, bytes, 64, MSG_WAITALL | MSG_DONTWAIT));
	say("rest %d", pattern_matches(bytes, 28, 1, 12));
	struct sockaddr_in name = {0};
	socklen_t len = sizeof name;
	peer_sends(other, 3, 2);
	wait_readable(fd);
	show(recvfrom(fd, bytes, 3, 0, (void *)&name, &len));
	say("name %d, length %u", name.sin_port != 0, len);
	peer_must("close %d", other);
	show(recv(fd, bytes, 8, MSG_PEEK));
	show(recv(fd, bytes, 8, MSG_WAITALL));
	show(recv(fd, bytes, 8, MSG_DONTWAIT));
}

/* The flags of accept4. The accepted socket does not inherit O_NONBLOCK and FD_CLOEXEC from the
 * listener. Short buffers for addresses receive a part of the address. */
void accept_flags(void)
{
	int port, listener = open_listener(SOCK_NONBLOCK | SOCK_CLOEXEC, &port);
	static const int flags[] = {0, SOCK_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK | SOCK_CLOEXEC};
	want_connections(listener);
	for (int i = 0; i < 4; i++) {
		struct sockaddr_in name = {0};
		socklen_t len = sizeof name;
		int other = peer_connects(port);
		wait_readable(listener);
		int fd = accept4(listener, (void *)&name, &len, flags[i]);
		must(fd >= 0);
		say("flags %x %x, length %u, port %d", fcntl(fd, F_GETFL) & O_NONBLOCK,
		    fcntl(fd, F_GETFD), len, ntohs(name.sin_port) == peer_must("port %d", other));
		close(fd);
	}
	show(accept4(listener, NULL, NULL, 1));
	show(accept4(listener, NULL, NULL, 0));
	peer_connects(port);
	wait_readable(listener);
	struct sockaddr_in name = {0};
	socklen_t small = 4;
	int fd = accept(listener, (void *)&name, &small);
	say("accepted %d, length %u, family %d, address %d", fd >= 0, small, name.sin_family,
	    name.sin_addr.s_addr != 0);
	struct sockaddr_in own = {0};
	socklen_t len = 8;
	show(getsockname(fd, (void *)&own, &len));
	say("length %u, port %d, rest %d", len, ntohs(own.sin_port) == port, own.sin_zero[0]);
}

/* getsockname or getpeername of a new, a bound and a listening socket, and of a connection that the
 * peer has closed. bind and connect of sockets in the wrong state. */
void names(void)
{
	struct sockaddr_in name = {.sin_family = AF_INET};
	socklen_t len = sizeof name;
	int other, fd = socket(AF_INET, SOCK_STREAM, 0);
	show(getsockname(fd, (void *)&name, &len));
	say("fresh: length %u, family %d, port %d, address %x", len, name.sin_family,
	    ntohs(name.sin_port), name.sin_addr.s_addr);
	show(getpeername(fd, (void *)&name, &len));
	name = (struct sockaddr_in){.sin_family = AF_INET};
	show(bind(fd, (void *)&name, sizeof name));
	show(getsockname(fd, (void *)&name, &len));
	say("bound: port %d", name.sin_port != 0);
	show(bind(fd, (void *)&name, sizeof name));
	show(listen(fd, 5));
	show(getpeername(fd, (void *)&name, &len));
	show(connect(fd, (void *)&name, sizeof name));
	close(fd);
	fd = accepted(0, &other);
	show(bind(fd, (void *)&name, sizeof name));
	peer_must("close %d", other);
	await_events(fd, POLLRDHUP);
	show(getpeername(fd, (void *)&name, &len));
	show(shutdown(fd, SHUT_RDWR));
	show(getsockname(fd, (void *)&name, &len));
}

/* Returns the TCP state of a connection. */
static int state_of(int fd)
{
	struct tcp_info info;
	socklen_t len = sizeof info;
	must(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0);
	return info.tcpi_state;
}

/* shutdown of the directions of a connection in several orders, and calls after it. */
void shutdown_states(void)
{
	static const int orders[][2] = {{SHUT_RD, SHUT_WR}, {SHUT_WR, SHUT_RD},
					{SHUT_RDWR, SHUT_RD}, {SHUT_WR, SHUT_WR}};
	for (int i = 0; i < 4; i++) {
		int other, fd = accepted(0, &other);
		char byte;
		for (int j = 0; j < 2; j++) {
			show(shutdown(fd, orders[i][j]));
			say_poll(fd);
			ssize_t sent = send(fd, "x", 1, MSG_NOSIGNAL);
			say("send %zd %s", sent, sent < 0 ? strerrorname_np(errno) : "");
			/* Let the peer read the byte. Otherwise its close would send RST. */
			if (sent > 0)
				must(peer_receives(other, 1, ANY_BYTES).first == 1);
			show(recv(fd, &byte, 1, MSG_DONTWAIT));
		}
		peer_must("close %d", other);
		await(state_of(fd) == TCP_CLOSE);
		say_poll(fd);
		show(shutdown(fd, SHUT_RD));
		show(recv(fd, &byte, 1, MSG_DONTWAIT));
		close(fd);
	}
	int port, listener = open_listener(0, &port);
	want_connections(listener);
	say_poll(listener);
	show(send(listener, "x", 1, MSG_NOSIGNAL));
	show(recv(listener, &port, 1, MSG_DONTWAIT));
}

/* Calls shutdown when the main thread sleeps. */
static void *shut_later(void *arg)
{
	await_asleep(getpid());
	pause_briefly();
	must(shutdown(*(int *)arg, SHUT_RD) == 0);
	return NULL;
}

/* shutdown with SHUT_RD wakes another thread that sleeps in read or in poll. */
void shutdown_wakes(void)
{
	int other, fd = accepted(0, &other);
	pthread_t thread;
	char byte;
	pthread_create(&thread, NULL, shut_later, &fd);
	show(read(fd, &byte, 1));
	pthread_join(thread, NULL);
	fd = accepted(0, &other);
	pthread_create(&thread, NULL, shut_later, &fd);
	struct pollfd entry = {.fd = fd, .events = POLLIN | POLLRDHUP};
	show(poll(&entry, 1, TIMEOUT_MS));
	say("events%s", events_text(entry.revents));
	pthread_join(thread, NULL);
}

/* poll and select without descriptors, with a descriptor twice, and with invalid arguments. */
void poll_errors(void)
{
	int other, fd = accepted(0, &other);
	struct pollfd entry = {.fd = fd, .events = 0};
	struct timeval bad = {.tv_usec = -1}, mixed = {.tv_sec = 1, .tv_usec = -1}, none = {0};
	struct timespec wrong = {.tv_nsec = 1000000000};
	fd_set set;
	show(poll(NULL, 0, 10));
	show(poll(&entry, 1, 0));
	show(poll(&entry, 0, 10));
	show(ppoll(&entry, 1, &wrong, NULL));
	FD_ZERO(&set);
	FD_SET(fd, &set);
	show(select(-1, NULL, NULL, NULL, &none));
	show(select(0, NULL, NULL, NULL, &none));
	show(select(fd + 1, &set, NULL, NULL, &bad));
	show(select(fd + 1, &set, NULL, NULL, &mixed));
	mixed.tv_usec = -1000000;
	show(select(fd + 1, &set, NULL, NULL, &mixed));
	show(select(fd, &set, NULL, NULL, &none));
	FD_ZERO(&set);
	FD_SET(fd, &set);
	show(select(fd + 1, NULL, &set, NULL, &none));
	say("set %d", FD_ISSET(fd, &set));
	show(select(FD_SETSIZE, NULL, NULL, &set, &none));
	say("set %d", FD_ISSET(fd, &set));
	struct pollfd twice[2] = {{.fd = fd, .events = POLLOUT}, {.fd = fd, .events = POLLIN}};
	show(poll(twice, 2, 0));
	say("%s |%s", events_text(twice[0].revents), events_text(twice[1].revents));
	peer_sends(other, 1, 1);
	wait_readable(fd);
	show(poll(twice, 2, 0));
	say("%s |%s", events_text(twice[0].revents), events_text(twice[1].revents));
}

/* Errors of epoll_create, epoll_ctl and epoll_wait. */
void epoll_errors(void)
{
	int other, fd = accepted(0, &other), epfd = epoll_create1(0), outer = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN, .data.u32 = 1}, got;
	show(epoll_create(0));
	show(epoll_create1(1));
	show(epoll_ctl(epfd, 77, fd, &event));
	show(epoll_ctl(fd, EPOLL_CTL_ADD, fd, &event));
	show(epoll_ctl(epfd, EPOLL_CTL_ADD, epfd, &event));
	show(epoll_ctl(epfd, EPOLL_CTL_ADD, 499, &event));
	show(epoll_ctl(epfd, EPOLL_CTL_MOD, fd, &event));
	show(epoll_wait(epfd, &got, 0, 0));
	show(epoll_wait(epfd, &got, -1, 0));
	show(epoll_wait(fd, &got, 1, 0));
	event.events = EPOLLIN | EPOLLEXCLUSIVE;
	show(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event));
	show(epoll_ctl(epfd, EPOLL_CTL_MOD, fd, &event));
	event.events = EPOLLIN;
	show(epoll_ctl(epfd, EPOLL_CTL_MOD, fd, &event));
	show(epoll_ctl(epfd, EPOLL_CTL_DEL, fd, NULL));
	event.events = EPOLLIN | EPOLLEXCLUSIVE | EPOLLRDHUP;
	show(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event));
	event.events = EPOLLIN | EPOLLEXCLUSIVE | EPOLLET;
	show(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event));
	peer_sends(other, 1, 1);
	show(epoll_wait(epfd, &got, 1, TIMEOUT_MS));
	say("events%s", events_text(got.events));
	event.events = EPOLLIN;
	show(epoll_ctl(epfd, EPOLL_CTL_ADD, outer, &event));
	show(epoll_ctl(outer, EPOLL_CTL_ADD, epfd, &event));
	show(epoll_ctl(outer, EPOLL_CTL_ADD, fd, &event));
}

/* SO_RCVTIMEO: its default, invalid values, and the timeout of recv with several flags. */
void timeout_values(void)
{
	int other, fd = accepted(0, &other);
	struct timeval time = {.tv_sec = 1000, .tv_usec = 999999}, got = {77, 77};
	socklen_t len = sizeof got;
	char byte;
	show(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &got, &len));
	say("time %ld %ld", (long)got.tv_sec, (long)got.tv_usec);
	show(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
	time = (struct timeval){.tv_usec = 1000000};
	show(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
	show(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, 4));
	time = (struct timeval){.tv_usec = 20000};
	show(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
	show(recv(fd, &byte, 1, 0));
	show(recv(fd, &byte, 1, MSG_WAITALL));
	show(recv(fd, &byte, 1, MSG_PEEK));
	peer_sends(other, 1, 1);
	wait_readable(fd);
	unsigned char bytes[4];
	show(recv(fd, bytes, 4, MSG_WAITALL));
	/* A negative timeout does not wait. */
	time = (struct timeval){.tv_sec = -1};
	show(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
	show(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &got, &len));
	say("time %ld %ld", (long)got.tv_sec, (long)got.tv_usec);
	show(recv(fd, &byte, 1, 0));
	time = (struct timeval){0};
	show(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
	peer_sends(other, 1, 1);
	show(recv(fd, bytes, 1, 0));
}

/* The peer closes all its descriptors except its command socket, in several ways. The peer's
 * connections end, and the peer can open new connections. */
void peer_closes_all(void)
{
	int port, listener = open_listener(0, &port);
	want_connections(listener);
	int other = peer_connects(port), fd = accept(listener, NULL, NULL);
	peer_sends(other, 10, 1);
	read_exactly(fd, 10, 1);
	peer_must("close_all %d", 3);
	char byte;
	show(read(fd, &byte, 1));
	close(fd);
	for (int round = 0; round < 3; round++) {
		other = peer_connects(port);
		fd = accept(listener, NULL, NULL);
		must(fd >= 0);
		peer_sends(other, 1000, 1);
		read_exactly(fd, 1000, 1);
		write_exactly(fd, 1000, 2);
		struct answer got = peer_receives(other, 1000, 2);
		say("peer got %ld %ld", got.first, got.second);
		peer_must("close_all %d", round);
		show(read(fd, &byte, 1));
		close(fd);
	}
	fd = connected(&other);
	write_exactly(fd, 10, 1);
	struct answer got = peer_receives(other, 10, 1);
	say("peer got %ld %ld", got.first, got.second);
}

/* recvmsg stores the length of the name only if the caller passes a buffer for the name. recvmsg
 * repeats MSG_CMSG_CLOEXEC in msg_flags. sendmmsg sends at most 1024 messages. A null pointer to an
 * array gives EFAULT. */
void message_headers(void)
{
	static struct mmsghdr many[1100];
	int other, fd = accepted(0, &other);
	char byte = 'x';
	struct iovec part = {&byte, 1};
	struct sockaddr_storage name;
	peer_sends(other, 10, 1);
	for (int named = 0; named < 2; named++) {
		struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_namelen = 77};
		if (named)
			message.msg_name = &name;
		show(recvmsg(fd, &message, MSG_CMSG_CLOEXEC));
		say("name %u, flags %x, control %zu", message.msg_namelen, message.msg_flags,
		    message.msg_controllen);
	}
	for (int i = 0; i < 1100; i++)
		many[i].msg_hdr = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1};
	show(sendmmsg(fd, many, 1100, 0));
	/* Null pointers to arrays. */
	show(sendmmsg(fd, NULL, 1, 0));
	show(recvmmsg(fd, NULL, 1, 0, NULL));
	show(writev(fd, NULL, 1));
	show(readv(fd, NULL, 1));
}

/* fcntl F_GETOWN returns the negative id of a process group, however small the id is. */
void owner_of_group(void)
{
	int other, ends[2], fd = accepted(0, &other);
	/* In the new namespace, the child and its process group have the id 1. */
	must(unshare(CLONE_NEWPID) == 0);
	pid_t child = fork();
	if (child == 0) {
		must(setpgid(0, 0) == 0 && pipe(ends) == 0);
		show(fcntl(ends[0], F_SETOWN, -getpgrp()));
		show(fcntl(ends[0], F_GETOWN));
		show(fcntl(fd, F_SETOWN, -getpgrp()));
		show(fcntl(fd, F_GETOWN));
		show(fcntl(fd, F_SETOWN, getpid()));
		show(fcntl(fd, F_GETOWN));
		_exit(0);
	}
	int status;
	must(waitpid(child, &status, 0) == child);
	show(fcntl(12345, F_GETOWN));
}

/* shutdown with an invalid argument fails with EINVAL for a new socket, a listener, a connection
 * and a closed connection. The connection can still send. */
void shutdown_arguments(void)
{
	int port, other, fd = socket(AF_INET, SOCK_STREAM, 0);
	show(shutdown(fd, 3));
	show(shutdown(open_listener(0, &port), -1));
	fd = connected(&other);
	show(shutdown(fd, 3));
	write_exactly(fd, 10, 1);
	say("peer got %ld", peer_receives(other, 10, 1).first);
	peer_must("close %d", other);
	show(shutdown(fd, SHUT_RDWR));
	await(state_of(fd) == TCP_CLOSE);
	show(shutdown(fd, 3));
	show(shutdown(fd, SHUT_RDWR));
}

static int shut_read(int fd)
{
	return shutdown(fd, SHUT_RD);
}

static int shut_both(int fd)
{
	return shutdown(fd, SHUT_RDWR);
}

static int disconnect(int fd)
{
	struct sockaddr none = {.sa_family = AF_UNSPEC};
	return connect(fd, &none, sizeof none);
}

/* shutdown of a listener with SHUT_RD or SHUT_RDWR, and connect to AF_UNSPEC, stop the listener:
 * accept fails, and connections are refused, until the next listen. SHUT_WR has no effect. */
void listener_shut_down(void)
{
	/* Bind to a port number. When a listener stops, the kernel releases a port that the kernel
	 * chose itself. */
	int port;
	close(open_listener(0, &port));
	int listener = listener_at(port);
	int other = peer_connects(port);
	close(accept(listener, NULL, NULL));
	peer_must("close %d", other);
	show(shutdown(listener, SHUT_WR));
	other = peer_connects(port);
	close(accept(listener, NULL, NULL));
	peer_must("close %d", other);
	int (*const ways[])(int) = {shut_read, shut_both, disconnect};
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		show(ways[i](listener));
		show(accept(listener, NULL, NULL));
		say_poll(listener);
		say("peer connects: %d", peer_tries(port).ok);
		show(listen(listener, 5));
		want_connections(listener);
		other = peer_connects(port);
		int fd = accept(listener, NULL, NULL);
		say("accepted %d, blocking %d", fd >= 0, !(fcntl(listener, F_GETFL) & O_NONBLOCK));
		close(fd);
		peer_must("close %d", other);
	}
}

/* Shuts the listener down when the main thread sleeps. */
static void *shut_listener_later(void *arg)
{
	await_asleep(getpid());
	pause_briefly();
	must(shutdown(*(int *)arg, SHUT_RDWR) == 0);
	return NULL;
}

/* shutdown of a listener wakes a thread that sleeps in accept, poll or epoll_wait. */
void listener_shut_down_wakes(void)
{
	for (int how = 0; how < 3; how++) {
		int port, listener = open_listener(0, &port);
		pthread_t thread;
		struct pollfd entry = {.fd = listener, .events = POLLIN};
		struct epoll_event event = {.events = EPOLLIN}, got = {0};
		int epfd = epoll_create1(0);
		must(epoll_ctl(epfd, EPOLL_CTL_ADD, listener, &event) == 0);
		want_connections(listener);
		must(pthread_create(&thread, NULL, shut_listener_later, &listener) == 0);
		if (how == 0) {
			show(accept(listener, NULL, NULL));
		} else if (how == 1) {
			show(poll(&entry, 1, TIMEOUT_MS));
			say("events%s", events_text(entry.revents));
		} else {
			show(epoll_wait(epfd, &got, 1, TIMEOUT_MS));
			say("events%s", events_text(got.events));
		}
		must(pthread_join(thread, NULL) == 0);
		close(listener);
		close(epfd);
	}
}
