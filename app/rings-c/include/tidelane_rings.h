/* The ring API: messages over many connections without copies.
 *
 * A context has the listeners, connections and UDP sockets of one thread, and the buffers of their
 * data. A descriptor is the number of a listener, a connection or a UDP socket in its context.
 * tlr_sync sends and receives for all descriptors of a context, and makes the ready list: an entry
 * for each descriptor with data or events, and a chain of slots with the received data.
 *
 * Link with libtidelane_rings_c.a -lpthread -ldl -lm, or with libtidelane_rings_c.so. Each function
 * has a page: man tlr_sync. Begin with man 7 tlr.
 *
 * On success, functions return 0 or a number that is not negative. On failure, they return a
 * negative errno, and tlr_error_text returns the reason and usually a remedy. A failed call changes
 * nothing, except that a failed sync (tlr_sync, tlr_rx_sync or tlr_tx_sync) may have moved data. A
 * failed tlr_sync or tlr_rx_sync may also have replaced the ready list. Only the thread that has
 * opened a context may use the context.
 *
 * A program must not write to a buffer after the program has sent or released the buffer. Only the
 * received data of TLR_SERVICE connections is protected from a write. Man 7 tlr, "Trust", describes
 * the effects of a write, which are limited to this program and its peers. */
#ifndef TIDELANE_RINGS_H
#define TIDELANE_RINGS_H

#include <stdint.h>
#include <sys/socket.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The handle of a context. Zero is never the handle of a context. The handle of a closed context is
 * never used again. */
typedef uint64_t tlr_context;

/* The number of a buffer, or a negative errno as a result of a failed call. The number is valid for
 * one use of the buffer. The use begins when the buffer comes from the ready list, tlr_allocate or
 * tlr_allocate_for, and ends when the program sends or releases the buffer. If the program does not
 * call tlr_hold for a buffer of the ready list, the next tlr_sync or tlr_rx_sync also ends the use.
 */
typedef int64_t tlr_buffer;

/* The index of a buffer, from 0 to TLR_INDEXES - 1. At any time, all buffers of the ready list and
 * of the program have different indexes. An index is always below the largest number of buffers
 * that the ready list and the program have had together at any time. */
#define TLR_INDEX(buffer) ((uint32_t)((buffer) & 0x3ffff))
#define TLR_INDEXES 0x40000

/* Marks the end of a chain of slots. Stands for no listener in an entry without TLR_ACCEPTED. */
#define TLR_NONE (-1)

/* Back ends: the TCP that carries the connections of a context. */
enum tlr_back_end {
    TLR_IO_URING = 1, /* the kernel's TCP, through io_uring */
    TLR_DIRECT = 2,   /* TCP in this process, on a queue of an interface (AF_XDP); needs root or
                       * capabilities: man tlr_open_context */
    TLR_SERVICE = 3,  /* the Tidelane service */
};

/* Flags of a context. */
enum tlr_flag {
    TLR_STEERED = 1, /* TLR_DIRECT: the NIC sends the packets of the program's ports to the queue
                      * that the option `queue` names */
};

/* Options of a context. Zero stands for the default. An option of another back end must be zero. */
struct tlr_options {
    uint32_t back_end;       /* an enum tlr_back_end; default: TLR_IO_URING */
    uint32_t buffers;        /* number of buffers of the context's pool, at most 32768 (TLR_DIRECT:
                              * 28672); default: 8192 (TLR_SERVICE: 1024) */
    uint32_t buffer_len;     /* bytes of each buffer, at most 1 MiB; default: 4096. TLR_DIRECT
                              * ignores the length, because its buffers are the frames of the NIC */
    uint32_t send_queue_max; /* limit of the buffers that wait for sending on one descriptor;
                              * default: 256 */
    uint32_t busy_poll_us;   /* TLR_IO_URING: microseconds for which a wait polls the NIC */
    uint32_t queue;          /* TLR_DIRECT: number of the interface's queue; a number other than 0
                              * needs TLR_STEERED */
    uint32_t flags;          /* a set of enum tlr_flag */
    uint32_t padding;        /* zero */
    const char *interface;   /* TLR_DIRECT: name of the interface, which has no default */
    const char *service;     /* TLR_SERVICE: path of the service's socket; default: the path in the
                              * environment variable TIDELANE_SOCKET; if the variable is not set:
                              * /run/tidelane/default/control.sock */
    uint64_t reserved[4];    /* zero */
};

