/*
 * A bridge that forwards frames, and fragments IP packets that carry TCP segments.
 *
 *   fragmenter LEFT RIGHT LENGTH
 *
 * The program forwards frames between the interfaces LEFT and RIGHT. If an IPv4 or IPv6 packet with
 * TCP arrives from RIGHT and has more than LENGTH bytes, the packet leaves by LEFT in fragments.
 * The order of the fragments changes after every eight fragmented packets: in order, then in
 * reverse order, then in order with each fragment sent twice. One fragment of every hundredth
 * fragmented packet is dropped. The sender must not use segmentation offload. The program prints
 * "ready" at the start. After SIGTERM, it prints the numbers of fragmented IPv4 and IPv6 packets.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "must.h"

/* Lengths in bytes of the Ethernet header, the IPv4 header, the IPv6 header and the IPv6 fragment
 * header; the maximum length of a frame in bytes; the maximum number of fragments of a packet. */
enum { LINK = 14, V4 = 20, V6 = 40, FRAGMENT = 8, FRAME_MAX = 70000, PIECES_MAX = 64 };
/* Orders in which the fragments of a packet leave. */
enum { IN_ORDER, BACKWARDS, TWICE, ORDERS };

static volatile sig_atomic_t ended;

static void end(int signal)
{
	(void)signal;
	ended = 1;
}

/* Opens a packet socket that receives the incoming frames of an interface and sends frames on it.
 * Each frame begins with its offload metadata (struct virtio_net_hdr). */
static int open_port(const char *interface)
{
	int on = 1, room = 4 << 20, fd = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
	struct sockaddr_ll name = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL) };
	name.sll_ifindex = if_nametoindex(interface);
	must(fd >= 0 && name.sll_ifindex > 0);
	must(setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) == 0);
	must(setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on) == 0);
	must(setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room) == 0);
	must(bind(fd, (void *)&name, sizeof name) == 0);
	return fd;
}

/* Sends a frame. Ignores an error that only means that the kernel did not send this frame. */
static void put(int fd, const void *frame, size_t len)
{
	must(write(fd, frame, len) >= 0 || errno == ENOBUFS || errno == EAGAIN || errno == EINVAL);
}

/* Returns the Internet checksum of `bytes` in network byte order. `len` is even. */
static uint16_t checksum(const uint8_t *bytes, size_t len)
{
	uint32_t sum = 0;
	for (size_t at = 0; at + 1 < len; at += 2)
		sum += bytes[at] << 8 | bytes[at + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return htons(~sum);
}

/* Writes `value` in network byte order. */
static void put16(uint8_t *at, uint16_t value)
{
	at[0] = value >> 8;
	at[1] = value;
}

/* Writes the link and IP headers of a fragment to `out`, and returns their length in bytes.
 * `packet` is the frame of the whole packet, `id` the fragment identification, `offset` and `len`
 * the position and the length of the fragment's payload in bytes. `more` is 1 if more fragments
 * follow, and 0 otherwise. */
static size_t headers(uint8_t *out, const uint8_t *packet, int is_v6, uint32_t id, size_t offset,
		      size_t len, int more)
{
	uint16_t sum;
	if (is_v6) {
		memcpy(out, packet, LINK + V6);
		put16(out + LINK + 4, FRAGMENT + len);
		out[LINK + 6] = IPPROTO_FRAGMENT;
		out[LINK + V6] = IPPROTO_TCP;
		out[LINK + V6 + 1] = 0;
		put16(out + LINK + V6 + 2, offset | more);
		put16(out + LINK + V6 + 4, id >> 16);
		put16(out + LINK + V6 + 6, id);
		return LINK + V6 + FRAGMENT;
	}
	memcpy(out, packet, LINK + V4);
	put16(out + LINK + 2, V4 + len);
	put16(out + LINK + 4, id);
	put16(out + LINK + 6, (more ? 0x2000 : 0) | offset / 8);
	memset(out + LINK + 10, 0, 2);
	sum = checksum(out + LINK, V4);
	memcpy(out + LINK + 10, &sum, sizeof sum);
	return LINK + V4;
}

/* Sends the packet of a frame in fragments. A fragment has at most `length` bytes, not counting the
 * link header. */
static void cut(int to, const uint8_t *frame, size_t len, size_t length, int is_v6)
{
	static uint8_t out[sizeof(struct virtio_net_hdr) + FRAME_MAX];
	static uint32_t id = 100;
	size_t before = LINK + (is_v6 ? V6 : V4), payload = len - before;
	size_t room = (length - (before - LINK) - (is_v6 ? FRAGMENT : 0)) / 8 * 8;
	size_t pieces = (payload + room - 1) / room;
	int order = id / 8 % ORDERS, copies = order == TWICE ? 2 : 1;
	must(pieces <= PIECES_MAX);
	id++;
	for (size_t n = 0; n < pieces; n++) {
		size_t at = (order == BACKWARDS ? pieces - 1 - n : n) * room;
		size_t part = payload - at < room ? payload - at : room;
		uint8_t *to_fill = out + sizeof(struct virtio_net_hdr);
		size_t start = headers(to_fill, frame, is_v6, id, at, part, at + part < payload);
		memcpy(to_fill + start, frame + before + at, part);
		if (id % 100 == 0 && n == id / 100 % pieces)
			continue;
		for (int copy = 0; copy < copies; copy++)
			put(to, out, sizeof(struct virtio_net_hdr) + start + part);
	}
}

/* Returns the IP version, 4 or 6, of a TCP packet that has neither IP options nor extension
 * headers. Returns 0 for any other frame. */
static int tcp_version(const uint8_t *frame, size_t len)
{
	if (len > LINK + V4 && frame[12] == 8 && frame[13] == 0 && frame[LINK] == 0x45 &&
	    frame[LINK + 9] == IPPROTO_TCP)
		return 4;
	if (len > LINK + V6 && frame[12] == 0x86 && frame[13] == 0xdd &&
	    frame[LINK + 6] == IPPROTO_TCP)
		return 6;
	return 0;
}

int main(int count, char **arguments)
{
	static uint8_t bytes[sizeof(struct virtio_net_hdr) + FRAME_MAX];
	uint8_t *frame = bytes + sizeof(struct virtio_net_hdr);
	unsigned long packets[7] = { 0 };
	struct sigaction action = { .sa_handler = end };
	struct pollfd ports[2];
	size_t length;
	must(count == 4);
	must(sigaction(SIGTERM, &action, NULL) == 0);
	for (int n = 0; n < 2; n++)
		ports[n] = (struct pollfd){ .fd = open_port(arguments[1 + n]), .events = POLLIN };
	length = atoi(arguments[3]);
	printf("ready\n");
	fflush(stdout);
	while (!ended) {
		if (poll(ports, 2, -1) < 0)
			continue;
		for (int from = 0; from < 2; from++) {
			ssize_t got = recv(ports[from].fd, bytes, sizeof bytes, MSG_DONTWAIT);
			size_t len = got - sizeof(struct virtio_net_hdr);
			int version;
			if (got < (ssize_t)(sizeof(struct virtio_net_hdr) + LINK))
				continue;
			version = from == 1 ? tcp_version(frame, len) : 0;
			if (!version || len <= LINK + length) {
				put(ports[1 - from].fd, bytes, got);
				continue;
			}
			cut(ports[0].fd, frame, len, length, version == 6);
			packets[version]++;
		}
	}
	printf("cut v4=%lu v6=%lu\n", packets[4], packets[6]);
	return 0;
}
