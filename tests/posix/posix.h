/* What the test cases share: the peer at the other end, and saying what happened. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "pattern.h"

/* One line of what this program sees; the runner compares these lines between the stacks. */
#define say(...) (printf(__VA_ARGS__), putchar('\n'), fflush(stdout))

/* A call's result and error by name. */
#define show(call)                                                                     \
	do {                                                                           \
		errno = 0;                                                             \
		long result_ = (call);                                                 \
		say("%s = %ld %s", #call, result_, result_ < 0 ? strerrorname_np(errno) : ""); \
	} while (0)

/* The test cannot go on. */
#define must(condition)                                                                \
	do {                                                                           \
		if (!(condition)) {                                                    \
			say("%s:%d: %s: %s", __FILE__, __LINE__, #condition,           \
			    strerror(errno));                                          \
			exit(1);                                                       \
		}                                                                      \
	} while (0)

/* Milliseconds that something which must happen may take: much, as the machine may be busy. */
#define PATIENCE 60000

/* Waits for something that this program cannot be woken for. */
#define await(condition)                                                                \
	do {                                                                           \
		long deadline_ = now_ms() + PATIENCE;                                  \
		while (!(condition)) {                                                 \
			must(now_ms() < deadline_);                                    \
			usleep(1000);                                                  \
		}                                                                      \
	} while (0)

struct answer {
	int ok;
	long first, second;
};

/* Tells the peer something. */
struct answer peer(const char *format, ...);
/* As `peer`, and it must work. */
long peer_must(const char *format, ...);
/* The peer sends, receives; the call returns when it is done. */
void peer_sends(int fd, long count, unsigned seed);
struct answer peer_receives(int fd, long count, unsigned seed);

/* A listener of ours on every address. */
int own_listener(int flags, int *port);
/* The peer connects to `port`; its descriptor. */
int peer_connects(int port);
/* A connection that we accepted, and the peer's end. */
int accepted(int flags, int *peer_fd);
/* A connection that we opened, and the peer's end. */
int connected(int *peer_fd);
/* The name of a listener of the peer's; its descriptor in `fd`. */
struct sockaddr_in peer_listener(int *fd);

void wait_readable(int fd);
/* Waits until poll says all of `events`, of which POLLHUP and POLLERR need not be asked for. */
void await_events(int fd, short events);
/*
 * Gives what is under way the time to arrive, so that most likely the next call is the first to see
 * it. What a case says must not depend on it: under load the time may not be enough.
 */
void pause_briefly(void);
/* Waits until the thread `tid` of this process sleeps. */
void await_asleep(pid_t tid);
/* Says to the service that this process wants connections, without taking any. */
void want_connections(int listener);
void read_exactly(int fd, long count, unsigned seed);
void write_exactly(int fd, long count, unsigned seed);
long now_ms(void);
const char *events_text(unsigned bits);

struct test_case {
	const char *name;
	void (*run)(void);
};