/* Events of a descriptor. */
enum tlr_event {
    TLR_ACCEPTED = 1,     /* a new connection of a listener */
    TLR_CONNECTED = 2,    /* a connection that tlr_connect has started is established */
    TLR_READABLE = 4,     /* the entry has slots with data */
    TLR_END = 8,          /* the peer has closed its direction: no data follows */
    TLR_WRITABLE = 16,    /* after EAGAIN of a call: there is room for a buffer again */
    TLR_CLOSED = 32,      /* the connection or UDP socket has failed (`cause` of the entry); the
                           * program still has to close the descriptor */
    TLR_SEND_FAILED = 64, /* a datagram could not be sent; the descriptor stays open */
};

/* An entry of the ready list: a descriptor with data or events. */
struct tlr_entry {
    int descriptor;
    uint32_t events; /* a set of enum tlr_event */
    int cause;       /* errno (positive) of TLR_CLOSED or TLR_SEND_FAILED, otherwise 0 */
    int listener;    /* listener of TLR_ACCEPTED, otherwise TLR_NONE */
    int first;       /* index of the first slot of the descriptor, or TLR_NONE */
    uint32_t slots;  /* number of slots of the descriptor */
    uint32_t bytes;  /* number of bytes in these slots */
};

/* A slot of the ready list: received data of a connection, or one datagram of a UDP socket. */
struct tlr_slot {
    tlr_buffer buffer;
    int descriptor;
    uint32_t len; /* bytes of the data */
    int next;     /* index of the next slot of the same descriptor, or TLR_NONE */
    uint32_t reserved;
};

/* Counters of a context. */
struct tlr_counters {
    uint64_t syncs;        /* calls of tlr_sync, tlr_rx_sync and tlr_tx_sync */
    uint64_t system_calls; /* system calls that the syncs have made */
    uint32_t buffers;      /* number of buffers of the pool */
    uint32_t buffers_free; /* number of buffers of the pool that tlr_allocate can return */
    uint32_t buffers_held; /* number of buffers that the program owns */
    uint32_t buffer_len;   /* bytes of each buffer of the pool; headers may take a part of the
                            * bytes, so that tlr_capacity returns less */
};

/* Contexts. */
int tlr_open_context(const struct tlr_options *options, tlr_context *context);
int tlr_close_context(tlr_context context);
int tlr_counters(tlr_context context, struct tlr_counters *counters);
int tlr_error_text(char *text, uint32_t size);

/* Descriptors. */
int tlr_listen(tlr_context context, const struct sockaddr *local, socklen_t len, uint32_t backlog);
int tlr_connect(tlr_context context, const struct sockaddr *peer, socklen_t len);
int tlr_bind(tlr_context context, const struct sockaddr *local, socklen_t len);
int tlr_pause(tlr_context context, int descriptor);
int tlr_resume(tlr_context context, int descriptor);
int tlr_shutdown(tlr_context context, int descriptor);
int tlr_close(tlr_context context, int descriptor);
int tlr_abort(tlr_context context, int descriptor);
int tlr_socket(tlr_context context, int descriptor);

/* Packets, TCP and timers. */
int tlr_sync(tlr_context context, int64_t timeout_ns);
int tlr_rx_sync(tlr_context context, int64_t timeout_ns);
int tlr_tx_sync(tlr_context context);

/* The ready list. */
int tlr_entry_count(tlr_context context);
int tlr_entry(tlr_context context, int at, struct tlr_entry *entry);
int tlr_slot_count(tlr_context context);
int tlr_slot(tlr_context context, int at, struct tlr_slot *slot);
int tlr_sender(tlr_context context, int at, struct sockaddr *sender, socklen_t *len);

/* Buffers. */
tlr_buffer tlr_allocate(tlr_context context);
tlr_buffer tlr_allocate_for(tlr_context context, int descriptor);
int64_t tlr_payload(tlr_context context, tlr_buffer buffer, void **payload);
int64_t tlr_writable_payload(tlr_context context, tlr_buffer buffer, void **payload);
int64_t tlr_capacity(tlr_context context, tlr_buffer buffer);
int tlr_set_payload(tlr_context context, tlr_buffer buffer, uint32_t skip, uint32_t len);
int tlr_hold(tlr_context context, tlr_buffer buffer);
int tlr_release(tlr_context context, tlr_buffer buffer);
int tlr_send(tlr_context context, int descriptor, tlr_buffer buffer);
int tlr_send_to(tlr_context context, int descriptor, tlr_buffer buffer,
                const struct sockaddr *peer, socklen_t len);

#ifdef __cplusplus
}
#endif

#endif
