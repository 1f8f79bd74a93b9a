// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * The demux: an XDP program that chooses the stack that receives a frame. The stack is either the
 * service (the process tidelaned, a TCP/IP stack in user space) or the kernel.
 *
 * The service claims a 3-tuple (destination address, protocol, destination port) by an entry in the
 * map CLAIMS. The program redirects a TCP or UDP packet with a claimed 3-tuple to the AF_XDP socket
 * of the queue on which the packet arrived. The program also redirects an ICMP error that quotes a
 * packet of a claimed 3-tuple, and the multicast and broadcast datagrams to a UDP port with a claim
 * of all groups. Other frames pass to the kernel (XDP_PASS), for example frames to other link
 * addresses, packets with an IPv4 source route, and frames that the program does not parse: a VLAN
 * ID above 0, malformed headers, long chains of IPv6 extension headers. If a queue has no AF_XDP
 * socket, its frames also pass to the kernel, so that the end of the service blocks no traffic.
 *
 * Some claims share their port with sockets of the kernel. For example, the port had connections in
 * the kernel before the claim, a program uses the port for outgoing connections, or the listener of
 * the port is closed but has connections left. For these claims, the program first searches the
 * kernel's sockets. If the kernel has a socket for a packet, the kernel keeps the packet. See
 * docs/design/claims.md.
 *
 * A core is a polling thread of the service. A core serves one queue or several, and writes a
 * heartbeat to the map HEARTBEATS for each of its queues. If the last heartbeat is older than
 * SILENCE_NS, the kernel gets the segments of its TCP connections and the SYNs to its listeners.
 * After DEATH_NS, the kernel gets all frames, except later fragments of claimed datagrams. A
 * stopped service could not pass these frames to the kernel itself. See docs/design/watchdog.md.
 *
 * Only the first fragment of a datagram has ports. The map FRAGMENTED stores for the later
 * fragments whether the datagram is claimed. See docs/design/fragments.md.
 *
 * nic/steering/src/demux.rs mirrors the layout of the maps.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define CLAIMS_MAX 131072
#define QUEUES_MAX 64
#define FRAGMENTED_MAX 4096
#define FRAGMENTED_NS (60ULL * 1000000000) /* validity of a FRAGMENTED entry: reassembly timeout */
#define FRAGMENT_BITS 0x3fff /* IPv4: MF and fragment offset, without DF */
#define OFFSET_BITS 0x1fff   /* IPv4: fragment offset in units of 8 bytes */
#define OFFSET_BITS_V6 0xfff8 /* IPv6: fragment offset in bytes */
#define MORE_BIT_V6 1	      /* IPv6: more fragments follow */
#define ICMP_HEADER_LEN 8     /* bytes */
#define ICMP_DEST_UNREACHABLE 3
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETER_PROBLEM 12
#define ICMPV6_ERROR_LAST 4 /* types 1 to 4 are errors */
#define SILENCE_NS (800ULL * 1000000) /* older heartbeat: the kernel gets its sockets' packets */
#define DEATH_NS (30ULL * 1000000000) /* older heartbeat: the kernel gets all packets */
#define IP_HEADER_MAX 60   /* bytes */
#define IP_OPTIONS_MAX 40  /* largest number of options in an IPv4 header (one byte each) */
#define IP_OPTION_END 0
#define IP_OPTION_NOP 1
#define IP_OPTION_LSRR 131
#define IP_OPTION_SSRR 137
#define EXTENSIONS_MAX 4    /* headers read after the IPv6 header; at most 3 are skipped */

/* A 3-tuple. An IPv4 address is ::ffff:a.b.c.d. Address and port are in network order. */
struct claim_key {
	__u8 addr[16];
	__be16 port;
	__u8 proto;
	__u8 zero;
};

/* Addresses of claims of all multicast and broadcast datagrams to a UDP port: 255.255.255.255, and
 * ff00:: for IPv6. */
#define GROUP_V4 0xffffffff
#define GROUP_V6 { .in6_u.u6_addr8 = { 0xff } }

/* Flags of a claim that shares its port with sockets of the kernel. */
#define CLAIM_KERNEL_CONNECTIONS 1 /* the kernel keeps the packets of its connections */
#define CLAIM_KERNEL_LISTENS 2	   /* the kernel keeps the SYNs for its listener */
#define CLAIM_ALL_FLAGS (CLAIM_KERNEL_CONNECTIONS | CLAIM_KERNEL_LISTENS)

