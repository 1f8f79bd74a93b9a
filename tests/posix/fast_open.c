/* TCP Fast Open (RFC 7413): this program sends data in SYNs, and accepts data in SYNs. */
#include "posix.h"

/* TCPI_OPT_SYN_DATA, a bit of tcpi_options: the SYN carried data, and the SYN,ACK acknowledged the
 * data. */
#define SYN_DATA 32

/* Sets an integer option of TCP. */
static int set(int fd, int name, int value)
{
	return setsockopt(fd, IPPROTO_TCP, name, &value, sizeof value);
}

/* Returns the value of an integer option of TCP, or the negative error. */
static int number_of(int fd, int name)
{
	int value = -7;
	socklen_t len = sizeof value;
	return getsockopt(fd, IPPROTO_TCP, name, &value, &len) ? -errno : value;
}

/* Sets the options of Fast Open to several values, and prints the results. */
static void try_values(const char *where, int fd)
{
	static const struct {
		const char *name;
		int option, values[5];
	} tried[] = {
		{"FASTOPEN", TCP_FASTOPEN, {-1, 0, 7, 4000, 3}},
		{"CONNECT", TCP_FASTOPEN_CONNECT, {-1, 0, 2, 1, 0}},
		{"NO_COOKIE", TCP_FASTOPEN_NO_COOKIE, {-1, 0, 2, 1, 0}},
	};
	for (size_t i = 0; i < sizeof tried / sizeof *tried; i++) {
		for (int at = 0; at < 5; at++) {
			int result = set(fd, tried[i].option, tried[i].values[at]);
			say("%s %s %d: %s, then %d", where, tried[i].name, tried[i].values[at],
			    result ? strerrorname_np(errno) : "ok", number_of(fd, tried[i].option));
		}
	}
	unsigned char keys[64];
	memset(keys, 0x41, sizeof keys);
	for (int len = 15; len <= 33; len++)
		if (setsockopt(fd, IPPROTO_TCP, TCP_FASTOPEN_KEY, keys, len) == 0)
			say("%s: a key of %d bytes", where, len);
}

/* Option values that a new socket, a listener and connections accept or refuse. */
void fast_open_options(void)
{
	int port, other, fresh = socket(AF_INET, SOCK_STREAM, 0);
	unsigned char keys[64];
	socklen_t len = sizeof keys;
	try_values("fresh", fresh);
	show(getsockopt(fresh, IPPROTO_TCP, TCP_FASTOPEN_KEY, keys, &len));
	say("%u bytes, %x %x", len, keys[0], keys[31]);
	try_values("listener", open_listener(0, &port));
	try_values("connected", connected(&other));
	try_values("accepted", accepted(0, &other));
}

/* Returns the address of a new listener of the peer that accepts data in SYNs. Stores the peer's
 * descriptor of the listener in `listener`. Opens a connection to the listener first, so that this
 * host has the listener's cookie. */
static struct sockaddr_in fast_listener(int *listener)
{
	struct sockaddr_in name = peer_listener(listener);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	peer_must("fast %d", *listener);
	must(sendto(fd, "x", 1, MSG_FASTOPEN, (void *)&name, sizeof name) == 1);
	int other = peer_must("accept %d", *listener);
	must(peer_receives(other, 1, ANY_BYTES).first == 1);
	close(fd);
	peer_must("close %d", other);
	return name;
}

/* Returns tcpi_options of a connection. */
static int options_of(int fd)
{
	struct tcp_info info;
	socklen_t len = sizeof info;
	must(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0);
	return info.tcpi_options;
}

/* Returns the present events of a socket. */
static int events_now(int fd)
{
	struct pollfd entry = {.fd = fd, .events = POLLIN | POLLOUT};
	must(poll(&entry, 1, 0) >= 0);
	return entry.revents;
}

/* Makes the peer accept a connection and receive `count` bytes. Waits until TCP_INFO of `fd` shows
 * that the SYN carried data. Returns the peer's descriptor. */
