/*
 * An echo server of two processes. The parent accepts connections and sends each to its child
 * (SCM_RIGHTS), with the call that the second argument names. The child echoes.
 *
 *   sends_on PORT sendmsg|sendmmsg
 */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "must.h"

/* Receives connections over the unix socket `from`, and echoes the bytes of one connection at a
 * time. */
static void echo(int from)
{
	for (;;) {
		int fd;
		char space[CMSG_SPACE(sizeof fd)], bytes[256], byte;
		struct iovec part = {&byte, 1};
		struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space,
					 .msg_controllen = sizeof space};
		if (recvmsg(from, &message, 0) <= 0)
			_exit(0);
		must(CMSG_FIRSTHDR(&message));
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
		ssize_t got;
		while ((got = read(fd, bytes, sizeof bytes)) > 0)
			must(write(fd, bytes, got) == got);
		close(fd);
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in name = {.sin_family = AF_INET};
	int on = 1, pair[2], listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	must(argc == 3 && listener >= 0);
	signal(SIGPIPE, SIG_IGN);
	name.sin_port = htons(atoi(argv[1]));
	must(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
	must(bind(listener, (void *)&name, sizeof name) == 0);
	must(listen(listener, 16) == 0);
	must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
	if (fork() == 0) {
		close(pair[0]);
		echo(pair[1]);
	}
	close(pair[1]);
	for (;;) {
		int fd = accept(listener, NULL, NULL);
		must(fd >= 0);
		char space[CMSG_SPACE(sizeof fd)] = "";
		struct iovec part = {"x", 1};
		struct mmsghdr one = {{.msg_iov = &part, .msg_iovlen = 1, .msg_control = space,
				       .msg_controllen = sizeof space}};
		struct cmsghdr *rights = CMSG_FIRSTHDR(&one.msg_hdr);
		*rights = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
		memcpy(CMSG_DATA(rights), &fd, sizeof fd);
		if (!strcmp(argv[2], "sendmmsg"))
			must(sendmmsg(pair[0], &one, 1, 0) == 1);
		else
			must(sendmsg(pair[0], &one.msg_hdr, 0) == 1);
		close(fd);
	}
}
