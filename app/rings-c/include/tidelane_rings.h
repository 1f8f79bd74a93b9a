/* The ring API: messages over many connections without copies.
 *
 * Link with libtidelane_rings_c.a -lpthread -ldl -lm, or with libtidelane_rings_c.so. Each function
 * has a page: man tlr_sync. Begin with man 7 tlr.
 *
 * On success, functions return 0 or a number that is not negative. On failure, they return a
 * negative errno, and tlr_error_text returns the reason and a remedy. A call that fails changes
 * nothing, except that a failed sync may have moved data. A context belongs to the thread that
 * opened it.
 *
 * A program must not write to a buffer after the program has sent or released the buffer. The
 * library does not prevent the write, except to received data of TLR_SERVICE. The write affects
 * only this program and its peers: man 7 tlr, "Trust". */
#ifndef TIDELANE_RINGS_H
#define TIDELANE_RINGS_H

#include <stdint.h>
#include <sys/socket.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The handle of a context. Zero stands for no context. The handle of a closed context is never used
 * again. */
typedef uint64_t tlr_context;

/* The number of a buffer, or a negative errno as a result of a failed call. The number is valid for
 * one use of the buffer. The use begins when the buffer comes from the ready list, tlr_allocate or
 * tlr_allocate_for, and ends when the program sends or releases the buffer. The next tlr_sync or
 * tlr_rx_sync also ends the use of a buffer of the ready list, unless the program has called
 * tlr_hold. */
typedef int64_t tlr_buffer;

/* The index of a buffer, from 0 to TLR_INDEXES - 1. Buffers that the ready list and the program
 * have at the same time have different indexes. An index is always below the largest number of
 * buffers that the two have had at the same time. */
#define TLR_INDEX(buffer) ((uint32_t)((buffer) & 0x3ffff))
#define TLR_INDEXES 0x40000

/* End of a chain of slots, and the listener in an entry without TLR_ACCEPTED. */
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
    TLR_STEERED = 1, /* TLR_DIRECT: the NIC sends the packets of the program's ports to `queue` */
};

/* Options of a context. Zero stands for the default. An option of another back end must be zero. */
struct tlr_options {
    uint32_t back_end;       /* an enum tlr_back_end; default: TLR_IO_URING */
    uint32_t buffers;        /* number of buffers, at most 32768 (TLR_DIRECT: 28672); default: 8192
                              * (TLR_SERVICE: 1024) */
    uint32_t buffer_len;     /* bytes of each buffer, at most 1 MiB; default: 4096. TLR_DIRECT
                              * ignores the length, because its buffers are the frames of the NIC */
    uint32_t send_queue_max; /* limit of the buffers that wait for sending on one descriptor;
                              * default: 256 */
    uint32_t busy_poll_us;   /* TLR_IO_URING: microseconds for which a wait polls the NIC */
    uint32_t queue;          /* TLR_DIRECT: queue of the interface, with TLR_STEERED */
    uint32_t flags;          /* a set of enum tlr_flag */
    uint32_t padding;        /* zero */
    const char *interface;   /* TLR_DIRECT: name of the interface */
    const char *service;     /* TLR_SERVICE: path of the service's socket; default: the path in the
                              * environment variable TIDELANE_SOCKET, or that of `tidelane up` */
    uint64_t reserved[4];    /* zero */
};

/* Events of a descriptor. */
enum tlr_event {
    TLR_ACCEPTED = 1,     /* a new connection of a listener */
    TLR_CONNECTED = 2,    /* the connection of a tlr_connect is established */
    TLR_READABLE = 4,     /* the entry has slots with data */
    TLR_END = 8,          /* the peer has closed its direction: no data follows */
    TLR_WRITABLE = 16,    /* there is room for a buffer again, after EAGAIN */
    TLR_CLOSED = 32,      /* the connection is over; the program has to close the descriptor */
    TLR_SEND_FAILED = 64, /* a datagram could not be sent; the descriptor stays open */
};

/* An entry of the ready list: a descriptor with data or events. */
struct tlr_entry {
    int descriptor;
    uint32_t events; /* a set of enum tlr_event */
    int cause;       /* errno of TLR_CLOSED or TLR_SEND_FAILED, otherwise 0 */
    int listener;    /* listener of TLR_ACCEPTED, otherwise TLR_NONE */
    int first;       /* first slot, or TLR_NONE */
    uint32_t slots;  /* number of slots */
    uint32_t bytes;  /* bytes in all slots */
};

/* A slot of the ready list: received data of a connection, or one datagram of a UDP socket. */
struct tlr_slot {
    tlr_buffer buffer;
    int descriptor;
    uint32_t len; /* bytes of the data */
    int next;     /* next slot of the descriptor, or TLR_NONE */
    uint32_t reserved;
};

/* Counters of a context. */
struct tlr_counters {
    uint64_t syncs;        /* calls of tlr_sync, tlr_rx_sync and tlr_tx_sync */
    uint64_t system_calls; /* system calls of the syncs */
    uint32_t buffers;      /* number of buffers of the pool */
    uint32_t buffers_free; /* buffers of the pool that can be allocated */
    uint32_t buffers_held; /* buffers that the program owns */
    uint32_t buffer_len;   /* bytes of each buffer of the pool; for the room: tlr_capacity */
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
