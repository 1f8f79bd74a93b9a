/* Streams of the C library (stdio) on a connection. */
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

/* One stream for both directions of a connection, and then a stream for each direction. exit in a
 * child flushes the data that is left in a stream. */
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
