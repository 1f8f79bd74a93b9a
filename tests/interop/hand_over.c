/*
 * A server that executes another program for each connection, as inetd does.
 *
 *   hand_over PORT PROGRAM [ARGUMENT ...]
 */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "must.h"

int main(int argc, char **argv)
{
	struct sockaddr_in name = {.sin_family = AF_INET};
	int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	must(argc > 2 && listener >= 0);
	name.sin_port = htons(atoi(argv[1]));
	must(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
	must(bind(listener, (void *)&name, sizeof name) == 0);
	must(listen(listener, 16) == 0);
	signal(SIGCHLD, SIG_IGN);
	for (;;) {
		int fd = accept(listener, NULL, NULL);
		must(fd >= 0);
		if (fork() == 0) {
			must(dup2(fd, 0) == 0 && dup2(fd, 1) == 1);
			execvp(argv[2], argv + 2);
			_exit(127);
		}
		close(fd);
	}
}
