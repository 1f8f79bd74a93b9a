/* Urgent data: MSG_OOB, SO_OOBINLINE, SIOCATMARK (sockatmark), and events. */
#include "posix.h"

/* Makes the peer send `count` bytes of the pattern with `seed` in one call. The last byte is
 * urgent. */
static void peer_sends_urgent(int fd, long count, unsigned seed)
{
	must(peer_must("urgent %d %ld %u", fd, count, seed) == count);
}

/* Returns the number of readable bytes (FIONREAD). */
static int readable_now(int fd)
{
	int count = -1;
	must(ioctl(fd, FIONREAD, &count) == 0);
	return count;
}

/* Returns the present events of a connection. */
static unsigned events_of(int fd)
{
	struct pollfd entry = {.fd = fd, .events = POLLIN | POLLPRI | POLLRDHUP};
	must(poll(&entry, 1, 0) >= 0);
	return entry.revents;
}

/* Returns the byte at position `at` of the pattern with `seed`. `at` must be below 64. */
static unsigned char byte_at(unsigned seed, long at)
{
	unsigned char bytes[64];
	pattern_fill(bytes, sizeof bytes, seed, 0);
	return bytes[at];
}

/* A read stops before the urgent byte, and the next read skips the urgent byte. recv with MSG_OOB
 * returns the urgent byte. */
void urgent_received(void)
{
	int other, fd = accepted(0, &other);
	unsigned char b[128] = {0};
	show(recv(fd, b, 1, MSG_OOB));
	show(sockatmark(fd));
	peer_sends(other, 20, 1);
	peer_sends_urgent(other, 5, 2);
	await_events(fd, POLLPRI);
	await(readable_now(fd) == 24);
	say("events%s", events_text(events_of(fd)));
	show(sockatmark(fd));
	show(recv(fd, b, sizeof b, MSG_PEEK));
	show(recv(fd, b, 10, 0));
	show(recv(fd, b, sizeof b, MSG_WAITALL));
	say("bytes %d %d", pattern_matches(b, 10, 1, 10), pattern_matches(b + 10, 4, 2, 0));
	show(sockatmark(fd));
	say("events%s, readable %d", events_text(events_of(fd)), readable_now(fd));
	b[0] = 0;
	show(recv(fd, b, 5, MSG_OOB | MSG_PEEK));
	show(recv(fd, b, 0, MSG_OOB | MSG_PEEK));
	struct iovec parts[2] = {{b + 1, 0}, {b + 2, 3}};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2, .msg_flags = -1};
	show(recvmsg(fd, &message, MSG_OOB));
	say("bytes %d %d, flags %x", b[0] == byte_at(2, 4), b[2] == byte_at(2, 4), message.msg_flags);
	show(recv(fd, b, 1, MSG_OOB));
	say("events%s", events_text(events_of(fd)));
	show(recv(fd, b, 10, MSG_DONTWAIT | MSG_PEEK));
	show(sockatmark(fd));
	peer_sends(other, 10, 3);
	wait_readable(fd);
	say("events%s, readable %d", events_text(events_of(fd)), readable_now(fd));
	show(recv(fd, b, sizeof b, MSG_PEEK));
	say("bytes %d", pattern_matches(b, 10, 3, 0));
	show(sockatmark(fd));
	show(recv(fd, b, 3, 0));
	show(sockatmark(fd));
	show(recv(fd, b, sizeof b, 0));
	say("bytes %d", pattern_matches(b, 7, 3, 3));
	show(recv(fd, b, 1, MSG_OOB));
}

/* An urgent byte without other data does not make the connection readable. A read skips the urgent
 * byte. */
void urgent_alone(void)
{
	int other, fd = accepted(0, &other);
	unsigned char b[64] = {0};
	peer_sends_urgent(other, 1, 7);
	await_events(fd, POLLPRI);
	say("events%s, readable %d, at %d", events_text(events_of(fd)), readable_now(fd), sockatmark(fd));
	show(recv(fd, b, 10, MSG_DONTWAIT));
	say("events%s, readable %d, at %d", events_text(events_of(fd)), readable_now(fd), sockatmark(fd));
	show(recv(fd, b, 1, MSG_OOB));
	/* The next read also skips an urgent byte that MSG_OOB has read. */
	peer_sends_urgent(other, 1, 8);
	await_events(fd, POLLPRI);
	show(recv(fd, b, 1, MSG_OOB));
	say("byte %d", b[0] == byte_at(8, 0));
	peer_sends(other, 5, 9);
	show(recv(fd, b, 5, MSG_WAITALL));
	say("bytes %d", pattern_matches(b, 5, 9, 0));
	/* The end of the stream follows the urgent byte. */
	peer_sends_urgent(other, 1, 10);
	await_events(fd, POLLPRI);
	peer_must("close %d", other);
	await_events(fd, POLLRDHUP);
	say("events%s", events_text(events_of(fd)));
	show(recv(fd, b, 1, MSG_OOB));
	show(recv(fd, b, 10, 0));
	show(recv(fd, b, 1, MSG_OOB));
}