/* The flags of a claim. The service writes 0 to `stack_id`, and the program does not read it. */
struct claim {
	__u32 stack_id;
	__u32 flags;
	__u32 zero[2];
};

/* Number of frames by result, with the receiver of the frames. Each CPU has its own counters. */
struct counters {
	__u64 redirected;      /* claimed TCP or UDP: to the service */
	__u64 redirected_icmp; /* ICMP errors that quote a claimed 3-tuple: to the service */
	__u64 no_socket;       /* claimed, but the queue has no socket: to the kernel */
	__u64 unclaimed;       /* TCP or UDP without a claim: to the kernel */
	__u64 fragments;       /* fragments that the service does not get: to the kernel */
	__u64 icmp;            /* other ICMP: to the kernel */
	__u64 other_ip;        /* other protocols, source routes, bad headers: to the kernel */
	__u64 not_ip;          /* no IP, VLANs, unclaimed multicast and broadcast: to the kernel */
	__u64 redirected_fragments; /* fragments of claimed TCP or UDP: to the service */
	__u64 kernel_socket;	    /* claimed, but the kernel has a socket: to the kernel */
	__u64 no_heartbeat;	    /* claimed, but the heartbeat is too old: to the kernel */
	__u64 other_host;	    /* to another link address than `own`: to the kernel */
	__u64 returned;		    /* returned by the service: to the kernel */
};

/*
 * Time of the last heartbeat of a queue's core in nanoseconds (CLOCK_MONOTONIC), or a special
 * value. Each queue has its own cache line. NOT_WATCHED is the initial value. ASLEEP means that the
 * core waits for a frame. When the program redirects a frame to the service, it replaces ASLEEP by
 * the present time. GIVEN_UP means that the service takes no more frames.
 */
#define NOT_WATCHED 0
#define ASLEEP 1
#define GIVEN_UP 2
struct heartbeat {
	__u64 last_ns;
	__u64 zero[7];
};

/* An Ethernet address. */
struct link_address {
	__be16 words[3];
	__u16 zero;
};

/*
 * `own` is the link address of the interface. While `own` is zero, unicast frames pass to the
 * kernel. `returned` is the source address of frames that the service has returned to the kernel.
 * In generic mode, the program sees these frames a second time.
 */
struct link_addresses {
	struct link_address own;
	struct link_address returned;
};

/* Key of one fragmented datagram or, with `is_pair`, of all datagrams of a protocol from `source`
 * to `dest`. */
struct fragmented_key {
	__u8 source[16];
	__u8 dest[16];
	__be32 id;
	__u8 proto; /* zero for one IPv6 datagram, whose fragments may have different values */
	__u8 is_pair;
	__u8 zero[2];
};

/* Time in nanoseconds (CLOCK_MONOTONIC) of the most recent first fragment with claimed ports, and
 * of the most recent one with unclaimed ports. Zero: none since the entry's creation. */
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

/* The claims. The service adds and removes the entries. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CLAIMS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct claim_key);
	__type(value, struct claim);
} CLAIMS SEC(".maps");

/* The AF_XDP socket of each receive queue. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, QUEUES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} SOCKETS SEC(".maps");

/* The heartbeat of each receive queue's core. The service maps the entries as memory. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, QUEUES_MAX);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct heartbeat);
} HEARTBEATS SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} COUNTERS SEC(".maps");

/* The link addresses that the program compares with the link addresses of a frame. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct link_addresses);
} LINK_ADDRESS SEC(".maps");

/* Recent first fragments. A new entry replaces the least recently used entry if the map is full. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FRAGMENTED_MAX);
	__type(key, struct fragmented_key);
	__type(value, struct fragmented);
} FRAGMENTED SEC(".maps");

/* Start of a TCP or UDP header. The ports are in network order. */
struct ports {
	__be16 source;
	__be16 dest;
};

/*
 * Owner of a packet: the stack that gets the packet. UNCLAIMED means that the kernel gets a packet
 * without a claim. KERNEL means that the packet has a claim, but the kernel has a socket for the
 * packet. KERNEL_NO_HEARTBEAT means that the packet has a claim, but the kernel gets the packet
 * because the heartbeat of the queue's core is too old.
 */
