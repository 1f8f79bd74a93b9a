/* A thread sleeps in a wait while another thread adds or modifies descriptors. */
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

/* A thread that waits once without a limit, and prints the events. */
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

static void start(struct sleeper *sleeper, int epfd)
{
	*sleeper = (struct sleeper){.epfd = epfd};
	must(pthread_create(&sleeper->thread, NULL, sleep_in_epoll, sleeper) == 0);
	await(sleeper->tid);
	await_asleep(sleeper->tid);
}

static void say_woken(struct sleeper *sleeper)
{
	must(pthread_join(sleeper->thread, NULL) == 0);
	say("%d event, %u:%s", sleeper->count, sleeper->event.data.u32,
	    events_text(sleeper->event.events));
}

static const unsigned kinds[] = {
	EPOLLIN,
	EPOLLIN | EPOLLONESHOT,
	EPOLLIN | EPOLLET,
	EPOLLIN | EPOLLET | EPOLLONESHOT,
};

/* A connection that is readable when it is added, when it is armed again, and later. */
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

static void accept_one(int listener)
{
	int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
	must(fd >= 0);
	close(fd);
}

/* The same for a listener on which accept was called before. */
void listener_armed_while_asleep(void)
{
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		int port, listener = own_listener(SOCK_NONBLOCK, &port), epfd = epoll_create1(0);
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

/* accept comes first, and the listener is added when there was no connection, as BEAM does. */
void accept_then_wait(void)
{
	int port, listener = own_listener(SOCK_NONBLOCK, &port), epfd = epoll_create1(0);
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
	/* A wait that does not sleep reports the connection, too. */
	accept_one(listener);
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

/* A thread sleeps in accept while the listener is added to an epoll instance without a waiter. */
void accepting_while_added(void)
{
	int port, listener = own_listener(0, &port), epfd = epoll_create1(0);
	pthread_t thread;
	must(pthread_create(&thread, NULL, accept_twice, &listener) == 0);
	pause_briefly();
	must(add(epfd, listener, EPOLLIN | EPOLLONESHOT, 1) == 0);
	peer_connects(port);
	peer_connects(port);
	must(pthread_join(thread, NULL) == 0);
	say("both accepted");
}

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

static void start_poller(struct poller *poller, int fd, int selects)
{
	*poller = (struct poller){.fd = fd, .selects = selects};
	must(pthread_create(&poller->thread, NULL, sleep_in_poll, poller) == 0);
	await(poller->tid);
	await_asleep(poller->tid);
}

/* Threads sleep in poll and select for a descriptor that another thread adds to an epoll instance,
 * in which a third thread waits. All of them wake. */
void polled_while_added(void)
{
	int other, fd = accepted(SOCK_NONBLOCK, &other);
	int port, listener = own_listener(SOCK_NONBLOCK, &port);
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

static void *sleep_and_read(void *arg)
{
	struct epoll_event event;
	char byte;
	must(epoll_wait(*(int *)arg, &event, 1, -1) == 1);
	must(read(event.data.u32, &byte, 1) == 1);
	return NULL;
}

/* Several threads wait in one epoll instance: as many wake as connections are ready. */
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

/* A listener with EPOLLONESHOT is reported once per arming, whichever stack has the connection. */
void one_shot_listener(void)
{
	int port, listener = own_listener(SOCK_NONBLOCK, &port), epfd = epoll_create1(0);
	struct epoll_event event;
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(port)};
	name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	int client = socket(AF_INET, SOCK_STREAM, 0);
	must(add(epfd, listener, EPOLLIN | EPOLLONESHOT, 1) == 0);
	must(connect(client, (void *)&name, sizeof name) == 0);
	show(epoll_wait(epfd, &event, 1, PATIENCE));
	peer_connects(port);
	pause_briefly();
	show(epoll_wait(epfd, &event, 1, 20));
	must(modify(epfd, listener, EPOLLIN | EPOLLONESHOT, 2) == 0);
	show(epoll_wait(epfd, &event, 1, PATIENCE));
	show(epoll_wait(epfd, &event, 1, 20));
}
