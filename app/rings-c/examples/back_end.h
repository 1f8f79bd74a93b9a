/* Selects the back end (the TCP that carries the connections) of an example program. An argument of
 * the program names the back end. */
#ifndef BACK_END_H
#define BACK_END_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../include/tidelane_rings.h"

#define BACK_ENDS "[io-uring | service | direct:INTERFACE[:QUEUE]]"

/* Sets the back end of `options`. `name` is an argument of the form BACK_ENDS. Returns 1, or 0 if
 * `name` names no back end. If `name` has a QUEUE, the NIC must steer the packets of the program's
 * ports to this queue. */
static int set_back_end(struct tlr_options *options, const char *name) {
    static char interface[64];
    const char *start = "direct:";
    if (!strcmp(name, "io-uring")) {
        options->back_end = TLR_IO_URING;
    } else if (!strcmp(name, "service")) {
        options->back_end = TLR_SERVICE;
    } else if (!strncmp(name, start, strlen(start))) {
        options->back_end = TLR_DIRECT;
        snprintf(interface, sizeof interface, "%s", name + strlen(start));
        char *queue = strchr(interface, ':');
        if (queue) {
            *queue++ = 0;
            options->queue = (uint32_t)strtoul(queue, NULL, 10);
            options->flags = TLR_STEERED;
        }
        options->interface = interface;
    } else {
        return 0;
    }
    return 1;
}

/* Prints the reason of the last failed call, and ends the program. */
static void fail(const char *program, const char *action) {
    char text[512];
    tlr_error_text(text, sizeof text);
    fprintf(stderr, "%s: %s: %s\n", program, action, text);
    exit(1);
}

#endif
