// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Which stack gets a frame: the service, or the kernel.
 *
 * A TCP or UDP packet whose (destination address, protocol, destination port) is claimed goes to
 * the AF_XDP socket of the queue it arrived on. So does an ICMP error that quotes a packet which a
 * claimed 3-tuple sent. Everything else, and everything that is not plainly understood (fragments,
 * VLAN tags, broken headers, IPv6 for now), goes on to the kernel: XDP_PASS. If a queue has no
 * socket, its frames pass too, so that a dead service leaves nothing blocked.
 *
 * The maps' layout is mirrored in nic/steering/src/demux.rs.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
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
	__u64 other_ipv4;      /* other protocols, malformed headers: passed */
	__u64 not_ipv4;        /* passed */
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
	counters->other_ipv4 += 1;
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
	if ((void *)(ethernet + 1) > end || ethernet->h_proto != bpf_htons(ETH_P_IP) ||
	    (ethernet->h_dest[0] & 1)) {
		counters->not_ipv4 += 1;
		return XDP_PASS;
	}
	return demux_ipv4(ctx, (void *)(ethernet + 1), end, counters);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