enum owner { UNCLAIMED, SERVICE, KERNEL, KERNEL_NO_HEARTBEAT };

/* State of a queue's core. A core whose last heartbeat is older than SILENCE_NS is SILENT. After
 * DEATH_NS, the core is DEAD. */
enum core_state { ALIVE, SILENT, DEAD };

/* Returns the claim of a 3-tuple with an IPv4 address, or null. */
static __always_inline struct claim *claim_of(__be32 addr, __u8 proto, __be16 port)
{
	struct claim_key key = {
		.addr = { [10] = 0xff, [11] = 0xff },
		.port = port,
		.proto = proto,
	};

	__builtin_memcpy(&key.addr[12], &addr, sizeof(addr));
	return bpf_map_lookup_elem(&CLAIMS, &key);
}

/* Returns the claim of a 3-tuple with an IPv6 address, or null. */
static __always_inline struct claim *claim_of_v6(const struct in6_addr *addr, __u8 proto,
						 __be16 port)
{
	struct claim_key key = {
		.port = port,
		.proto = proto,
	};

	__builtin_memcpy(key.addr, addr, sizeof(key.addr));
	return bpf_map_lookup_elem(&CLAIMS, &key);
}

/*
 * Returns the owner of a claimed packet. `sk` is the kernel's socket for the packet, or null.
 *
 * A connection of the kernel keeps its packets, also in SYN-RECEIVED and TIME-WAIT. A listener of
 * the kernel keeps an ACK of a SYN cookie, and a SYN if `flags` has CLAIM_KERNEL_LISTENS. All other
 * segments for a listener may belong to a connection of the service. `tcp` is null for a packet
 * that an ICMP error quotes, and for a packet without a complete TCP header.
 */
static __always_inline enum owner owner_by_kernel_socket(struct bpf_sock *sk, __u32 flags,
							 void *ip, __u32 ip_len,
							 struct tcphdr *tcp)
{
	enum owner owner = KERNEL;

	if (!sk)
		return SERVICE;
	if (sk->state == BPF_TCP_LISTEN) {
		if (!tcp)
			owner = SERVICE;
		else if (tcp->syn)
			owner = !tcp->ack && (flags & CLAIM_KERNEL_LISTENS) ? KERNEL : SERVICE;
		else if (bpf_tcp_check_syncookie(sk, ip, ip_len, tcp, sizeof(*tcp)))
			owner = SERVICE;
	}
	bpf_sk_release(sk);
	return owner;
}

/* Returns the state of a queue's core, by the age of the core's last heartbeat. */
static __always_inline enum core_state core_state_of(__u32 queue)
{
	struct heartbeat *heartbeat = bpf_map_lookup_elem(&HEARTBEATS, &queue);
	__u64 last;
	__s64 silence;

	if (!heartbeat)
		return ALIVE;
	last = *(volatile __u64 *)&heartbeat->last_ns;
	if (last == NOT_WATCHED || last == ASLEEP)
		return ALIVE;
	if (last == GIVEN_UP)
		return DEAD;
	/* The difference is negative if the core has written a later time on another CPU. */
	silence = bpf_ktime_get_ns() - last;
	if (silence < (__s64)SILENCE_NS)
		return ALIVE;
	return silence < (__s64)DEATH_NS ? SILENT : DEAD;
}

/* Returns the owner of an IPv4 packet. If `quoted` is 0, the packet was received. Otherwise, this
 * host sent the packet, and a received ICMP error quotes it. */
static __always_inline enum owner owner_v4(struct xdp_md *ctx, struct iphdr *ip,
					   struct ports *ports, void *end, int quoted)
{
	__be32 local = quoted ? ip->saddr : ip->daddr;
	__be16 port = quoted ? ports->source : ports->dest;
	struct claim *claim = claim_of(local, ip->protocol, port);
	struct bpf_sock_tuple tuple = {};
	struct tcphdr *tcp = (void *)ports;
	enum owner owner;
	enum core_state core;
	__u32 flags;

