/* If the condition is false, must(condition) prints its line number, the condition and the text of
 * errno, and ends the program with exit status 1. */
#ifndef MUST_H
#define MUST_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define must(condition)                                                                \
	do {                                                                           \
		if (!(condition)) {                                                    \
			printf("line %d: %s: %s\n", __LINE__, #condition, strerror(errno)); \
			exit(1);                                                       \
		}                                                                      \
	} while (0)

#endif
