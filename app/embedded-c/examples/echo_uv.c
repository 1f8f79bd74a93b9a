/* An echo server on the embedded stack in a libuv loop, behind a TUN device.
 *
 *   echo_uv DEVICE A.B.C.D PORT SECONDS
 *
 * The server listens at A.B.C.D:PORT, and ends after SECONDS. The loop waits for packets of the
 * device and for the stack's next timer. A program can add events of its own to the loop. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <unistd.h>
#include <uv.h>

#include "../include/tidelane_embedded.h"

/* Largest number of connections. */
#define CLIENTS_MAX 256

/* A connection, and the received data that was not echoed yet. */
struct client {
    tle_connection connection;
    char data[65536];
    /* Number of bytes in `data`. */
    size_t len;
};

static struct client clients[CLIENTS_MAX];
static struct tle_stack *stack;
static int64_t listener;
static uv_timer_t timer;

/* Reads the next packet of the device. Returns its length, or 0 if there is none. */
static size_t receive(void *user, void *packet, size_t room) {
    ssize_t len = read(*(int *)user, packet, room);
    return len > 0 ? (size_t)len : 0;
}

/* Sends a packet to the device. If the write fails, the packet is lost, and TCP retransmits it. */
static int send_packet(void *user, const void *packet, size_t len) {
    (void)!write(*(int *)user, packet, len);
    return 1;
}

/* Returns the client of a connection, or NULL if there is none. Returns an unused client for
 * connection 0. */
static struct client *find(tle_connection connection) {
    for (int at = 0; at < CLIENTS_MAX; at++)
        if (clients[at].connection == connection)
            return &clients[at];
    return NULL;
}

/* Echoes received data until no received data remains, or until the send buffer and the client's
 * buffer are full. Closes the connection when all data is echoed and no more can follow. */
static void serve(tle_connection connection) {
    struct client *client = find(connection);
    if (!client)
        return;
    for (;;) {
        size_t written = tle_write(stack, connection, client->data, client->len);
        client->len -= written;
        memmove(client->data, client->data + written, client->len);
        size_t room = sizeof client->data - client->len;
        size_t count = tle_read(stack, connection, client->data + client->len, room);
        client->len += count;
        if (!count)
            break;
    }
    if (!client->len && tle_is_end(stack, connection)) {
        tle_close(stack, connection);
        client->connection = 0;
    }
}

/* Closes a connection that is over. Data that is not echoed is lost. */
static void end(tle_connection connection) {
    struct client *client = find(connection);
    if (!client)
        return;
    tle_close(stack, connection);
    client->connection = 0;
}

/* Accepts the connections that wait. */
static void accept_all(void) {
    tle_connection connection;
    while ((connection = tle_accept(stack, (uint32_t)listener))) {
        struct client *client = find(0);
        if (!client) {
            tle_abort(stack, connection);
            continue;
        }
        client->connection = connection;
        client->len = 0;
        serve(connection);
    }
}

/* Runs the stack until no packet waits. */
static void turn(void) {
    int received;
    do {
        struct tle_event event;
        received = tle_poll(stack, uv_hrtime());
        while (tle_next_event(stack, &event)) {
            if (event.kind == TLE_INCOMING)
                accept_all();
            else if (event.kind == TLE_CLOSED)
                end(event.connection);
            else
                serve(event.connection);
        }
        tle_flush(stack);
    } while (received);
}

static void on_timer(uv_timer_t *handle);

/* Sets the loop's timer to the time that tle_next_timeout returns. Stops the timer if there is no
 * such time. */
static void arm(void) {
    uint64_t at = tle_next_timeout(stack), now = uv_hrtime();
    if (at == UINT64_MAX)
        uv_timer_stop(&timer);
    else
        uv_timer_start(&timer, on_timer, at > now ? (at - now) / 1000000 + 1 : 0, 0);
}

static void on_timer(uv_timer_t *handle) {
    (void)handle;
    turn();
    arm();
}

static void on_packet(uv_poll_t *handle, int status, int events) {
    (void)handle, (void)status, (void)events;
    turn();
    arm();
}

static void on_end(uv_timer_t *handle) { uv_stop(handle->loop); }

/* Prints an error and ends. */
static void fail(const char *what) {
    perror(what);
    exit(1);
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: echo_uv DEVICE A.B.C.D PORT SECONDS\n");
        return 2;
    }
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    strncpy(request.ifr_name, argv[1], IFNAMSIZ - 1);
    if (device < 0 || ioctl(device, TUNSETIFF, &request))
        fail("the TUN device");
    uint8_t address[16] = {[10] = 0xff, [11] = 0xff}, secret[16];
    if (inet_pton(AF_INET, argv[2], address + 12) != 1 || getrandom(secret, 16, 0) != 16)
        fail("the address");
    struct tle_port port = {&device, receive, send_packet, 1500};
    stack = tle_new(&port, address, secret);
    tle_poll(stack, uv_hrtime());
    listener = tle_listen(stack, (uint16_t)atoi(argv[3]), 128);
    if (listener < 0)
        fail("listen");
    uv_loop_t *loop = uv_default_loop();
    uv_poll_t packets;
    uv_timer_t end;
    uv_poll_init(loop, &packets, device);
    uv_timer_init(loop, &timer);
    uv_timer_init(loop, &end);
    uv_poll_start(&packets, UV_READABLE, on_packet);
    uv_timer_start(&end, on_end, (uint64_t)atoi(argv[4]) * 1000, 0);
    printf("ready\n");
    fflush(stdout);
    uv_run(loop, UV_RUN_DEFAULT);
    tle_free(stack);
    return 0;
}
