/* Readiness: epoll (level-triggered, edge-triggered and one-shot), poll and select, for
 * connections, listeners and other descriptors, such as pipes. */
#include "posix.h"

/* Waits in epoll for `timeout` milliseconds at most, and prints the events and their number. The
 * user data of each event must be below 16. */
static void wait_and_say(int epfd, int timeout)
{
	struct epoll_event events[8];
	int count = epoll_wait(epfd, events, 8, timeout);
	/* Print the events in the order of their user data. The two stacks may return the events in
	 * different orders. */
	for (unsigned data = 0; data < 16; data++)
		for (int i = 0; i < count; i++)
			if (events[i].data.u32 == data)
				say("  %u%s", data, events_text(events[i].events));
	say("%d events", count);
}

static int add(int epfd, int fd, unsigned bits, unsigned data)
{
	struct epoll_event event = {.events = bits, .data.u32 = data};
	return epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event);
}

static int modify(int epfd, int fd, unsigned bits, unsigned data)
{
	struct epoll_event event = {.events = bits, .data.u32 = data};
	return epoll_ctl(epfd, EPOLL_CTL_MOD, fd, &event);
}

/* Level-triggered events of a connection, up to its close. */
void level_triggered(void)
{
	int other, fd = accepted(SOCK_NONBLOCK, &other), epfd = epoll_create1(EPOLL_CLOEXEC);
	show(add(epfd, fd, EPOLLIN, 1));
	show(add(epfd, fd, EPOLLIN, 1));
	wait_and_say(epfd, 0);
	wait_and_say(epfd, 20);
	peer_sends(other, 100, 1);
	wait_and_say(epfd, TIMEOUT_MS);
	wait_and_say(epfd, 0);
	read_exactly(fd, 50, 1);
	wait_and_say(epfd, 0);
	char rest[50];
	must(read(fd, rest, 50) == 50);
	wait_and_say(epfd, 0);
	show(modify(epfd, fd, EPOLLIN | EPOLLOUT, 2));
	wait_and_say(epfd, 0);
	wait_and_say(epfd, 0);
	show(modify(epfd, fd, EPOLLRDHUP, 3));
	wait_and_say(epfd, 0);
	peer_must("shutdown %d", other);
	wait_and_say(epfd, TIMEOUT_MS);
	show(modify(epfd, fd, 0, 4));
	wait_and_say(epfd, 0);
	show(shutdown(fd, SHUT_WR));
	wait_and_say(epfd, TIMEOUT_MS);
	show(epoll_ctl(epfd, EPOLL_CTL_DEL, fd, NULL));
	show(epoll_ctl(epfd, EPOLL_CTL_DEL, fd, NULL));
	show(modify(epfd, fd, EPOLLIN, 1));
	wait_and_say(epfd, 0);
	show(add(epfd, fd, EPOLLIN, 5));
	wait_and_say(epfd, 0);
	close(fd);
	wait_and_say(epfd, 0);
}

/* The last data and the end of the stream arrive before the program calls epoll_wait. epoll reports
 * the connection again after the program has read the data. */
void data_and_end(void)
{
	int other, fd = accepted(SOCK_NONBLOCK, &other), epfd = epoll_create1(0);
	char bytes[100];
	show(add(epfd, fd, EPOLLIN, 1));
	peer_sends(other, 10, 1);
	peer_must("close %d", other);
	pause_briefly();
	wait_and_say(epfd, TIMEOUT_MS);
	show(recv(fd, bytes, sizeof bytes, 0));
	wait_and_say(epfd, TIMEOUT_MS);
	show(recv(fd, bytes, sizeof bytes, 0));
	wait_and_say(epfd, TIMEOUT_MS);
}

