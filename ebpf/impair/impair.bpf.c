// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * An impaired link for tests: an XDP program that joins two interfaces, loses some packets and
 * delays others.
 *
 * The program is attached to both interfaces, A and B, and redirects frames from each interface to
 * the other. A random share of IPv4 packets is dropped. Another share is redirected to an AF_XDP
 * socket. The owner of the socket sends these packets later, so that other packets overtake them.
 *
 * A sender on a veth leaves partial checksums (CHECKSUM_PARTIAL). A redirect loses this state of a
 * packet. The program completes the checksums of unfragmented IPv4 packets, because the receiver
 * would otherwise drop the packets.
 *
 * A frame that is redirected into a veth is lost unless the other end of the veth uses NAPI. The
 * other end uses NAPI if it has an XDP program, or after `ethtool -K <end> gro on`.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define MILLION 1000000
#define FRAGMENT_BITS 0x3fff /* MF and fragment offset, without DF */
#define TCP_CHECKSUM_AT 16   /* offset in the header in bytes */
#define UDP_CHECKSUM_AT 6    /* offset in the header in bytes */
#define PAYLOAD_LEN_MAX 1500 /* bytes of IP payload */

/* The loader sets these values: the index of interface A, and probabilities in ppm (of packets). */
const volatile __u32 IFINDEX_A = 0;
const volatile __u32 LOSS_PPM = 0;
const volatile __u32 DELAY_PPM = 0;

/* Number of frames of one direction, by result. `delayed`: redirected to an AF_XDP socket. */
struct counters {
	__u64 forwarded;
	__u64 lost;
	__u64 delayed;
};

/* Counters for frames from A (0) and from B (1). */
struct direction_counters {
	struct counters from[2];
};

/* Interfaces to which frames from A (0) and from B (1) are redirected. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} OUTPUTS SEC(".maps");

/* AF_XDP sockets for delayed frames from A (0) and from B (1). */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} DELAY_SOCKETS SEC(".maps");

/* The counters of both directions. Each CPU has a set of counters. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct direction_counters);
} COUNTERS SEC(".maps");

/* Returns true with a probability of `ppm` parts per million. */
static __always_inline int chance(__u32 ppm)
{
	return ppm && bpf_get_prandom_u32() % MILLION < ppm;
}

/* Returns the sum of `len` bytes as words in native byte order. Returns -1 if the frame ends
 * before the last byte, or if `len` exceeds PAYLOAD_LEN_MAX. `fold` reduces the sum to 16 bits. */
static __always_inline __s64 sum(void *start, __u32 len, void *end)
{
	__u64 total = 0;
	__u32 i;
	void *tail;

	for (i = 0; i < PAYLOAD_LEN_MAX / 4; i++) {
		__u32 *word = start + 4 * i;

		if (4 * i + 4 > len)
			break;
		if ((void *)(word + 1) > end)
			return -1;
		total += *word;
	}
	if (len > PAYLOAD_LEN_MAX)
		return -1;
	tail = start + (len & ~3u);
	if (len & 2) {
		if (tail + 2 > end)
			return -1;
		total += *(__u16 *)tail;
		tail += 2;
	}
	if (len & 1) {
		if (tail + 1 > end)
			return -1;
		total += *(__u8 *)tail;
	}
	return total;
}

/* Adds the 16-bit words of a sum with end-around carry. */
static __always_inline __u16 fold(__u64 total)
{
	total = (total & 0xffffffff) + (total >> 32);
	total = (total & 0xffff) + ((total >> 16) & 0xffff) + (total >> 32);
	total = (total & 0xffff) + (total >> 16);
	total = (total & 0xffff) + (total >> 16);
	return total;
}

/* Writes the complete checksum of an unfragmented TCP or UDP packet. Does not change a packet that
 * is truncated or has more than PAYLOAD_LEN_MAX bytes after the IP header. */
static __always_inline void finish_checksum(struct iphdr *ip, void *end)
{
	__u32 header_len = ip->ihl * 4;
	__u32 len = bpf_ntohs(ip->tot_len) - header_len;
	void *transport = (void *)ip + header_len;
	__u16 *field;
	__u16 original;
	__s64 payload;

	if (header_len < sizeof(*ip) || (ip->frag_off & bpf_htons(FRAGMENT_BITS)))
		return;
	if (ip->protocol == IPPROTO_TCP)
		field = transport + TCP_CHECKSUM_AT;
	else if (ip->protocol == IPPROTO_UDP)
		field = transport + UDP_CHECKSUM_AT;
	else
		return;
	if ((void *)(field + 1) > end)
		return;
	if (ip->protocol == IPPROTO_UDP && !*field)
		return;
	original = *field;
	*field = 0;
	payload = sum(transport, len, end);
	if (payload < 0) {
		*field = original;
		return;
	}
	payload += (__u64)ip->saddr + ip->daddr + bpf_htons(ip->protocol) + bpf_htons(len);
	*field = ~fold(payload);
	if (ip->protocol == IPPROTO_UDP && !*field)
		*field = 0xffff;
}

/* Drops a frame, or redirects the frame to the delay socket or to the other interface. */
SEC("xdp")
int impair(struct xdp_md *ctx)
{
	void *start = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = start;
	struct iphdr *ip = (void *)(ethernet + 1);
	struct counters *counters;
	struct direction_counters *directions;
	__u32 from_b = ctx->ingress_ifindex != IFINDEX_A;
	__u32 zero = 0;

	directions = bpf_map_lookup_elem(&COUNTERS, &zero);
	if (!directions)
		return XDP_ABORTED;
	counters = from_b ? &directions->from[1] : &directions->from[0];
	/* Only IPv4 is impaired. A lost ARP reply would delay the test by a second. */
	if ((void *)(ip + 1) <= end && ethernet->h_proto == bpf_htons(ETH_P_IP)) {
		if (chance(LOSS_PPM)) {
			counters->lost += 1;
			return XDP_DROP;
		}
		finish_checksum(ip, end);
		if (chance(DELAY_PPM)) {
			counters->delayed += 1;
			return bpf_redirect_map(&DELAY_SOCKETS, from_b, XDP_DROP);
		}
	}
	counters->forwarded += 1;
	return bpf_redirect_map(&OUTPUTS, from_b, XDP_DROP);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
