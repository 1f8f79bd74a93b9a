/*
 * A client that tries to hand its connection to other programs.
 *
 *   passes_on ADDRESS PORT
 *
 * The peer is an echo server. The program sends two descriptors in messages (SCM_RIGHTS): a unix
 * socket, and then the connection. Then a child process executes `true` with the connection as
 * its standard input. After each attempt to pass on the connection, the program checks that it can
 * still use the connection.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Prints `what`, and then "done", or the name of errno if `result` is negative. */
static void say(const char *what, long result)
{
	printf("%s %s\n", what, result < 0 ? strerrorname_np(errno) : "done");
	fflush(stdout);
}

/* Sends the descriptor `fd` over the unix socket `over`. */
static long send_descriptor(int over, int fd)
{
	char space[CMSG_SPACE(sizeof fd)] = "";
	struct iovec part = {"x", 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space,
				 .msg_controllen = sizeof space};
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
	*rights = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
	memcpy(CMSG_DATA(rights), &fd, sizeof fd);
	return sendmsg(over, &message, 0);
}

int main(int argc, char **argv)
{
	struct sockaddr_in name = {.sin_family = AF_INET};
	int pair[2], fd = socket(AF_INET, SOCK_STREAM, 0), status;
	char bytes[4];
	if (argc != 3 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		return 2;
	name.sin_port = htons(atoi(argv[2]));
	inet_pton(AF_INET, argv[1], &name.sin_addr);
	if (connect(fd, (void *)&name, sizeof name)) {
		perror("passes_on: connect");
		return 1;
	}
	say("a socket pair's end", send_descriptor(pair[0], pair[1]));
	say("the connection", send_descriptor(pair[0], fd));
	if (write(fd, "abcd", 4) != 4 || recv(fd, bytes, 4, MSG_WAITALL) != 4)
		return 1;
	printf("echo %.4s\n", bytes);
	fflush(stdout);
	if (fork() == 0) {
		char *nothing[] = {"true", NULL};
		dup2(fd, 0);
		execvp("true", nothing);
		say("exec", -1);
		_exit(9);
	}
	wait(&status);
	printf("child %d\n", WEXITSTATUS(status));
	fflush(stdout);
	if (write(fd, "efgh", 4) != 4 || recv(fd, bytes, 4, MSG_WAITALL) != 4)
		return 1;
	printf("echo %.4s\n", bytes);
	return 0;
}
