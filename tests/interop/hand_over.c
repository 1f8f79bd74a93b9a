/*
 * A server that executes PROGRAM for each connection, as inetd does. The connection is the standard
 * input and output of PROGRAM. The environment variable HAND_OVER selects the call; its default is
 * execvp. With fexecve and execveat, PROGRAM is a file in /bin. With execlp, PROGRAM gets at most
 * one ARGUMENT.
 *
 *   HAND_OVER=execvp|execlp|fexecve|execveat|posix_spawn hand_over PORT PROGRAM [ARGUMENT ...]
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "must.h"

/* Executes the program in this process by the call `how`. Returns only if the call fails. */
static void hand_over(const char *how, char **argv)
{
	char path[64] = "/bin/";
	strncat(path, argv[0], sizeof path - 8);
	if (!strcmp(how, "execlp"))
		execlp(argv[0], argv[0], argv[1], NULL);
	else if (!strcmp(how, "fexecve"))
		fexecve(open(path, O_RDONLY | O_CLOEXEC), argv, environ);
	else if (!strcmp(how, "execveat"))
		execveat(AT_FDCWD, path, argv, environ, 0);
	else
		execvp(argv[0], argv);
}

/* Starts the program in a child with posix_spawnp, with `fd` as standard input and output. */
static void spawn(int fd, char **argv)
{
	posix_spawn_file_actions_t actions;
	pid_t child;
	must(posix_spawn_file_actions_init(&actions) == 0);
	must(posix_spawn_file_actions_adddup2(&actions, fd, 0) == 0);
	must(posix_spawn_file_actions_adddup2(&actions, fd, 1) == 0);
	must(posix_spawnp(&child, argv[0], &actions, NULL, argv, environ) == 0);
	must(posix_spawn_file_actions_destroy(&actions) == 0);
}

int main(int argc, char **argv)
{
	struct sockaddr_in name = {.sin_family = AF_INET};
	int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	const char *how = getenv("HAND_OVER") ?: "execvp";
	must(argc > 2 && listener >= 0);
	name.sin_port = htons(atoi(argv[1]));
	must(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
	must(bind(listener, (void *)&name, sizeof name) == 0);
	must(listen(listener, 16) == 0);
	signal(SIGCHLD, SIG_IGN);
	for (;;) {
		int fd = accept(listener, NULL, NULL);
		must(fd >= 0);
		if (!strcmp(how, "posix_spawn")) {
			spawn(fd, argv + 2);
			close(fd);
			continue;
		}
		if (fork() == 0) {
			must(dup2(fd, 0) == 0 && dup2(fd, 1) == 1);
			hand_over(how, argv + 2);
			_exit(127);
		}
		close(fd);
	}
}
