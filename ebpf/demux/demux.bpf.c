// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Which stack gets a frame: the service, or the kernel.
 *
 * A TCP or UDP packet whose (destination address, protocol, destination port) is claimed goes to
 * the AF_XDP socket of the queue it arrived on. So does an ICMP error that quotes a packet which a
 * claimed 3-tuple sent. Everything else, and everything that is not plainly understood (VLAN tags,
 * broken headers, long chains of IPv6 extension headers), goes on to the kernel: XDP_PASS. If a
 * queue has no socket, its frames pass too, so that a dead service leaves nothing blocked.
 *
 * Of a datagram in fragments only the first has ports. Where it goes is remembered for the others:
 * docs/design/fragments.md.
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
#define FRAGMENTED_MAX 4096
#define FRAGMENTED_NS (60ULL * 1000000000) /* the service's time for reassembly */
#define FRAGMENT_BITS 0x3fff /* more-fragments and offset; not don't-fragment */
#define OFFSET_BITS 0x1fff
#define OFFSET_BITS_V6 0xfff8
#define MORE_BIT_V6 1
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
	__u64 fragments;       /* of nobody here, or of an unknown datagram: passed */
	__u64 icmp;            /* ICMP that is the kernel's: passed */
	__u64 other_ip;        /* other protocols, malformed headers: passed */
	__u64 not_ip;          /* passed */
	__u64 redirected_fragments; /* to the service: fragments of claimed TCP or UDP */
};

/* A datagram that comes in fragments; or all of a protocol that come from one host to another. */
struct fragmented_key {
	__u8 source[16];
	__u8 dest[16];
	__be32 id;
	__u8 proto; /* zero for a datagram of IPv6, whose fragments need not agree on it */
	__u8 is_pair;
	__u8 zero[2];
};

/* When its (their latest) first fragment came, by what the ports in it said. */
struct fragmented {
	__u64 claimed_ns;
	__u64 unclaimed_ns;
};

/* The fragment header of IPv6. */
struct fragment_header {
	__u8 next;
	__u8 reserved;
	__be16 offset;
	__be32 id;
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

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FRAGMENTED_MAX);
	__type(key, struct fragmented_key);
	__type(value, struct fragmented);
} FRAGMENTED SEC(".maps");

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

static __always_inline void to_pair(struct fragmented_key *key, __u8 proto)
{
	key->id = 0;
	key->proto = proto;
	key->is_pair = 1;
}

/* Remembers where the datagram of a first fragment goes. An identification comes again: what an
 * earlier datagram left behind is forgotten. */
static __always_inline void note_first(struct fragmented_key *key, __u8 proto, int claimed)
{
	struct fragmented first = {};
	struct fragmented *pair;
	__u64 now = bpf_ktime_get_ns();

	first.claimed_ns = now;
	if (claimed)
		bpf_map_update_elem(&FRAGMENTED, key, &first, BPF_ANY);
	else
		bpf_map_delete_elem(&FRAGMENTED, key);
	to_pair(key, proto);
	pair = bpf_map_lookup_elem(&FRAGMENTED, key);
	if (pair && claimed)
		pair->claimed_ns = now;
	else if (pair)
		pair->unclaimed_ns = now;
	else if (claimed)
		bpf_map_update_elem(&FRAGMENTED, key, &first, BPF_ANY);
}

/* Whether a fragment without ports is of a claimed datagram. One that came before its first
 * fragment is taken for one if all first fragments of late between its hosts were. */
static __always_inline int is_later_claimed(struct fragmented_key *key, __u8 proto)
{
	struct fragmented *seen = bpf_map_lookup_elem(&FRAGMENTED, key);
	__u64 now = bpf_ktime_get_ns();

	if (seen && now - seen->claimed_ns < FRAGMENTED_NS)
		return 1;
	to_pair(key, proto);
	seen = bpf_map_lookup_elem(&FRAGMENTED, key);
	return seen && now - seen->claimed_ns < FRAGMENTED_NS &&
	       (!seen->unclaimed_ns || now - seen->unclaimed_ns >= FRAGMENTED_NS);
}

static __always_inline int demux_fragment(struct xdp_md *ctx, struct counters *counters,
					  int claimed)
{
	if (claimed)
		return to_service(ctx, counters, &counters->redirected_fragments);
	counters->fragments += 1;
	return XDP_PASS;
}

