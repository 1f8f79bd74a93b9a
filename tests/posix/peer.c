/*
 * The peer of the test cases: the program at the other end of their connections.
 *
 *   peer UNIX_PATH OWN_ADDRESS
 *
 * The peer executes commands that it reads from a unix socket at UNIX_PATH. A command is a line.
 * The answer is a line, too: the word "ok" or "error", followed by up to two numbers. The number
 * after "error" is errno. "ok -1" also stands for a failed call. FD is a descriptor of the peer, in
 * answers and in later commands. The data that the peer sends and expects is the pattern of
 * pattern.h with SEED, or with the seed 9 for fast_connect.
 *
 *   listen                            listens at OWN_ADDRESS; answers with FD and port
 *   connect ADDRESS PORT              connects; answers with FD
 *   fast_connect ADDRESS PORT COUNT   connects and sends COUNT bytes, in the SYN if possible
 *   fast FD                           lets a listener accept data in SYNs
 *   accept FD                         accepts; answers with FD
 *   port FD                           answers with the local port
 *   send FD COUNT SEED                starts a job that sends; answers with the job's number
 *   send_urgent FD COUNT SEED         is like send, but the last byte of each call of the job is
 *                                     urgent
 *   receive FD COUNT SEED             starts a job that receives; answers with the job's number; a
 *                                     COUNT of -1 stands for all bytes up to the end of the stream
 *   join JOB                          waits for a job; answers with the number of transferred
 *                                     bytes and the error (struct job)
 *   urgent FD COUNT SEED              sends bytes in one call; the last byte is urgent; answers
 *                                     with the result of the call
 *   mark FD                           receives up to the mark (the position of the urgent byte);
 *                                     answers with the number of received bytes before the mark,
 *                                     and the value of the urgent byte
 *   inline FD                         sets SO_OOBINLINE
 *   shutdown FD                       closes the direction from the peer
 *   close FD                          closes the descriptor
 *   reset FD                          resets the connection and closes the descriptor
 *   close_all HOW                     closes all descriptors from 3 on, except those of the command
 *                                     socket, in the way HOW (see the function close_all)
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/close_range.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "pattern.h"

/* A transfer on a thread. */
struct job {
	/* 0 if the entry is free. */
	pthread_t thread;
	int fd;
	/* Number of bytes to transfer. For a receiver, a negative number stands for all bytes up to
	 * the end of the stream. */
	long count;
	/* Seed of the pattern. */
	unsigned seed;
	/* Number of transferred bytes. */
	long done;
	/* errno of the call that ended the transfer, EBADMSG for a wrong byte, or 0. */
	int error;
};

static struct job jobs[64];
/* The address at which the peer listens (OWN_ADDRESS). */
static const char *own_address;
/* Descriptor from which the peer reads commands. */
static int control_in;

/* Sends `count` bytes. */
static void *send_all(void *arg)
{
	struct job *job = arg;
	static __thread unsigned char bytes[65536];
	while (job->done < job->count) {
		long now = job->count - job->done;
		if (now > (long)sizeof bytes)
			now = sizeof bytes;
		pattern_fill(bytes, now, job->seed, job->done);
		ssize_t sent = send(job->fd, bytes, now, MSG_NOSIGNAL);
		if (sent < 0) {
			job->error = errno;
			break;
		}
		job->done += sent;
	}
	return NULL;
}

/* Receives `count` bytes, or all bytes until the end of the stream if `count` is negative. */
static void *receive_all(void *arg)
{
	struct job *job = arg;
	static __thread unsigned char bytes[65536];
	while (job->count < 0 || job->done < job->count) {
		long now = sizeof bytes;
		if (job->count >= 0 && job->count - job->done < now)
			now = job->count - job->done;
		ssize_t got = recv(job->fd, bytes, now, 0);
		if (got < 0)
			job->error = errno;
		if (got <= 0)
			break;
		if (job->seed != ANY_BYTES && !pattern_matches(bytes, got, job->seed, job->done)) {
			job->error = EBADMSG;
			break;
		}
		job->done += got;
	}
	return NULL;
}

/* Sends `count` bytes in calls of up to 999 bytes. The last byte of each call is urgent. */
static void *send_all_urgent(void *arg)
{
	struct job *job = arg;
	unsigned char bytes[999];
	while (job->done < job->count) {
		long now = job->count - job->done;
		if (now > (long)sizeof bytes)
			now = sizeof bytes;
		pattern_fill(bytes, now, job->seed, job->done);
		ssize_t sent = send(job->fd, bytes, now, MSG_NOSIGNAL | MSG_OOB);
		if (sent < 0) {
			job->error = errno;
			break;
		}
		job->done += sent;
	}
	return NULL;
}