/* The peer sends several urgent bytes before the program reads. Only the last of these bytes is
 * still urgent when the program reads. The earlier ones are normal data by then. */
void urgent_often(void)
{
	int other, fd = accepted(0, &other);
	unsigned char b[256] = {0};
	for (int i = 0; i < 10; i++) {
		peer_sends(other, 3, 1);
		peer_sends_urgent(other, 2, 2);
	}
	await(readable_now(fd) == 49);
	show(recv(fd, b, sizeof b, 0));
	int good = 0;
	for (int i = 0; i < 9; i++)
		good += pattern_matches(b + 5 * i, 3, 1, 0) && pattern_matches(b + 5 * i + 3, 2, 2, 0);
	say("good %d, rest %d %d", good, pattern_matches(b + 45, 3, 1, 0),
	    pattern_matches(b + 48, 1, 2, 0));
	show(sockatmark(fd));
	/* The program is at the mark (the position of the urgent byte) when another urgent byte
	 * arrives. Only the new byte is urgent then, but a read also skips the byte at the old
	 * mark. */
	peer_sends(other, 4, 3);
	peer_sends_urgent(other, 1, 4);
	await(readable_now(fd) == 4);
	show(sockatmark(fd));
	show(recv(fd, b, sizeof b, 0));
	say("bytes %d", pattern_matches(b, 4, 3, 0));
	show(recv(fd, b, 1, MSG_OOB));
	say("byte %d", b[0] == byte_at(4, 0));
}

/* With SO_OOBINLINE the urgent byte is part of the normal data, but a read still stops before this
 * byte. */
void urgent_in_line(void)
{
	int other, fd = accepted(0, &other), on = 1, got = -1;
	socklen_t len = sizeof got;
	unsigned char b[128] = {0};
	on = 5;
	show(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
	show(getsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &got, &len));
	say("inline %d", got);
	peer_sends(other, 20, 1);
	peer_sends_urgent(other, 5, 2);
	peer_sends(other, 5, 3);
	await_events(fd, POLLPRI);
	await(readable_now(fd) == 30);
	say("events%s, at %d", events_text(events_of(fd)), sockatmark(fd));
	show(recv(fd, b, 1, MSG_OOB));
	show(recv(fd, b, sizeof b, 0));
	say("events%s, at %d, readable %d", events_text(events_of(fd)), sockatmark(fd), readable_now(fd));
	show(recv(fd, b, 10, MSG_PEEK));
	show(recv(fd, b, 1, 0));
	say("byte %d", b[0] == byte_at(2, 4));
	say("events%s, at %d", events_text(events_of(fd)), sockatmark(fd));
	show(recv(fd, b, sizeof b, 0));
	say("bytes %d", pattern_matches(b, 5, 3, 0));
	/* Clear the option while the program is at the mark. */
	peer_sends_urgent(other, 1, 4);
	await_events(fd, POLLPRI);
	say("readable %d", readable_now(fd));
	on = 0;
	show(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
	say("readable %d", readable_now(fd));
	show(recv(fd, b, 1, MSG_DONTWAIT | MSG_PEEK));
	show(recv(fd, b, 1, MSG_OOB));
	say("byte %d", b[0] == byte_at(4, 0));
	close(fd);
	/* Accepted connections inherit the option from the listener. */
	int port, listener = open_listener(0, &port);
	on = 1;
	must(setsockopt(listener, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on) == 0);
	want_connections(listener);
	other = peer_connects(port);
	fd = accept(listener, NULL, NULL);
	must(fd >= 0);
	peer_sends_urgent(other, 1, 5);
	wait_readable(fd);
	show(recv(fd, b, 1, MSG_OOB));
	show(recv(fd, b, 5, 0));
	say("byte %d", b[0] == byte_at(5, 0));
}

/* Urgent data sent by send, sendmsg and sendto with MSG_OOB. The peer finds the urgent byte. */
void urgent_sent(void)
{
	int other, fd = accepted(0, &other);
	unsigned char b[64];
	pattern_fill(b, sizeof b, 1, 0);
	show(send(fd, b, 0, MSG_OOB));
	show(send(fd, b, 10, 0));
	show(send(fd, b + 10, 3, MSG_OOB));
	struct answer got = peer("mark %d", other);
	say("before %ld, byte %d", got.first, got.second == byte_at(1, 12));
	struct iovec parts[2] = {{b, 10}, {b + 10, 20}};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
	show(sendmsg(fd, &message, MSG_OOB | MSG_NOSIGNAL));
	got = peer("mark %d", other);
	say("before %ld, byte %d", got.first, got.second == byte_at(1, 29));
	show(sendto(fd, b, 1, MSG_OOB | MSG_MORE | MSG_DONTWAIT, NULL, 0));
	got = peer("mark %d", other);
	say("before %ld, byte %d", got.first, got.second == byte_at(1, 0));
	show(shutdown(fd, SHUT_WR));
	show(send(fd, b, 1, MSG_OOB | MSG_NOSIGNAL));
	show(recv(fd, b, 1, MSG_OOB));
	close(fd);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	show(send(fd, b, 1, MSG_OOB | MSG_NOSIGNAL));
	show(recv(fd, b, 1, MSG_OOB));
	show(sockatmark(fd));
	close(fd);
	show(send(fd, b, 1, MSG_OOB | MSG_NOSIGNAL));
	show(sockatmark(fd));
}

/* Transfers with many urgent bytes in both directions. With SO_OOBINLINE no byte is lost. */
void urgent_bulk(void)
{
	int other, fd = accepted(0, &other), on = 1;
	static unsigned char bytes[200000];
	must(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on) == 0);
	peer_must("inline %d", other);
	pattern_fill(bytes, sizeof bytes, 5, 0);
	long job = peer_must("receive %d %ld 5", other, (long)sizeof bytes);
	for (long at = 0; at < (long)sizeof bytes;) {
		long len = 1 + at % 7919;
		if (len > (long)sizeof bytes - at)
			len = sizeof bytes - at;
		ssize_t put = send(fd, bytes + at, len, at % 3 ? 0 : MSG_OOB);
		must(put > 0);
		at += put;
	}
	struct answer got = peer("join %ld", job);
	say("peer got %ld %ld", got.first, got.second);
	job = peer_must("send_urgent %d %ld 6", other, 200000L);
	read_exactly(fd, 200000, 6);
	got = peer("join %ld", job);
	say("peer sent %ld %ld", got.first, got.second);
}

