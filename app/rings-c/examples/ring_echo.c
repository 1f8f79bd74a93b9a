/* An echo server over TCP and UDP (RFC 862) on the ring API. The program sends each received buffer
 * back, and does not copy the data to another buffer.
 *
 *   ring_echo ADDRESS PORT [io-uring | service | direct:INTERFACE[:QUEUE]]
 *
 * Prints the port. Serves until SIGTERM. Then accepts no more clients, and serves the clients that
 * are present until they have gone or LAST_WAITS waits have passed without an event. At the end
 * prints the numbers of accepted connections, of present connections and of held buffers. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "back_end.h"

/* Number of buffers, and length of each in bytes. A context on a NIC queue (TLR_DIRECT) has at most
 * 28672 buffers. */
#define BUFFERS 28672
#define BUFFER_LEN 2048
/* Largest number of clients, and largest number of buffers in the send queue that the context has
 * for one client. The send queues of all clients together have less than half of all buffers. */
#define CLIENTS_MAX 1000
#define QUEUE_MAX 14
/* SO_RCVBUF in bytes: limits the data of a connection that the kernel keeps while the server does
 * not receive. */
#define SOCKET_BUFFER 65536
/* Longest wait for an event in nanoseconds. The server checks for SIGTERM after each wait. */
#define WAIT_NS 200000000
/* After SIGTERM, the server ends after this number of waits without an event, even if clients are
 * still present. */
#define LAST_WAITS 20
/* Milliseconds after which the kernel ends the connection of a client that takes no data. */
#define STALL_MAX_MS 20000

/* A connection, and the buffers that wait for room in its send queue, oldest first. The server does
 * not receive from a client while buffers wait. */
struct client {
    int is_open;
    int is_ended;           /* the peer sends no more: close the descriptor after the last buffer */
    tlr_buffer first, last; /* the oldest and the newest waiting buffer, if there is one */
    unsigned held;          /* number of waiting buffers */
};

static tlr_context context;
/* The clients by descriptor. */
static struct client *clients;
static int clients_len;
/* The buffer that follows each waiting buffer, by the index of the waiting buffer. */
static tlr_buffer followers[TLR_INDEXES];
/* Numbers of accepted connections, and of clients that are present. */
static unsigned accepted, present;
/* The UDP socket. */
static int datagrams;
static volatile sig_atomic_t is_over;

static void on_term(int signal) {
    (void)signal;
    is_over = 1;
}

/* Returns the client of a descriptor. */
static struct client *client_of(int descriptor) {
    if (descriptor >= clients_len) {
        int len = 2 * descriptor + 16;
        clients = realloc(clients, (size_t)len * sizeof *clients);
        if (!clients) {
            perror("ring_echo");
            exit(1);
        }
        memset(clients + clients_len, 0, (size_t)(len - clients_len) * sizeof *clients);
        clients_len = len;
    }
    return &clients[descriptor];
}

/* Removes a client, and releases the buffers that wait to be sent to this client. */
static void forget(struct client *client) {
    while (client->held) {
        tlr_buffer buffer = client->first;
        client->first = followers[TLR_INDEX(buffer)];
        client->held--;
        tlr_release(context, buffer);
    }
    client->is_open = client->is_ended = 0;
    present--;
}

/* Sends a buffer. If other buffers wait or the context refuses the buffer, holds the buffer as the
 * newest waiting buffer, and pauses the connection. */
static void echo(int descriptor, struct client *client, tlr_buffer buffer) {
    if (!client->held && tlr_send(context, descriptor, buffer) == 0)
        return;
    if (tlr_hold(context, buffer) != 0)
        return;
    if (client->held)
        followers[TLR_INDEX(client->last)] = buffer;
    else
        client->first = buffer;
    client->last = buffer;
    if (!client->held++)
        tlr_pause(context, descriptor);
}

/* Sends the waiting buffers, as far as there is room. After the last buffer, closes the descriptor
 * if the peer sends no more, and otherwise receives from the client again. */
static void continue_client(int descriptor, struct client *client) {
    while (client->held) {
        tlr_buffer next = followers[TLR_INDEX(client->first)];
        if (tlr_send(context, descriptor, client->first) != 0)
            return;
        client->first = next;
        client->held--;
    }
    if (client->is_ended) {
        tlr_close(context, descriptor);
        forget(client);
    } else {
        tlr_resume(context, descriptor);
    }
}