	if (!claim)
		return UNCLAIMED;
	core = core_state_of(ctx->rx_queue_index);
	if (core == DEAD)
		return KERNEL_NO_HEARTBEAT;
	flags = core == SILENT ? CLAIM_ALL_FLAGS : claim->flags;
	if (!flags || ip->protocol != IPPROTO_TCP)
		return SERVICE;
	if (quoted || (void *)(tcp + 1) > end)
		tcp = 0;
	tuple.ipv4.saddr = quoted ? ip->daddr : ip->saddr;
	tuple.ipv4.daddr = local;
	tuple.ipv4.sport = quoted ? ports->dest : ports->source;
	tuple.ipv4.dport = port;
	owner = owner_by_kernel_socket(bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv4),
							  BPF_F_CURRENT_NETNS, 0),
				       flags, ip, sizeof(*ip), tcp);
	return owner == KERNEL && core == SILENT ? KERNEL_NO_HEARTBEAT : owner;
}

/* Returns the owner of an IPv6 packet. `quoted` has the meaning that it has in owner_v4. */
static __always_inline enum owner owner_v6(struct xdp_md *ctx, struct ipv6hdr *ip, int proto,
					   struct ports *ports, void *end, int quoted)
{
	struct in6_addr *local = quoted ? &ip->saddr : &ip->daddr;
	struct in6_addr *peer = quoted ? &ip->daddr : &ip->saddr;
	__be16 port = quoted ? ports->source : ports->dest;
	struct claim *claim = claim_of_v6(local, proto, port);
	struct bpf_sock_tuple tuple = {};
	struct tcphdr *tcp = (void *)ports;
	enum owner owner;
	enum core_state core;
	__u32 flags;

	if (!claim)
		return UNCLAIMED;
	core = core_state_of(ctx->rx_queue_index);
	if (core == DEAD)
		return KERNEL_NO_HEARTBEAT;
	flags = core == SILENT ? CLAIM_ALL_FLAGS : claim->flags;
	if (!flags || proto != IPPROTO_TCP)
		return SERVICE;
	if (quoted || (void *)(tcp + 1) > end)
		tcp = 0;
	__builtin_memcpy(tuple.ipv6.saddr, peer, sizeof(tuple.ipv6.saddr));
	__builtin_memcpy(tuple.ipv6.daddr, local, sizeof(tuple.ipv6.daddr));
	tuple.ipv6.sport = quoted ? ports->dest : ports->source;
	tuple.ipv6.dport = port;
	owner = owner_by_kernel_socket(bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv6),
							  BPF_F_CURRENT_NETNS, 0),
				       flags, ip, sizeof(*ip), tcp);
	return owner == KERNEL && core == SILENT ? KERNEL_NO_HEARTBEAT : owner;
}

/* Replaces the value ASLEEP of a core, which is about to get a frame, by the present time. */
static __always_inline void start_silence_timer(__u32 queue)
{
	struct heartbeat *heartbeat = bpf_map_lookup_elem(&HEARTBEATS, &queue);

	if (heartbeat && *(volatile __u64 *)&heartbeat->last_ns == ASLEEP)
		*(volatile __u64 *)&heartbeat->last_ns = bpf_ktime_get_ns();
}

/* Redirects the frame to the AF_XDP socket of its queue, and increments `*count`. Passes the frame
 * to the kernel if the queue has no socket. */
static __always_inline int redirect_to_service(struct xdp_md *ctx, struct counters *counters,
					       __u64 *count)
{
	long action;

	start_silence_timer(ctx->rx_queue_index);
	action = bpf_redirect_map(&SOCKETS, ctx->rx_queue_index, XDP_PASS);
	if (action == XDP_REDIRECT)
		*count += 1;
	else
		counters->no_socket += 1;
	return action;
}

/* Redirects an unfragmented TCP or UDP packet of the service. Passes other packets. */
static __always_inline int deliver(struct xdp_md *ctx, struct counters *counters, enum owner owner)
{
	if (owner == SERVICE)
		return redirect_to_service(ctx, counters, &counters->redirected);
	if (owner == KERNEL)
		counters->kernel_socket += 1;
	else if (owner == KERNEL_NO_HEARTBEAT)
		counters->no_heartbeat += 1;
	else
		counters->unclaimed += 1;
	return XDP_PASS;
}

/* Turns the key of a datagram into the key of all datagrams of `proto` with the same addresses. */
static __always_inline void make_pair_key(struct fragmented_key *key, __u8 proto)
{
	key->id = 0;
	key->proto = proto;
	key->is_pair = 1;
}

