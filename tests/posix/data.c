/* Transfer of data: reading, writing, flags, the end of the stream, and resets. */
#include "posix.h"

/* Addresses and flags of a connection, data in both directions, and the end of the connection. */
void basics(void)
{
	int other, fd = accepted(SOCK_CLOEXEC, &other);
	struct sockaddr_in own = {0}, its = {0};
	socklen_t own_len = sizeof own, its_len = sizeof its;
	struct stat status;
	show(getsockname(fd, (void *)&own, &own_len));
	show(getpeername(fd, (void *)&its, &its_len));
	say("lengths %u %u", own_len, its_len);
	say("own address %d", own.sin_addr.s_addr == inet_addr(getenv("POSIX_OWN_ADDRESS")));
	say("its port %d", ntohs(its.sin_port) == peer_must("port %d", other));
	say("flags %x %x", fcntl(fd, F_GETFL), fcntl(fd, F_GETFD));
	show(fstat(fd, &status));
	say("socket %d", S_ISSOCK(status.st_mode));
	show(lseek(fd, 0, SEEK_CUR));
	peer_sends(other, 100, 1);
	read_exactly(fd, 100, 1);
	write_exactly(fd, 200, 2);
	struct answer got = peer_receives(other, 200, 2);
	say("peer got %ld %ld", got.first, got.second);
	peer_must("close %d", other);
	char byte;
	show(read(fd, &byte, 1));
	show(read(fd, &byte, 1));
	show(close(fd));
	show(close(fd));
}

/* Non-blocking accept, read and write fail with EAGAIN. FIONBIO and fcntl change O_NONBLOCK. */
void nonblocking(void)
{
	int other, fd = accepted(SOCK_NONBLOCK, &other), port, on = 0;
	char bytes[65536] = {0};
	int listener = open_listener(SOCK_NONBLOCK, &port);
	show(accept(listener, NULL, NULL));
	show(read(fd, bytes, 10));
	show(recv(fd, bytes, 10, MSG_WAITALL));
	long total = 0;
	ssize_t put;
	while ((put = write(fd, bytes, sizeof bytes)) > 0)
		total += put;
	say("full: %d, some: %d", errno == EAGAIN, total > 0);
	long job = peer_must("receive %d -1 %u", other, ANY_BYTES);
	struct pollfd entry = {.fd = fd, .events = POLLOUT};
	show(poll(&entry, 1, TIMEOUT_MS));
	say("events%s", events_text(entry.revents));
	show(ioctl(fd, FIONBIO, &on));
	say("flags %x", fcntl(fd, F_GETFL) & O_NONBLOCK);
	on = 1;
	show(ioctl(fd, FIONBIO, &on));
	say("flags %x", fcntl(fd, F_GETFL) & O_NONBLOCK);
	show(fcntl(fd, F_SETFL, 0));
	say("flags %x", fcntl(fd, F_GETFL) & O_NONBLOCK);
	close(fd);
	struct answer got = peer("join %ld", job);
	say("peer got all %d %ld", got.first == total, got.second);
}

/* Most calls that receive or send data, with buffers, iovec arrays and messages, and several
 * flags. */
