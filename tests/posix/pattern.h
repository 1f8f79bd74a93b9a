/* Test data. Each byte depends on a seed and on its position in the stream, so that a receiver
 * detects lost, duplicated and misplaced bytes. */
#include <stddef.h>

/* With this value as the seed, the peer's `receive` command (peer.c) accepts any bytes. */
#define ANY_BYTES 4242u

/* Returns the byte at `position` of the stream. */
static inline unsigned char pattern_byte(unsigned seed, long position)
{
	unsigned long x = position * 0x9e3779b97f4a7c15ul + seed;
	return x >> 56 ^ x >> 24;
}

/* Writes the `count` bytes of the stream from `position` on to `bytes`. */
static inline void pattern_fill(unsigned char *bytes, long count, unsigned seed, long position)
{
	for (long i = 0; i < count; i++)
		bytes[i] = pattern_byte(seed, position + i);
}

/* Returns true if `bytes` are the `count` bytes of the stream from `position` on. */
static inline int pattern_matches(const unsigned char *bytes, long count, unsigned seed,
				  long position)
{
	for (long i = 0; i < count; i++)
		if (bytes[i] != pattern_byte(seed, position + i))
			return 0;
	return 1;
}
