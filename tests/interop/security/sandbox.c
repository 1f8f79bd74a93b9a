// Runs a program in a new cgroup. A BPF program on the cgroup's egress passes all packets. systemd
// attaches programs of this type for IPAddressDeny and IPAccounting.
//
//   sandbox MOUNT-POINT NAME PROGRAM ARGS...
//
// sandbox mounts the cgroup2 hierarchy at MOUNT-POINT. NAME is the path of the new cgroup below
// MOUNT-POINT.
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void must(int good, const char *what) {
    if (!good) {
        fprintf(stderr, "sandbox: %s: %s\n", what, strerror(errno));
        exit(2);
    }
}

int main(int argc, char **argv) {
    must(argc > 3, "usage");
    // The tests start this program by `ip netns exec`, which makes a mount namespace in which the
    // cgroup2 hierarchy is not mounted.
    must(mkdir(argv[1], 0755) == 0 || errno == EEXIST, "mkdir");
    must(mount("none", argv[1], "cgroup2", 0, NULL) == 0, "mount");
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", argv[1], argv[2]);
    must(mkdir(path, 0755) == 0 || errno == EEXIST, "mkdir");
    int group = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    must(group >= 0, "open");
    // The instructions return 1, which passes the packet.
    struct bpf_insn code[] = {
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = 1},
        {.code = BPF_JMP | BPF_EXIT},
    };
    union bpf_attr load = {
        .prog_type = BPF_PROG_TYPE_CGROUP_SKB,
        .expected_attach_type = BPF_CGROUP_INET_EGRESS,
        .insns = (uintptr_t)code,
        .insn_cnt = 2,
        .license = (uintptr_t) "GPL",
    };
    int program = syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof load);
    must(program >= 0, "load");
    union bpf_attr attach = {
        .target_fd = group,
        .attach_bpf_fd = program,
        .attach_type = BPF_CGROUP_INET_EGRESS,
    };
    must(syscall(SYS_bpf, BPF_PROG_ATTACH, &attach, sizeof attach) == 0, "attach");
    snprintf(path, sizeof path, "%s/%s/cgroup.procs", argv[1], argv[2]);
    int procs = open(path, O_WRONLY | O_CLOEXEC);
    must(procs >= 0 && write(procs, "0", 1) == 1, "enter");
    execvp(argv[3], argv + 3);
    must(0, argv[3]);
}