void messages(void)
{
	int other, fd = accepted(0, &other);
	unsigned char a[64] = {0}, b[64] = {0};
	struct iovec parts[2] = {{a, 10}, {b, 20}};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
	struct sockaddr_in name;
	socklen_t len = sizeof name;
	peer_sends(other, 30, 1);
	wait_readable(fd);
	show(recv(fd, a, 5, MSG_PEEK));
	show(recv(fd, a, 64, MSG_PEEK));
	say("peeked %d", pattern_matches(a, 30, 1, 0));
	show(readv(fd, parts, 2));
	say("scattered %d %d", pattern_matches(a, 10, 1, 0), pattern_matches(b, 20, 1, 10));
	peer_sends(other, 30, 2);
	wait_readable(fd);
	message.msg_flags = -1;
	message.msg_name = &name;
	message.msg_namelen = sizeof name;
	show(recvmsg(fd, &message, 0));
	say("message %d %u %x", pattern_matches(b, 20, 2, 10), message.msg_namelen, message.msg_flags);
	peer_sends(other, 30, 3);
	wait_readable(fd);
	show(recvfrom(fd, a, 8, 0, (void *)&name, &len));
	show(recv(fd, NULL, 10, MSG_TRUNC));
	show(recv(fd, b, 64, MSG_DONTWAIT));
	say("rest %d", pattern_matches(b, 12, 3, 18));
	show(recv(fd, b, 64, MSG_DONTWAIT));
	show(recv(fd, b, 0, MSG_DONTWAIT));
	show(read(fd, b, 0));
	peer_sends(other, 15, 4);
	message.msg_name = NULL;
	message.msg_namelen = 0;
	message.msg_iovlen = 2;
	pattern_fill(a, 10, 5, 0);
	pattern_fill(b, 20, 5, 10);
	show(sendmsg(fd, &message, MSG_NOSIGNAL));
	show(writev(fd, parts, 2));
	show(writev(fd, parts, 0));
	show(writev(fd, parts, -1));
	struct answer got = peer_receives(other, 30, 5);
	say("peer got %ld %ld", got.first, got.second);
	got = peer_receives(other, 30, 5);
	say("peer got %ld %ld", got.first, got.second);
	pattern_fill(a, 64, 6, 0);
	show(send(fd, a, 20, MSG_MORE));
	show(sendto(fd, a + 20, 44, 0, NULL, 0));
	got = peer_receives(other, 64, 6);
	say("peer got %ld %ld", got.first, got.second);
	show(recv(fd, b, 15, MSG_WAITALL));
	say("whole %d", pattern_matches(b, 15, 4, 0));
	show(recv(fd, b, 1, MSG_OOB));
}

/* Makes the peer send 10 bytes when the main thread sleeps. */
static void *send_late(void *arg)
{
	await_asleep(getpid());
	peer_sends(*(int *)arg, 10, 9);
	return NULL;
}

/* MSG_WAITALL waits until the whole buffer is filled, or until the end of the stream. */
void wait_all(void)
{
	int other, fd = accepted(0, &other);
	unsigned char bytes[20];
	pthread_t thread;
	peer_sends(other, 10, 9);
	pthread_create(&thread, NULL, send_late, &other);
	show(recv(fd, bytes, 20, MSG_WAITALL));
	say("parts %d %d", pattern_matches(bytes, 10, 9, 0), pattern_matches(bytes + 10, 10, 9, 0));
	pthread_join(thread, NULL);
	peer_sends(other, 10, 9);
	peer_must("close %d", other);
	show(recv(fd, bytes, 20, MSG_WAITALL));
	show(recv(fd, bytes, 20, MSG_WAITALL));
}

/* Without flags, recvmmsg waits for each message. With MSG_WAITFORONE, recvmmsg waits only for the
 * first message, and with MSG_DONTWAIT for none. The timeout ends recvmmsg only after a message. */
void message_arrays(void)
{
	int other, fd = accepted(0, &other);
	unsigned char bytes[3][10];
	struct iovec parts[3];
	struct mmsghdr messages[3] = {0};
	struct timespec none = {0}, invalid = {.tv_nsec = -1}, hour = {.tv_sec = 3600};
	pthread_t thread;
	for (int i = 0; i < 3; i++) {
		parts[i] = (struct iovec){bytes[i], 10};
		messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
	}
	peer_sends(other, 10, 9);
	wait_readable(fd);
	show(recvmmsg(fd, messages, 3, MSG_WAITFORONE, NULL));
	peer_sends(other, 10, 9);
	pthread_create(&thread, NULL, send_late, &other);
	show(recvmmsg(fd, messages, 2, 0, &hour));
	say("lengths %u %u, time left %d", messages[0].msg_len, messages[1].msg_len,
	    hour.tv_sec < 3600 && hour.tv_sec > 3000);
	say("second %d", pattern_matches(bytes[1], 10, 9, 0));
	pthread_join(thread, NULL);
	peer_sends(other, 20, 9);
	wait_readable(fd);
	show(recvmmsg(fd, messages, 3, 0, &invalid));
	show(recvmmsg(fd, messages, 3, 0, &none));
	say("time left %ld %ld", (long)none.tv_sec, none.tv_nsec);
	show(recvmmsg(fd, messages, 0, 0, NULL));
	show(recvmmsg(-1, messages, 0, 0, NULL));
	show(sendmmsg(-1, messages, 0, 0));
	show(recvmmsg(fd, messages, 3, MSG_DONTWAIT, NULL));
	show(recvmmsg(fd, messages, 3, MSG_DONTWAIT, NULL));
	peer_must("close %d", other);
	show(recvmmsg(fd, messages, 3, 0, NULL));
	say("lengths %u %u %u", messages[0].msg_len, messages[1].msg_len, messages[2].msg_len);
}