/* Each function do_NAME executes the command NAME and writes the answer to `out`. */
static int do_urgent(FILE *out, int fd, long count, unsigned seed)
{
	unsigned char bytes[64];
	if (count > (long)sizeof bytes)
		return fprintf(out, "error %d\n", EINVAL);
	pattern_fill(bytes, count, seed, 0);
	return fprintf(out, "ok %ld\n", (long)send(fd, bytes, count, MSG_NOSIGNAL | MSG_OOB));
}

/* Waits for urgent data. Receives the urgent byte, and then the data before this byte. */
static int do_mark(FILE *out, int fd)
{
	struct pollfd entry = {.fd = fd, .events = POLLPRI};
	unsigned char bytes[256], byte = 0;
	long before = 0;
	if (poll(&entry, 1, 60000) != 1 || recv(fd, &byte, 1, MSG_OOB) != 1)
		return fprintf(out, "error %d\n", errno);
	while (sockatmark(fd) == 0) {
		ssize_t got = recv(fd, bytes, sizeof bytes, 0);
		if (got <= 0)
			return fprintf(out, "error %d\n", errno);
		before += got;
	}
	return fprintf(out, "ok %ld %d\n", before, byte);
}

static int do_inline(FILE *out, int fd)
{
	int on = 1;
	return fprintf(out, "ok %d\n", setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
}

static struct sockaddr_in name_of(const char *address, int port)
{
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(port)};
	inet_pton(AF_INET, address, &name.sin_addr);
	return name;
}

static int do_listen(FILE *out)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	struct sockaddr_in name = name_of(own_address, 0);
	socklen_t len = sizeof name;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(fd, (void *)&name, sizeof name) || listen(fd, 128))
		return fprintf(out, "error %d\n", errno);
	getsockname(fd, (void *)&name, &len);
	return fprintf(out, "ok %d %d\n", fd, ntohs(name.sin_port));
}

static int do_connect(FILE *out, const char *address, int port)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	struct sockaddr_in name = name_of(address, port);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	if (connect(fd, (void *)&name, sizeof name)) {
		int error = errno;
		close(fd);
		return fprintf(out, "error %d\n", error);
	}
	return fprintf(out, "ok %d\n", fd);
}

/* Connects and sends `count` bytes. The SYN carries data if TCP Fast Open permits this. */
static int fast_connect(FILE *out, const char *address, int port, long count)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in name = name_of(address, port);
	unsigned char bytes[1000];
	pattern_fill(bytes, sizeof bytes, 9, 0);
	if (count > (long)sizeof bytes ||
	    sendto(fd, bytes, count, MSG_FASTOPEN, (void *)&name, sizeof name) != count)
		return fprintf(out, "error %d\n", errno);
	return fprintf(out, "ok %d\n", fd);
}

/* Lets a listener accept data in SYNs. */
static int enable_fast_open(FILE *out, int fd)
{
	int places = 16;
	int result = setsockopt(fd, IPPROTO_TCP, TCP_FASTOPEN, &places, sizeof places);
	return fprintf(out, "ok %d\n", result);
}

static int do_port(FILE *out, int fd)
{
	struct sockaddr_in name;
	socklen_t len = sizeof name;
	if (getsockname(fd, (void *)&name, &len))
		return fprintf(out, "error %d\n", errno);
	return fprintf(out, "ok %d\n", ntohs(name.sin_port));
}

/* Starts a job. */
static int start(FILE *out, void *(*work)(void *), int fd, long count, unsigned seed)
{
	for (int i = 0; i < 64; i++) {
		if (jobs[i].thread)
			continue;
		jobs[i] = (struct job){.fd = fd, .count = count, .seed = seed};
		pthread_create(&jobs[i].thread, NULL, work, &jobs[i]);
		return fprintf(out, "ok %d\n", i);
	}
	return fprintf(out, "error %d\n", EAGAIN);
}

static int join(FILE *out, int number)
{
	struct job *job = &jobs[number];
	pthread_join(job->thread, NULL);
	job->thread = 0;
	return fprintf(out, "ok %ld %d\n", job->done, job->error);
}

static int reset(FILE *out, int fd)
{
	struct linger at_once = {.l_onoff = 1};
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
	close(fd);
	return fprintf(out, "ok\n");
}

