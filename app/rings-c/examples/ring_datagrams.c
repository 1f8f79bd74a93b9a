/* An echo client over UDP on the ring API: sends datagrams of several lengths, one at a time.
 * Repeats each datagram until its echo arrives, and compares the echo.
 *
 *   ring_datagrams ADDRESS PORT DATAGRAMS [io-uring | service | direct:INTERFACE[:QUEUE]]
 *
 * Prints the number of datagrams that came back, and the number of repeated sends. Fails if a
 * datagram cannot be sent, if no echo of a datagram arrives, or if an echo is wrong. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "back_end.h"

/* Number of buffers, and length of each in bytes. */
#define BUFFERS 1024
#define BUFFER_LEN 2048
/* Longest payload in bytes, which fits into a packet of 1,500 bytes. */
#define PAYLOAD_MAX 1472
/* Nanoseconds without an event after which a datagram is sent again, and the largest number of
 * sends of one datagram. */
#define WAIT_NS 200000000
#define SENDS_MAX 25

static tlr_context context;
/* The UDP socket. */
static int descriptor;
/* The echo server. */
static struct sockaddr_in peer;

/* Returns the length of a datagram, at least the 4 bytes of its number. */
static unsigned len_of(unsigned number) {
    return 4 + number * 97 % (PAYLOAD_MAX - 3);
}

/* Writes the payload of a datagram: its number, then bytes that depend on the number. */
static void fill(unsigned number, unsigned char *payload) {
    memcpy(payload, &number, 4);
    for (unsigned at = 4; at < len_of(number); at++)
        payload[at] = (unsigned char)(number * 31 + at);
}

static void send_datagram(unsigned number) {
    void *payload;
    tlr_buffer buffer = tlr_allocate(context);
    if (buffer < 0 || tlr_payload(context, buffer, &payload) < 0)
        fail("ring_datagrams", "allocate");
    fill(number, payload);
    tlr_set_payload(context, buffer, 0, len_of(number));
    if (tlr_send_to(context, descriptor, buffer, (struct sockaddr *)&peer, sizeof peer) != 0)
        fail("ring_datagrams", "send");
}

/* Returns 1 if slot `at` (a received datagram) has the echo of datagram `number`, and 0 if the slot
 * has the echo of an earlier datagram. Ends the program if the slot has other data. */
static int is_echo(unsigned number, int at) {
    unsigned char expected[PAYLOAD_MAX];
    unsigned got;
    void *payload;
    struct tlr_slot slot;
    struct sockaddr_in sender;
    socklen_t len = sizeof sender;
    if (tlr_slot(context, at, &slot) || tlr_payload(context, slot.buffer, &payload) < 4 ||
        tlr_sender(context, at, (struct sockaddr *)&sender, &len))
        fail("ring_datagrams", "receive");
    memcpy(&got, payload, 4);
    fill(got, expected);
    if (got > number || slot.len != len_of(got) || memcmp(payload, expected, slot.len) ||
        sender.sin_port != peer.sin_port || sender.sin_addr.s_addr != peer.sin_addr.s_addr) {
        fprintf(stderr, "ring_datagrams: not the echo of datagram %u\n", number);
        exit(1);
    }
    return got == number;
}

/* Waits for the echo of a datagram. Returns 1 if the echo has arrived, and 0 if a wait has ended
 * without an event. */
static int await_echo(unsigned number) {
    struct tlr_entry entry;
    int count;
    while ((count = tlr_sync(context, WAIT_NS)) > 0) {
        tlr_entry(context, 0, &entry);
        if (entry.events & TLR_SEND_FAILED) {
            fprintf(stderr, "ring_datagrams: send: %s\n", strerror(entry.cause));
            exit(1);
        }
        int is_there = 0;
        for (int at = 0; at < tlr_slot_count(context); at++)
            is_there |= is_echo(number, at);
        if (is_there)
            return 1;
    }
    if (count < 0)
        fail("ring_datagrams", "sync");
    return 0;
}

int main(int argc, char **argv) {
    struct tlr_options options = {.buffers = BUFFERS, .buffer_len = BUFFER_LEN};
    struct sockaddr_in any = {.sin_family = AF_INET};
    unsigned again = 0;
    if (argc < 4 || argc > 5 || inet_pton(AF_INET, argv[1], &peer.sin_addr) != 1 ||
        (argc == 5 && !set_back_end(&options, argv[4]))) {
        fprintf(stderr, "usage: ring_datagrams ADDRESS PORT DATAGRAMS " BACK_ENDS "\n");
        return 2;
    }
    peer.sin_family = AF_INET;
    peer.sin_port = htons((uint16_t)atoi(argv[2]));
    unsigned datagrams = (unsigned)atoi(argv[3]);
    if (tlr_open_context(&options, &context))
        fail("ring_datagrams", "context");
    descriptor = tlr_bind(context, (struct sockaddr *)&any, sizeof any);
    if (descriptor < 0)
        fail("ring_datagrams", "bind");
    for (unsigned number = 0; number < datagrams; number++) {
        unsigned sends = 1;
        for (send_datagram(number); !await_echo(number); send_datagram(number), again++)
            if (++sends > SENDS_MAX) {
                fprintf(stderr, "ring_datagrams: no echo of datagram %u\n", number);
                return 1;
            }
    }
    printf("echoes %u again %u\n", datagrams, again);
    return -tlr_close_context(context);
}
