/* Threads that wait in blocking calls, each for its own connection or for a shared one. */
#include "posix.h"

/* Number of bytes of each message. */
#define MESSAGE 10

/* A thread that receives `messages` messages on the connection `fd`. */
struct receiver {
	pthread_t thread;
	/* The thread's id in the kernel. 0 if the thread does not run. */
	volatile pid_t tid;
	/* `other` is the peer's descriptor of the connection. */
	int fd, other, messages;
	/* True if the thread calls poll before each read. */
	int polls;
	/* Number of received messages. */
	volatile int done;
};

static void *receive_messages(void *arg)
{
	struct receiver *receiver = arg;
	receiver->tid = gettid();
	while (receiver->done < receiver->messages) {
		if (receiver->polls)
			wait_readable(receiver->fd);
		read_exactly(receiver->fd, MESSAGE, receiver->done);
		receiver->done++;
	}
	return NULL;
}

static void start(struct receiver *receiver)
{
	must(pthread_create(&receiver->thread, NULL, receive_messages, receiver) == 0);
	await(receiver->tid);
}

/* Sends the next message to a receiver that sleeps, and waits until the receiver has read it. */
static void send_to_sleeper(struct receiver *receiver)
{
	int before = receiver->done;
	await_asleep(receiver->tid);
	peer_sends(receiver->other, MESSAGE, before);
	await(receiver->done == before + 1);
}

static void join(struct receiver *receiver)
{
	must(pthread_join(receiver->thread, NULL) == 0);
	receiver->tid = receiver->done = 0;
}

/* Returns how often the thread has gone to sleep so far. */
static long sleeps_of(pid_t tid)
{
	char path[64], line[256];
	long count = -1;
	snprintf(path, sizeof path, "/proc/self/task/%d/status", tid);
	FILE *file = fopen(path, "r");
	must(file);
	while (fgets(line, sizeof line, file))
		sscanf(line, "voluntary_ctxt_switches: %ld", &count);
	fclose(file);
	must(count >= 0);
	return count;
}

/* The kernel's id of the thread that waits in accept. 0 until the thread runs. */
static volatile pid_t acceptor_tid;

static void *accept_one(void *arg)
{
	acceptor_tid = gettid();
	must(accept(*(int *)arg, NULL, NULL) >= 0);
	return NULL;
}

/* Each of several threads waits for messages on its own connection. A message wakes its receiver.
 * Most messages do not wake the thread that waits in accept. */
void waiters_of_connections(void)
{
	enum { THREADS = 6, MESSAGES = 50 };
	struct receiver receivers[THREADS];
	int port, listener = open_listener(0, &port);
	pthread_t acceptor;
	for (int i = 0; i < THREADS; i++) {
		receivers[i] = (struct receiver){.messages = MESSAGES, .polls = i % 2};
		receivers[i].fd = accepted(0, &receivers[i].other);
	}
	must(pthread_create(&acceptor, NULL, accept_one, &listener) == 0);
	await(acceptor_tid);
	await_asleep(acceptor_tid);
	for (int i = 0; i < THREADS; i++)
		start(&receivers[i]);
	/* The first messages may still wake other threads. */
	for (int i = 0; i < THREADS; i++)
		send_to_sleeper(&receivers[i]);
	long before = sleeps_of(acceptor_tid);
	for (int message = 1; message < MESSAGES; message++)
		for (int i = 0; i < THREADS; i++)
			send_to_sleeper(&receivers[i]);
	long woken = sleeps_of(acceptor_tid) - before;
	/* The case permits some wake-ups, because the thread may wake for other reasons, too. */
	say("the accepting thread slept: %s", woken < MESSAGES ? "yes" : "no");
	for (int i = 0; i < THREADS; i++)
		join(&receivers[i]);
	peer_connects(port);
	must(pthread_join(acceptor, NULL) == 0);
}

/* In each round, threads start, wait for messages on the same connections, and end. */
void waiters_take_turns(void)
{
	enum { CONNECTIONS = 3, ROUNDS = 20 };
	struct receiver receivers[CONNECTIONS];
	for (int i = 0; i < CONNECTIONS; i++) {
		receivers[i] = (struct receiver){.messages = 2};
		receivers[i].fd = accepted(0, &receivers[i].other);
	}
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < CONNECTIONS; i++) {
			receivers[i].polls = (round + i) % 2;
			start(&receivers[i]);
			await_asleep(receivers[i].tid);
		}
		for (int message = 0; message < 2; message++)
			for (int i = CONNECTIONS; i-- > 0;)
				send_to_sleeper(&receivers[i]);
		for (int i = 0; i < CONNECTIONS; i++)
			join(&receivers[i]);
	}
	say("all messages arrived");
}

