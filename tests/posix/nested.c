/* Several epoll instances: a temporary instance, and instances within another instance. */
#include "posix.h"

/* Waits for one event. Returns the result of epoll_wait. */
static int wait_one(int epfd, struct epoll_event *event)
{
	return epoll_wait(epfd, event, 1, TIMEOUT_MS);
}

/* The program waits for data on a connection in a temporary epoll instance, and closes the
 * instance. Then the program adds the connection to the instance `stays`, which must report the
 * data that arrives next. */
void temporary_epoll(void)
{
	enum { N = 40 };
	int port, listener = open_listener(0, &port), stays = epoll_create1(0), missed = 0;
	struct epoll_event event;
	must(epoll_control(stays, EPOLL_CTL_ADD, listener, EPOLLIN, 1) == 0);
	for (int round = 0; round < N; round++) {
		int other = peer_connects(port);
		must(wait_one(stays, &event) && event.data.u32 == 1);
		int fd = accept(listener, NULL, NULL), temporary = epoll_create1(0);
		must(fd >= 0);
		peer_sends(other, 10, 1);
		must(epoll_control(temporary, EPOLL_CTL_ADD, fd, EPOLLIN, 2) == 0);
		must(wait_one(temporary, &event) == 1);
		must(close(temporary) == 0);
		read_exactly(fd, 10, 1);
		must(epoll_control(stays, EPOLL_CTL_ADD, fd, EPOLLIN, 3) == 0);
		must(epoll_wait(stays, &event, 1, 0) == 0);
		peer_sends(other, 10, 2);
		missed += epoll_wait(stays, &event, 1, 1000) != 1;
		close(fd);
		peer_must("close %d", other);
	}
	say("missed %d", missed);
}

/* The epoll instances and the pipe of a case. In nested_epoll, `outer` contains `middle`, `middle`
 * contains `inner`, and `inner` contains a connection and the read end of the pipe `ends`. */
static int outer, middle, inner, ends[2];

/* Waits for one event of an epoll instance, with `timeout` in milliseconds. Prints the event, or
 * the result of epoll_wait if there is no event. */
static void print_event(const char *what, int epfd, int timeout)
{
	struct epoll_event event;
	int count = epoll_wait(epfd, &event, 1, timeout);
	if (count == 1)
		say("%s: %u%s", what, event.data.u32, events_text(event.events));
	else
		say("%s: %d", what, count);
}

/* `bits` are the events for which `middle` is registered in `outer`. If they include EPOLLONESHOT,
 * arms the registration again. */
static void arm_again(unsigned bits)
{
	if (bits & EPOLLONESHOT)
		show(epoll_control(outer, EPOLL_CTL_MOD, middle, bits, 1));
}

/* Prints an event of `middle` and an event of `inner`. */
static void print_inner_events(void)
{
	print_event("middle", middle, TIMEOUT_MS);
	print_event("inner", inner, TIMEOUT_MS);
}

/* `outer` reports data in the pipe. `outer` also reports data that arrives on the connection at
 * about the time when the thread goes to sleep. After `middle` is removed from `outer`, `outer`
 * reports nothing. */
static void nest_more(unsigned bits, int fd, int other)
{
	struct epoll_event event;
	must(write(ends[1], "x", 1) == 1);
	arm_again(bits);
	print_event("pipe", outer, TIMEOUT_MS);
	print_inner_events();
	must(read(ends[0], &event, 1) == 1);
	arm_again(bits);
	while (epoll_wait(outer, &event, 1, 0) > 0)
		;
	long job = peer_must("send %d 30 1", other);
	print_event("asleep", outer, TIMEOUT_MS);
	peer_must("join %ld", job);
	read_exactly(fd, 30, 1);
	show(epoll_ctl(outer, EPOLL_CTL_DEL, middle, NULL));
	peer_sends(other, 30, 1);
	print_event("gone", outer, 20);
}

/* Makes the three instances and a connection. Registers `middle` in `outer` for the events `bits`,
 * and the connection in `inner`. `outer` reports data that arrives on the connection. */
static void nest(const char *how, unsigned bits)
{
	int other, fd = accepted(SOCK_NONBLOCK, &other);
	outer = epoll_create1(0), middle = epoll_create1(0), inner = epoll_create1(0);
	struct pollfd entry = {outer, POLLIN, 0};
	must(pipe(ends) == 0);
	must(epoll_control(outer, EPOLL_CTL_ADD, middle, bits, 1) == 0);
	must(epoll_control(middle, EPOLL_CTL_ADD, inner, EPOLLIN, 2) == 0);
	must(epoll_control(inner, EPOLL_CTL_ADD, fd, EPOLLIN, 3) == 0);
	must(epoll_control(inner, EPOLL_CTL_ADD, ends[0], EPOLLIN, 4) == 0);
	print_event(how, outer, 20);
	peer_sends(other, 30, 1);
	print_event("arrived", outer, TIMEOUT_MS);
	print_event("again", outer, 20);
	arm_again(bits);
	if (!(bits & EPOLLET))
		say("poll %d", poll(&entry, 1, TIMEOUT_MS));
	print_inner_events();
	read_exactly(fd, 30, 1);
	print_event("empty", outer, 20);
	say("poll %d", poll(&entry, 1, 20));
	nest_more(bits, fd, other);
	close(fd);
	close(inner);
	close(middle);
	close(outer);
}

/* epoll instances within others: level-triggered, edge-triggered and one-shot. */
void nested_epoll(void)
{
	nest("level", EPOLLIN);
	nest("edge", EPOLLIN | EPOLLET);
	nest("once", EPOLLIN | EPOLLONESHOT);
}

