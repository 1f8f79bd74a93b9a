/* Several epoll instances: a temporary instance, and instances within another instance. */
#include "posix.h"

static int control(int epfd, int operation, int fd, unsigned bits, unsigned data)
{
	struct epoll_event event = {.events = bits, .data.u32 = data};
	return epoll_ctl(epfd, operation, fd, &event);
}

/* Waits for one event. */
static int wait_one(int epfd, struct epoll_event *event)
{
	return epoll_wait(epfd, event, 1, TIMEOUT_MS);
}

/* The program waits for a connection in a temporary epoll instance and closes the instance. Then it
 * adds the connection to a second instance, which reports the following event. */
void temporary_epoll(void)
{
	enum { N = 40 };
	int port, listener = open_listener(0, &port), stays = epoll_create1(0), missed = 0;
	struct epoll_event event;
	must(control(stays, EPOLL_CTL_ADD, listener, EPOLLIN, 1) == 0);
	for (int round = 0; round < N; round++) {
		int other = peer_connects(port);
		must(wait_one(stays, &event) && event.data.u32 == 1);
		int fd = accept(listener, NULL, NULL), temporary = epoll_create1(0);
		must(fd >= 0);
		peer_sends(other, 10, 1);
		must(control(temporary, EPOLL_CTL_ADD, fd, EPOLLIN, 2) == 0);
		must(wait_one(temporary, &event) == 1);
		must(close(temporary) == 0);
		read_exactly(fd, 10, 1);
		must(control(stays, EPOLL_CTL_ADD, fd, EPOLLIN, 3) == 0);
		must(epoll_wait(stays, &event, 1, 0) == 0);
		peer_sends(other, 10, 2);
		missed += epoll_wait(stays, &event, 1, 1000) != 1;
		close(fd);
		peer_must("close %d", other);
	}
	say("missed %d", missed);
}

/* `outer` contains `middle`, and `middle` contains `inner`. `inner` contains a connection and the
 * read end of the pipe `ends`. */
static int outer, middle, inner, ends[2];

/* Waits for one event of an epoll instance, and prints it. */
static void print_event(const char *what, int epfd, int timeout)
{
	struct epoll_event event;
	int count = epoll_wait(epfd, &event, 1, timeout);
	if (count == 1)
		say("%s: %u%s", what, event.data.u32, events_text(event.events));
	else
		say("%s: %d", what, count);
}

/* Arms `middle` in `outer` again if it is registered with EPOLLONESHOT. */
static void arm_again(unsigned bits)
{
	if (bits & EPOLLONESHOT)
		show(control(outer, EPOLL_CTL_MOD, middle, bits, 1));
}

/* Prints an event of `middle` and an event of `inner`. */
static void print_inner_events(void)
{
	print_event("middle", middle, TIMEOUT_MS);
	print_event("inner", inner, TIMEOUT_MS);
}

/* `outer` reports data in the pipe, and data that arrives on the connection while the thread
 * sleeps. `outer` reports nothing after `middle` is removed. */
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

/* Makes the instances, with `middle` registered in `outer` for `bits`. `outer` reports data that
 * arrives on the connection in `inner`. */
static void nest(const char *how, unsigned bits)
{
	int other, fd = accepted(SOCK_NONBLOCK, &other);
	outer = epoll_create1(0), middle = epoll_create1(0), inner = epoll_create1(0);
	struct pollfd entry = {outer, POLLIN, 0};
	must(pipe(ends) == 0);
	must(control(outer, EPOLL_CTL_ADD, middle, bits, 1) == 0);
	must(control(middle, EPOLL_CTL_ADD, inner, EPOLLIN, 2) == 0);
	must(control(inner, EPOLL_CTL_ADD, fd, EPOLLIN, 3) == 0);
	must(control(inner, EPOLL_CTL_ADD, ends[0], EPOLLIN, 4) == 0);
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
