/* Several threads or processes that use one epoll instance, which contains another instance. */
#include "posix.h"

/* The outer instance, and a pipe. Most cases add the read end of the pipe to the outer instance. */
static int outer, ends[2];

/* User data of the registrations in the outer instance. */
enum { PIPE = 1, QUIET = 2, INNER = 4 };

/* A thread that waits for one event in the outer instance. */
struct waiter {
	pthread_t thread;
	/* The thread's id in the kernel. 0 until the thread runs. */
	pid_t tid;
	/* The user data of the event. */
	unsigned data;
};

/* Number of waiters that have got an event. */
static int ended;

static void *wait_in_outer(void *argument)
{
	struct waiter *waiter = argument;
	struct epoll_event event;
	__atomic_store_n(&waiter->tid, (pid_t)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
	must(epoll_wait(outer, &event, 1, -1) == 1);
	waiter->data = event.data.u32;
	__atomic_add_fetch(&ended, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

/* Starts a waiter, and returns when the waiter sleeps. */
static void start_waiter(struct waiter *waiter)
{
	*waiter = (struct waiter){0};
	must(pthread_create(&waiter->thread, NULL, wait_in_outer, waiter) == 0);
	await(__atomic_load_n(&waiter->tid, __ATOMIC_SEQ_CST) != 0);
	await_asleep(waiter->tid);
	pause_briefly();
}

/* Waits for the end of a waiter. Returns the user data of the waiter's event. */
static unsigned end_waiter(struct waiter *waiter)
{
	must(pthread_join(waiter->thread, NULL) == 0);
	return waiter->data;
}

/* Three threads sleep in the outer instance. The program adds an inner instance with a connection.
 * A pipe wakes two threads, and data on the connection wakes the third. In the first half of the
 * rounds, the outer instance contains no connection of its own. In even rounds, the program adds
 * the connection to the inner instance, and then the inner instance to the outer instance. In odd
 * rounds, the order is reversed. */
void nested_added_later(void)
{
	for (int round = 0; round < 6; round++) {
		int quiet_peer, other, fd = accepted(SOCK_NONBLOCK, &other);
		outer = epoll_create1(0);
		must(pipe(ends) == 0);
		must(epoll_control(outer, EPOLL_CTL_ADD, ends[0], EPOLLIN | EPOLLET, PIPE) == 0);
		if (round >= 3)
			must(epoll_control(outer, EPOLL_CTL_ADD, accepted(0, &quiet_peer), EPOLLIN,
					   QUIET) == 0);
		struct waiter waiters[3];
		for (int i = 0; i < 3; i++)
			start_waiter(&waiters[i]);
		int inner = epoll_create1(0);
		if (round % 2)
			must(epoll_control(outer, EPOLL_CTL_ADD, inner, EPOLLIN, INNER) == 0);
		pause_briefly();
		must(epoll_control(inner, EPOLL_CTL_ADD, fd, EPOLLIN, 0) == 0);
		if (round % 2 == 0)
			must(epoll_control(outer, EPOLL_CTL_ADD, inner, EPOLLIN, INNER) == 0);
		int before = __atomic_load_n(&ended, __ATOMIC_SEQ_CST);
		for (int i = 0; i < 2; i++) {
			pause_briefly();
			must(write(ends[1], "x", 1) == 1);
			await(__atomic_load_n(&ended, __ATOMIC_SEQ_CST) > before + i);
		}
		pause_briefly();
		peer_sends(other, 30, 1);
		unsigned sum = 0;
		for (int i = 0; i < 3; i++)
			sum += end_waiter(&waiters[i]);
		say("events %u", sum);
		close(outer);
		close(inner);
		close(fd);
	}
}

/* Two threads sleep in the outer instance while the main thread sleeps in read on a connection. The
 * connection's registration in the inner instance is disabled. Data on the connection ends only the
 * read. The two threads get no event for the data. */
void nested_beside_calls(void)
{
	enum { ROUNDS = 20 };
	int other, fd = accepted(0, &other), inner = epoll_create1(0);
	outer = epoll_create1(0);
	must(pipe(ends) == 0);
	must(epoll_control(inner, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT, 0) == 0);
	must(epoll_control(inner, EPOLL_CTL_MOD, fd, EPOLLONESHOT, 0) == 0);
	must(epoll_control(outer, EPOLL_CTL_ADD, inner, EPOLLIN, INNER) == 0);
	must(epoll_control(outer, EPOLL_CTL_ADD, ends[0], EPOLLIN, PIPE) == 0);
	struct waiter waiters[2];
	start_waiter(&waiters[0]);
	start_waiter(&waiters[1]);
	for (int round = 0; round < ROUNDS; round++) {
		/* The main thread sleeps in read when the data arrives. */
		pthread_t thread;
		must(pthread_create(&thread, NULL, peer_sends_later, &other) == 0);
		read_exactly(fd, 30, 1);
		must(pthread_join(thread, NULL) == 0);
	}
	must(write(ends[1], "x", 1) == 1);
	say("events %u", end_waiter(&waiters[0]) + end_waiter(&waiters[1]));
}

static void *receive_one(void *fd)
{
	read_exactly(*(int *)fd, 1, 3);
	return NULL;
}

/* The inner instance contains two connections, `quiet` and `fd`, both registered for no events. One
 * thread sleeps in the outer instance. Another thread sleeps in read on `fd`. Data on `quiet` does
 * not keep the threads busy. */
void nested_does_not_spin(void)
{
	int quiet_peer, quiet = accepted(0, &quiet_peer), other, fd = accepted(0, &other);
	int inner = epoll_create1(0);
	outer = epoll_create1(0);
	must(pipe(ends) == 0);
	must(epoll_control(inner, EPOLL_CTL_ADD, quiet, EPOLLONESHOT, 0) == 0);
	must(epoll_control(inner, EPOLL_CTL_ADD, fd, EPOLLONESHOT, 0) == 0);
	must(epoll_control(outer, EPOLL_CTL_ADD, inner, EPOLLIN, INNER) == 0);
	must(epoll_control(outer, EPOLL_CTL_ADD, ends[0], EPOLLIN, PIPE) == 0);
	struct waiter waiter;
	pthread_t receiver;
	start_waiter(&waiter);
	must(pthread_create(&receiver, NULL, receive_one, &fd) == 0);
	pause_briefly();
	for (int i = 0; i < 5; i++)
		peer_sends(quiet_peer, 30, 1);
	pause_briefly();
	struct timespec before, after;
	must(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before) == 0);
	usleep(400000);
	must(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after) == 0);
	long used_us = (after.tv_sec - before.tv_sec) * 1000000 +
		       (after.tv_nsec - before.tv_nsec) / 1000;
	say("asleep %d", used_us < 100000);
	peer_sends(other, 1, 3);
	must(pthread_join(receiver, NULL) == 0);
	must(write(ends[1], "x", 1) == 1);
	say("event %u", end_waiter(&waiter));
}

/* Two threads sleep in the outer instance while the main thread adds two descriptors to the inner
 * instance: an empty epoll instance and a listener. Neither is ready, and no event is reported. */
void nested_quiet_additions(void)
{
	int port, listener = open_listener(0, &port), inner = epoll_create1(0);
	outer = epoll_create1(0);
	must(pipe(ends) == 0);
	must(epoll_control(outer, EPOLL_CTL_ADD, inner, EPOLLIN, INNER) == 0);
	must(epoll_control(outer, EPOLL_CTL_ADD, ends[0], EPOLLIN, PIPE) == 0);
	struct waiter waiters[2];
	start_waiter(&waiters[0]);
	start_waiter(&waiters[1]);
	must(epoll_control(inner, EPOLL_CTL_ADD, epoll_create1(0), EPOLLIN, 0) == 0);
	pause_briefly();
	must(epoll_control(inner, EPOLL_CTL_ADD, listener, EPOLLIN, 0) == 0);
	pause_briefly();
	must(write(ends[1], "x", 1) == 1);
	say("events %u", end_waiter(&waiters[0]) + end_waiter(&waiters[1]));
	must(read(ends[0], &port, 1) == 1);
	/* A connection at the listener wakes a thread. */
	struct sockaddr_in name;
	socklen_t len = sizeof name;
	must(getsockname(listener, (void *)&name, &len) == 0);
	start_waiter(&waiters[0]);
	peer_connects(ntohs(name.sin_port));
	say("event %u", end_waiter(&waiters[0]));
}

/* Parent and child have descriptors of one outer instance and of one inner instance. The parent
 * closes its descriptor of the inner instance. The inner instance stays registered, because the
 * child still has a descriptor. The outer instance still reports the inner instance. */
void nested_after_fork(void)
{
	int inner = epoll_create1(0), go[2];
	struct epoll_event event;
	outer = epoll_create1(0);
	must(pipe(ends) == 0 && pipe(go) == 0);
	must(epoll_control(inner, EPOLL_CTL_ADD, ends[0], EPOLLIN, 0) == 0);
	must(epoll_control(outer, EPOLL_CTL_ADD, inner, EPOLLIN, INNER) == 0);
	pid_t child = fork();
	if (child == 0) {
		char byte;
		must(read(go[0], &byte, 1) == 1);
		_exit(0);
	}
	close(inner);
	must(write(ends[1], "x", 1) == 1);
	must(epoll_wait(outer, &event, 1, TIMEOUT_MS) == 1);
	say("event %u", event.data.u32);
	must(write(go[1], "x", 1) == 1);
	must(waitpid(child, NULL, 0) == child);
}

/* Number of events of the inner instance that the threads of `nested_reported_once` have got. */
static int reports;

/* The function of a thread. Repeats epoll_wait on the outer instance until the pipe is readable.
 * Counts the events of the inner instance in `reports`. `argument` is the timeout of each call in
 * milliseconds. */
static void *count_reports(void *argument)
{
	struct epoll_event event = {0};
	while (event.data.u32 != PIPE) {
		int count = epoll_wait(outer, &event, 1, (int)(intptr_t)argument);
		must(count >= 0);
		if (count == 1 && event.data.u32 == INNER)
			__atomic_add_fetch(&reports, 1, __ATOMIC_SEQ_CST);
	}
	return NULL;
}

/* Several threads wait for an inner instance that is registered with EPOLLONESHOT. One of them
 * repeats epoll_wait with a timeout of 0. Each event goes to exactly one thread. */
void nested_reported_once(void)
{
	enum { THREADS = 4, ROUNDS = 200 };
	int other, fd = accepted(SOCK_NONBLOCK, &other), inner = epoll_create1(0);
	pthread_t threads[THREADS];
	outer = epoll_create1(0), reports = 0;
	must(pipe(ends) == 0);
	must(epoll_control(outer, EPOLL_CTL_ADD, ends[0], EPOLLIN, PIPE) == 0);
	must(epoll_control(inner, EPOLL_CTL_ADD, fd, EPOLLIN, 0) == 0);
	must(epoll_control(outer, EPOLL_CTL_ADD, inner, EPOLLIN | EPOLLONESHOT, INNER) == 0);
	for (int i = 0; i < THREADS; i++)
		must(pthread_create(&threads[i], NULL, count_reports,
				    (void *)(intptr_t)(i == 0 ? 0 : -1)) == 0);
	for (int round = 0; round < ROUNDS; round++) {
		peer_sends(other, 30, 1);
		await(__atomic_load_n(&reports, __ATOMIC_SEQ_CST) > round);
		usleep(round % 2 * 500);
		read_exactly(fd, 30, 1);
		must(epoll_control(outer, EPOLL_CTL_MOD, inner, EPOLLIN | EPOLLONESHOT, INNER) == 0);
	}
	must(write(ends[1], "x", 1) == 1);
	for (int i = 0; i < THREADS; i++)
		must(pthread_join(threads[i], NULL) == 0);
	say("reports %d", reports);
}

/* A thread sleeps in the outer instance while another thread polls the outer instance with a
 * timeout of 0. Meanwhile, data arrives on the connection `quiet`, which is registered in the inner
 * instance for no events. The sleeping thread still wakes for data on a second connection. */
void nested_polled_beside(void)
{
	int quiet_peer, quiet = accepted(SOCK_NONBLOCK, &quiet_peer);
	int other, fd = accepted(SOCK_NONBLOCK, &other), inner = epoll_create1(0);
	struct epoll_event event;
	outer = epoll_create1(0);
	must(epoll_control(inner, EPOLL_CTL_ADD, quiet, 0, 0) == 0);
	must(epoll_control(inner, EPOLL_CTL_ADD, fd, EPOLLIN, 0) == 0);
	must(epoll_control(outer, EPOLL_CTL_ADD, inner, EPOLLIN, INNER) == 0);
	for (int round = 0; round < 20; round++) {
		struct waiter waiter;
		start_waiter(&waiter);
		long job = peer_must("send %d 30 1", quiet_peer);
		for (int i = 0; i < 500; i++)
			must(epoll_wait(outer, &event, 1, 0) == 0);
		peer_must("join %ld", job);
		peer_sends(other, 30, 1);
		say("event %u", end_waiter(&waiter));
		read_exactly(fd, 30, 1);
	}
}
