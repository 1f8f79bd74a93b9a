/*
 * Clients of an echo server that may not listen yet.
 *
 *   echo_clients ADDRESS PORT CLIENTS EXCHANGES PAUSE
 *
 * Each of CLIENTS clients tries to connect until an attempt is not refused, at most 10,000 times.
 * Then the client sends a message and reads the echo, EXCHANGES times, with pauses of PAUSE
 * milliseconds. At the end the program prints "served N refused N reset N broken N silent N".
 *   served    number of clients whose echoes were all right
 *   refused   number of refused attempts to connect, of all clients
 *   reset     number of clients whose connection was reset
 *   broken    number of clients whose connection ended early, or that received a wrong echo
 *   silent    number of clients with a timeout, another error, or 10,000 refused attempts
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "must.h"

/* Length of a message in bytes. */
#define LEN 64
/* Timeout of each call in seconds. A lost SYN is retransmitted after 1, 3 and 7 seconds. */
#define PATIENCE_S 12

static struct sockaddr_in server = {.sin_family = AF_INET};
static int exchanges, pause_ms;
static atomic_int served, refused, reset, broken, silent;

/* Connects, and tries again if the connection is refused. Returns the socket. If the client fails,
 * the function counts the failure and returns -1. */
static int connect_with_retries(void)
{
	struct timeval patience = {.tv_sec = PATIENCE_S};

	for (int try = 0; try < 10000; try++) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		must(fd >= 0);
		must(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) == 0);
		must(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) == 0);
		if (connect(fd, (struct sockaddr *)&server, sizeof(server)) == 0)
			return fd;
		int error = errno;
		close(fd);
		if (error != ECONNREFUSED) {
			++*(error == ECONNRESET ? &reset : &silent);
			return -1;
		}
		refused++;
		usleep(500);
	}
	silent++;
	return -1;
}

static void *client(void *argument)
{
	char sent[LEN], got[LEN];
	int fd = connect_with_retries();

	(void)argument;
	if (fd < 0)
		return NULL;
	memset(sent, 'x', LEN);
	for (int i = 0; i < exchanges; i++) {
		sent[0] = i;
		ssize_t len = send(fd, sent, LEN, MSG_NOSIGNAL);
		if (len == LEN)
			len = recv(fd, got, LEN, MSG_WAITALL);
		if (len != LEN || memcmp(sent, got, LEN) != 0) {
			int lost = len < 0 && (errno == ECONNRESET || errno == EPIPE);
			++*(lost ? &reset : len < 0 ? &silent : &broken);
			close(fd);
			return NULL;
		}
		usleep(1000 * pause_ms);
	}
	close(fd);
	served++;
	return NULL;
}

int main(int argc, char **argv)
{
	must(argc == 6);
	must(inet_pton(AF_INET, argv[1], &server.sin_addr) == 1);
	server.sin_port = htons(atoi(argv[2]));
	int clients = atoi(argv[3]);
	exchanges = atoi(argv[4]);
	pause_ms = atoi(argv[5]);
	must(clients > 0 && clients <= 1000);
	pthread_t threads[1000];
	for (int i = 0; i < clients; i++) {
		must(pthread_create(&threads[i], NULL, client, NULL) == 0);
		usleep(300);
	}
	for (int i = 0; i < clients; i++)
		must(pthread_join(threads[i], NULL) == 0);
	printf("served %d refused %d reset %d broken %d silent %d\n", served, refused, reset, broken,
	       silent);
	return 0;
}
