/* must(condition) ends the program if the condition is false, after printing the line, the
 * condition and errno. */
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
