/*
 * Two programs that exchange TCP segments. `headers own` sends the segments under test.
 * `headers peer` prints the DiffServ field and the TTL (or hop limit) of the segments that arrive.
 *
 *   headers peer ADDRESS OWN_ADDRESS PORT    captures and prints the fields; must start first
 *   headers own  ADDRESS OWN_ADDRESS PORT    sets the fields of its sockets
 *
 * OWN_ADDRESS is the address of the program itself, and ADDRESS the address of the other program.
 * `headers own` connects with chosen values, and changes the values on the established connection.
 * The program then accepts a connection on a listener with chosen values, and opens a connection
 * with the default values. `headers peer` prints a line with the fields of each SYN, SYN,ACK and
 * data segment. Equal lines are printed only once.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "must.h"

/* Address family of all sockets: AF_INET or AF_INET6. */
static int family;

/* Fills `name` with a socket address, and returns its length. */
static socklen_t name_of(struct sockaddr_storage *name, const char *address, int port)
{
	struct sockaddr_in *v4 = (void *)name;
	struct sockaddr_in6 *v6 = (void *)name;
	memset(name, 0, sizeof *name);
	name->ss_family = family;
	if (family == AF_INET) {
		v4->sin_port = htons(port);
		must(inet_pton(AF_INET, address, &v4->sin_addr) == 1);
		return sizeof *v4;
	}
	v6->sin6_port = htons(port);
	must(inet_pton(AF_INET6, address, &v6->sin6_addr) == 1);
	return sizeof *v6;
}