/* Edge-triggered events of a connection: for data, for the end, and for room to write. */
void edge_triggered(void)
{
	int other, fd = accepted(SOCK_NONBLOCK, &other), epfd = epoll_create(1);
	show(add(epfd, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1));
	wait_and_say(epfd, TIMEOUT_MS);
	wait_and_say(epfd, 20);
	peer_sends(other, 100, 1);
	wait_and_say(epfd, TIMEOUT_MS);
	wait_and_say(epfd, 20);
	read_exactly(fd, 50, 1);
	wait_and_say(epfd, 20);
	peer_sends(other, 10, 2);
	wait_and_say(epfd, TIMEOUT_MS);
	wait_and_say(epfd, 20);
	show(modify(epfd, fd, EPOLLIN | EPOLLET, 2));
	wait_and_say(epfd, 0);
	wait_and_say(epfd, 20);
	peer_must("close %d", other);
	wait_and_say(epfd, TIMEOUT_MS);
	/* The kernel wakes waiters twice for a FIN. epoll reports one event or two events,
	 * depending on the time of the second wake-up. Ignore the second event. */
	epoll_wait(epfd, &(struct epoll_event){0}, 1, 20);
	wait_and_say(epfd, 20);
	close(fd);
	close(epfd);

	/* Room to write is an edge only after a write has failed with EAGAIN. */
	static char bytes[65536];
	fd = accepted(SOCK_NONBLOCK, &other);
	epfd = epoll_create1(0);
	show(add(epfd, fd, EPOLLOUT | EPOLLET, 1));
	wait_and_say(epfd, 0);
	must(write(fd, bytes, 100) == 100);
	wait_and_say(epfd, 50);
	while (write(fd, bytes, sizeof bytes) > 0)
		;
	say("full %s", strerrorname_np(errno));
	/* The peer's receive buffer may grow after a write has failed. Write until the send buffer
	 * stays full for 100 ms. */
	do {
		struct epoll_event event;
		while (write(fd, bytes, sizeof bytes) > 0)
			;
		usleep(100000);
		if (epoll_wait(epfd, &event, 1, 0) == 0)
			break;
	} while (1);
	long job = peer_must("receive %d -1 %u", other, ANY_BYTES);
	wait_and_say(epfd, TIMEOUT_MS);
	close(fd);
	peer("join %ld", job);
}

/* EPOLLONESHOT: one event, and another one after EPOLL_CTL_MOD. */
void one_shot(void)
{
	int other, fd = accepted(SOCK_NONBLOCK, &other), epfd = epoll_create1(0);
	show(add(epfd, fd, EPOLLIN | EPOLLONESHOT, 1));
	peer_sends(other, 10, 1);
	wait_and_say(epfd, TIMEOUT_MS);
	wait_and_say(epfd, 20);
	peer_sends(other, 10, 1);
	wait_and_say(epfd, 20);
	show(modify(epfd, fd, EPOLLIN | EPOLLONESHOT, 2));
	wait_and_say(epfd, 0);
	wait_and_say(epfd, 20);
}

/* A connection, an eventfd, a timer and a pipe in one epoll instance. */
void mixed(void)
{
	int other, fd = accepted(SOCK_NONBLOCK, &other), epfd = epoll_create1(0), ends[2];
	int event = eventfd(0, EFD_NONBLOCK), timer = timerfd_create(CLOCK_MONOTONIC, 0);
	struct itimerspec soon = {.it_value.tv_nsec = 30000000};
	uint64_t one = 1;
	must(pipe(ends) == 0);
	must(add(epfd, fd, EPOLLIN, 1) == 0);
	must(add(epfd, event, EPOLLIN, 2) == 0);
	must(add(epfd, timer, EPOLLIN, 3) == 0);
	must(add(epfd, ends[0], EPOLLIN, 4) == 0);
	wait_and_say(epfd, 0);
	must(write(event, &one, 8) == 8);
	wait_and_say(epfd, TIMEOUT_MS);
	must(read(event, &one, 8) == 8);
	timerfd_settime(timer, 0, &soon, NULL);
	wait_and_say(epfd, TIMEOUT_MS);
	must(read(timer, &one, 8) == 8);
	must(write(ends[1], "x", 1) == 1);
	peer_sends(other, 10, 1);
	wait_readable(fd);
	/* The pipe and the connection are ready. A single call need not report both of them. */
	unsigned seen = 0;
	for (int i = 0; i < 20; i++) {
		struct epoll_event events[4];
		int count = epoll_wait(epfd, events, 4, TIMEOUT_MS);
		for (int j = 0; j < count; j++)
			seen |= 1 << events[j].data.u32;
	}
	say("seen %x", seen);
	long begin = now_ms();
	read_exactly(fd, 10, 1);
	char byte;
	must(read(ends[0], &byte, 1) == 1);
	wait_and_say(epfd, 50);
	say("waited %d", now_ms() - begin >= 49);
	/* Three descriptors are ready, and epoll_wait has room for one event. Repeated calls report
	 * each descriptor. */
	must(write(ends[1], "x", 1) == 1);
	must(write(event, &one, 8) == 8);
	peer_sends(other, 10, 1);
	wait_readable(fd);
	seen = 0;
	for (int i = 0; i < 40; i++) {
		struct epoll_event one_event;
		must(epoll_wait(epfd, &one_event, 1, TIMEOUT_MS) == 1);
		seen |= 1 << one_event.data.u32;
	}
	say("seen %x", seen);
}

