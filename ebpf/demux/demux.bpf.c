// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Which stack gets a frame: the service, or the kernel.
 *
 * A TCP or UDP packet whose (destination address, protocol, destination port) is claimed goes to
 * the AF_XDP socket of the queue it arrived on. So does an ICMP error that quotes a packet which a
 * claimed 3-tuple sent. Everything else, and everything that is not plainly understood (fragments,
 * VLAN tags, broken headers, long chains of IPv6 extension headers), goes on to the kernel:
 * XDP_PASS. If a queue has no socket, its frames pass too, so that a dead service leaves nothing
 * blocked.
 *
 * The maps' layout is mirrored in nic/steering/src/demux.rs.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define CLAIMS_MAX 131072
#define QUEUES_MAX 64
#define FRAGMENT_BITS 0x3fff /* more-fragments and offset; not don't-fragment */
#define OFFSET_BITS 0x1fff
#define ICMP_HEADER_LEN 8
#define ICMP_DEST_UNREACHABLE 3
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETER_PROBLEM 12
#define ICMPV6_ERROR_LAST 4 /* unreachable, too big, time exceeded, parameter problem: 1 to 4 */
#define EXTENSIONS_MAX 4    /* IPv6 extension headers that are followed */

/* A 3-tuple. IPv4 addresses are ::ffff:a.b.c.d; address and port in network order. */
struct claim_key {
	__u8 addr[16];
	__be16 port;
	__u8 proto;
	__u8 zero;
};

/* Who has it. */
struct claim_owner {
	__u32 stack_id;
	__u32 zero[3];
};

/* Frames by outcome, one set per CPU. */
struct counters {
	__u64 redirected;      /* to the service: claimed TCP or UDP */
	__u64 redirected_icmp; /* to the service: ICMP errors that quote a claimed 3-tuple */
	__u64 no_socket;       /* claimed, but the queue has no socket: passed */
	__u64 unclaimed;       /* TCP or UDP of nobody here: passed */
	__u64 fragments;       /* passed */
	__u64 icmp;            /* ICMP that is the kernel's: passed */
	__u64 other_ip;        /* other protocols, malformed headers: passed */
	__u64 not_ip;          /* passed */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CLAIMS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct claim_key);
	__type(value, struct claim_owner);
} CLAIMS SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, QUEUES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} SOCKETS SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} COUNTERS SEC(".maps");

/* The first bytes of a TCP and of a UDP header. */
struct ports {
	__be16 source;
	__be16 dest;
};

static __always_inline int is_claimed(__be32 addr, __u8 proto, __be16 port)
{
	struct claim_key key = {
		.addr = { [10] = 0xff, [11] = 0xff },
		.port = port,
		.proto = proto,
	};

	__builtin_memcpy(&key.addr[12], &addr, sizeof(addr));
	return bpf_map_lookup_elem(&CLAIMS, &key) != 0;
}

static __always_inline int is_claimed_v6(const struct in6_addr *addr, __u8 proto, __be16 port)
{
	struct claim_key key = {
		.port = port,
		.proto = proto,
	};

	__builtin_memcpy(key.addr, addr, sizeof(key.addr));
	return bpf_map_lookup_elem(&CLAIMS, &key) != 0;
}

static __always_inline int to_service(struct xdp_md *ctx, struct counters *counters, __u64 *count)
{
	long action = bpf_redirect_map(&SOCKETS, ctx->rx_queue_index, XDP_PASS);

	if (action == XDP_REDIRECT)
		*count += 1;
	else
		counters->no_socket += 1;
	return action;
}

/* Whether the ICMP message at `icmp` is an error about a packet that a claimed 3-tuple sent. */
static __always_inline int quotes_claimed(void *icmp, void *end)
{
	__u8 *type = icmp;
	struct iphdr *quoted = icmp + ICMP_HEADER_LEN;
	struct ports *ports;
	__u32 header_len;

	if ((void *)(quoted + 1) > end)
		return 0;
	if (*type != ICMP_DEST_UNREACHABLE && *type != ICMP_TIME_EXCEEDED &&
	    *type != ICMP_PARAMETER_PROBLEM)
		return 0;
	if (quoted->version != 4 || (quoted->frag_off & bpf_htons(OFFSET_BITS)))
		return 0;
	if (quoted->protocol != IPPROTO_TCP && quoted->protocol != IPPROTO_UDP)
		return 0;
	header_len = quoted->ihl * 4;
	if (header_len < sizeof(*quoted))
		return 0;
	ports = (void *)quoted + header_len;
	if ((void *)(ports + 1) > end)
		return 0;
	return is_claimed(quoted->saddr, quoted->protocol, ports->source);
}

