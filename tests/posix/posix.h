/* Functions and macros for the cases of the POSIX tests: output, commands to the peer, and waiting.
 * The peer (peer.c) is a program at the other end of the connections of the cases. */
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
#include <sys/resource.h>
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

/* Prints a line. The output of a case must be the same on the kernel's stack and on Tidelane. */
#define say(...) (printf(__VA_ARGS__), putchar('\n'), fflush(stdout))

/* Makes a call. Prints the call and the result. If the result is negative, also prints the name of
 * the error. */
#define show(call)                                                                     \
	do {                                                                           \
		errno = 0;                                                             \
		long result_ = (call);                                                 \
		say("%s = %ld %s", #call, result_, result_ < 0 ? strerrorname_np(errno) : ""); \
	} while (0)

/* Ends the test case with a message if the condition does not hold. */
#define must(condition)                                                                \
	do {                                                                           \
		if (!(condition)) {                                                    \
			say("%s:%d: %s: %s", __FILE__, __LINE__, #condition,           \
			    strerror(errno));                                          \
			exit(1);                                                       \
		}                                                                      \
	} while (0)

/* Time limit in milliseconds for an event that must occur, even on a busy machine. */
#define TIMEOUT_MS 60000

/* Checks the condition every millisecond until it holds. Ends the case after TIMEOUT_MS. */
#define await(condition)                                                                \
	do {                                                                           \
		long deadline_ = now_ms() + TIMEOUT_MS;                                  \
		while (!(condition)) {                                                 \
			must(now_ms() < deadline_);                                    \
			usleep(1000);                                                  \
		}                                                                      \
	} while (0)

/* The peer's answer to a command. `ok` is true if the answer begins with "ok". `first` and `second`
 * are the numbers in the answer. A missing number is 0. */
struct answer {
	int ok;
	long first, second;
};

/* Sends a command (see peer.c) to the peer and returns its answer. */
struct answer peer(const char *format, ...);
/* Sends a command to the peer. The answer must be "ok" with a first number of at least 0. Returns
 * this number. */
long peer_must(const char *format, ...);
/* Makes the peer send `count` bytes of the pattern (pattern.h) with `seed`. `fd` is the peer's
 * descriptor. Waits until the peer's sends have returned. */
void peer_sends(int fd, long count, unsigned seed);
/* Makes the peer receive `count` bytes of the pattern with `seed`. If `count` is -1, the peer
 * receives all bytes up to the end of the stream. `fd` is the peer's descriptor. Waits until the
 * peer is done. `first` in the answer is the number of received bytes. `second` is errno, EBADMSG
 * for a wrong byte, or 0. */
struct answer peer_receives(int fd, long count, unsigned seed);

/* Returns a new listener of this program at all IPv4 addresses. `flags` are flags of `socket`, such
 * as SOCK_NONBLOCK. Stores the listener's port in `port`. */
int open_listener(int flags, int *port);
/* Makes the peer try to connect to `port` of this program. Returns the peer's answer. */
struct answer peer_tries(int port);
/* Makes the peer connect to `port` of this program. Returns the peer's descriptor. */
int peer_connects(int port);
/* Returns a new connection that the peer has opened. `flags` are flags of `accept4`. Stores the
 * peer's descriptor of the connection in `peer_fd`. */
int accepted(int flags, int *peer_fd);
/* Returns a new connection that this program has opened. Stores the peer's descriptor of the
 * connection in `peer_fd`. */
int connected(int *peer_fd);
/* Returns the address of a new listener of the peer. Stores the peer's descriptor of the listener
 * in `fd`. */
struct sockaddr_in peer_listener(int *fd);

/* Waits until poll reports POLLIN for `fd`. */
void wait_readable(int fd);
/* Waits until poll reports all of `events` for `fd`. `events` may include POLLHUP and POLLERR. */
void await_events(int fd, short events);
/* Prints the result of poll and the reported events, without waiting. */
void say_poll(int fd);
/* Sleeps for 50 ms, so that data in flight most likely arrives. The pause may be too short on a
 * busy machine, and the output of a case must not depend on it. */
void pause_briefly(void);
/* Calls epoll_ctl with the events `bits` and the user data `data`. */
int epoll_control(int epfd, int operation, int fd, unsigned bits, unsigned data);
/* Waits until the thread `tid` sleeps. */
void await_asleep(pid_t tid);
/* The function of a thread. When the main thread sleeps, makes the peer send 30 bytes. `other`
 * points to an int, the peer's descriptor of the connection. */
void *peer_sends_later(void *other);
/* Calls accept on `listener` without waiting. The listener must have no pending connection.
 * Tidelane's service (`tidelaned`) gives connections only to a process that has called accept. */
void want_connections(int listener);
/* Opens a listener at `port` of all IPv4 addresses, calls want_connections for the listener, and
 * returns the listener. */
int listener_at(int port);
/* Reads `count` bytes, which must be the pattern with `seed`. */
void read_exactly(int fd, long count, unsigned seed);
/* Writes `count` bytes of the pattern with `seed`. */
void write_exactly(int fd, long count, unsigned seed);
/* Returns the time in milliseconds (CLOCK_MONOTONIC). */
long now_ms(void);
/* Returns the names of epoll or poll events, each after a space. The text is valid until the next
 * call of the thread. */
const char *events_text(unsigned bits);

/* An entry of the list of cases: the name of a case and its function. */
struct test_case {
	const char *name;
	void (*run)(void);
};