/* A fragment of TCP or UDP over IPv4. */
static __always_inline int demux_fragment_v4(struct xdp_md *ctx, struct iphdr *ip, void *end,
					     struct counters *counters)
{
	struct ports *ports = (void *)ip + ip->ihl * 4;
	struct fragmented_key key = {
		.source = { [10] = 0xff, [11] = 0xff },
		.dest = { [10] = 0xff, [11] = 0xff },
		.id = ip->id,
		.proto = ip->protocol,
	};
	int claimed;

	__builtin_memcpy(&key.source[12], &ip->saddr, sizeof(ip->saddr));
	__builtin_memcpy(&key.dest[12], &ip->daddr, sizeof(ip->daddr));
	if (ip->frag_off & bpf_htons(OFFSET_BITS))
		return demux_fragment(ctx, counters, is_later_claimed(&key, ip->protocol));
	claimed = (void *)(ports + 1) <= end && is_claimed(ip->daddr, ip->protocol, ports->dest);
	note_first(&key, ip->protocol, claimed);
	return demux_fragment(ctx, counters, claimed);
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
		if (ip->protocol == IPPROTO_TCP || ip->protocol == IPPROTO_UDP)
			return demux_fragment_v4(ctx, ip, end, counters);
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
 * `*header`. A fragment header is left in `*fragment`; it is the end of what is followed unless
 * its fragment is the first. A negative number for a packet that is left to the kernel.
 */
static __always_inline int transport_v6(__u8 next, void **header, void *end,
					struct fragment_header **fragment)
{
	for (int i = 0; i < EXTENSIONS_MAX; i++) {
		struct ipv6_opt_hdr *extension = *header;

		if (next == IPPROTO_FRAGMENT) {
			struct fragment_header *found = *header;

			if ((void *)(found + 1) > end || *fragment)
				return -1;
			*fragment = found;
			if (found->offset & bpf_htons(OFFSET_BITS_V6))
				return IPPROTO_FRAGMENT;
			next = found->next;
			*header += sizeof(*found);
			continue;
		}
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
	struct fragment_header *fragment = 0;
	struct ports *ports;
	int proto;

	if ((void *)(quoted + 1) > end)
		return 0;
	if (*type < 1 || *type > ICMPV6_ERROR_LAST || quoted->version != 6)
		return 0;
	proto = transport_v6(quoted->nexthdr, &header, end, &fragment);
	if (proto != IPPROTO_TCP && proto != IPPROTO_UDP)
		return 0;
	ports = header;
	if ((void *)(ports + 1) > end)
		return 0;
	return is_claimed_v6(&quoted->saddr, proto, ports->source);
}

/*
 * A fragment of any protocol over IPv6: `proto` as `transport_v6` gave it, and where it found the
 * header of that.
 */
static __always_inline int demux_fragment_v6(struct xdp_md *ctx, struct ipv6hdr *ip,
					     struct fragment_header *fragment, int proto,
					     struct ports *ports, void *end,
					     struct counters *counters)
{
	struct fragmented_key key = { .id = fragment->id };
	int claimed = 0;

	__builtin_memcpy(key.source, &ip->saddr, sizeof(key.source));
	__builtin_memcpy(key.dest, &ip->daddr, sizeof(key.dest));
	if (proto == IPPROTO_FRAGMENT)
		return demux_fragment(ctx, counters, is_later_claimed(&key, fragment->next));
	if ((proto == IPPROTO_TCP || proto == IPPROTO_UDP) && (void *)(ports + 1) <= end)
		claimed = is_claimed_v6(&ip->daddr, proto, ports->dest);
	note_first(&key, fragment->next, claimed);
	return demux_fragment(ctx, counters, claimed);
}

static __always_inline int demux_ipv6(struct xdp_md *ctx, struct ipv6hdr *ip, void *end,
				      struct counters *counters)
{
	void *header = ip + 1;
	struct fragment_header *fragment = 0;
	struct ports *ports;
	int proto;

	if ((void *)(ip + 1) > end || ip->version != 6)
		goto other;
	proto = transport_v6(ip->nexthdr, &header, end, &fragment);
	/* One that is all of its packet is none (RFC 6946). */
	if (fragment && fragment->offset & bpf_htons(OFFSET_BITS_V6 | MORE_BIT_V6))
		return demux_fragment_v6(ctx, ip, fragment, proto, header, end, counters);
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