/* Records a first fragment. The entry of a claimed datagram replaces the entry of an earlier
 * datagram with the same key. An unclaimed datagram only removes the earlier entry. The time of an
 * unclaimed fragment is stored only if the pair of hosts has one: other hosts fill no entries. */
static __always_inline void record_first_fragment(struct fragmented_key *key, __u8 proto,
						  int claimed)
{
	struct fragmented first = {};
	struct fragmented *pair;
	__u64 now = bpf_ktime_get_ns();

	first.claimed_ns = now;
	if (claimed)
		bpf_map_update_elem(&FRAGMENTED, key, &first, BPF_ANY);
	else
		bpf_map_delete_elem(&FRAGMENTED, key);
	make_pair_key(key, proto);
	pair = bpf_map_lookup_elem(&FRAGMENTED, key);
	if (pair && claimed)
		pair->claimed_ns = now;
	else if (pair)
		pair->unclaimed_ns = now;
	else if (claimed)
		bpf_map_update_elem(&FRAGMENTED, key, &first, BPF_ANY);
}

/* Returns true if a fragment without ports belongs to a claimed datagram. If no claimed first
 * fragment of the datagram has arrived, the function returns true if there are recent first
 * fragments of the protocol with the same addresses, and all of them were claimed. */
static __always_inline int is_later_fragment_claimed(struct fragmented_key *key, __u8 proto)
{
	struct fragmented *seen = bpf_map_lookup_elem(&FRAGMENTED, key);
	__u64 now = bpf_ktime_get_ns();

	if (seen && now - seen->claimed_ns < FRAGMENTED_NS)
		return 1;
	make_pair_key(key, proto);
	seen = bpf_map_lookup_elem(&FRAGMENTED, key);
	return seen && now - seen->claimed_ns < FRAGMENTED_NS &&
	       (!seen->unclaimed_ns || now - seen->unclaimed_ns >= FRAGMENTED_NS);
}

/* Redirects a fragment of a claimed datagram to the service. Passes other fragments. */
static __always_inline int demux_fragment(struct xdp_md *ctx, struct counters *counters,
					  int claimed)
{
	if (claimed)
		return redirect_to_service(ctx, counters, &counters->redirected_fragments);
	counters->fragments += 1;
	return XDP_PASS;
}

/* Handles an IPv4 fragment of TCP or UDP. */
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
		return demux_fragment(ctx, counters, is_later_fragment_claimed(&key, ip->protocol));
	claimed = (void *)(ports + 1) <= end && owner_v4(ctx, ip, ports, end, 0) == SERVICE;
	record_first_fragment(&key, ip->protocol, claimed);
	return demux_fragment(ctx, counters, claimed);
}

/* Returns true if the ICMP message at `icmp` is an error that quotes a packet of the service. */
static __always_inline int quotes_claimed(struct xdp_md *ctx, void *icmp, void *end)
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
	return owner_v4(ctx, quoted, ports, end, 1) == SERVICE;
}

/* Returns true if the options of an IPv4 header of `header_len` bytes have a source route. The
 * caller passes the packet to the kernel, which drops the packet unless accept_source_route is set.
 * The search ends at an option of length zero. The service drops a packet with this malformed
 * option. */
static __always_inline int has_source_route(struct iphdr *ip, __u32 header_len, void *end)
{
	__u32 used = sizeof(*ip);

	for (int i = 0; i < IP_OPTIONS_MAX; i++) {
		__u8 *option = (void *)ip + used;

		if (used >= header_len || used >= IP_HEADER_MAX || (void *)(option + 2) > end)
			return 0;
		if (option[0] == IP_OPTION_LSRR || option[0] == IP_OPTION_SSRR)
			return 1;
		if (option[0] == IP_OPTION_END)
			return 0;
		if (option[0] == IP_OPTION_NOP)
			used += 1;
		else if (option[1])
			used += option[1];
		else
			return 0;
	}
	return 0;
}

