/*
 * Runs a program as on a kernel without AF_XDP. A seccomp filter makes socket(AF_XDP) fail with
 * EAFNOSUPPORT.
 *
 *   without_af_xdp PROGRAM [ARGUMENT ...]
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Loads the first word of a field of struct seccomp_data. */
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
/* Skips the next `otherwise` instructions if the loaded word is not `value`. */
#define UNLESS(value, otherwise) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, otherwise)
/* Ends the filter with a verdict. */
#define END(verdict) BPF_STMT(BPF_RET | BPF_K, verdict)

int main(int argc, char **argv)
{
	struct sock_filter code[] = {
		LOAD(nr),
		UNLESS(SYS_socket, 3),
		LOAD(args[0]),
		UNLESS(AF_XDP, 1),
		END(SECCOMP_RET_ERRNO | EAFNOSUPPORT),
		END(SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {.len = sizeof code / sizeof *code, .filter = code};
	if (argc < 2 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) {
		perror("without_af_xdp");
		return 2;
	}
	execvp(argv[1], argv + 1);
	perror(argv[1]);
	return 2;
}
