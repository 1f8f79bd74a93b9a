/*
 * An echo server that closes its listener after each client and opens a new listener, as iperf3
 * does.
 *
 *   reopens PORT
 *
 * The server waits for a client in select.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include "must.h"

/* Returns a listener on `port` at all IPv4 addresses. */
static int open_listener(int port)
{
	struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	must(fd >= 0);
	must(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
	must(bind(fd, (struct sockaddr *)&here, sizeof(here)) == 0);
	must(listen(fd, 64) == 0);
	return fd;
}

int main(int argc, char **argv)
{
	must(argc == 2);
	for (;;) {
		int listener = open_listener(atoi(argv[1])), client;
		fd_set set;
		char bytes[4096];
		ssize_t len;

		FD_ZERO(&set);
		FD_SET(listener, &set);
		must(select(listener + 1, &set, NULL, NULL, NULL) == 1);
		client = accept(listener, NULL, NULL);
		must(client >= 0);
		while ((len = recv(client, bytes, sizeof(bytes), 0)) > 0)
			if (send(client, bytes, len, MSG_NOSIGNAL) != len)
				break;
		close(client);
		close(listener);
	}
}
