/* Streams and formatted output of the C library (stdio) on a connection. preadv2 and pwritev2 on a
 * connection. */
#include "posix.h"

/* Receives data from the stream `in`, and sends data to the stream `out`. */
static void exchange(FILE *in, FILE *out, int other)
{
	char bytes[3000];
	peer_sends(other, sizeof bytes, 1);
	must(fread(bytes, 1, sizeof bytes, in) == sizeof bytes);
	say("read %d", pattern_matches((unsigned char *)bytes, sizeof bytes, 1, 0));
	pattern_fill((unsigned char *)bytes, sizeof bytes, 2, 0);
	must(fwrite(bytes, 1, sizeof bytes, out) == sizeof bytes);
	show(fflush(out));
	struct answer got = peer_receives(other, sizeof bytes, 2);
	say("peer got %ld %ld", got.first, got.second);
}

/* One stream for both directions of a connection, and then a stream for each direction. In a child,
 * exit flushes the data in the buffer of a stream. */
void streams(void)
{
	int other, fd = accepted(0, &other);
	FILE *both = fdopen(fd, "r+");
	must(both);
	say("number %d %d", fileno(both) == fd, fileno(stdout));
	exchange(both, both, other);
	show(fseek(both, 10, SEEK_SET));
	show(fclose(both));
	struct answer got = peer_receives(other, -1, 0);
	say("peer got %ld %ld", got.first, got.second);
	fd = accepted(0, &other);
	FILE *in = fdopen(fd, "r"), *out = fdopen(dup(fd), "w");
	must(in && out);
	exchange(in, out, other);
	show(fclose(in));
	long job = peer_must("receive %d -1 %u", other, ANY_BYTES);
	if (fork() == 0) {
		fprintf(out, "%s", "left for the end");
		exit(0);
	}
	wait(NULL);
	show(fclose(out));
	got = peer("join %ld", job);
	say("peer got %ld %ld", got.first, got.second);
}

/* Functions of glibc that a program calls instead of dprintf and vdprintf if it is built with
 * _FORTIFY_SOURCE. */
int __dprintf_chk(int fd, int flag, const char *format, ...);
int __vdprintf_chk(int fd, int flag, const char *format, va_list args);

static int by_vdprintf(int fd, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	int result = vdprintf(fd, format, args);
	va_end(args);
	return result;
}

static int by_vdprintf_chk(int fd, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	int result = __vdprintf_chk(fd, 1, format, args);
	va_end(args);
	return result;
}

/* Arguments of several types: more integers than fit into registers, with strings and floating
 * point numbers between them. */
#define MANY "%d %s %.2f %ld %x %c %.1f %d %d %d %s %.3f\n"
#define MANY_VALUES -1, "two", 3.25, 4L, 5, '6', 7.5, 8, 9, 10, "eleven", 12.125

/* Formatted output to a descriptor. libc writes the output by an internal function, not by the
 * exported `write` that a preloaded library can replace. */
void formatted_writes(void)
{
	int other, fd = accepted(0, &other), ends[2];
	must(pipe(ends) == 0);
	char expected[200], long_text[20001];
	long len = snprintf(expected, sizeof expected, MANY, MANY_VALUES);
	long job = peer_must("receive %d %ld %u", other, 4 * len, ANY_BYTES);
	show(dprintf(fd, MANY, MANY_VALUES));
	show(by_vdprintf(fd, MANY, MANY_VALUES));
	show(__dprintf_chk(fd, 1, MANY, MANY_VALUES));
	show(by_vdprintf_chk(fd, MANY, MANY_VALUES));
	struct answer got = peer("join %ld", job);
	say("peer got %d %ld", got.first == 4 * len, got.second);
	memset(long_text, 'x', sizeof long_text - 1);
	long_text[sizeof long_text - 1] = 0;
	job = peer_must("receive %d 20000 %u", other, ANY_BYTES);
	show(dprintf(fd, "%s", long_text));
	got = peer("join %ld", job);
	say("peer got %ld %ld", got.first, got.second);
	show(dprintf(fd, "%s", ""));
	/* Descriptors that are not sockets. */
	char bytes[200];
	show(dprintf(ends[1], MANY, MANY_VALUES));
	must(read(ends[0], bytes, sizeof bytes) == len);
	say("pipe got %d", memcmp(bytes, expected, len));
	show(__dprintf_chk(ends[1], 1, MANY, MANY_VALUES));
	must(read(ends[0], bytes, sizeof bytes) == len);
	say("pipe got %d", memcmp(bytes, expected, len));
	show(dprintf(-1, "%d", 1));
	signal(SIGPIPE, SIG_IGN);
	show(shutdown(fd, SHUT_WR));
	show(dprintf(fd, "%d", 1));
	close(fd);
	show(dprintf(fd, "%d", 1));
}