/* A socket is added to an epoll instance before it connects. */
void added_early(void)
{
	int listener, error = -1, epfd = epoll_create1(0);
	socklen_t len = sizeof error;
	struct sockaddr_in name = peer_listener(&listener);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	show(add(epfd, fd, EPOLLOUT, 1));
	wait_and_say(epfd, 0);
	int result = connect(fd, (void *)&name, sizeof name);
	say("in progress %d", result == 0 || errno == EINPROGRESS);
	wait_and_say(epfd, TIMEOUT_MS);
	show(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
	say("error %d", error);
	show(modify(epfd, fd, EPOLLIN, 2));
	int other = peer_must("accept %d", listener);
	peer_sends(other, 10, 1);
	wait_and_say(epfd, TIMEOUT_MS);
	read_exactly(fd, 10, 1);
}

/* A listener in an epoll instance, level-triggered and edge-triggered. */
void listening(void)
{
	int port, listener = open_listener(SOCK_NONBLOCK, &port), epfd = epoll_create1(0);
	show(add(epfd, listener, EPOLLIN, 1));
	wait_and_say(epfd, 20);
	int a = peer_connects(port), b = peer_connects(port);
	(void)a;
	wait_and_say(epfd, TIMEOUT_MS);
	wait_and_say(epfd, 0);
	int first = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
	say("first %d", first >= 0);
	wait_and_say(epfd, TIMEOUT_MS);
	int second = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
	say("second %d", second >= 0);
	wait_and_say(epfd, 0);
	show(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
	peer_sends(b, 5, 1);
	show(epoll_ctl(epfd, EPOLL_CTL_DEL, listener, NULL));
	close(epfd);
	wait_readable(second);
	read_exactly(second, 5, 1);
	/* Add the listener again, edge-triggered. */
	epfd = epoll_create1(0);
	show(add(epfd, listener, EPOLLIN | EPOLLET, 1));
	wait_and_say(epfd, 20);
	peer_connects(port);
	wait_and_say(epfd, TIMEOUT_MS);
	wait_and_say(epfd, 20);
	peer_connects(port);
	wait_and_say(epfd, TIMEOUT_MS);
	for (int count = 0; count < 2;)
		count += accept(listener, NULL, NULL) >= 0;
	wait_and_say(epfd, 20);
}

static void *wait_in_epoll(void *arg)
{
	wait_and_say(*(int *)arg, TIMEOUT_MS);
	return NULL;
}

/* A thread sleeps in epoll_wait while another thread adds a readable connection. Later a thread
 * sleeps in epoll_wait while data arrives on the connection. */
void added_while_asleep(void)
{
	int other, fd = accepted(SOCK_NONBLOCK, &other), epfd = epoll_create1(0);
	pthread_t thread;
	peer_sends(other, 10, 1);
	wait_readable(fd);
	pthread_create(&thread, NULL, wait_in_epoll, &epfd);
	pause_briefly();
	must(add(epfd, fd, EPOLLIN, 1) == 0);
	pthread_join(thread, NULL);
	read_exactly(fd, 10, 1);
	pthread_create(&thread, NULL, wait_in_epoll, &epfd);
	pause_briefly();
	peer_sends(other, 10, 1);
	pthread_join(thread, NULL);
}

/* poll and ppoll on several descriptors: a connection, a pipe, a new socket, and a closed
 * descriptor. */
void polled(void)
{
	int other, fd = accepted(0, &other), ends[2];
	must(pipe(ends) == 0);
	struct pollfd entries[3] = {
		{.fd = fd, .events = POLLIN | POLLOUT},
		{.fd = ends[0], .events = POLLIN},
		{.fd = -1, .events = POLLIN, .revents = 77},
	};
	show(poll(entries, 3, 0));
	say("%s |%s | %d", events_text(entries[0].revents), events_text(entries[1].revents),
	    entries[2].revents);
	entries[0].events = POLLIN;
	long begin = now_ms();
	show(poll(entries, 3, 50));
	say("waited %d", now_ms() - begin >= 49);
	peer_sends(other, 10, 1);
	show(poll(entries, 3, TIMEOUT_MS));
	say("%s |%s", events_text(entries[0].revents), events_text(entries[1].revents));
	must(write(ends[1], "x", 1) == 1);
	show(poll(entries, 3, TIMEOUT_MS));
	say("%s |%s", events_text(entries[0].revents), events_text(entries[1].revents));
	read_exactly(fd, 10, 1);
	struct timespec zero = {0};
	show(ppoll(entries, 3, &zero, NULL));
	say("%s |%s", events_text(entries[0].revents), events_text(entries[1].revents));
	peer_must("close %d", other);
	entries[0].events = POLLRDHUP | POLLIN;
	entries[1].fd = -1;
	show(ppoll(entries, 3, NULL, NULL));
	say("%s", events_text(entries[0].revents));
	sigset_t none;
	sigemptyset(&none);
	entries[0].revents = 0;
	show(syscall(SYS_ppoll, entries, 1, NULL, &none, 8));
	say("%s", events_text(entries[0].revents));
	show(syscall(SYS_ppoll, entries, 1, NULL, &none, 7));
	int fresh = socket(AF_INET, SOCK_STREAM, 0);
	entries[0].fd = fresh;
	entries[0].events = POLLIN | POLLOUT;
	show(poll(entries, 1, 0));
	say("%s", events_text(entries[0].revents));
	close(fresh);
	show(poll(entries, 1, 0));
	say("%s", events_text(entries[0].revents));
}

/* select and pselect on several descriptors: a connection, a pipe, and a closed descriptor. */
void selected(void)
{
	int other, fd = accepted(0, &other), ends[2];
	fd_set in, out;
	struct timeval time = {.tv_usec = 50000};
	must(pipe(ends) == 0);
	FD_ZERO(&in);
	FD_ZERO(&out);
	FD_SET(fd, &in);
	FD_SET(ends[0], &in);
	show(select(64, &in, NULL, NULL, &time));
	say("sets %d %d, left %ld", FD_ISSET(fd, &in), FD_ISSET(ends[0], &in),
	    (long)time.tv_sec * 1000000 + time.tv_usec);
	FD_SET(fd, &in);
	FD_SET(ends[0], &in);
	FD_SET(fd, &out);
	FD_SET(ends[1], &out);
	show(select(64, &in, &out, NULL, NULL));
	say("sets %d %d %d %d", FD_ISSET(fd, &in), FD_ISSET(ends[0], &in), FD_ISSET(fd, &out),
	    FD_ISSET(ends[1], &out));
	peer_sends(other, 10, 1);
	must(write(ends[1], "x", 1) == 1);
	FD_ZERO(&in);
	FD_SET(fd, &in);
	wait_readable(fd);
	FD_SET(ends[0], &in);
	struct timespec second = {.tv_sec = 1};
	show(pselect(64, &in, NULL, NULL, &second, NULL));
	say("sets %d %d", FD_ISSET(fd, &in), FD_ISSET(ends[0], &in));
	sigset_t none;
	sigemptyset(&none);
	struct {
		sigset_t *mask;
		size_t len;
	} mask = {&none, 8};
	show(syscall(SYS_pselect6, 64, &in, NULL, NULL, NULL, &mask));
	say("sets %d %d", FD_ISSET(fd, &in), FD_ISSET(ends[0], &in));
	show(syscall(SYS_pselect6, 64, &in, NULL, NULL, &second, NULL));
	mask.len = 7;
	show(syscall(SYS_pselect6, 64, &in, NULL, NULL, NULL, &mask));
	close(ends[0]);
	FD_ZERO(&in);
	FD_SET(fd, &in);
	FD_SET(ends[0], &in);
	show(select(64, &in, NULL, NULL, &time));
}
