/* The HTTP server of the StackMap paper (section 5.1) on the ring API: answers each GET of /LENGTH
 * with a body of LENGTH bytes (at most BODY_MAX), and each other request with 404.
 *
 *   ring_http ADDRESS PORT [io-uring | service | direct:INTERFACE[:QUEUE]]
 *
 * Prints the port. Serves until SIGTERM. Then accepts no more clients, and serves the clients that
 * are present until they have gone or LAST_WAITS waits have passed without an event. At the end
 * prints the numbers of requests, of accepted connections, of present connections, of held buffers,
 * and of system calls. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "back_end.h"

/* Longest request in bytes. */
#define REQUEST_MAX 8192
/* Longest body in bytes. */
#define BODY_MAX (1 << 20)
/* Number of buffers, and length of each in bytes. A context on a NIC queue (TLR_DIRECT) has at most
 * 28672 buffers. */
#define BUFFERS 28672
#define BUFFER_LEN 2048
/* Largest number of clients, and largest number of buffers that wait in the context for one client.
 * The server holds at most one more buffer for each client. All clients together thus have less
 * than half of the buffers. The other half is for received data. Closed connections with unsent
 * data also use buffers, for at most STALL_MAX_MS. */
#define CLIENTS_MAX 1000
#define QUEUE_MAX 13
/* Milliseconds after which the kernel ends the connection of a client that takes no data. */
#define STALL_MAX_MS 20000
/* Largest number of answers that wait for one client. The server resets a client with more. */
#define ANSWERS_MAX 64
/* Longest wait for an event in nanoseconds. The server checks for SIGTERM after each wait. */
#define WAIT_NS 200000000
/* After SIGTERM, the server ends after this number of waits without an event, even if clients are
 * still present. */
#define LAST_WAITS 20

/* An answer that is not yet sent completely. */
struct answer {
    long body;  /* length of the body in bytes, or -1 for "not found" */
    int closes; /* the request asks to close the connection after the answer */
};

/* A connection. */
struct client {
    int descriptor;
    /* The received part of a request whose end has not arrived. */
    char request[REQUEST_MAX];
    size_t request_len;
    /* The answers that wait, oldest first. */
    struct answer answers[ANSWERS_MAX];
    int answers_len;
    /* Number of bytes of the first answer that were written to buffers. */
    size_t sent;
    /* A filled buffer that the context has refused for lack of room, or -1. */
    tlr_buffer refused;
    int closes;    /* close the connection after the last answer */
    int is_broken; /* a request is too long, or too many answers wait */
};

static tlr_context context;
/* The clients by descriptor. */
static struct client **clients;
static int clients_len;
/* Numbers of answered requests, of accepted connections, and of clients that are present. */
static unsigned long requests;
static unsigned accepted, present;
static volatile sig_atomic_t is_over;

static void on_term(int signal) {
    (void)signal;
    is_over = 1;
}

/* Adds a client for a descriptor. Returns NULL if there are too many clients or no memory. */
static struct client *add(int descriptor) {
    accepted++;
    if (present == CLIENTS_MAX)
        return NULL;
    if (descriptor >= clients_len) {
        int len = 2 * descriptor + 16;
        struct client **more = realloc(clients, (size_t)len * sizeof *more);
        if (!more)
            return NULL;
        clients = more;
        memset(clients + clients_len, 0, (size_t)(len - clients_len) * sizeof *clients);
        clients_len = len;
    }
    struct client *client = calloc(1, sizeof *client);
    if (client) {
        client->descriptor = descriptor;
        client->refused = -1;
        clients[descriptor] = client;
        present++;
    }
    return client;
}

/* Frees a client after its descriptor was closed. */
static void forget(struct client *client) {
    if (client->refused >= 0)
        tlr_release(context, client->refused);
    clients[client->descriptor] = NULL;
    free(client);
    present--;
}

/* Adds the answer to a request of `len` bytes to the waiting answers. */
static void answer(struct client *client, const char *request, size_t len) {
    char text[REQUEST_MAX + 1], *end;
    if (client->answers_len == ANSWERS_MAX) {
        client->is_broken = 1;
        return;
    }
    memcpy(text, request, len);
    text[len] = 0;
    long body = -1;
    if (!memcmp(text, "GET /", 5) && text[5] >= '0' && text[5] <= '9') {
        body = strtol(text + 5, &end, 10);
        if (*end != ' ' || body > BODY_MAX)
            body = -1;
    }
    int closes = strstr(text, "Connection: close") != NULL;
    client->closes |= closes;
    client->answers[client->answers_len++] = (struct answer){body, closes};
    requests++;
}

/* Processes received bytes: adds the answers to whole requests, and keeps the remaining bytes. */
static void receive(struct client *client, const char *data, size_t len) {
    while (len && !client->is_broken) {
        size_t room = REQUEST_MAX - client->request_len;
        size_t part = len < room ? len : room;
        memcpy(client->request + client->request_len, data, part);
        client->request_len += part;
        data += part, len -= part;
        char *end, *start = client->request;
        size_t left = client->request_len;
        while ((end = memmem(start, left, "\r\n\r\n", 4))) {
            size_t whole = (size_t)(end + 4 - start);
            answer(client, start, whole);
            start += whole, left -= whole;
        }
        memmove(client->request, start, left);
        client->request_len = left;
        client->is_broken |= left == REQUEST_MAX;
    }
}

