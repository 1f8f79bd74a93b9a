/* Descriptors that are added to an epoll instance, or modified there, in most cases while a thread
 * sleeps in epoll_wait, poll, select or accept. */
#include "posix.h"

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

/* A thread that calls epoll_wait once, without a timeout, and stores the result. */
struct sleeper {
	pthread_t thread;
	volatile pid_t tid;
	int epfd, count;
	struct epoll_event event;
};

static void *sleep_in_epoll(void *arg)
{
	struct sleeper *sleeper = arg;
	sleeper->tid = gettid();
	sleeper->count = epoll_wait(sleeper->epfd, &sleeper->event, 1, -1);
	return NULL;
}

/* Starts a sleeper and returns when it sleeps in the epoll instance `epfd`. */
static void start(struct sleeper *sleeper, int epfd)
{
	*sleeper = (struct sleeper){.epfd = epfd};
	must(pthread_create(&sleeper->thread, NULL, sleep_in_epoll, sleeper) == 0);
	await(sleeper->tid);
	await_asleep(sleeper->tid);
}

/* Waits until the sleeper is woken, and prints its event. */
static void say_woken(struct sleeper *sleeper)
{
	must(pthread_join(sleeper->thread, NULL) == 0);
	say("%d event, %u:%s", sleeper->count, sleeper->event.data.u32,
	    events_text(sleeper->event.events));
}

/* The kinds of registration that the cases try: level-triggered and edge-triggered, each without
 * and with EPOLLONESHOT. */
static const unsigned kinds[] = {
	EPOLLIN,
	EPOLLIN | EPOLLONESHOT,
	EPOLLIN | EPOLLET,
	EPOLLIN | EPOLLET | EPOLLONESHOT,
};

/* A readable connection wakes the sleeper when the connection is added or modified. A connection
 * without data is modified first, and wakes the sleeper when data arrives afterwards. */
void armed_while_asleep(void)
{
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		int other, fd = accepted(SOCK_NONBLOCK, &other), epfd = epoll_create1(0);
		struct sleeper sleeper;
		say("kind %zu, added", i);
		peer_sends(other, 10, 1);
		wait_readable(fd);
		start(&sleeper, epfd);
		must(add(epfd, fd, kinds[i], 1) == 0);
		say_woken(&sleeper);
		/* The level-triggered registration is still armed. Unread data would end the next
		 * epoll_wait immediately. */
		if (kinds[i] == EPOLLIN)
			read_exactly(fd, 10, 1);
		say("armed again");
		start(&sleeper, epfd);
		must(modify(epfd, fd, kinds[i], 2) == 0);
		if (kinds[i] == EPOLLIN)
			peer_sends(other, 10, 1);
		say_woken(&sleeper);
		read_exactly(fd, 10, 1);
		say("armed before it is readable");
		start(&sleeper, epfd);
		must(modify(epfd, fd, kinds[i], 3) == 0);
		pause_briefly();
		peer_sends(other, 10, 2);
		say_woken(&sleeper);
		read_exactly(fd, 10, 2);
		close(fd);
		close(epfd);
	}
}

/* Accepts a connection and closes it. */
static void accept_one(int listener)
{
	int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
	must(fd >= 0);
	close(fd);
}

/* A listener wakes the sleeper if a connection is pending when the listener is added, and if a
 * connection arrives after the listener is modified. The program has called accept before. */
void listener_armed_while_asleep(void)
{
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		int port, listener = open_listener(SOCK_NONBLOCK, &port), epfd = epoll_create1(0);
		struct sleeper sleeper;
		want_connections(listener);
		say("kind %zu, added", i);
		peer_connects(port);
		wait_readable(listener);
		start(&sleeper, epfd);
		must(add(epfd, listener, kinds[i], 1) == 0);
		say_woken(&sleeper);
		accept_one(listener);
		say("armed before there is a connection");
		for (unsigned round = 0; round < 4; round++) {
			start(&sleeper, epfd);
			must(modify(epfd, listener, kinds[i], 2 + round) == 0);
			pause_briefly();
			peer_connects(port);
			say_woken(&sleeper);
			accept_one(listener);
		}
		close(listener);
		close(epfd);
	}
}

/* The program calls accept first, and waits for the listener in epoll only after EAGAIN, as the
 * Erlang runtime BEAM does. */
void accept_then_wait(void)
{
	int port, listener = open_listener(SOCK_NONBLOCK, &port), epfd = epoll_create1(0);
	struct sleeper sleeper;
	want_connections(listener);
	start(&sleeper, epfd);
	must(add(epfd, listener, EPOLLIN | EPOLLONESHOT, 1) == 0);
	for (unsigned round = 0; round < 5; round++) {
		peer_connects(port);
		say_woken(&sleeper);
		accept_one(listener);
		show(accept(listener, NULL, NULL));
		start(&sleeper, epfd);
		must(modify(epfd, listener, EPOLLIN | EPOLLONESHOT, 2 + round) == 0);
	}
	peer_connects(port);
	say_woken(&sleeper);
	accept_one(listener);
	/* An epoll_wait with a timeout of 0 reports a connection, too. */
	must(modify(epfd, listener, EPOLLIN, 9) == 0);
	for (int round = 0; round < 3; round++) {
		struct epoll_event event;
		peer_connects(port);
		await(epoll_wait(epfd, &event, 1, 0) == 1);
		accept_one(listener);
	}
}

static void *accept_twice(void *arg)
{
	for (int round = 0; round < 2; round++) {
		int fd = accept(*(int *)arg, NULL, NULL);
		must(fd >= 0);
		close(fd);
	}
	return NULL;
}