/* A registration with EPOLLONESHOT stays armed while it has nothing to report. The inner instance
 * contains the connection `quiet`, which is registered for no events. Data arrives on `quiet` while
 * the program sleeps in the outer instance. With Tidelane, the arrival wakes the thread within
 * epoll_wait, and epoll_wait must continue to wait. */
void nested_one_shot(void)
{
	int quiet_peer, quiet = accepted(SOCK_NONBLOCK, &quiet_peer);
	int other, fd = accepted(SOCK_NONBLOCK, &other);
	outer = epoll_create1(0), inner = epoll_create1(0);
	must(epoll_control(outer, EPOLL_CTL_ADD, inner, EPOLLIN | EPOLLONESHOT, 1) == 0);
	must(epoll_control(inner, EPOLL_CTL_ADD, quiet, 0, 2) == 0);
	must(epoll_control(inner, EPOLL_CTL_ADD, fd, EPOLLIN, 3) == 0);
	for (int round = 0; round < 3; round++) {
		pthread_t thread;
		must(pthread_create(&thread, NULL, peer_sends_later, &quiet_peer) == 0);
		print_event("quiet", outer, 200);
		must(pthread_join(thread, NULL) == 0);
		must(pthread_create(&thread, NULL, peer_sends_later, &other) == 0);
		/* Wait without a timeout. At the end of a timeout, epoll_wait would look for the
		 * event again, and a missing wake-up would not be noticed. */
		print_event("arrived", outer, -1);
		must(pthread_join(thread, NULL) == 0);
		read_exactly(fd, 30, 1);
		show(epoll_control(outer, EPOLL_CTL_MOD, inner, EPOLLIN | EPOLLONESHOT, 1));
	}
	close(quiet);
	close(fd);
	close(inner);
	close(outer);
}

/* The outer instance contains two inner instances and a pipe, and their registrations have equal
 * user data. Data arrives on the connection in the first inner instance (`middle`) only at the end.
 * Each event is reported. */
void nested_same_data(void)
{
	int quiet_peer, quiet = accepted(SOCK_NONBLOCK, &quiet_peer);
	int other, fd = accepted(SOCK_NONBLOCK, &other);
	outer = epoll_create1(0), middle = epoll_create1(0), inner = epoll_create1(0);
	must(pipe(ends) == 0);
	must(epoll_control(outer, EPOLL_CTL_ADD, middle, EPOLLIN, 0) == 0);
	must(epoll_control(outer, EPOLL_CTL_ADD, inner, EPOLLIN | EPOLLONESHOT, 0) == 0);
	must(epoll_control(outer, EPOLL_CTL_ADD, ends[0], EPOLLIN | EPOLLONESHOT, 0) == 0);
	must(epoll_control(middle, EPOLL_CTL_ADD, quiet, EPOLLIN, 0) == 0);
	must(epoll_control(inner, EPOLL_CTL_ADD, fd, EPOLLIN, 0) == 0);
	for (int round = 0; round < 3; round++) {
		pthread_t thread;
		must(write(ends[1], "x", 1) == 1);
		print_event("pipe", outer, -1);
		print_event("disabled", outer, 20);
		must(pthread_create(&thread, NULL, peer_sends_later, &other) == 0);
		print_event("inner", outer, -1);
		print_event("disabled", outer, 20);
		must(pthread_join(thread, NULL) == 0);
		read_exactly(fd, 30, 1);
		must(read(ends[0], &thread, 1) == 1);
		show(epoll_control(outer, EPOLL_CTL_MOD, inner, EPOLLIN | EPOLLONESHOT, 0));
		show(epoll_control(outer, EPOLL_CTL_MOD, ends[0], EPOLLIN | EPOLLONESHOT, 0));
	}
	pthread_t thread;
	must(pthread_create(&thread, NULL, peer_sends_later, &quiet_peer) == 0);
	print_event("middle", outer, -1);
	must(pthread_join(thread, NULL) == 0);
}

/* An inner instance has two descriptors. The program registers one of them in the outer instance.
 * Then the program closes this descriptor and gives its number to a pipe. The inner instance stays
 * registered, and the program also registers the pipe under the number. Data on the connection in
 * the inner instance does not change the registration of the pipe. */
void nested_number_reused(void)
{
	int quiet_peer, quiet = accepted(SOCK_NONBLOCK, &quiet_peer);
	outer = epoll_create1(0), inner = epoll_create1(0);
	int second = dup(inner);
	must(pipe(ends) == 0);
	must(epoll_control(inner, EPOLL_CTL_ADD, quiet, 0, 3) == 0);
	must(epoll_control(outer, EPOLL_CTL_ADD, inner, EPOLLIN | EPOLLONESHOT, 1) == 0);
	close(inner);
	must(dup2(ends[0], inner) == inner);
	show(epoll_control(outer, EPOLL_CTL_ADD, inner, EPOLLIN, 2));
	pthread_t thread;
	must(pthread_create(&thread, NULL, peer_sends_later, &quiet_peer) == 0);
	print_event("quiet", outer, 200);
	must(pthread_join(thread, NULL) == 0);
	must(write(ends[1], "x", 1) == 1);
	print_event("pipe", outer, TIMEOUT_MS);
	print_event("pipe again", outer, TIMEOUT_MS);
	show(epoll_control(second, EPOLL_CTL_MOD, quiet, EPOLLIN, 3));
	print_event("still there", second, TIMEOUT_MS);
}