/* Returns a bound socket that does not listen yet. */
static int listener(const char *address, int port)
{
	struct sockaddr_storage name;
	socklen_t len = name_of(&name, address, port);
	int on = 1, fd = socket(family, SOCK_STREAM, 0);
	must(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
	must(bind(fd, (void *)&name, len) == 0);
	return fd;
}

/* Connects `fd` and returns it. */
static int connected(int fd, const char *address, int port)
{
	struct sockaddr_storage name;
	socklen_t len = name_of(&name, address, port);
	must(connect(fd, (void *)&name, len) == 0);
	return fd;
}

/* Sets the DiffServ field (with the ECN bits) and the TTL or hop limit of a socket. */
static void choose(int fd, int class, int hops)
{
	int v4 = family == AF_INET, level = v4 ? IPPROTO_IP : IPPROTO_IPV6;
	must(setsockopt(fd, level, v4 ? IP_TOS : IPV6_TCLASS, &class, sizeof class) == 0);
	must(setsockopt(fd, level, v4 ? IP_TTL : IPV6_UNICAST_HOPS, &hops, sizeof hops) == 0);
}

/* Sends a byte. */
static void send_byte(int fd, char byte)
{
	must(write(fd, &byte, 1) == 1);
}

/* Receives a byte and returns it. */
static char recv_byte(int fd)
{
	char byte = 0;
	must(read(fd, &byte, 1) == 1);
	return byte;
}

/* Runs `headers own`. `own` is the address of this program, and `peer` that of `headers peer`. */
static void be_own(const char *peer, const char *own, int port)
{
	int fd = socket(family, SOCK_STREAM, 0);
	choose(fd, 0xb8, 9);
	connected(fd, peer, port);
	send_byte(fd, 'a');
	recv_byte(fd);
	choose(fd, 0x2b, 33);
	send_byte(fd, 'b');
	recv_byte(fd);
	int listens = listener(own, port + 1);
	choose(listens, 0x48, 77);
	must(listen(listens, 5) == 0);
	send_byte(fd, 'c');
	int accepted = accept(listens, NULL, NULL);
	must(accepted >= 0);
	send_byte(accepted, 'd');
	recv_byte(accepted);
	int plain = connected(socket(family, SOCK_STREAM, 0), peer, port);
	send_byte(plain, 'e');
	recv_byte(plain);
}

/* Prints the kind, the first payload byte and the header fields of a segment, without the ECN bits.
 * Ignores a segment that has neither SYN nor payload. Omits a line that was printed before. `ip`
 * points to the IP header. */
static void print_packet(const unsigned char *ip, ssize_t len)
{
	static char printed[64][64];
	int v4 = ip[0] >> 4 == 4, header = v4 ? (ip[0] & 15) * 4 : 40;
	int class = v4 ? ip[1] : (ip[0] & 15) << 4 | ip[1] >> 4, hops = v4 ? ip[8] : ip[7];
	int total = v4 ? ip[2] << 8 | ip[3] : (ip[4] << 8 | ip[5]) + 40;
	if (len < header + 20)
		return;
	const unsigned char *tcp = ip + header;
	int payload = total - header - (tcp[12] >> 4) * 4;
	const char *kind = (tcp[13] & 18) == 18 ? "SYN,ACK" : tcp[13] & 2 ? "SYN" : "data";
	if (!(tcp[13] & 2) && payload == 0)
		return;
	char line[64];
	snprintf(line, sizeof line, "%s %c: class %x, hops %d", kind,
		 payload ? tcp[(tcp[12] >> 4) * 4] : '-', class & 0xfc, hops);
	for (int i = 0; i < 64; i++) {
		if (!strcmp(printed[i], line))
			return;
		if (!printed[i][0]) {
			puts(strcpy(printed[i], line));
			return;
		}
	}
}

/* Prints the TCP packets that the packet socket `packets` has received from `own`, the address of
 * `headers own`. */
static void print_headers(int packets, const char *own)
{
	unsigned char ip[2048], source[16];
	struct sockaddr_ll from;
	socklen_t len = sizeof from;
	must(inet_pton(family, own, source) == 1);
	ssize_t got;
	while ((got = recvfrom(packets, ip, sizeof ip, MSG_DONTWAIT, (void *)&from, &len)) > 0) {
		int v4 = ip[0] >> 4 == 4;
		if (from.sll_pkttype == PACKET_OUTGOING || v4 != (family == AF_INET))
			continue;
		if (ip[v4 ? 9 : 6] != IPPROTO_TCP || memcmp(ip + (v4 ? 12 : 8), source, v4 ? 4 : 16))
			continue;
		print_packet(ip, got);
	}
}

/* Fails if the packet socket had no room for a packet. */
static void must_not_drop(int packets)
{
	struct tpacket_stats stats;
	socklen_t len = sizeof stats;
	must(getsockopt(packets, SOL_PACKET, PACKET_STATISTICS, &stats, &len) == 0);
	must(stats.tp_drops == 0);
}

/* Runs `headers peer`. `peer` is the address of this program, and `own` that of `headers own`. */
static void be_peer(const char *own, const char *peer, int port)
{
	int kind = family == AF_INET ? ETH_P_IP : ETH_P_IPV6;
	int packets = socket(AF_PACKET, SOCK_DGRAM, htons(kind));
	must(packets >= 0);
	int listens = listener(peer, port);
	must(listen(listens, 5) == 0);
	printf("ready\n");
	fflush(stdout);
	int fd = accept(listens, NULL, NULL);
	must(fd >= 0);
	for (int i = 0; i < 2; i++) {
		send_byte(fd, recv_byte(fd));
		print_headers(packets, own);
	}
	must(recv_byte(fd) == 'c');
	int second = connected(socket(family, SOCK_STREAM, 0), own, port + 1);
	must(recv_byte(second) == 'd');
	print_headers(packets, own);
	send_byte(second, 'd');
	int third = accept(listens, NULL, NULL);
	must(third >= 0 && recv_byte(third) == 'e');
	print_headers(packets, own);
	must_not_drop(packets);
	send_byte(third, 'f');
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	family = strchr(argv[2], ':') ? AF_INET6 : AF_INET;
	if (!strcmp(argv[1], "own"))
		be_own(argv[2], argv[3], atoi(argv[4]));
	else
		be_peer(argv[2], argv[3], atoi(argv[4]));
	return 0;
}