/* Redirects or passes an IPv4 packet. Returns the XDP action. */
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
	if (header_len > sizeof(*ip) && has_source_route(ip, header_len, end))
		goto other;
	if (ip->frag_off & bpf_htons(FRAGMENT_BITS)) {
		if (ip->protocol == IPPROTO_TCP || ip->protocol == IPPROTO_UDP)
			return demux_fragment_v4(ctx, ip, end, counters);
		counters->fragments += 1;
		return XDP_PASS;
	}
	if (ip->protocol == IPPROTO_ICMP) {
		if (quotes_claimed(ctx, (void *)ip + header_len, end))
			return redirect_to_service(ctx, counters, &counters->redirected_icmp);
		counters->icmp += 1;
		return XDP_PASS;
	}
	if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP)
		goto other;
	ports = (void *)ip + header_len;
	if ((void *)(ports + 1) > end)
		goto other;
	return deliver(ctx, counters, owner_v4(ctx, ip, ports, end, 0));

other:
	counters->other_ip += 1;
	return XDP_PASS;
}

/*
 * Skips the extension headers of an IPv6 packet. Returns the transport protocol, and stores the
 * start of the transport header in `*header`. Returns a negative number if the packet must pass to
 * the kernel.
 *
 * Stores the position of a fragment header in `*fragment`. A later fragment has no transport
 * header. For a later fragment, the function therefore returns IPPROTO_FRAGMENT, and `*header`
 * points to the fragment header.
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

/* Returns true if the ICMPv6 message at `icmp` is an error that quotes a packet of the service. */
static __always_inline int quotes_claimed_v6(struct xdp_md *ctx, void *icmp, void *end)
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
	return owner_v6(ctx, quoted, proto, ports, end, 1) == SERVICE;
}

/*
 * Handles an IPv6 fragment of any protocol. `proto` is the result of `transport_v6`. `ports` is the
 * header that `transport_v6` found.
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
		return demux_fragment(ctx, counters,
				      is_later_fragment_claimed(&key, fragment->next));
	if ((proto == IPPROTO_TCP || proto == IPPROTO_UDP) && (void *)(ports + 1) <= end)
		claimed = owner_v6(ctx, ip, proto, ports, end, 0) == SERVICE;
	record_first_fragment(&key, fragment->next, claimed);
	return demux_fragment(ctx, counters, claimed);
}

/* Redirects or passes an IPv6 packet. Returns the XDP action. */
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
	/* An atomic fragment is a whole packet (RFC 6946). */
	if (fragment && fragment->offset & bpf_htons(OFFSET_BITS_V6 | MORE_BIT_V6))
		return demux_fragment_v6(ctx, ip, fragment, proto, header, end, counters);
	if (proto == IPPROTO_ICMPV6) {
		if (quotes_claimed_v6(ctx, header, end))
			return redirect_to_service(ctx, counters, &counters->redirected_icmp);
		counters->icmp += 1;
		return XDP_PASS;
	}
	if (proto != IPPROTO_TCP && proto != IPPROTO_UDP)
		goto other;
	ports = header;
	if ((void *)(ports + 1) > end)
		goto other;
	return deliver(ctx, counters, owner_v6(ctx, ip, proto, ports, end, 0));

other:
	counters->other_ip += 1;
	return XDP_PASS;
}

static __always_inline int ether_addr_equal(__u8 *address, struct link_address *known)
{
	__be16 *words = (void *)address;

	return words[0] == known->words[0] && words[1] == known->words[1] &&
	       words[2] == known->words[2];
}

#define VLAN_ID_BITS 0x0fff /* of the tag control field */

/* Start of a frame with a VLAN tag (IEEE 802.1Q): both link addresses and the tag. */
struct vlan_frame {
	__u8 addresses[12];
	__be16 tag_protocol;
	__be16 tag_control;
};

/*
 * Removes a priority tag (a tag with VLAN ID 0) from a frame, because the kernel, too, handles this
 * frame as untagged. The caller must load all pointers into the frame again.
 */
static __always_inline void strip_priority_tag(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct vlan_frame *frame = (void *)(long)ctx->data;
	__u8 addresses[sizeof(frame->addresses)];

	if ((void *)(frame + 1) > end || (frame->tag_control & bpf_htons(VLAN_ID_BITS)))
		return;
	__builtin_memcpy(addresses, frame->addresses, sizeof(addresses));
	if (bpf_xdp_adjust_head(ctx, sizeof(*frame) - sizeof(addresses)))
		return;
	frame = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if ((void *)frame->addresses + sizeof(addresses) <= end)
		__builtin_memcpy(frame->addresses, addresses, sizeof(addresses));
}

