/* An echo server with two threads. The main thread waits for clients in poll and serves one
 * connection at a time. The other thread sleeps in an epoll instance that has a second listener, on
 * the next port. After the death of Tidelane's service, either thread may be the first to offer the
 * listeners of the process to the next service. In both cases, a connection to the first listener
 * must wake the thread in poll.
 *
 *   polls_beside PORT
 */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* Returns a listener on `port` at all IPv4 addresses. */
static int listener(int port)
{
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(port)};
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(fd, (void *)&name, sizeof name) || listen(fd, 16))
		exit(1);
	return fd;
}

/* Sleeps in an epoll instance with a listener on the port after `port`. Accepts no connection. */
static void *sleeps(void *port)
{
	int epoll = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN};
	epoll_ctl(epoll, EPOLL_CTL_ADD, listener(*(int *)port + 1), &event);
	for (;;)
		epoll_wait(epoll, &event, 1, -1);
	return NULL;
}

int main(int argc, char **argv)
{
	int port = argc == 2 ? atoi(argv[1]) : 0, fd = listener(port);
	pthread_t thread;
	if (pthread_create(&thread, NULL, sleeps, &port))
		return 1;
	for (;;) {
		struct pollfd wait = {.fd = fd, .events = POLLIN};
		char bytes[4096];
		long count;
		if (poll(&wait, 1, -1) < 1)
			continue;
		int connection = accept(fd, NULL, NULL);
		while ((count = read(connection, bytes, sizeof bytes)) > 0)
			if (write(connection, bytes, count) != count)
				break;
		close(connection);
	}
}