/* Closes the descriptors from 3 on, except those of the command socket. `how` selects the calls:
 * 0: the C library's close, for descriptors below 1024.
 * 1: the system call close, made directly, for descriptors below 1024.
 * 2: close_range. The call for the highest descriptors has the flag CLOSE_RANGE_UNSHARE.
 * 3: close_range without flags. */
static int close_all(FILE *out, int how)
{
	int last = fileno(out);
	for (int fd = 3; how == 0 && fd < 1024; fd++)
		if (fd != control_in && fd != last)
			close(fd);
	for (int fd = 3; how == 1 && fd < 1024; fd++)
		if (fd != control_in && fd != last)
			syscall(SYS_close, fd);
	if (how >= 2) {
		int low = control_in < last ? control_in : last;
		int high = control_in < last ? last : control_in;
		close_range(3, low - 1, 0);
		close_range(low + 1, high - 1, 0);
		close_range(high + 1, ~0u, how == 3 ? 0 : CLOSE_RANGE_UNSHARE);
	}
	return fprintf(out, "ok 0\n");
}

/* Executes one command, and writes the answer to `out`. */
static int obey(FILE *out, const char *line)
{
	char address[64];
	int fd, port;
	long count;
	unsigned seed;
	if (!strcmp(line, "listen\n"))
		return do_listen(out);
	if (sscanf(line, "connect %63s %d", address, &port) == 2)
		return do_connect(out, address, port);
	if (sscanf(line, "fast_connect %63s %d %ld", address, &port, &count) == 3)
		return fast_connect(out, address, port, count);
	if (sscanf(line, "fast %d", &fd) == 1)
		return enable_fast_open(out, fd);
	if (sscanf(line, "accept %d", &fd) == 1)
		return fprintf(out, "ok %d\n", accept(fd, NULL, NULL));
	if (sscanf(line, "port %d", &fd) == 1)
		return do_port(out, fd);
	if (sscanf(line, "send %d %ld %u", &fd, &count, &seed) == 3)
		return start(out, send_all, fd, count, seed);
	if (sscanf(line, "send_urgent %d %ld %u", &fd, &count, &seed) == 3)
		return start(out, send_all_urgent, fd, count, seed);
	if (sscanf(line, "urgent %d %ld %u", &fd, &count, &seed) == 3)
		return do_urgent(out, fd, count, seed);
	if (sscanf(line, "mark %d", &fd) == 1)
		return do_mark(out, fd);
	if (sscanf(line, "inline %d", &fd) == 1)
		return do_inline(out, fd);
	if (sscanf(line, "receive %d %ld %u", &fd, &count, &seed) == 3)
		return start(out, receive_all, fd, count, seed);
	if (sscanf(line, "join %d", &fd) == 1)
		return join(out, fd);
	if (sscanf(line, "shutdown %d", &fd) == 1)
		return fprintf(out, "ok %d\n", shutdown(fd, SHUT_WR));
	if (sscanf(line, "close %d", &fd) == 1)
		return fprintf(out, "ok %d\n", close(fd));
	if (sscanf(line, "close_all %d", &fd) == 1)
		return close_all(out, fd);
	if (sscanf(line, "reset %d", &fd) == 1)
		return reset(out, fd);
	return fprintf(out, "error %d\n", ENOSYS);
}

int main(int argc, char **argv)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	char line[256];
	if (argc != 3)
		return 2;
	own_address = argv[2];
	/* An answer to a killed test case must not end the peer. */
	signal(SIGPIPE, SIG_IGN);
	/* Tests wait for the socket's final name. The socket gets this name when it listens. */
	snprintf(name.sun_path, sizeof name.sun_path, "%s.new", argv[1]);
	unlink(name.sun_path);
	/* Test cases leave connections open, so the peer may need many descriptors. */
	struct rlimit files;
	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	int listener = socket(AF_UNIX, SOCK_STREAM, 0);
	if (bind(listener, (void *)&name, sizeof name) || listen(listener, 8))
		return 1;
	if (rename(name.sun_path, argv[1]))
		return 1;
	for (;;) {
		int fd = accept(listener, NULL, NULL);
		if (fd < 0)
			return 0;
		FILE *in = fdopen(fd, "r"), *out = fdopen(dup(fd), "w");
		control_in = fd;
		while (fgets(line, sizeof line, in)) {
			obey(out, line);
			fflush(out);
		}
		fclose(in);
		fclose(out);
	}
}
