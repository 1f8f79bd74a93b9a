/*
 * A client that adds a connection to an epoll instance after the connection has ended, while
 * another thread sleeps in epoll_wait on the instance.
 *
 *   armed_dead ADDRESS PORT
 *
 * The main thread connects, prints "connected", and waits until the connection ends. Then a second
 * thread sleeps in epoll_wait on an empty epoll instance, and the main thread adds the connection
 * to the instance. When epoll_wait returns, the second thread prints "woken", the number of events,
 * and the bits EPOLLIN (0x1) and EPOLLHUP (0x10) of the event in hexadecimal.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static int epfd;

static void *sleep_in_epoll(void *unused)
{
	struct epoll_event event;
	int count = epoll_wait(epfd, &event, 1, -1);
	printf("woken %d %x\n", count, event.events & (EPOLLIN | EPOLLHUP));
	return unused;
}

int main(int argc, char **argv)
{
	struct sockaddr_in name = {.sin_family = AF_INET};
	struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	pthread_t thread;
	char byte;
	if (argc != 3)
		return 2;
	inet_pton(AF_INET, argv[1], &name.sin_addr);
	name.sin_port = htons(atoi(argv[2]));
	if (connect(fd, (void *)&name, sizeof name)) {
		perror("connect");
		return 1;
	}
	puts("connected");
	fflush(stdout);
	if (recv(fd, &byte, 1, 0) > 0)
		return 1;
	epfd = epoll_create1(0);
	pthread_create(&thread, NULL, sleep_in_epoll, NULL);
	usleep(200000);
	epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event);
	pthread_join(thread, NULL);
	return 0;
}
