/* Test data: each byte depends on its position in the stream, so that a receiver finds bytes that
 * are lost, duplicated or misplaced. */
#include <stddef.h>

/* With this value as the seed, a receiver accepts any bytes. */
#define ANY_BYTES 4242u

static inline unsigned char pattern_byte(unsigned seed, long position)
{
	unsigned long x = position * 0x9e3779b97f4a7c15ul + seed;
	return x >> 56 ^ x >> 24;
}

static inline void pattern_fill(unsigned char *bytes, long count, unsigned seed, long position)
{
	for (long i = 0; i < count; i++)
		bytes[i] = pattern_byte(seed, position + i);
}

static inline int pattern_matches(const unsigned char *bytes, long count, unsigned seed,
				  long position)
{
	for (long i = 0; i < count; i++)
		if (bytes[i] != pattern_byte(seed, position + i))
			return 0;
	return 1;
}