/* A thread sleeps in accept while the listener is added to an epoll instance in which no thread
 * waits. Then the peer opens two connections, and the thread accepts both. */
void accepting_while_added(void)
{
	int port, listener = open_listener(0, &port), epfd = epoll_create1(0);
	pthread_t thread;
	must(pthread_create(&thread, NULL, accept_twice, &listener) == 0);
	pause_briefly();
	must(add(epfd, listener, EPOLLIN | EPOLLONESHOT, 1) == 0);
	peer_connects(port);
	peer_connects(port);
	must(pthread_join(thread, NULL) == 0);
	say("both accepted");
}

/* A thread that makes one call without a timeout: select if `selects` is set, and otherwise poll.
 * `count` is the result of the call. */
struct poller {
	pthread_t thread;
	volatile pid_t tid;
	int fd, selects, count;
};

static void *sleep_in_poll(void *arg)
{
	struct poller *poller = arg;
	struct pollfd entry = {.fd = poller->fd, .events = POLLIN};
	fd_set in;
	FD_ZERO(&in);
	FD_SET(poller->fd, &in);
	poller->tid = gettid();
	poller->count = poller->selects ? select(poller->fd + 1, &in, NULL, NULL, NULL)
					: poll(&entry, 1, -1);
	return NULL;
}

/* Starts a poller for POLLIN of `fd`, and returns when it sleeps. */
static void start_poller(struct poller *poller, int fd, int selects)
{
	*poller = (struct poller){.fd = fd, .selects = selects};
	must(pthread_create(&poller->thread, NULL, sleep_in_poll, poller) == 0);
	await(poller->tid);
	await_asleep(poller->tid);
}

/* One thread sleeps in poll, and another thread in select, for the same descriptor. The descriptor
 * is added to an epoll instance in which a third thread sleeps. An event wakes all three threads.
 * The descriptor is a connection in the first round, and a listener in the second round. */
void polled_while_added(void)
{
	int other, fd = accepted(SOCK_NONBLOCK, &other);
	int port, listener = open_listener(SOCK_NONBLOCK, &port);
	want_connections(listener);
	for (int round = 0; round < 2; round++) {
		int shared = round ? listener : fd, epfd = epoll_create1(0);
		struct poller pollers[2];
		struct sleeper sleeper;
		start_poller(&pollers[0], shared, 0);
		start_poller(&pollers[1], shared, 1);
		start(&sleeper, epfd);
		must(add(epfd, shared, EPOLLIN | EPOLLONESHOT, 1) == 0);
		pause_briefly();
		if (round)
			peer_connects(port);
		else
			peer_sends(other, 10, 1);
		for (int i = 0; i < 2; i++) {
			must(pthread_join(pollers[i].thread, NULL) == 0);
			say("%s %d", i ? "select" : "poll", pollers[i].count);
		}
		say_woken(&sleeper);
	}
}

/* Waits for one event and reads a byte from the reported descriptor. */
static void *sleep_and_read(void *arg)
{
	struct epoll_event event;
	char byte;
	must(epoll_wait(*(int *)arg, &event, 1, -1) == 1);
	must(read(event.data.u32, &byte, 1) == 1);
	return NULL;
}

/* Four threads wait in one epoll instance for four connections with EPOLLONESHOT. Each connection
 * that becomes readable wakes one thread. */
void several_asleep(void)
{
	enum { COUNT = 4 };
	int epfd = epoll_create1(0), fds[COUNT], others[COUNT];
	for (int i = 0; i < COUNT; i++) {
		fds[i] = accepted(SOCK_NONBLOCK, &others[i]);
		must(add(epfd, fds[i], EPOLLIN | EPOLLONESHOT, fds[i]) == 0);
	}
	for (int round = 0; round < 50; round++) {
		pthread_t threads[COUNT];
		for (int i = 0; i < COUNT; i++)
			pthread_create(&threads[i], NULL, sleep_and_read, &epfd);
		if (round < 5)
			pause_briefly();
		for (int i = 0; i < COUNT; i++)
			peer_sends(others[i], 1, 1);
		for (int i = 0; i < COUNT; i++)
			must(pthread_join(threads[i], NULL) == 0);
		for (int i = 0; i < COUNT; i++)
			must(modify(epfd, fds[i], EPOLLIN | EPOLLONESHOT, fds[i]) == 0);
	}
	say("all woken");
}

/* A listener with EPOLLONESHOT gets a connection over loopback, and later a connection from the
 * peer. Without `tidelane run --loopback`, Tidelane leaves the loopback connection to the kernel.
 * epoll reports the listener once, and once again after EPOLL_CTL_MOD. */
void one_shot_listener(void)
{
	int port, listener = open_listener(SOCK_NONBLOCK, &port), epfd = epoll_create1(0);
	struct epoll_event event;
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(port)};
	name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	int client = socket(AF_INET, SOCK_STREAM, 0);
	must(add(epfd, listener, EPOLLIN | EPOLLONESHOT, 1) == 0);
	must(connect(client, (void *)&name, sizeof name) == 0);
	show(epoll_wait(epfd, &event, 1, TIMEOUT_MS));
	peer_connects(port);
	pause_briefly();
	show(epoll_wait(epfd, &event, 1, 20));
	must(modify(epfd, listener, EPOLLIN | EPOLLONESHOT, 2) == 0);
	show(epoll_wait(epfd, &event, 1, TIMEOUT_MS));
	show(epoll_wait(epfd, &event, 1, 20));
}