static int check_arrived(int fd, int listener, long count)
{
	int other = peer_must("accept %d", listener);
	struct answer got = peer_receives(other, count, 9);
	say("arrived all %d, error %ld", got.first == count, got.second);
	await_events(fd, POLLOUT);
	await(options_of(fd) & SYN_DATA);
	return other;
}

/* Sends `count` bytes by one of five calls. `how`, from 0 to 4, selects the call. */
static ssize_t send_part(int how, int fd, const unsigned char *bytes, size_t count)
{
	struct iovec parts[] = {{(void *)bytes, 1}, {(void *)(bytes + 1), count - 1}};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
	off_t offset = 0;
	if (how == 0)
		return write(fd, bytes, count);
	if (how == 1)
		return send(fd, bytes, count, MSG_NOSIGNAL);
	if (how == 2)
		return writev(fd, parts, 2);
	if (how == 3)
		return sendmsg(fd, &message, 0);
	FILE *file = tmpfile();
	must(fwrite(bytes, 1, count, file) == count && fflush(file) == 0);
	return sendfile(fd, fileno(file), &offset, count);
}

/* With TCP_FASTOPEN_CONNECT, connect returns before a SYN leaves. The SYN leaves with the data of
 * the first write, which is one of the calls of send_part. */
void fast_open_deferred(void)
{
	int listener;
	struct sockaddr_in name = fast_listener(&listener), own;
	unsigned char bytes[700];
	pattern_fill(bytes, sizeof bytes, 9, 0);
	for (int how = 0; how < 10; how++) {
		int waits = how / 5, fd = socket(AF_INET, SOCK_STREAM | (waits ? 0 : SOCK_NONBLOCK), 0);
		socklen_t len = sizeof own;
		say("%s, call %d", waits ? "blocking" : "nonblocking", how % 5);
		show(set(fd, TCP_FASTOPEN_CONNECT, 1));
		show(connect(fd, (void *)&name, sizeof name));
		say("events%s", events_text(events_now(fd)));
		show(getpeername(fd, (void *)&own, &len));
		if (!waits)
			show(connect(fd, (void *)&name, sizeof name));
		show(send_part(how % 5, fd, bytes, sizeof bytes));
		int other = check_arrived(fd, listener, sizeof bytes);
		show(getpeername(fd, (void *)&own, &len));
		show(connect(fd, (void *)&name, sizeof name));
		show(connect(fd, (void *)&name, sizeof name));
		peer_sends(other, 50, 3);
		read_exactly(fd, 50, 3);
		close(fd);
		peer_must("close %d", other);
	}
}

/* TCP_FASTOPEN_CONNECT in programs that call epoll_wait or recv before they send, and in programs
 * that never send. */
void fast_open_unwritten(void)
{
	int listener, epfd = epoll_create1(0);
	struct sockaddr_in name = fast_listener(&listener);
	struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET}, got;
	unsigned char bytes[100];
	for (int later = 0; later < 2; later++) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		must(set(fd, TCP_FASTOPEN_CONNECT, 1) == 0);
		if (later) {
			must(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event) == 0);
			while (epoll_wait(epfd, &got, 1, 0) > 0)
				;
		}
		show(connect(fd, (void *)&name, sizeof name));
		if (!later) {
			must(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event) == 0);
			show(epoll_wait(epfd, &got, 1, 0));
			say("events%s", events_text(got.events));
		}
		show(recv(fd, bytes, sizeof bytes, 0));
		show(set(fd, TCP_NODELAY, 1));
		show(send(fd, bytes, 0, 0));
		int other = peer_must("accept %d", listener);
		await_events(fd, POLLOUT);
		peer_sends(other, 50, 3);
		read_exactly(fd, 50, 3);
		close(fd);
		peer_must("close %d", other);
	}
	for (int how = 0; how < 3; how++) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		must(set(fd, TCP_FASTOPEN_CONNECT, 1) == 0);
		show(connect(fd, (void *)&name, sizeof name));
		if (how > 0)
			show(shutdown(fd, how == 1 ? SHUT_WR : SHUT_RDWR));
		show(close(fd));
	}
}

