/*
 * A client that sets socket options and prints their effect.
 *
 *   options ADDRESS PORT GO_FILE keepalive | user_timeout | silent | syn_count |
 *                                soft_error | soft_error_recverr | soft_error_sendfile |
 *                                congestion [NAME]
 *
 * The peer is an echo server. The program connects, sets options, prints "ready", and waits until
 * GO_FILE exists. Then it takes the action that its fourth argument names, and prints the result:
 *   keepalive                         sends nothing and waits for the end of the connection
 *   user_timeout, silent              sends data and waits for the end of the connection
 *   syn_count                         opens a second connection with TCP_SYNCNT 1
 *   soft_error                        sends data, and waits for an error in SO_ERROR
 *   soft_error_recverr                sets IP_RECVERR, sends data, and gets an error from recv
 *   soft_error_sendfile               sets IP_RECVERR, sends data, and gets an error from sendfile
 *   congestion                        reads TCP_CC_INFO; if NAME is given, the program has set
 *                                     TCP_CONGESTION to NAME before "ready"
 * In the soft_error cases, the program then prints "ready" a second time, waits until the file
 * "GO_FILE-back" exists, and receives the echo of its data.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* Sets an option with an integer value. Ends the program if the call fails. */
static int number(int fd, int level, int name, int value)
{
	if (setsockopt(fd, level, name, &value, sizeof value) == 0)
		return 0;
	perror("setsockopt");
	exit(1);
}

/* Prints the result of reading TCP_CONGESTION, and the name of the congestion control. */
static void print_congestion(int fd)
{
	char name[16] = "";
	socklen_t len = sizeof name;
	int result = getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len);
	printf("congestion %d %s\n", result, name);
}

/* Returns the time of the monotonic clock in milliseconds. */
static long now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Prints "ready" and waits until the file `path` exists. */
static void wait_for(const char *path)
{
	printf("ready\n");
	fflush(stdout);
	while (access(path, F_OK))
		usleep(5000);
}

/* Returns the name of the pending error (SO_ERROR), or "none". */
static const char *error_of(int fd)
{
	int error = 0;
	socklen_t len = sizeof error;
	getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
	return error ? strerrorname_np(error) : "none";
}

/* Prints the result and errno of a non-blocking read. The caller expects no data (EAGAIN). */
static void got_nothing(int fd)
{
	char byte;
	ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
	printf("read %zd %s\n", got, strerrorname_np(errno));
}

/* Sends a file of `len` bytes. Prints the result of the first sendfile, which fails with the ICMP
 * error. Repeats sendfile until the error is gone, and prints the last result. Returns the last
 * result: the number of bytes sent, or -1. */
static ssize_t check_sendfile(int fd, size_t len)
{
	int file = memfd_create("data", 0);
	off_t at = 0;
	if (ftruncate(file, len))
		return -1;
	ssize_t sent = sendfile(fd, file, &at, len);
	printf("sendfile %zd %s, at %ld\n", sent, strerrorname_np(errno), (long)at);
	/* Another ICMP error may arrive meanwhile. */
	while ((sent = sendfile(fd, file, &at, len)) < 0 && errno == EHOSTUNREACH)
		;
	printf("sendfile %zd, at %ld\n", sent, (long)at);
	return sent;
}

/* Sends data while there is no route to the peer, and prints the error that the program gets. Then
 * checks that the connection continues when the route is back. `go` is GO_FILE. If `recverr` is
 * true, sets the option IP_RECVERR first. If `by_sendfile` is true, the program gets the error from
 * sendfile. Returns the exit status of the program. */
