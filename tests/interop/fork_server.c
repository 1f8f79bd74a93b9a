/*
 * An echo server that forks a child for each connection.
 *
 *   fork_server PORT [BACKLOG]
 *
 * BACKLOG is the backlog of the listener. The default is 512.
 */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static void echo(int fd)
{
	char bytes[65536];
	ssize_t got;
	while ((got = read(fd, bytes, sizeof bytes)) > 0)
		for (ssize_t put, done = 0; done < got; done += put)
			if ((put = write(fd, bytes + done, got - done)) < 0)
				return;
}

int main(int argc, char **argv)
{
	struct sockaddr_in name = {.sin_family = AF_INET};
	int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
	int backlog = argc > 2 ? atoi(argv[2]) : 512;
	if (argc < 2)
		return 2;
	signal(SIGCHLD, SIG_IGN);
	name.sin_port = htons(atoi(argv[1]));
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(listener, (void *)&name, sizeof name) || listen(listener, backlog)) {
		perror("fork_server");
		return 1;
	}
	for (;;) {
		int fd = accept(listener, NULL, NULL);
		if (fd < 0)
			continue;
		pid_t child = fork();
		if (child == 0) {
			close(listener);
			echo(fd);
			exit(0);
		}
		if (child < 0)
			perror("fork_server: fork");
		close(fd);
	}
}
