/* The pattern: test data. Each byte depends on a seed and on the byte's position in the stream, so
 * that a receiver detects lost, duplicated and misplaced bytes. */
#include <stddef.h>

/* With this value as the seed, the peer's `receive` command (peer.c) accepts any bytes. */
#define ANY_BYTES 4242u

/* Returns the byte at `position` of the pattern with `seed`. */
static inline unsigned char pattern_byte(unsigned seed, long position)
{
	unsigned long x = position * 0x9e3779b97f4a7c15ul + seed;
	return x >> 56 ^ x >> 24;
}

/* Fills `bytes` with `count` bytes of the pattern with `seed`. The first of these bytes is the byte
 * at `position`. */
static inline void pattern_fill(unsigned char *bytes, long count, unsigned seed, long position)
{
	for (long i = 0; i < count; i++)
		bytes[i] = pattern_byte(seed, position + i);
}

/* Returns true if `bytes` has the `count` bytes that pattern_fill stores for the same `seed` and
 * `position`. */
static inline int pattern_matches(const unsigned char *bytes, long count, unsigned seed,
				  long position)
{
	for (long i = 0; i < count; i++)
		if (bytes[i] != pattern_byte(seed, position + i))
			return 0;
	return 1;
}