/*
 * Handles a frame whose destination is a multicast or broadcast link address. The service gets UDP
 * datagrams to a port with a claim of GROUP_V4 or GROUP_V6. Fragments, and packets with IP options
 * or extension headers, pass to the kernel. The frame never belongs to a connection.
 */
static __always_inline int demux_group(struct xdp_md *ctx, struct ethhdr *ethernet, void *end,
				       struct counters *counters)
{
	struct iphdr *v4 = (void *)(ethernet + 1);
	struct ipv6hdr *v6 = (void *)(ethernet + 1);
	struct in6_addr group = GROUP_V6;
	struct claim *claim = 0;
	struct ports *ports;

	if (ethernet->h_proto == bpf_htons(ETH_P_IP) && (void *)(v4 + 1) <= end &&
	    v4->version == 4 && v4->ihl == 5 && v4->protocol == IPPROTO_UDP &&
	    !(v4->frag_off & bpf_htons(FRAGMENT_BITS))) {
		ports = (void *)(v4 + 1);
		if ((void *)(ports + 1) <= end)
			claim = claim_of(GROUP_V4, IPPROTO_UDP, ports->dest);
	} else if (ethernet->h_proto == bpf_htons(ETH_P_IPV6) && (void *)(v6 + 1) <= end &&
		   v6->version == 6 && v6->nexthdr == IPPROTO_UDP) {
		ports = (void *)(v6 + 1);
		if ((void *)(ports + 1) <= end)
			claim = claim_of_v6(&group, IPPROTO_UDP, ports->dest);
	}
	if (!claim) {
		counters->not_ip += 1;
		return XDP_PASS;
	}
	if (core_state_of(ctx->rx_queue_index) == DEAD)
		return deliver(ctx, counters, KERNEL_NO_HEARTBEAT);
	return deliver(ctx, counters, SERVICE);
}

/* Redirects or passes a frame. Returns the XDP action. */
static __always_inline int demux(struct xdp_md *ctx)
{
	void *start = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = start;
	struct counters *counters;
	struct link_addresses *known;
	__u32 zero = 0;

	counters = bpf_map_lookup_elem(&COUNTERS, &zero);
	if (!counters)
		return XDP_PASS;
	if ((void *)(ethernet + 1) > end) {
		counters->not_ip += 1;
		return XDP_PASS;
	}
	known = bpf_map_lookup_elem(&LINK_ADDRESS, &zero);
	if (known && ether_addr_equal(ethernet->h_source, &known->returned)) {
		counters->returned += 1;
		return XDP_PASS;
	}
	if (ethernet->h_dest[0] & 1)
		return demux_group(ctx, ethernet, end, counters);
	/* A promiscuous interface also receives frames for other hosts. The kernel drops them. */
	if (!known || !ether_addr_equal(ethernet->h_dest, &known->own)) {
		counters->other_host += 1;
		return XDP_PASS;
	}
	if (ethernet->h_proto == bpf_htons(ETH_P_8021Q)) {
		strip_priority_tag(ctx);
		ethernet = (void *)(long)ctx->data;
		end = (void *)(long)ctx->data_end;
		if ((void *)(ethernet + 1) > end) {
			counters->not_ip += 1;
			return XDP_PASS;
		}
	}
	if (ethernet->h_proto == bpf_htons(ETH_P_IP))
		return demux_ipv4(ctx, (void *)(ethernet + 1), end, counters);
	if (ethernet->h_proto == bpf_htons(ETH_P_IPV6))
		return demux_ipv6(ctx, (void *)(ethernet + 1), end, counters);
	counters->not_ip += 1;
	return XDP_PASS;
}

SEC("xdp")
int tidelane_demux(struct xdp_md *ctx)
{
	return demux(ctx);
}

/*
 * The demux for interfaces whose frames may have several buffers (jumbo MTU, since Linux 5.18). The
 * program reads only the headers, which are always in the first buffer.
 */
SEC("xdp.frags")
int tidelane_frags(struct xdp_md *ctx)
{
	return demux(ctx);
}

/*
 * Passes every frame to the kernel. The service runs this program on frames that it returns to the
 * kernel (BPF_F_TEST_XDP_LIVE_FRAMES). The program is not attached to an interface.
 */
SEC("xdp")
int tidelane_return(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
