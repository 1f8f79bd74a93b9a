/*
 * Attaches an XDP program to an interface, as another user of XDP would. The XDP program passes
 * every frame on to the kernel.
 *
 *   other_xdp INTERFACE native|generic|offloaded NAME
 *
 * NAME is the name of the XDP program. Prints "ready" when the XDP program is attached. The kernel
 * detaches the XDP program when this process is killed.
 */
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int bpf(int command, union bpf_attr *attr)
{
	return syscall(SYS_bpf, command, attr, sizeof(*attr));
}

int main(int argc, char **argv)
{
	/* r0 = XDP_PASS; exit */
	struct bpf_insn program[] = {
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = XDP_PASS },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	union bpf_attr load = {
		.prog_type = BPF_PROG_TYPE_XDP,
		.insns = (uintptr_t)program,
		.insn_cnt = 2,
		.license = (uintptr_t)"GPL",
	};
	union bpf_attr link = { .link_create.attach_type = BPF_XDP };
	int fd;

	if (argc != 4)
		return 2;
	link.link_create.target_ifindex = if_nametoindex(argv[1]);
	if (!strcmp(argv[2], "native")) {
		link.link_create.flags = XDP_FLAGS_DRV_MODE;
	} else if (!strcmp(argv[2], "generic")) {
		link.link_create.flags = XDP_FLAGS_SKB_MODE;
	} else {
		link.link_create.flags = XDP_FLAGS_HW_MODE;
		load.prog_ifindex = link.link_create.target_ifindex;
	}
	strncpy(load.prog_name, argv[3], sizeof(load.prog_name) - 1);
	fd = bpf(BPF_PROG_LOAD, &load);
	if (fd < 0) {
		perror("BPF_PROG_LOAD");
		return 1;
	}
	link.link_create.prog_fd = fd;
	if (bpf(BPF_LINK_CREATE, &link) < 0) {
		perror("BPF_LINK_CREATE");
		return 1;
	}
	puts("ready");
	fflush(stdout);
	pause();
	return 0;
}