/* Writes answers to a buffer of `room` bytes. Returns the number of written bytes. */
static size_t fill(struct client *client, char *to, size_t room) {
    size_t len = 0;
    while (client->answers_len && len < room) {
        long body = client->answers[0].body;
        char head[128];
        int head_len = snprintf(head, sizeof head, "HTTP/1.1 %s\r\nContent-Length: %ld\r\n%s\r\n",
                                body < 0 ? "404 Not Found" : "200 OK", body < 0 ? 0 : body,
                                client->answers[0].closes ? "Connection: close\r\n" : "");
        size_t total = (size_t)head_len + (size_t)(body < 0 ? 0 : body);
        while (client->sent < total && len < room) {
            size_t at = client->sent++;
            to[len++] = at < (size_t)head_len ? head[at]
                                              : (char)('a' + (at - (size_t)head_len) % 26);
        }
        if (client->sent == total) {
            client->sent = 0;
            client->answers_len--;
            memmove(client->answers, client->answers + 1,
                    (size_t)client->answers_len * sizeof *client->answers);
        }
    }
    return len;
}

/* Sends answers until there is no room. After the last answer, closes the connection if the client
 * has asked for the close or has closed its own sending direction. */
static void send_answers(struct client *client) {
    while (client->refused >= 0 || client->answers_len) {
        tlr_buffer buffer = client->refused;
        if (buffer < 0) {
            void *payload;
            buffer = tlr_allocate_for(context, client->descriptor);
            if (buffer == -EAGAIN)
                return; /* TLR_WRITABLE reports room in the memory of the connection. */
            if (tlr_payload(context, buffer, &payload) < 0) {
                tlr_abort(context, client->descriptor);
                forget(client);
                return;
            }
            size_t room = (size_t)tlr_capacity(context, buffer);
            tlr_set_payload(context, buffer, 0, (uint32_t)fill(client, payload, room));
        }
        client->refused = -1;
        int error = tlr_send(context, client->descriptor, buffer);
        if (error == -EAGAIN) {
            client->refused = buffer;
            return;
        }
        if (error) {
            /* The connection is over. An entry with TLR_CLOSED reports the end. */
            tlr_release(context, buffer);
            return;
        }
    }
    if (client->closes) {
        tlr_close(context, client->descriptor);
        forget(client);
    }
}

/* Handles an entry of the ready list: a descriptor with data or events. */
static void serve(const struct tlr_entry *entry) {
    struct client *client = entry->descriptor < clients_len ? clients[entry->descriptor] : NULL;
    if (entry->events & TLR_ACCEPTED)
        client = add(entry->descriptor);
    if (!client) {
        tlr_abort(context, entry->descriptor);
        return;
    }
    for (int at = entry->first; at != TLR_NONE;) {
        struct tlr_slot slot;
        void *payload;
        tlr_slot(context, at, &slot);
        receive(client, (tlr_payload(context, slot.buffer, &payload), payload), slot.len);
        at = slot.next;
    }
    if (entry->events & TLR_CLOSED || client->is_broken) {
        tlr_abort(context, entry->descriptor);
        forget(client);
        return;
    }
    client->closes |= (entry->events & TLR_END) != 0;
    send_answers(client);
}

/* Serves until SIGTERM. Then accepts no more clients, and serves the clients that are present until
 * they have gone or LAST_WAITS waits have passed without an event. */
static void run(int listener) {
    int waits = LAST_WAITS;
    while (!is_over || (present && waits)) {
        int count = tlr_sync(context, WAIT_NS);
        if (count < 0)
            fail("ring_http", "sync");
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

/* Sets an option of the listener's kernel socket, if the back end has a kernel socket. Connections
 * that the kernel accepts inherit the option. Returns the port. */
static int prepare(int listener, struct sockaddr_in address) {
    int fd = tlr_socket(context, listener), stall = STALL_MAX_MS;
    socklen_t len = sizeof address;
    if (fd >= 0) {
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
        fprintf(stderr, "usage: ring_http ADDRESS PORT " BACK_ENDS "\n");
        return 2;
    }
    address.sin_port = htons((uint16_t)atoi(argv[2]));
    signal(SIGTERM, on_term);
    if (tlr_open_context(&options, &context))
        fail("ring_http", "context");
    int listener = tlr_listen(context, (struct sockaddr *)&address, sizeof address, 0);
    if (listener < 0)
        fail("ring_http", "listen");
    printf("ready %d\n", prepare(listener, address));
    fflush(stdout);
    run(listener);
    struct tlr_counters counters;
    tlr_counters(context, &counters);
    printf("requests %lu accepted %u present %u held %u calls %llu\n", requests, accepted, present,
           counters.buffers_held, (unsigned long long)counters.system_calls);
    return -tlr_close_context(context);
}
