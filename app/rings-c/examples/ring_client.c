/* An echo client on the ring API: opens connections, sends messages on each connection, and
 * compares the echoes. Each message waits until the echo of the previous message is complete.
 *
 *   ring_client ADDRESS PORT CONNECTIONS MESSAGES [io-uring | service | direct:INTERFACE[:QUEUE]]
 *
 * Prints the numbers of connections that have succeeded and failed. Succeeds if none has failed. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "back_end.h"

/* Number of buffers, and length of each in bytes. */
#define BUFFERS 8192
#define BUFFER_LEN 2048
/* Bytes of a message. A message fits into any buffer of the pool. */
#define MESSAGE_LEN 1000
/* Nanoseconds without an event after which the remaining connections count as failed. */
#define WAIT_NS 10000000000

/* A connection. */
struct stream {
    int is_open;
    unsigned seed;     /* determines the bytes of the messages, together with their number */
    unsigned messages; /* number of complete echoes, and so the number of the present message */
    unsigned received; /* received bytes of the echo of the present message */
    int owes_message;  /* the connection had no room for the present message */
};

static tlr_context context;
/* The connections by descriptor. */
static struct stream *streams;
static int streams_len;
/* Number of messages on each connection. */
static unsigned messages_max;
/* Numbers of connections that are open, that have succeeded, and that have failed. */
static unsigned present, finished, failed;

/* Returns the stream of a descriptor. */
static struct stream *stream_of(int descriptor) {
    if (descriptor >= streams_len) {
        int len = 2 * descriptor + 16;
        streams = realloc(streams, (size_t)len * sizeof *streams);
        if (!streams) {
            perror("ring_client");
            exit(1);
        }
        memset(streams + streams_len, 0, (size_t)(len - streams_len) * sizeof *streams);
        streams_len = len;
    }
    return &streams[descriptor];
}

/* Returns byte `at` of the present message of a connection. */
static char byte_at(const struct stream *stream, unsigned at) {
    return (char)((stream->seed * 7919 + stream->messages * 31 + at) % 251);
}

/* Closes a connection. Increments `result`, which is `finished` or `failed`. */
static void end(int descriptor, unsigned *result) {
    tlr_close(context, descriptor);
    memset(stream_of(descriptor), 0, sizeof(struct stream));
    present--;
    ++*result;
}

/* Sends the present message. If the connection has no room, sets `owes_message` instead. */
static void send_message(int descriptor, struct stream *stream) {
    void *payload;
    tlr_buffer buffer = tlr_allocate_for(context, descriptor);
    stream->owes_message = buffer == -EAGAIN;
    if (buffer < 0) {
        if (!stream->owes_message)
            end(descriptor, &failed);
        return;
    }
    if (tlr_set_payload(context, buffer, 0, MESSAGE_LEN)) {
        /* With the back end `service`, the buffer is a part of the connection's send memory, and
         * may have less room than a message needs. A buffer of the pool has enough room. */
        tlr_release(context, buffer);
        buffer = tlr_allocate(context);
        if (tlr_set_payload(context, buffer, 0, MESSAGE_LEN)) {
            end(descriptor, &failed);
            return;
        }
    }
    tlr_payload(context, buffer, &payload);
    for (unsigned at = 0; at < MESSAGE_LEN; at++)
        ((char *)payload)[at] = byte_at(stream, at);
    int error = tlr_send(context, descriptor, buffer);
    if (error)
        tlr_release(context, buffer);
    stream->owes_message = error == -EAGAIN;
    if (error && !stream->owes_message)
        end(descriptor, &failed);
}

/* Compares received bytes with the sent messages. Returns 0 if a byte is wrong or unexpected. */
static int compare(struct stream *stream, const char *data, uint32_t len) {
    for (uint32_t at = 0; at < len; at++) {
        if (stream->messages == messages_max || data[at] != byte_at(stream, stream->received))
            return 0;
        if (++stream->received == MESSAGE_LEN) {
            stream->received = 0;
            stream->messages++;
        }
    }
    return 1;
}

/* Handles an entry of the ready list (a connection with data or events). Compares the received
 * bytes. Sends a message when the connection is established, and after each complete echo. Closes
 * the sending direction after the last echo. Closes the connection at its end or after an error. */
static void serve(const struct tlr_entry *entry) {
    struct stream *stream = stream_of(entry->descriptor);
    if (!stream->is_open)
        return;
    unsigned before = stream->messages;
    for (int at = entry->first; at != TLR_NONE;) {
        struct tlr_slot slot;
        void *payload;
        tlr_slot(context, at, &slot);
        tlr_payload(context, slot.buffer, &payload);
        if (!compare(stream, payload, slot.len)) {
            end(entry->descriptor, &failed);
            return;
        }
        at = slot.next;
    }
    int is_complete = stream->messages == messages_max;
    if (entry->events & TLR_CLOSED || (entry->events & TLR_END && !is_complete)) {
        if (entry->cause)
            fprintf(stderr, "ring_client: %s\n", strerror(entry->cause));
        end(entry->descriptor, &failed);
    } else if (entry->events & TLR_END) {
        end(entry->descriptor, &finished);
    } else if (is_complete && (entry->events & TLR_CONNECTED || stream->messages > before)) {
        tlr_shutdown(context, entry->descriptor);
    } else if (!is_complete && (entry->events & TLR_CONNECTED || stream->messages > before ||
                                (entry->events & TLR_WRITABLE && stream->owes_message))) {
        send_message(entry->descriptor, stream);
    }
}

int main(int argc, char **argv) {
    struct sockaddr_in peer = {.sin_family = AF_INET};
    struct tlr_options options = {.buffers = BUFFERS, .buffer_len = BUFFER_LEN};
    if (argc < 5 || argc > 6 || inet_pton(AF_INET, argv[1], &peer.sin_addr) != 1 ||
        (argc == 6 && !set_back_end(&options, argv[5]))) {
        fprintf(stderr, "usage: ring_client ADDRESS PORT CONNECTIONS MESSAGES " BACK_ENDS "\n");
        return 2;
    }
    peer.sin_port = htons((uint16_t)atoi(argv[2]));
    messages_max = (unsigned)atoi(argv[4]);
    if (tlr_open_context(&options, &context))
        fail("ring_client", "context");
    for (int count = atoi(argv[3]); count > 0; count--) {
        int descriptor = tlr_connect(context, (struct sockaddr *)&peer, sizeof peer);
        if (descriptor < 0)
            fail("ring_client", "connect");
        struct stream *stream = stream_of(descriptor);
        stream->is_open = 1;
        stream->seed = (unsigned)count;
        present++;
    }
    while (present) {
        int count = tlr_sync(context, WAIT_NS);
        if (count < 0)
            fail("ring_client", "sync");
        for (int at = 0; at < count; at++) {
            struct tlr_entry entry;
            tlr_entry(context, at, &entry);
            serve(&entry);
        }
        if (!count) {
            failed += present;
            break;
        }
    }
    printf("finished %u failed %u\n", finished, failed);
    return tlr_close_context(context) || failed;
}