/* Sends the received datagrams of an entry back. Drops a datagram for which the socket has no room,
 * because UDP may drop any datagram. */
static void echo_datagrams(const struct tlr_entry *entry) {
    struct sockaddr_storage sender;
    struct tlr_slot slot;
    for (int at = entry->first; at != TLR_NONE; at = slot.next) {
        socklen_t len = sizeof sender;
        tlr_slot(context, at, &slot);
        if (tlr_sender(context, at, (struct sockaddr *)&sender, &len) == 0)
            tlr_send_to(context, datagrams, slot.buffer, (struct sockaddr *)&sender, len);
    }
}

/* Handles an entry of the ready list: a descriptor with data or events. */
static void serve(const struct tlr_entry *entry) {
    if (entry->descriptor == datagrams) {
        echo_datagrams(entry);
        return;
    }
    struct client *client = client_of(entry->descriptor);
    if (entry->events & TLR_ACCEPTED) {
        accepted++;
        client->is_open = present < CLIENTS_MAX;
        present += (unsigned)client->is_open;
        if (!client->is_open)
            tlr_abort(context, entry->descriptor);
    }
    if (!client->is_open)
        return;
    if (entry->events & TLR_WRITABLE)
        continue_client(entry->descriptor, client);
    for (int at = entry->first; at != TLR_NONE && client->is_open;) {
        struct tlr_slot slot;
        tlr_slot(context, at, &slot);
        echo(entry->descriptor, client, slot.buffer);
        at = slot.next;
    }
    if (!client->is_open)
        return;
    if (entry->events & TLR_CLOSED) {
        tlr_abort(context, entry->descriptor);
        forget(client);
    } else if (entry->events & TLR_END) {
        client->is_ended = 1;
        continue_client(entry->descriptor, client);
    }
}

/* Serves until SIGTERM. Then accepts no more clients, and serves the clients that are present until
 * they have gone or LAST_WAITS waits have passed without an event. */
static void run(int listener) {
    int waits = LAST_WAITS;
    while (!is_over || (present && waits)) {
        int count = tlr_sync(context, WAIT_NS);
        if (count < 0)
            fail("ring_echo", "sync");
        if (is_over) {
            tlr_pause(context, listener);
            waits -= !count;
        }
        for (int at = 0; at < count; at++) {
            struct tlr_entry entry;
            tlr_entry(context, at, &entry);
            serve(&entry);
        }
    }
}

/* Sets options of the listener's kernel socket, if the back end has a kernel socket. Connections
 * that the kernel accepts inherit the options. Returns the port. */
static int prepare(int listener, struct sockaddr_in address) {
    int fd = tlr_socket(context, listener), size = SOCKET_BUFFER, stall = STALL_MAX_MS;
    socklen_t len = sizeof address;
    if (fd >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &stall, sizeof stall);
        getsockname(fd, (struct sockaddr *)&address, &len);
    }
    return ntohs(address.sin_port);
}

int main(int argc, char **argv) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    struct tlr_options options = {
        .buffers = BUFFERS, .buffer_len = BUFFER_LEN, .send_queue_max = QUEUE_MAX};
    if (argc < 3 || argc > 4 || inet_pton(AF_INET, argv[1], &address.sin_addr) != 1 ||
        (argc == 4 && !set_back_end(&options, argv[3]))) {
        fprintf(stderr, "usage: ring_echo ADDRESS PORT " BACK_ENDS "\n");
        return 2;
    }
    address.sin_port = htons((uint16_t)atoi(argv[2]));
    signal(SIGTERM, on_term);
    if (tlr_open_context(&options, &context))
        fail("ring_echo", "context");
    int listener = tlr_listen(context, (struct sockaddr *)&address, sizeof address, 0);
    if (listener < 0)
        fail("ring_echo", "listen");
    int port = prepare(listener, address);
    address.sin_port = htons((uint16_t)port);
    datagrams = tlr_bind(context, (struct sockaddr *)&address, sizeof address);
    if (datagrams < 0)
        fail("ring_echo", "bind");
    printf("ready %d\n", port);
    fflush(stdout);
    run(listener);
    struct tlr_counters counters;
    tlr_counters(context, &counters);
    printf("accepted %u present %u held %u\n", accepted, present, counters.buffers_held);
    return -tlr_close_context(context);
}
