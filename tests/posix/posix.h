/* Common functions of the test cases: commands to the peer, and output. */
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

/* Prints a line of output, which the runner compares between the stacks. */
#define say(...) (printf(__VA_ARGS__), putchar('\n'), fflush(stdout))

/* Prints a call's result, and its error by name. */
#define show(call)                                                                     \
	do {                                                                           \
		errno = 0;                                                             \
		long result_ = (call);                                                 \
		say("%s = %ld %s", #call, result_, result_ < 0 ? strerrorname_np(errno) : ""); \
	} while (0)

/* Ends the test, which cannot continue. */
#define must(condition)                                                                \
	do {                                                                           \
		if (!(condition)) {                                                    \
			say("%s:%d: %s: %s", __FILE__, __LINE__, #condition,           \
			    strerror(errno));                                          \
			exit(1);                                                       \
		}                                                                      \
	} while (0)

/* Time limit in milliseconds for an expected event on a busy machine. */
#define PATIENCE 60000

/* Polls a condition for which this program has no event. */
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

/* Sends a command to the peer and returns its answer. */
struct answer peer(const char *format, ...);
/* Sends a command to the peer, which must succeed. */
long peer_must(const char *format, ...);
/* Make the peer send or receive, and return when it has done so. */
void peer_sends(int fd, long count, unsigned seed);
struct answer peer_receives(int fd, long count, unsigned seed);

/* Returns a listener of this program on every address. */
int own_listener(int flags, int *port);
/* Makes the peer connect to `port`, and returns the peer's descriptor. */
int peer_connects(int port);
/* Returns an accepted connection, and the peer's end of it. */
int accepted(int flags, int *peer_fd);
/* Returns a connection that this program opened, and the peer's end of it. */
int connected(int *peer_fd);
/* Returns the address of a new listener of the peer, and its descriptor in `fd`. */
struct sockaddr_in peer_listener(int *fd);

void wait_readable(int fd);
/* Waits until poll reports all of `events`. POLLHUP and POLLERR need not be requested. */
void await_events(int fd, short events);
/* Gives data in flight time to arrive, so that the next call most likely is the first to see it.
 * The output of a case must not depend on this: on a busy machine the pause may be too short. */
void pause_briefly(void);
/* Waits until the thread `tid` of this process sleeps. */
void await_asleep(pid_t tid);
/* Announces to the service that this process accepts connections, without accepting any. */
void want_connections(int listener);
void read_exactly(int fd, long count, unsigned seed);
void write_exactly(int fd, long count, unsigned seed);
long now_ms(void);
const char *events_text(unsigned bits);

struct test_case {
	const char *name;
	void (*run)(void);
};