/* epoll and select report urgent data until the program has read the urgent byte with MSG_OOB. */
void urgent_events(void)
{
	int other, fd = accepted(SOCK_NONBLOCK, &other), epoll = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN | EPOLLPRI}, got = {0};
	unsigned char b[64];
	must(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
	show(epoll_wait(epoll, &got, 1, 0));
	peer_sends(other, 10, 1);
	show(epoll_wait(epoll, &got, 1, TIMEOUT_MS));
	say("events%s", events_text(got.events));
	peer_sends_urgent(other, 1, 2);
	await_events(fd, POLLPRI);
	show(epoll_wait(epoll, &got, 1, TIMEOUT_MS));
	say("events%s", events_text(got.events));
	fd_set except;
	FD_ZERO(&except);
	FD_SET(fd, &except);
	struct timeval patience = {60, 0};
	show(select(fd + 1, NULL, NULL, &except, &patience));
	say("set %d", !!FD_ISSET(fd, &except));
	show(recv(fd, b, 64, 0));
	show(epoll_wait(epoll, &got, 1, 0));
	say("events%s", events_text(got.events));
	show(recv(fd, b, 1, MSG_OOB));
	show(epoll_wait(epoll, &got, 1, 0));
	FD_SET(fd, &except);
	patience = (struct timeval){0, 0};
	show(select(fd + 1, NULL, NULL, &except, &patience));
	/* epoll reports the data after the urgent byte. */
	peer_sends(other, 5, 3);
	show(epoll_wait(epoll, &got, 1, TIMEOUT_MS));
	say("events%s", events_text(got.events));
	show(read(fd, b, 2));
	show(epoll_wait(epoll, &got, 1, 0));
	show(read(fd, b, 64));
	show(epoll_wait(epoll, &got, 1, 0));
}

/* With EPOLLET, epoll reports each urgent byte once. */
void urgent_edges(void)
{
	int other, fd = accepted(SOCK_NONBLOCK, &other), epoll = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLPRI | EPOLLET}, got = {0};
	unsigned char b[64];
	must(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
	show(epoll_wait(epoll, &got, 1, 0));
	for (int i = 0; i < 4; i++) {
		peer_sends_urgent(other, 1, i);
		show(epoll_wait(epoll, &got, 1, TIMEOUT_MS));
		say("events%s", events_text(got.events));
		show(epoll_wait(epoll, &got, 1, 0));
		show(recv(fd, b, 1, i % 2 ? MSG_OOB : 0));
	}
}

static void *send_urgent_late(void *arg)
{
	int other = *(int *)arg;
	await_asleep(getpid());
	peer_sends_urgent(other, 1, 1);
	peer_sends(other, 3, 2);
	return NULL;
}

/* A blocking recv with MSG_WAITALL continues after the urgent byte. poll with POLLPRI wakes for the
 * urgent byte. */
void urgent_while_waiting(void)
{
	int other, fd = accepted(0, &other);
	unsigned char b[16];
	pthread_t thread;
	pthread_create(&thread, NULL, send_urgent_late, &other);
	show(recv(fd, b, 3, MSG_WAITALL));
	say("bytes %d", pattern_matches(b, 3, 2, 0));
	pthread_join(thread, NULL);
	pthread_create(&thread, NULL, send_urgent_late, &other);
	struct pollfd entry = {.fd = fd, .events = POLLPRI};
	show(poll(&entry, 1, TIMEOUT_MS));
	say("events%s", events_text(entry.revents));
	pthread_join(thread, NULL);
}