static void *reset_late(void *other)
{
	pause_briefly();
	peer_must("reset %d", *(int *)other);
	return NULL;
}

/* A pending error fails recvmmsg, even if bytes have arrived. If an error occurs after the first
 * message of recvmmsg, the next call fails with the error. */
void message_array_error(void)
{
	int other, fd = accepted(0, &other);
	char bytes[10];
	struct iovec part = {bytes, sizeof bytes};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	struct mmsghdr messages[] = {{.msg_hdr = message}, {.msg_hdr = message}};
	pthread_t thread;
	peer_sends(other, 10, 9);
	peer_must("reset %d", other);
	await_events(fd, POLLHUP);
	show(recvmmsg(fd, messages, 2, 0, NULL));
	show(recvmmsg(fd, messages, 2, 0, NULL));
	say("lengths %u %u", messages[0].msg_len, messages[1].msg_len);
	close(fd);

	fd = accepted(0, &other);
	peer_sends(other, 10, 9);
	must(pthread_create(&thread, NULL, reset_late, &other) == 0);
	show(recvmmsg(fd, messages, 2, 0, NULL));
	say("length %u", messages[0].msg_len);
	show(recv(fd, bytes, sizeof bytes, 0));
	show(recv(fd, bytes, sizeof bytes, 0));
	pthread_join(thread, NULL);
}

/* Number of SIGPIPE signals. */
static volatile sig_atomic_t pipes;

static void on_pipe(int signal)
{
	pipes += signal == SIGPIPE;
}

/* shutdown of each direction: reads, writes and SIGPIPE afterwards. */
void shutdowns(void)
{
	int other, fd = accepted(0, &other);
	char bytes[16] = {0};
	signal(SIGPIPE, on_pipe);
	show(shutdown(fd, 7));
	show(shutdown(fd, SHUT_WR));
	show(write(fd, bytes, 5));
	say("signals %d", pipes);
	show(send(fd, bytes, 5, MSG_NOSIGNAL));
	say("signals %d", pipes);
	struct answer got = peer_receives(other, -1, 0);
	say("peer got %ld %ld", got.first, got.second);
	peer_sends(other, 16, 1);
	read_exactly(fd, 16, 1);
	peer_must("shutdown %d", other);
	show(read(fd, bytes, 1));
	struct pollfd entry = {.fd = fd, .events = POLLIN | POLLOUT | POLLRDHUP};
	show(poll(&entry, 1, 0));
	say("events%s", events_text(entry.revents));
	close(fd);

	fd = accepted(0, &other);
	show(shutdown(fd, SHUT_RD));
	show(read(fd, bytes, 1));
	write_exactly(fd, 16, 2);
	got = peer_receives(other, 16, 2);
	say("peer got %ld %ld", got.first, got.second);
	show(shutdown(fd, SHUT_RDWR));
	got = peer_receives(other, -1, 0);
	say("peer got %ld %ld", got.first, got.second);
	close(fd);

	int fresh = socket(AF_INET, SOCK_STREAM, 0);
	show(shutdown(fresh, SHUT_RDWR));
	show(write(fresh, bytes, 1));
	show(read(fresh, bytes, 1));
}

/* The peer resets a connection. One call reports ECONNRESET, and later reads return 0. At the end
 * this program resets a connection. */