static int check_soft_error(int fd, const char *go, int recverr, int by_sendfile)
{
	char bytes[1000] = "x", back[64];
	struct pollfd entry = {.fd = fd, .events = POLLIN};
	size_t written = sizeof bytes;
	int on = 1;
	if (recverr)
		number(fd, IPPROTO_IP, IP_RECVERR, on);
	if (write(fd, bytes, sizeof bytes) != sizeof bytes)
		return 1;
	if (by_sendfile) {
		int count = poll(&entry, 1, 60000);
		printf("poll %d, events %x\n", count, entry.revents);
		written += check_sendfile(fd, sizeof bytes);
	} else if (recverr) {
		printf("poll %d\n", poll(&entry, 1, 60000));
		ssize_t got = recv(fd, bytes, sizeof bytes, 0);
		printf("events %x, read %zd %s\n", entry.revents, got, strerrorname_np(errno));
	} else {
		const char *error;
		while (!strcmp(error = error_of(fd), "none"))
			usleep(5000);
		printf("error %s, poll %d\n", error, poll(&entry, 1, 0));
		got_nothing(fd);
	}
	snprintf(back, sizeof back, "%s-back", go);
	wait_for(back);
	for (size_t done = 0; done < written;) {
		ssize_t got = recv(fd, bytes, sizeof bytes, 0);
		if (got == 0 || (got < 0 && (!recverr || errno != EHOSTUNREACH)))
			return 1;
		done += got > 0 ? got : 0;
	}
	printf("echoed\n");
	return 0;
}

int main(int argc, char **argv)
{
	struct sockaddr_in name = {.sin_family = AF_INET};
	char bytes[1000] = "x";
	if (argc < 5)
		return 2;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	inet_pton(AF_INET, argv[1], &name.sin_addr);
	name.sin_port = htons(atoi(argv[2]));
	if (connect(fd, (void *)&name, sizeof name)) {
		perror("connect");
		return 1;
	}
	if (!strcmp(argv[4], "keepalive")) {
		number(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
		number(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
		number(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
		number(fd, IPPROTO_TCP, TCP_KEEPCNT, 2);
	}
	if (!strcmp(argv[4], "user_timeout"))
		number(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 1500);
	print_congestion(fd);
	if (argc > 5) {
		int result = setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, argv[5], strlen(argv[5]));
		printf("set %d\n", result);
		print_congestion(fd);
	}
	int reads_cc_info = !strcmp(argv[4], "congestion");
	/* Exchange data, so that the congestion control has something to report. */
	if (reads_cc_info && (write(fd, bytes, sizeof bytes) != sizeof bytes ||
			      recv(fd, bytes, sizeof bytes, MSG_WAITALL) != sizeof bytes))
		return 1;
	wait_for(argv[3]);
	if (reads_cc_info) {
		socklen_t len = sizeof bytes;
		int result = getsockopt(fd, IPPROTO_TCP, TCP_CC_INFO, bytes, &len);
		printf("details %d, %u bytes\n", result, len);
		return 0;
	}
	long begin = now_ms();
	if (!strcmp(argv[4], "syn_count")) {
		int second = socket(AF_INET, SOCK_STREAM, 0);
		number(second, IPPROTO_TCP, TCP_SYNCNT, 1);
		int result = connect(second, (void *)&name, sizeof name);
		printf("read %d %s\nwaited %ld\n", result, strerrorname_np(errno), now_ms() - begin);
		return 0;
	}
	if (!strncmp(argv[4], "soft_error", 10)) {
		int by_sendfile = !strcmp(argv[4], "soft_error_sendfile");
		int recverr = by_sendfile || !strcmp(argv[4], "soft_error_recverr");
		return check_soft_error(fd, argv[3], recverr, by_sendfile);
	}
	int writes = !strcmp(argv[4], "user_timeout") || !strcmp(argv[4], "silent");
	if (writes && write(fd, bytes, sizeof bytes) < 0)
		return 1;
	ssize_t got = read(fd, bytes, sizeof bytes);
	printf("read %zd %s\nwaited %ld\n", got, got < 0 ? strerrorname_np(errno) : "",
	       now_ms() - begin);
	return 0;
}