/* Puts the connection on the descriptors of stdin and stdout, reads and writes by these streams,
 * and restores the descriptors. First of all, writes `left` to stdout without flushing, so that
 * `left` also goes to the connection. */
static void exchange_by_standard_streams(int fd, int other, const char *left)
{
	unsigned char bytes[3000], answer[3000];
	int in = dup(0), out = dup(1);
	long len = strlen(left) + sizeof answer + 9;
	long job = peer_must("receive %d %ld %u", other, len, ANY_BYTES);
	peer_sends(other, sizeof bytes, 1);
	fputs(left, stdout);
	must(dup2(fd, 0) == 0 && dup2(fd, 1) == 1);
	size_t count = fread(bytes, 1, sizeof bytes, stdin);
	pattern_fill(answer, sizeof answer, 2, 0);
	size_t written = fwrite(answer, 1, sizeof answer, stdout);
	int printed = printf("%s %d\n", "line", 123);
	int numbers = fileno(stdin) * 10 + fileno(stdout);
	int flushed = fflush(stdout);
	must(dup2(in, 0) == 0 && dup2(out, 1) == 1);
	close(in);
	close(out);
	say("read %zu %d", count, pattern_matches(bytes, count, 1, 0));
	say("wrote %zu, printed %d, flushed %d, numbers %d", written, printed, flushed, numbers);
	struct answer got = peer("join %ld", job);
	say("peer got %ld %ld", got.first, got.second);
}

/* stdin and stdout after a connection was put on their descriptors without exec. A server that
 * forks and then uses stdio for the connection does the same. */
void standard_streams(void)
{
	int other, fd = accepted(0, &other);
	exchange_by_standard_streams(fd, other, "");
	exchange_by_standard_streams(fd, other, "left in the buffer");
	close(fd);
	/* The descriptor of an accepted connection is the lowest free descriptor, here that of
	 * stdout. */
	int port, listener = open_listener(0, &port);
	want_connections(listener);
	other = peer_connects(port);
	long job = peer_must("receive %d -1 %u", other, ANY_BYTES);
	int out = dup(1);
	close(1);
	must(accept(listener, NULL, NULL) == 1);
	printf("accepted");
	int closed = fclose(stdout) == 0;
	dprintf(out, "closed %d\n", closed);
	struct answer got = peer("join %ld", job);
	dprintf(out, "peer got %ld %ld\n", got.first, got.second);
}

/* A child puts a connection on stdout and ends by exit, which flushes stdout. */
void fork_standard_streams(void)
{
	int other, fd = accepted(0, &other);
	exchange_by_standard_streams(fd, other, "");
	long job = peer_must("receive %d -1 %u", other, ANY_BYTES);
	if (fork() == 0) {
		close(1);
		must(dup(fd) == 1);
		close(fd);
		printf("left for the end");
		exit(0);
	}
	wait(NULL);
	close(fd);
	struct answer got = peer("join %ld", job);
	say("peer got %ld %ld", got.first, got.second);
}

/* preadv2 and pwritev2 with the offset -1 read and write a socket. With the offset 0, these calls
 * fail, as preadv and pwritev do. */
void vectors_without_position(void)
{
	int other, fd = accepted(0, &other);
	unsigned char bytes[2000];
	struct iovec parts[2] = {{bytes, 500}, {bytes + 500, 1500}};
	peer_sends(other, sizeof bytes, 1);
	wait_readable(fd);
	await(ioctl(fd, FIONREAD, &(int){0}) == 0);
	ssize_t count = 0;
	while (count < (ssize_t)sizeof bytes) {
		struct iovec rest = {bytes + count, sizeof bytes - count};
		ssize_t part = preadv2(fd, &rest, 1, -1, 0);
		must(part > 0);
		count += part;
	}
	say("read %zd %d", count, pattern_matches(bytes, count, 1, 0));
	show(preadv2(fd, parts, 2, -1, RWF_NOWAIT));
	show(preadv2(fd, parts, 2, 0, 0));
	show(preadv2(fd, parts, 2, -1, 0x4000));
	show(preadv(fd, parts, 2, 0));
	pattern_fill(bytes, sizeof bytes, 2, 0);
	show(pwritev2(fd, parts, 2, -1, 0));
	show(pwritev2(fd, parts, 2, -1, RWF_NOWAIT));
	show(pwritev2(fd, parts, 2, 0, 0));
	show(pwritev(fd, parts, 2, 0));
	struct answer got = peer_receives(other, sizeof bytes, 2);
	say("peer got %ld %ld", got.first, got.second);
}