/* MSG_FASTOPEN: one call opens the connection and sends data. */
void fast_open_sendto(void)
{
	int listener, other;
	struct sockaddr_in name = fast_listener(&listener);
	struct sockaddr none = {.sa_family = AF_UNSPEC};
	static unsigned char bytes[200000];
	pattern_fill(bytes, sizeof bytes, 9, 0);
	struct iovec part = {bytes, 300};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_name = &name, .msg_namelen = sizeof name};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	show(send(fd, bytes, 10, MSG_FASTOPEN));
	show(sendto(fd, bytes, 10, MSG_FASTOPEN, &none, sizeof none));
	show(sendto(fd, bytes, 10, MSG_FASTOPEN, (void *)&name, 4));
	show(sendto(fd, bytes, 600, MSG_FASTOPEN, (void *)&name, sizeof name));
	other = check_arrived(fd, listener, 600);
	show(send(fd, bytes, 1, MSG_FASTOPEN));
	show(send(fd, bytes, 1, MSG_FASTOPEN));
	show(sendto(fd, bytes, 1, 0, (void *)&name, sizeof name));
	close(fd);
	peer_must("close %d", other);

	fd = socket(AF_INET, SOCK_STREAM, 0);
	show(sendmsg(fd, &message, MSG_FASTOPEN | MSG_NOSIGNAL));
	other = check_arrived(fd, listener, 300);
	show(connect(fd, (void *)&name, sizeof name));
	close(fd);
	peer_must("close %d", other);

	/* Send more data than a SYN can carry. A blocking call sends all data. A non-blocking call
	 * sends as much as the send buffer has room for. */
	fd = socket(AF_INET, SOCK_STREAM, 0);
	show(sendto(fd, bytes, 20000, MSG_FASTOPEN, (void *)&name, sizeof name));
	other = check_arrived(fd, listener, 20000);
	close(fd);
	peer_must("close %d", other);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	long sent = sendto(fd, bytes, sizeof bytes, MSG_FASTOPEN, (void *)&name, sizeof name);
	say("some %d, not all %d", sent > 0, sent < (long)sizeof bytes);
	other = check_arrived(fd, listener, sent);
	close(fd);
	peer_must("close %d", other);
}

/* A listener of this program accepts data in SYNs. TCP_FASTOPEN is set before listen, or after. */
void fast_open_accepted(void)
{
	for (int late = 0; late < 2; late++) {
		struct sockaddr_in name = {.sin_family = AF_INET};
		socklen_t len = sizeof name;
		int listener = socket(AF_INET, SOCK_STREAM, 0);
		must(bind(listener, (void *)&name, sizeof name) == 0);
		if (!late)
			must(set(listener, TCP_FASTOPEN, 5) == 0);
		must(listen(listener, 8) == 0);
		if (late)
			must(set(listener, TCP_FASTOPEN, 5) == 0);
		say("places %d", number_of(listener, TCP_FASTOPEN));
		must(getsockname(listener, (void *)&name, &len) == 0);
		want_connections(listener);
		for (int known = 0; known < 2; known++) {
			int other = peer_must("fast_connect %s %d 300", getenv("POSIX_OWN_ADDRESS"),
					      ntohs(name.sin_port));
			int fd = accept(listener, NULL, NULL);
			must(fd >= 0);
			read_exactly(fd, 300, 9);
			if (known)
				say("with SYN: %d", (options_of(fd) & SYN_DATA) != 0);
			say("places %d", number_of(fd, TCP_FASTOPEN));
			write_exactly(fd, 40, 2);
			struct answer got = peer_receives(other, 40, 2);
			say("answer %ld, error %ld", got.first, got.second);
			close(fd);
			peer_must("close %d", other);
		}
		close(listener);
	}
}