void resets(void)
{
	int other, error = -1, fd = accepted(0, &other);
	socklen_t len = sizeof error;
	char bytes[16] = {0};
	signal(SIGPIPE, on_pipe);
	peer_must("reset %d", other);
	await_events(fd, POLLHUP);
	struct pollfd entry = {.fd = fd, .events = POLLIN | POLLOUT | POLLRDHUP};
	show(poll(&entry, 1, TIMEOUT_MS));
	say("events%s", events_text(entry.revents));
	show(read(fd, bytes, 1));
	show(read(fd, bytes, 1));
	show(write(fd, bytes, 1));
	say("signals %d", pipes);
	close(fd);

	fd = accepted(0, &other);
	peer_must("reset %d", other);
	pause_briefly();
	await(write(fd, bytes, 1) < 0);
	say("write fails with %s", strerrorname_np(errno));
	show(write(fd, bytes, 1));
	show(read(fd, bytes, 1));
	close(fd);

	fd = accepted(0, &other);
	peer_must("reset %d", other);
	pause_briefly();
	await(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0 || error != 0);
	say("error %s", strerrorname_np(error));
	show(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
	say("error %d", error);
	show(read(fd, bytes, 1));
	show(shutdown(fd, SHUT_WR));
	struct sockaddr_in name;
	len = sizeof name;
	show(getpeername(fd, (void *)&name, &len));
	close(fd);

	/* Reset the connection by SO_LINGER of 0. */
	fd = accepted(0, &other);
	struct linger at_once = {.l_onoff = 1};
	show(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
	close(fd);
	struct answer got = peer_receives(other, -1, 0);
	say("peer got %ld %s", got.first, strerrorname_np(got.second));
}

/* This program sends data and then resets the connection, by SO_LINGER of 0 or by closing with
 * unread data. The peer receives the data before the reset. */
void resets_after_data(void)
{
	struct linger at_once = {.l_onoff = 1};
	for (int unread = 0; unread < 2; unread++) {
		int other, fd = accepted(0, &other);
		if (unread) {
			peer_sends(other, 5, 1);
			wait_readable(fd);
		} else {
			must(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
		}
		write_exactly(fd, 1000, 2);
		close(fd);
		struct answer got = peer_receives(other, -1, 2);
		say("peer got %ld %s", got.first, strerrorname_np(got.second));
		peer_must("close %d", other);
	}
}

/* The peer shuts down its sending direction, and then resets the connection. A read returns the
 * data and the end of the stream. Only a write or SO_ERROR returns the error. */
void reset_after_end(void)
{
	for (int way = 0; way < 4; way++) {
		char bytes[10];
		int other, fd = accepted(0, &other), error = -1;
		struct pollfd entry = {.fd = fd, .events = POLLRDHUP};
		socklen_t len = sizeof error;
		if (way & 1)
			peer_sends(other, 3, 1);
		peer_must("shutdown %d", other);
		must(poll(&entry, 1, TIMEOUT_MS) == 1);
		peer_must("reset %d", other);
		entry.events = 0;
		must(poll(&entry, 1, TIMEOUT_MS) == 1);
		if (way & 2)
			show(send(fd, "x", 1, MSG_NOSIGNAL));
		for (int i = 0; i < 3; i++)
			show(recv(fd, bytes, sizeof bytes, 0));
		show(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
		say("error %s", strerrorname_np(error));
		show(send(fd, "x", 1, MSG_NOSIGNAL));
		close(fd);
	}
}

static void *write_much(void *arg)
{
	write_exactly(*(int *)arg, 32 << 20, 7);
	return NULL;
}

/* One thread sends 32 MiB, and another thread receives 32 MiB, on the same blocking socket. */
void bulk(void)
{
	int other, fd = accepted(0, &other);
	pthread_t thread;
	long in = peer_must("send %d %d 8", other, 32 << 20);
	long out = peer_must("receive %d %d 7", other, 32 << 20);
	pthread_create(&thread, NULL, write_much, &fd);
	read_exactly(fd, 32 << 20, 8);
	pthread_join(thread, NULL);
	struct answer got = peer("join %ld", in);
	say("peer sent %ld %ld", got.first, got.second);
	got = peer("join %ld", out);
	say("peer got %ld %ld", got.first, got.second);
}

/* The numbers of unread and of unacknowledged bytes (FIONREAD and TIOCOUTQ). */
void counts(void)
{
	int other, count = -1, fd = accepted(0, &other);
	show(ioctl(fd, FIONREAD, &count));
	say("readable %d", count);
	peer_sends(other, 1234, 1);
	wait_readable(fd);
	show(ioctl(fd, FIONREAD, &count));
	say("readable %d", count);
	read_exactly(fd, 1000, 1);
	show(ioctl(fd, FIONREAD, &count));
	say("readable %d", count);
	show(ioctl(fd, TIOCOUTQ, &count));
	say("unacknowledged %d", count);
	write_exactly(fd, 1000, 2);
	await(ioctl(fd, TIOCOUTQ, &count) == 0 && count == 0);
	say("all acknowledged");
}