/* 100 threads wait. Tidelane's library has fewer than 100 channels for threads, so several threads
 * share a channel. A channel is shared memory between the program and the service (`tidelaned`). */
void waiters_by_the_hundred(void)
{
	enum { THREADS = 100 };
	static struct receiver receivers[THREADS];
	for (int i = 0; i < THREADS; i++) {
		receivers[i] = (struct receiver){.messages = 3, .polls = i % 3 == 0};
		receivers[i].fd = accepted(0, &receivers[i].other);
		start(&receivers[i]);
		await_asleep(receivers[i].tid);
	}
	for (int message = 0; message < 3; message++)
		for (int i = THREADS; i-- > 0;)
			send_to_sleeper(&receivers[i]);
	for (int i = 0; i < THREADS; i++)
		join(&receivers[i]);
	say("all messages arrived");
}

static void *write_much(void *arg)
{
	write_exactly(*(int *)arg, 8000000, 7);
	return NULL;
}

/* One thread waits for data on a connection. Another thread waits for room in the send buffer of
 * the same connection. A third thread waits for data on another connection. */
void waiters_of_one_connection(void)
{
	struct receiver reader = {.messages = 2}, beside = {.messages = 2};
	reader.fd = accepted(0, &reader.other);
	beside.fd = accepted(0, &beside.other);
	start(&beside);
	await_asleep(beside.tid);
	for (int round = 0; round < 3; round++) {
		pthread_t writer;
		start(&reader);
		await_asleep(reader.tid);
		must(pthread_create(&writer, NULL, write_much, &reader.fd) == 0);
		send_to_sleeper(&reader);
		struct answer answer = peer_receives(reader.other, 8000000, 7);
		say("%ld bytes, error %ld", answer.first, answer.second);
		must(pthread_join(writer, NULL) == 0);
		send_to_sleeper(&reader);
		join(&reader);
	}
	send_to_sleeper(&beside);
	send_to_sleeper(&beside);
	join(&beside);
}

/* A thread waits for data on a connection. Meanwhile the main thread adds the connection to an
 * epoll instance and removes the connection again. A third thread waits for data on another
 * connection. */
void waiters_beside_epoll(void)
{
	struct receiver reader = {.messages = 40}, beside = {.messages = 1};
	reader.fd = accepted(0, &reader.other);
	beside.fd = accepted(0, &beside.other);
	start(&beside);
	await_asleep(beside.tid);
	start(&reader);
	int epfd = epoll_create1(0);
	for (int round = 0; round < 20; round++) {
		struct epoll_event event = {.events = EPOLLIN};
		send_to_sleeper(&reader);
		must(epoll_ctl(epfd, EPOLL_CTL_ADD, reader.fd, &event) == 0);
		send_to_sleeper(&reader);
		must(epoll_ctl(epfd, EPOLL_CTL_DEL, reader.fd, NULL) == 0);
	}
	join(&reader);
	send_to_sleeper(&beside);
	join(&beside);
	say("all messages arrived");
}

/* After a thread of the parent has waited for data on a connection, a thread of a child waits for
 * data on the same connection. Another thread of the parent waits for another connection. */
void fork_beside_waiters(void)
{
	struct receiver reader = {.messages = 2}, beside = {.messages = 2};
	reader.fd = accepted(0, &reader.other);
	beside.fd = accepted(0, &beside.other);
	start(&beside);
	await_asleep(beside.tid);
	start(&reader);
	send_to_sleeper(&reader);
	send_to_sleeper(&reader);
	join(&reader);
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		start(&reader);
		send_to_sleeper(&reader);
		send_to_sleeper(&reader);
		join(&reader);
		_exit(0);
	}
	int status;
	must(waitpid(child, &status, 0) == child);
	say("status %d", status);
	send_to_sleeper(&beside);
	send_to_sleeper(&beside);
	join(&beside);
}