static __always_inline int demux_ipv4(struct xdp_md *ctx, struct iphdr *ip, void *end,
				      struct counters *counters)
{
	struct ports *ports;
	__u32 header_len;

	if ((void *)(ip + 1) > end)
		goto other;
	header_len = ip->ihl * 4;
	if (ip->version != 4 || header_len < sizeof(*ip))
		goto other;
	if (ip->frag_off & bpf_htons(FRAGMENT_BITS)) {
		counters->fragments += 1;
		return XDP_PASS;
	}
	if (ip->protocol == IPPROTO_ICMP) {
		if (quotes_claimed((void *)ip + header_len, end))
			return to_service(ctx, counters, &counters->redirected_icmp);
		counters->icmp += 1;
		return XDP_PASS;
	}
	if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP)
		goto other;
	ports = (void *)ip + header_len;
	if ((void *)(ports + 1) > end)
		goto other;
	if (is_claimed(ip->daddr, ip->protocol, ports->dest))
		return to_service(ctx, counters, &counters->redirected);
	counters->unclaimed += 1;
	return XDP_PASS;

other:
	counters->other_ip += 1;
	return XDP_PASS;
}

/*
 * The transport of an IPv6 packet behind its extension headers: its protocol, and its start in
 * `*header`. A negative number for a packet that is left to the kernel.
 */
static __always_inline int transport_v6(__u8 next, void **header, void *end)
{
	for (int i = 0; i < EXTENSIONS_MAX; i++) {
		struct ipv6_opt_hdr *extension = *header;

		if (next != IPPROTO_HOPOPTS && next != IPPROTO_DSTOPTS && next != IPPROTO_ROUTING)
			return next;
		if ((void *)(extension + 1) > end)
			return -1;
		next = extension->nexthdr;
		*header += (extension->hdrlen + 1) * 8;
	}
	return -1;
}

/* Whether the ICMPv6 message at `icmp` is an error about a packet that a claimed 3-tuple sent. */
static __always_inline int quotes_claimed_v6(void *icmp, void *end)
{
	__u8 *type = icmp;
	struct ipv6hdr *quoted = icmp + ICMP_HEADER_LEN;
	void *header = quoted + 1;
	struct ports *ports;
	int proto;

	if ((void *)(quoted + 1) > end)
		return 0;
	if (*type < 1 || *type > ICMPV6_ERROR_LAST || quoted->version != 6)
		return 0;
	proto = transport_v6(quoted->nexthdr, &header, end);
	if (proto != IPPROTO_TCP && proto != IPPROTO_UDP)
		return 0;
	ports = header;
	if ((void *)(ports + 1) > end)
		return 0;
	return is_claimed_v6(&quoted->saddr, proto, ports->source);
}

static __always_inline int demux_ipv6(struct xdp_md *ctx, struct ipv6hdr *ip, void *end,
				      struct counters *counters)
{
	void *header = ip + 1;
	struct ports *ports;
	int proto;

	if ((void *)(ip + 1) > end || ip->version != 6)
		goto other;
	proto = transport_v6(ip->nexthdr, &header, end);
	if (proto == IPPROTO_FRAGMENT) {
		counters->fragments += 1;
		return XDP_PASS;
	}
	if (proto == IPPROTO_ICMPV6) {
		if (quotes_claimed_v6(header, end))
			return to_service(ctx, counters, &counters->redirected_icmp);
		counters->icmp += 1;
		return XDP_PASS;
	}
	if (proto != IPPROTO_TCP && proto != IPPROTO_UDP)
		goto other;
	ports = header;
	if ((void *)(ports + 1) > end)
		goto other;
	if (is_claimed_v6(&ip->daddr, proto, ports->dest))
		return to_service(ctx, counters, &counters->redirected);
	counters->unclaimed += 1;
	return XDP_PASS;

other:
	counters->other_ip += 1;
	return XDP_PASS;
}

SEC("xdp")
int demux(struct xdp_md *ctx)
{
	void *start = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = start;
	struct counters *counters;
	__u32 zero = 0;

	counters = bpf_map_lookup_elem(&COUNTERS, &zero);
	if (!counters)
		return XDP_PASS;
	/* Link-level broadcast and multicast never carry a connection; the kernel ignores them. */
	if ((void *)(ethernet + 1) > end || (ethernet->h_dest[0] & 1)) {
		counters->not_ip += 1;
		return XDP_PASS;
	}
	if (ethernet->h_proto == bpf_htons(ETH_P_IP))
		return demux_ipv4(ctx, (void *)(ethernet + 1), end, counters);
	if (ethernet->h_proto == bpf_htons(ETH_P_IPV6))
		return demux_ipv6(ctx, (void *)(ethernet + 1), end, counters);
	counters->not_ip += 1;
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
