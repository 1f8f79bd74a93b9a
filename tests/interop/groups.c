/* A peer on the kernel's stack that asks or answers over UDP. ADDRESS is a multicast group, a
 * broadcast address or another IPv4 address. LOCAL is an address of the interface to use.
 *
 *   groups ask ADDRESS PORT LOCAL      sends "ask" to ADDRESS and PORT, and prints each answer and
 *                                      its sender, until no answer arrives for a second
 *   groups answer ADDRESS PORT LOCAL   joins ADDRESS if ADDRESS is a multicast group, prints
 *                                      "ready", and answers each "ask" that arrives at PORT */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "must.h"

int main(int argc, char **argv)
{
	must(argc == 5);
	int asks = !strcmp(argv[1], "ask"), yes = 1;
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
	struct sockaddr_in any = {.sin_family = AF_INET}, from;
	struct ip_mreq group;
	must(inet_pton(AF_INET, argv[2], &to.sin_addr) == 1);
	must(inet_pton(AF_INET, argv[4], &group.imr_interface) == 1);
	group.imr_multiaddr = to.sin_addr;
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	must(!setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &yes, sizeof yes));
	must(!setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &group.imr_interface,
			 sizeof group.imr_interface));
	if (!asks) {
		any.sin_port = to.sin_port;
		if (IN_MULTICAST(ntohl(to.sin_addr.s_addr)))
			must(!setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof group));
	} else {
		/* The source address selects the interface of a broadcast. */
		any.sin_addr = group.imr_interface;
		struct timeval limit = {.tv_sec = 1};
		must(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	}
	must(!bind(fd, (struct sockaddr *)&any, sizeof any));
	if (asks)
		must(sendto(fd, "ask", 3, 0, (struct sockaddr *)&to, sizeof to) == 3);
	else
		printf("ready\n");
	fflush(stdout);
	for (;;) {
		char text[16] = "";
		socklen_t len = sizeof from;
		if (recvfrom(fd, text, sizeof text - 1, 0, (struct sockaddr *)&from, &len) < 0)
			return 0;
		if (!strcmp(text, "ask"))
			must(sendto(fd, "answer", 6, 0, (struct sockaddr *)&from, len) == 6);
		else
			printf("%s from %s:%d\n", text, inet_ntoa(from.sin_addr), ntohs(from.sin_port));
		fflush(stdout);
	}
}
