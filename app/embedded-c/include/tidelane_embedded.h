/* A TCP stack that a program links. Link with libtidelane_embedded_c.a -lpthread -ldl -lm.
 *
 * A stack runs in the thread that calls its functions. No function blocks. Two threads may not call
 * functions of the same stack at the same time. The port functions of a stack (`struct tle_port`)
 * may not call functions of this stack.
 *
 * IPv4 addresses are passed as IPv6 addresses of the form ::ffff:a.b.c.d. Times are nanoseconds of
 * a clock that never goes back, such as CLOCK_MONOTONIC. */
#ifndef TIDELANE_EMBEDDED_H
#define TIDELANE_EMBEDDED_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A TCP stack with one IP address. The program sees only pointers to the stack. */
struct tle_stack;

/* The handle of a connection. Zero stands for no connection. The stack never uses the handle of a
 * closed connection again, and no function acts on the handle of a closed connection. */
typedef uint64_t tle_connection;

/* The functions that move the stack's IP packets. */
struct tle_port {
    /* First argument of both functions. */
    void *user;
    /* Writes the next received packet to `packet`, which has room for `room` bytes. Returns the
     * packet's length; 0 if no packet waits. */
    size_t (*receive)(void *user, void *packet, size_t room);
    /* Sends a packet. Returns 0 if the packet has to be sent again later, and 1 otherwise. */
    int (*send)(void *user, const void *packet, size_t len);
    /* Largest packet in bytes. */
    uint32_t mtu;
};

/* Kinds of events. */
enum tle_kind {
    TLE_INCOMING = 1,  /* a connection can be accepted */
    TLE_CONNECTED = 2, /* an active open is complete */
    TLE_READABLE = 3,  /* new data (not repeated until the program reads), or a FIN of the peer */
    TLE_WRITABLE = 4,  /* there is room, after a tle_write that took only a part of its data */
    TLE_CLOSED = 5,    /* the connection is over; the program still has to close it */
    TLE_URGENT = 6,    /* the peer has announced urgent data, which tle_read returns */
};

/* An event. */
struct tle_event {
    enum tle_kind kind;
    /* Listener of TLE_INCOMING. 0 for the other kinds. */
    uint32_t listener;
    /* Connection of the other kinds. 0 for TLE_INCOMING. */
    tle_connection connection;
};

/* Makes a stack with the address `address`. `secret` is the key of the initial sequence numbers: 16
 * random bytes that nobody else knows. Returns NULL if the MTU is below 1280 or above 65535. */
struct tle_stack *tle_new(const struct tle_port *port, const uint8_t address[16],
                          const uint8_t secret[16]);

/* Frees a stack and its connections. The peers get neither FIN nor RST. Ignores NULL. */
void tle_free(struct tle_stack *stack);

/* Receives packets, runs TCP and the timers, and sends. Returns 1 if a packet arrived: further
 * packets may then wait. Returns 0 otherwise. The time of all other functions is the most
 * recent `now_ns`. */
int tle_poll(struct tle_stack *stack, uint64_t now_ns);

/* Returns the time at which tle_poll has to be called even if no packet arrives: the time of the
 * next timer. If the port has not taken all packets, the time is at most 1 ms after the most recent
 * tle_poll. Returns UINT64_MAX if no timer runs and the port has taken all packets. */
uint64_t tle_next_timeout(const struct tle_stack *stack);

/* Sends the data, ACKs and SYNs that TCP allows to send now. The MultiStack paper ("Rekindling
 * Network Protocol Innovation with User-Level Stacks", 2014) calls this function tcp_output. */
void tle_flush(struct tle_stack *stack);

/* Handles one received IP packet. The MultiStack paper calls this function tcp_input. A program
 * does not need this function if tle_poll gets all packets from the port's function `receive`. */
void tle_input(struct tle_stack *stack, const void *packet, size_t len);

/* Listens at `port`. As in Linux, at most `backlog` + 1 connections wait to be accepted. Returns
 * the listener; -1 on failure, for example if the port is in use. */
int64_t tle_listen(struct tle_stack *stack, uint16_t port, uint32_t backlog);

/* Ends a listener. Connections that were not accepted are reset. */
void tle_unlisten(struct tle_stack *stack, uint32_t listener);

/* Returns the oldest connection that waits to be accepted; 0 if there is none. */
tle_connection tle_accept(struct tle_stack *stack, uint32_t listener);

/* Opens a connection from an ephemeral port to `port` of `peer`. Returns the connection; 0 on
 * failure. After a success, the event TLE_CONNECTED or TLE_CLOSED follows. */
tle_connection tle_connect(struct tle_stack *stack, const uint8_t peer[16], uint16_t port);

/* Copies received data to `buffer`, at most `len` bytes. Returns the number of copied bytes; 0 if
 * there is no data. */
size_t tle_read(struct tle_stack *stack, tle_connection connection, void *buffer, size_t len);

/* Copies as much of `data` as the send buffer has room for. Returns the number of copied bytes. */
size_t tle_write(struct tle_stack *stack, tle_connection connection, const void *data, size_t len);

/* Returns 1 if the program has read all data and no more data can arrive. Also returns 1 for an
 * invalid handle. Returns 0 otherwise. */
int tle_is_end(struct tle_stack *stack, tle_connection connection);

/* Closes the sending direction: the stack sends the remaining data and a FIN. */
void tle_shutdown(struct tle_stack *stack, tle_connection connection);

/* Closes a connection: the stack sends the remaining data and a FIN. If received data is unread,
 * the stack resets the connection instead. The MultiStack paper calls this function tcp_close. */
void tle_close(struct tle_stack *stack, tle_connection connection);

/* Resets a connection. */
void tle_abort(struct tle_stack *stack, tle_connection connection);

/* Writes the next event to `event`. Returns 1, or 0 if there is no event. */
int tle_next_event(struct tle_stack *stack, struct tle_event *event);

#ifdef __cplusplus
}
#endif

#endif
