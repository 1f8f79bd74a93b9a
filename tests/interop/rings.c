/*
 * An echo server that adds its sockets to an epoll instance as libuv does. If io_uring_setup
 * succeeds, the server submits IORING_OP_EPOLL_CTL entries. Otherwise the server calls epoll_ctl.
 *
 *   rings PORT
 *
 * The server prints "ring" if it uses io_uring, or else "calls". The server exits when a client
 * closes or resets its connection.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "must.h"

/* Descriptor of the io_uring instance, or -1. */
static int ring = -1;
/* The mapped submission queue, the mapped entries of the queue, and the parameters of the instance,
 * which the kernel has filled in. */
static char *queues;
static struct io_uring_sqe *entries;
static struct io_uring_params params;

/* Makes and maps an io_uring instance. If the kernel or Tidelane's preload library does not allow
 * this, leaves `ring` at -1. */
static void make_ring(void)
{
	ring = syscall(SYS_io_uring_setup, 8, &params);
	if (ring < 0) {
		must(errno == ENOSYS || errno == EPERM);
		return;
	}
	size_t len = params.sq_off.array + params.sq_entries * sizeof(uint32_t);
	queues = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	entries = mmap(NULL, params.sq_entries * sizeof(*entries), PROT_READ | PROT_WRITE, MAP_SHARED,
		       ring, IORING_OFF_SQES);
	must(queues != MAP_FAILED && entries != MAP_FAILED);
}

/* Adds `fd` to the epoll instance `epoll`, with the event EPOLLIN. */
static void watch(int epoll, int fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

	if (ring < 0) {
		must(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
		return;
	}
	uint32_t *tail = (uint32_t *)(queues + params.sq_off.tail);
	uint32_t *array = (uint32_t *)(queues + params.sq_off.array);
	uint32_t at = *tail & (params.sq_entries - 1);
	memset(&entries[at], 0, sizeof(entries[at]));
	entries[at].opcode = IORING_OP_EPOLL_CTL;
	entries[at].fd = epoll;
	entries[at].addr = (uintptr_t)&event;
	entries[at].len = EPOLL_CTL_ADD;
	entries[at].off = fd;
	array[at] = at;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	must(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
}

int main(int argc, char **argv)
{
	must(argc == 2);
	make_ring();
	int epoll = epoll_create1(0), listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
	must(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
	must(bind(listener, (void *)&address, sizeof(address)) == 0 && listen(listener, 8) == 0);
	watch(epoll, listener);
	puts(ring < 0 ? "calls" : "ring");
	fflush(stdout);
	for (;;) {
		struct epoll_event event;
		char text[256];
		must(epoll_wait(epoll, &event, 1, -1) == 1);
		if (event.data.fd == listener) {
			int fd = accept(listener, NULL, NULL);
			must(fd >= 0);
			watch(epoll, fd);
			continue;
		}
		ssize_t len = read(event.data.fd, text, sizeof(text));
		/* A client that closes with unread data sends RST. */
		must(len >= 0 || errno == ECONNRESET);
		if (len <= 0)
			return 0;
		must(write(event.data.fd, text, len) == len);
	}
}
