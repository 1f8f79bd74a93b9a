/* Checks that misuses of the ring API return their errors, and that correct calls before and after
 * the misuses succeed. A context is the set of sockets of one thread. Prints "ok" at the end, or
 * "skipped" and a reason if the system forbids io_uring. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../include/tidelane_rings.h"

#define SECOND 1000000000
#define CHECK(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "misuse.c:%d: %s\n", __LINE__, #condition);                            \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)
#define IS(call, expected)                                                                        \
    do {                                                                                           \
        long long is_result = (call), is_expected = (expected);                                    \
        if (is_result != is_expected) {                                                            \
            fprintf(stderr, "misuse.c:%d: %s is %lld, not %lld\n", __LINE__, #call, is_result,     \
                    is_expected);                                                                  \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

_Static_assert(sizeof(struct tlr_options) == 80, "as in types.rs");
_Static_assert(offsetof(struct tlr_options, interface) == 32, "as in types.rs");
_Static_assert(offsetof(struct tlr_options, reserved) == 48, "as in types.rs");
_Static_assert(sizeof(struct tlr_entry) == 28, "as in types.rs");
_Static_assert(offsetof(struct tlr_entry, bytes) == 24, "as in types.rs");
_Static_assert(sizeof(struct tlr_slot) == 24, "as in types.rs");
_Static_assert(offsetof(struct tlr_slot, next) == 16, "as in types.rs");
_Static_assert(sizeof(struct tlr_counters) == 32, "as in types.rs");
_Static_assert(offsetof(struct tlr_counters, buffer_len) == 28, "as in types.rs");

static struct sockaddr_in loopback(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

/* Returns the local port of a socket. */
static int port_of(int fd) {
    struct sockaddr_in address;
    socklen_t len = sizeof address;
    CHECK(!getsockname(fd, (struct sockaddr *)&address, &len));
    return ntohs(address.sin_port);
}

static int listen_on(tlr_context context) {
    struct sockaddr_in address = loopback(0);
    int listener = tlr_listen(context, (struct sockaddr *)&address, sizeof address, 16);
    CHECK(listener >= 0);
    return listener;
}

/* Connects a blocking socket to a listener of the context. Returns the socket, and writes the
 * descriptor of the accepted connection to `accepted`. */
static int connect_to(tlr_context context, int listener, int *accepted) {
    struct sockaddr_in address = loopback(port_of(tlr_socket(context, listener)));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&address, sizeof address));
    struct timeval limit = {.tv_sec = 20};
    CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    struct tlr_entry entry;
    IS(tlr_sync(context, 20LL * SECOND), 1);
    IS(tlr_entry(context, 0, &entry), 0);
    CHECK(entry.events == TLR_ACCEPTED && entry.listener == listener);
    CHECK(entry.first == TLR_NONE && !entry.slots && !entry.cause);
    *accepted = entry.descriptor;
    return fd;
}

/* Waits for data of one descriptor, which must be in one slot. Returns the slot. */
static struct tlr_slot receive(tlr_context context, int descriptor) {
    struct tlr_entry entry;
    struct tlr_slot slot;
    IS(tlr_sync(context, 20LL * SECOND), 1);
    IS(tlr_entry(context, 0, &entry), 0);
    CHECK(entry.descriptor == descriptor && entry.events == TLR_READABLE && entry.slots == 1);
    IS(tlr_slot(context, entry.first, &slot), 0);
    CHECK(slot.descriptor == descriptor && slot.next == TLR_NONE && slot.len == entry.bytes);
    return slot;
}

static tlr_buffer with_text(tlr_context context, const char *text) {
    void *payload;
    tlr_buffer buffer = tlr_allocate(context);
    CHECK(buffer >= 0);
    IS(tlr_payload(context, buffer, &payload), 0);
    memcpy(payload, text, strlen(text));
    IS(tlr_set_payload(context, buffer, 0, (uint32_t)strlen(text)), 0);
    return buffer;
}

static int has_text(tlr_context context, tlr_buffer buffer, const char *text) {
    void *payload;
    int64_t len = tlr_payload(context, buffer, &payload);
    return len == (int64_t)strlen(text) && !memcmp(payload, text, strlen(text));
}

static struct tlr_counters counters_of(tlr_context context) {
    struct tlr_counters counters;
    IS(tlr_counters(context, &counters), 0);
    return counters;
}

/* Checks that each function that takes the handle of a context returns `error` for this handle. */
static void check_handle(tlr_context context, int error) {
    struct sockaddr_in address = loopback(0);
    struct tlr_counters counters;
    struct tlr_entry entry;
    struct tlr_slot slot;
    void *payload;
    IS(tlr_close_context(context), error);
    IS(tlr_counters(context, &counters), error);
    IS(tlr_listen(context, (struct sockaddr *)&address, sizeof address, 1), error);
    IS(tlr_connect(context, (struct sockaddr *)&address, sizeof address), error);
    IS(tlr_bind(context, (struct sockaddr *)&address, sizeof address), error);
    IS(tlr_pause(context, 0), error);
    IS(tlr_resume(context, 0), error);
    IS(tlr_shutdown(context, 0), error);
    IS(tlr_close(context, 0), error);
    IS(tlr_abort(context, 0), error);
    IS(tlr_socket(context, 0), error);
    IS(tlr_sync(context, -1), error);
    IS(tlr_rx_sync(context, -1), error);
    IS(tlr_tx_sync(context), error);
    IS(tlr_entry_count(context), error);
    IS(tlr_entry(context, 0, &entry), error);
    IS(tlr_slot_count(context), error);
    IS(tlr_slot(context, 0, &slot), error);
    IS(tlr_allocate(context), error);
    IS(tlr_allocate_for(context, 0), error);
    IS(tlr_payload(context, 0, &payload), error);
    IS(tlr_writable_payload(context, 0, &payload), error);
    IS(tlr_capacity(context, 0), error);
    IS(tlr_set_payload(context, 0, 0, 0), error);
    IS(tlr_hold(context, 0), error);
    IS(tlr_release(context, 0), error);
    IS(tlr_send(context, 0, 0), error);
    socklen_t len = sizeof address;
    IS(tlr_sender(context, 0, (struct sockaddr *)&address, &len), error);
    IS(tlr_send_to(context, 0, 0, (struct sockaddr *)&address, sizeof address), error);
}

/* Returns true if the text of the last failed call of this thread contains `part`. */
static int has_reason(const char *part) {
    char text[512], cut[8];
    int len = tlr_error_text(text, sizeof text);
    CHECK(len > 0 && len < (int)sizeof text && strlen(text) == (size_t)len);
    /* A short buffer gets the start of the text, and a zero byte. */
    memset(cut, 'x', sizeof cut);
    IS(tlr_error_text(cut, 5), len);
    CHECK(!memcmp(cut, text, 4) && !cut[4] && cut[5] == 'x');
    IS(tlr_error_text(cut, 1), len);
    CHECK(!cut[0] && cut[1] == text[1]);
    IS(tlr_error_text(cut, 0), len);
    IS(tlr_error_text(NULL, 100), len);
    if (!strstr(text, part))
        fprintf(stderr, "misuse.c: no \"%s\" in \"%s\"\n", part, text);
    return strstr(text, part) != NULL;
}

/* Options that tlr_open_context refuses, each with its error and a part of the error's text. The
 * test needs no privilege, and does not change an interface. */
static void back_ends(void) {
    const struct {
        struct tlr_options options;
        int error;
        const char *reason;
    } cases[] = {
        {{.back_end = 4}, EOPNOTSUPP, "enum tlr_back_end"},
        {{.back_end = UINT32_MAX}, EOPNOTSUPP, "enum tlr_back_end"},
        {{.reserved = {0, 0, 0, 1}}, EINVAL, "reserved"},
        {{.padding = 1}, EINVAL, "reserved"},
        {{.interface = "eth0"}, EINVAL, "tlr_open_context"},
        {{.service = "/x"}, EINVAL, "tlr_open_context"},
        {{.queue = 1}, EINVAL, "tlr_open_context"},
        {{.flags = TLR_STEERED}, EINVAL, "tlr_open_context"},
        {{.back_end = TLR_DIRECT}, EINVAL, "ip -brief link"},
        {{.back_end = TLR_DIRECT, .interface = ""}, ENOENT, "ip -brief link"},
        {{.back_end = TLR_DIRECT, .interface = "no-such-if"}, ENOENT, "no-such-if"},
        {{.back_end = TLR_DIRECT, .interface = "no-such-if", .busy_poll_us = 1}, EINVAL, "option"},
        {{.back_end = TLR_DIRECT, .interface = "no-such-if", .service = "/x"}, EINVAL, "option"},
        {{.back_end = TLR_DIRECT, .interface = "no-such-if", .queue = 1}, EINVAL, "TLR_STEERED"},
        {{.back_end = TLR_DIRECT, .interface = "no-such-if", .flags = 2}, EINVAL, "tlr_flag"},
        {{.back_end = TLR_DIRECT, .interface = "\xff"}, EINVAL, "UTF-8"},
        {{.back_end = TLR_SERVICE, .service = "/no/such"}, ENOENT, "tidelane up"},
        {{.back_end = TLR_SERVICE, .interface = "eth0"}, EINVAL, "option"},
        {{.back_end = TLR_SERVICE, .busy_poll_us = 1}, EINVAL, "option"},
        {{.back_end = TLR_SERVICE, .queue = 1}, EINVAL, "option"},
    };
    tlr_context context = 77;
    char none = 'x';
    IS(tlr_error_text(&none, 1), 0);
    CHECK(!none);
    for (size_t at = 0; at < sizeof cases / sizeof *cases; at++) {
        IS(tlr_open_context(&cases[at].options, &context), -cases[at].error);
        CHECK(has_reason(cases[at].reason));
    }
    IS(context, 77);
    /* The error text of a thread stays until the next call of the thread that fails. */
    IS(tlr_open_context(&cases[0].options, NULL), -EFAULT);
    CHECK(has_reason("pointer"));
    IS(tlr_open_context(NULL, &context), 0);
    IS(tlr_send(context, 0, 0), -ENOTSOCK);
    tlr_release(context, tlr_allocate(context));
    CHECK(has_reason("descriptor"));
    IS(tlr_close_context(context), 0);
}

static void options(void) {
    tlr_context context = 77;
    IS(tlr_open_context(NULL, NULL), -EFAULT);
    struct tlr_options options;
    struct tlr_options impossible[] = {
        {.buffers = 1}, {.buffers = 32769}, {.buffers = UINT32_MAX}, {.buffer_len = (1 << 20) + 1},
    };
    for (size_t at = 0; at < sizeof impossible / sizeof *impossible; at++)
        IS(tlr_open_context(&impossible[at], &context), -EINVAL);
    IS(context, 77);
    options = (struct tlr_options){.back_end = TLR_IO_URING, .buffers = 20, .buffer_len = 100};
    IS(tlr_open_context(&options, &context), 0);
    struct tlr_counters counters = counters_of(context);
    CHECK(counters.buffers == 20 && counters.buffer_len == 100 && !counters.buffers_held);
    IS(tlr_close_context(context), 0);
}

/* A thread other than the main thread. Cannot use contexts[0], which the main thread has opened.
 * Opens a context of its own, and writes the handle to contexts[1]. If contexts[2] is not 0, closes
 * this context; otherwise the end of the thread does. */
static void *in_thread(void *argument) {
    tlr_context *contexts = argument, own;
    check_handle(contexts[0], -EPERM);
    IS(tlr_open_context(NULL, &own), 0);
    check_handle(contexts[0], -EPERM);
    CHECK(tlr_allocate(own) >= 0);
    contexts[1] = own;
    if (contexts[2])
        IS(tlr_close_context(own), 0);
    return NULL;
}

/* Handles that name no context, a closed context, or a context of another thread. */
static void handles(void) {
    tlr_context contexts[3];
    IS(tlr_open_context(NULL, &contexts[0]), 0);
    tlr_context invented[] = {0, 1, contexts[0] + 1, contexts[0] ^ ((uint64_t)1 << 62), UINT64_MAX};
    for (size_t at = 0; at < sizeof invented / sizeof *invented; at++)
        check_handle(invented[at], -EBADF);
    for (uint64_t closes = 0; closes < 2; closes++) {
        pthread_t thread;
        contexts[2] = closes;
        CHECK(!pthread_create(&thread, NULL, in_thread, contexts));
        CHECK(!pthread_join(thread, NULL));
        /* The thread and its context are gone. */
        check_handle(contexts[1], -EPERM);
    }
    CHECK(tlr_allocate(contexts[0]) >= 0);
    IS(tlr_close_context(contexts[0]), 0);
    check_handle(contexts[0], -EBADF);
    IS(tlr_open_context(NULL, &contexts[1]), 0);
    CHECK(contexts[1] != contexts[0]);
    check_handle(contexts[0], -EBADF);
    IS(tlr_close_context(contexts[1]), 0);
}

/* Leaves a context with a connection open. The end of the thread closes both. */
static void *leaves_open(void *argument) {
    int *fd = argument, descriptor;
    tlr_context context;
    IS(tlr_open_context(NULL, &context), 0);
    *fd = connect_to(context, listen_on(context), &descriptor);
    return NULL;
}

static void end_of_a_thread(void) {
    pthread_t thread;
    int fd;
    char byte;
    CHECK(!pthread_create(&thread, NULL, leaves_open, &fd));
    CHECK(!pthread_join(thread, NULL));
    IS(read(fd, &byte, 1), 0);
    close(fd);
}

/* A child process can use its own contexts only. Its end does not disturb the parent. */
static void fork_child(void) {
    tlr_context context, own;
    int descriptor, status;
    IS(tlr_open_context(NULL, &context), 0);
    int fd = connect_to(context, listen_on(context), &descriptor);
    for (int opens = 0; opens < 2; opens++) {
        fflush(NULL);
        pid_t child = fork();
        if (!child) {
            check_handle(context, -EPERM);
            if (opens) {
                int accepted;
                IS(tlr_open_context(NULL, &own), 0);
                connect_to(own, listen_on(own), &accepted);
                check_handle(context, -EPERM);
            }
            exit(0);
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        IS(status, 0);
        IS(write(fd, "x", 1), 1);
        struct tlr_slot slot = receive(context, descriptor);
        CHECK(has_text(context, slot.buffer, "x"));
    }
    close(fd);
    IS(tlr_close_context(context), 0);
}

static void addresses(tlr_context context, int listener) {
    struct sockaddr_in used = loopback(port_of(tlr_socket(context, listener)));
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    struct sockaddr *address = (struct sockaddr *)&used;
    IS(tlr_listen(context, address, sizeof used, 1), -EADDRINUSE);
    IS(tlr_listen(context, NULL, sizeof used, 1), -EFAULT);
    IS(tlr_connect(context, NULL, 0), -EFAULT);
    for (socklen_t len = 0; len < sizeof used; len++) {
        IS(tlr_listen(context, address, len, 1), -EINVAL);
        IS(tlr_connect(context, address, len), -EINVAL);
    }
    IS(tlr_connect(context, (struct sockaddr *)&local, sizeof local), -EAFNOSUPPORT);
}

static void descriptors(tlr_context context, int listener) {
    int accepted, wrong[] = {-1, -listener - 2, 1000, 1 << 30, INT32_MAX, INT32_MIN};
    int fd = connect_to(context, listener, &accepted);
    tlr_buffer buffer = with_text(context, "abc");
    for (size_t at = 0; at < sizeof wrong / sizeof *wrong; at++) {
        IS(tlr_pause(context, wrong[at]), -ENOTSOCK);
        IS(tlr_resume(context, wrong[at]), -ENOTSOCK);
        IS(tlr_shutdown(context, wrong[at]), -ENOTSOCK);
        IS(tlr_close(context, wrong[at]), -ENOTSOCK);
        IS(tlr_abort(context, wrong[at]), -ENOTSOCK);
        IS(tlr_socket(context, wrong[at]), -ENOTSOCK);
        IS(tlr_allocate_for(context, wrong[at]), -ENOTSOCK);
        IS(tlr_send(context, wrong[at], buffer), -ENOTSOCK);
    }
    IS(tlr_send(context, listener, buffer), -ENOTCONN);
    IS(tlr_shutdown(context, accepted), 0);
    IS(tlr_send(context, accepted, buffer), -ENOTCONN);
    CHECK(has_text(context, buffer, "abc"));
    IS(tlr_close(context, accepted), 0);
    IS(tlr_close(context, accepted), -ENOTSOCK);
    IS(tlr_abort(context, accepted), -ENOTSOCK);
    IS(tlr_shutdown(context, accepted), -ENOTSOCK);
    IS(tlr_socket(context, accepted), -ENOTSOCK);
    IS(tlr_send(context, accepted, buffer), -ENOTSOCK);
    CHECK(has_text(context, buffer, "abc"));
    IS(tlr_release(context, buffer), 0);
    char byte;
    IS(tlr_sync(context, 0), 0);
    IS(read(fd, &byte, 1), 0);
    close(fd);
    /* An abort resets the connection. */
    fd = connect_to(context, listener, &accepted);
    IS(tlr_abort(context, accepted), 0);
    IS(tlr_tx_sync(context), 0);
    CHECK(read(fd, &byte, 1) == -1 && errno == ECONNRESET);
    close(fd);
}

/* Checks that each function that takes the number of a buffer returns `error` for this number. */
static void check_buffer(tlr_context context, int descriptor, tlr_buffer buffer, int error) {
    void *payload = NULL;
    IS(tlr_payload(context, buffer, &payload), error);
    IS(tlr_writable_payload(context, buffer, &payload), error);
    CHECK(!payload);
    IS(tlr_capacity(context, buffer), error);
    IS(tlr_set_payload(context, buffer, 0, 1), error);
    IS(tlr_hold(context, buffer), error);
    IS(tlr_release(context, buffer), error);
    IS(tlr_send(context, descriptor, buffer), error);
    struct sockaddr_in peer = loopback(9);
    IS(tlr_send_to(context, descriptor, buffer, (struct sockaddr *)&peer, sizeof peer), error);
}

static void buffers(tlr_context context, int listener) {
    int accepted, fd = connect_to(context, listener, &accepted);
    struct tlr_counters before = counters_of(context), after;
    /* The number of a released buffer, also after the program has allocated the buffer again. */
    tlr_buffer buffer = tlr_allocate(context), again;
    IS(tlr_release(context, buffer), 0);
    check_buffer(context, accepted, buffer, -ESTALE);
    again = tlr_allocate(context);
    CHECK(TLR_INDEX(again) == TLR_INDEX(buffer) && again != buffer);
    check_buffer(context, accepted, buffer, -ESTALE);
    IS(tlr_release(context, again), 0);
    /* The number of a buffer that was sent, before and after the sync. */
    buffer = with_text(context, "sent");
    IS(tlr_send(context, accepted, buffer), 0);
    check_buffer(context, accepted, buffer, -ESTALE);
    IS(tlr_tx_sync(context), 0);
    check_buffer(context, accepted, buffer, -ESTALE);
    /* Numbers with an index out of range, invented numbers, and numbers of another context. */
    buffer = with_text(context, "mine");
    tlr_buffer base = buffer - TLR_INDEX(buffer);
    for (tlr_buffer at = before.buffers; at < TLR_INDEXES; at++)
        check_buffer(context, accepted, base + at, -EINVAL);
    tlr_buffer invented[] = {-1, INT64_MIN, INT64_MAX, 0, TLR_INDEX(buffer)};
    for (size_t at = 0; at < sizeof invented / sizeof *invented; at++)
        check_buffer(context, accepted, invented[at], -EINVAL);
    tlr_context other;
    IS(tlr_open_context(NULL, &other), 0);
    tlr_buffer foreign = with_text(other, "foreign");
    check_buffer(context, accepted, foreign, -EINVAL);
    check_buffer(other, listen_on(other), buffer, -EINVAL);
    CHECK(has_text(other, foreign, "foreign"));
    IS(tlr_close_context(other), 0);
    check_buffer(context, accepted, foreign, -EINVAL);
    /* A million pseudo-random numbers. Every second number differs from `buffer` only in the index
     * and in the number of the use, which is in bits 18 to 41. */
    unsigned long long seed = 1;
    for (int count = 0; count < 1000000; count++) {
        seed = seed * 6364136223846793005 + 1442695040888963407;
        tlr_buffer any = (tlr_buffer)(seed ^ seed >> 33);
        if (count % 2)
            any = base + TLR_INDEX(seed >> 45) + (tlr_buffer)((seed >> 40 & 7) << 18);
        if (any != buffer)
            CHECK(tlr_release(context, any) < 0);
    }
    CHECK(has_text(context, buffer, "mine"));
    /* Payloads that end beyond the buffer, and null pointers. */
    IS(tlr_capacity(context, buffer), before.buffer_len);
    IS(tlr_set_payload(context, buffer, 0, before.buffer_len + 1), -EMSGSIZE);
    IS(tlr_set_payload(context, buffer, UINT32_MAX, 2), -EMSGSIZE);
    IS(tlr_set_payload(context, buffer, before.buffer_len, 1), -EMSGSIZE);
    IS(tlr_payload(context, buffer, NULL), -EFAULT);
    IS(tlr_writable_payload(context, buffer, NULL), -EFAULT);
    CHECK(has_text(context, buffer, "mine"));
    IS(tlr_set_payload(context, buffer, 1, 2), 0);
    CHECK(has_text(context, buffer, "in"));
    IS(tlr_release(context, buffer), 0);
    /* With io_uring, a buffer of tlr_allocate_for is writable without a move to other memory. */
    void *readable, *writable;
    again = tlr_allocate_for(context, accepted);
    IS(tlr_payload(context, again, &readable), 0);
    IS(tlr_writable_payload(context, again, &writable), 0);
    CHECK(readable == writable);
    IS(tlr_release(context, again), 0);
    /* All buffers, each with an index of its own. */
    uint32_t all = 0;
    static char is_used[TLR_INDEXES];
    tlr_buffer *held = calloc(before.buffers, sizeof *held);
    while ((buffer = tlr_allocate(context)) >= 0) {
        CHECK(TLR_INDEX(buffer) < before.buffers && !is_used[TLR_INDEX(buffer)]++);
        held[all++] = buffer;
    }
    IS(buffer, -ENOBUFS);
    IS(tlr_allocate_for(context, accepted), -ENOBUFS);
    IS(counters_of(context).buffers_held, all);
    IS(counters_of(context).buffers_free, 0);
    while (all)
        IS(tlr_release(context, held[--all]), 0);
    free(held);
    after = counters_of(context);
    CHECK(after.buffers_free == before.buffers_free && !after.buffers_held);
    char text[5] = "";
    IS(read(fd, text, 4), 4);
    CHECK(!strcmp(text, "sent"));
    IS(tlr_close(context, accepted), 0);
    close(fd);
}

/* Slots of an earlier list, and buffers that are held. */
static void list(tlr_context context, int listener) {
    int accepted, fd = connect_to(context, listener, &accepted);
    struct tlr_entry entry;
    struct tlr_slot slot, held, gone;
    IS(tlr_entry(context, 1, &entry), -ENOENT);
    IS(tlr_entry(context, -1, &entry), -ENOENT);
    IS(tlr_entry(context, INT32_MAX, &entry), -ENOENT);
    IS(tlr_slot(context, 0, &slot), -ENOENT);
    IS(tlr_entry(context, 0, NULL), -EFAULT);
    IS(tlr_counters(context, NULL), -EFAULT);
    uint32_t free_before = counters_of(context).buffers_free;
    IS(write(fd, "first", 5), 5);
    held = receive(context, accepted);
    IS(tlr_slot(context, 0, NULL), -EFAULT);
    IS(tlr_entry_count(context), 1);
    IS(tlr_slot_count(context), 1);
    IS(counters_of(context).buffers_held, 0);
    IS(tlr_hold(context, held.buffer), 0);
    IS(tlr_hold(context, held.buffer), 0);
    IS(counters_of(context).buffers_held, 1);
    for (int count = 0; count < 20000; count++) {
        IS(write(fd, "second", 6), 6);
        gone = receive(context, accepted);
        CHECK(gone.buffer != held.buffer && has_text(context, gone.buffer, "second"));
        CHECK(has_text(context, held.buffer, "first"));
        /* The program releases every second buffer before the next sync. The next sync releases the
         * other buffers. */
        if (count % 2)
            IS(tlr_release(context, gone.buffer), 0);
    }
    IS(tlr_sync(context, 0), 0);
    check_buffer(context, accepted, gone.buffer, -ESTALE);
    IS(tlr_slot(context, 0, &slot), -ENOENT);
    IS(tlr_slot_count(context), 0);
    CHECK(has_text(context, held.buffer, "first"));
    /* A refused buffer of the list stays in the list. */
    IS(write(fd, "third", 5), 5);
    slot = receive(context, accepted);
    IS(tlr_shutdown(context, accepted), 0);
    IS(tlr_send(context, accepted, slot.buffer), -ENOTCONN);
    IS(counters_of(context).buffers_held, 1);
    CHECK(has_text(context, slot.buffer, "third"));
    IS(tlr_tx_sync(context), 0);
    CHECK(has_text(context, slot.buffer, "third"));
    IS(tlr_release(context, held.buffer), 0);
    check_buffer(context, listener, held.buffer, -ESTALE);
    IS(tlr_rx_sync(context, 0), 0);
    check_buffer(context, listener, slot.buffer, -ESTALE);
    IS(counters_of(context).buffers_free, free_before);
    IS(tlr_close(context, accepted), 0);
    close(fd);
}

/* A descriptor whose send queue is full refuses a buffer. The buffer stays with the program. */
static void full(void) {
    struct tlr_options options = {.send_queue_max = 2};
    struct sockaddr_in address = loopback(0);
    struct tlr_entry entry;
    tlr_context context;
    IS(tlr_open_context(&options, &context), 0);
    int server = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(!bind(server, (struct sockaddr *)&address, sizeof address) && !listen(server, 1));
    address = loopback(port_of(server));
    int peer = tlr_connect(context, (struct sockaddr *)&address, sizeof address);
    CHECK(peer >= 0);
    IS(tlr_send(context, peer, with_text(context, "1")), 0);
    IS(tlr_send(context, peer, with_text(context, "2")), 0);
    tlr_buffer third = with_text(context, "3");
    for (int count = 0; count < 3; count++) {
        IS(tlr_send(context, peer, third), -EAGAIN);
        CHECK(has_text(context, third, "3"));
        IS(counters_of(context).buffers_held, 1);
    }
    uint32_t events = 0;
    while (events != (TLR_CONNECTED | TLR_WRITABLE)) {
        IS(tlr_sync(context, 20LL * SECOND), 1);
        IS(tlr_entry(context, 0, &entry), 0);
        CHECK(entry.descriptor == peer && entry.listener == TLR_NONE);
        events |= entry.events;
    }
    IS(tlr_send(context, peer, third), 0);
    IS(tlr_close(context, peer), 0);
    IS(tlr_tx_sync(context), 0);
    int fd = accept(server, NULL, NULL);
    char text[8] = "";
    IS(recv(fd, text, 7, MSG_WAITALL), 3);
    CHECK(!strcmp(text, "123"));
    close(fd);
    close(server);
    IS(tlr_close_context(context), 0);
}

/* Datagrams in both directions, calls for connections on a UDP socket, and calls for datagrams on
 * TCP sockets. */
static void datagrams(tlr_context context, int listener) {
    struct sockaddr_in address = loopback(0), sender;
    struct sockaddr *any = (struct sockaddr *)&address;
    struct tlr_entry entry;
    struct tlr_slot slot;
    int bound = tlr_bind(context, any, sizeof address);
    CHECK(bound >= 0 && bound != listener);
    int port = port_of(tlr_socket(context, bound)), fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct timeval limit = {.tv_sec = 20};
    CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    CHECK(!bind(fd, any, sizeof address));
    address = loopback(port);
    IS(tlr_bind(context, any, sizeof address), -EADDRINUSE);
    IS(tlr_bind(context, NULL, sizeof address), -EFAULT);
    IS(tlr_bind(context, any, sizeof address - 1), -EINVAL);
    IS(tlr_listen(context, any, 1, 1), -EINVAL);
    /* Two datagrams are two slots. */
    IS(tlr_sync(context, 0), 0);
    IS(sendto(fd, "one", 3, 0, any, sizeof address), 3);
    IS(sendto(fd, "second", 6, 0, any, sizeof address), 6);
    for (int seen = 0; seen < 2; seen += (int)entry.slots) {
        IS(tlr_sync(context, 20LL * SECOND), 1);
        IS(tlr_entry(context, 0, &entry), 0);
        CHECK(entry.descriptor == bound && entry.events == TLR_READABLE && entry.slots > 0);
        for (uint32_t at = 0; at < entry.slots; at++) {
            socklen_t len = sizeof sender;
            IS(tlr_slot(context, (int)at, &slot), 0);
            CHECK(has_text(context, slot.buffer, seen + at ? "second" : "one"));
            IS(tlr_sender(context, (int)at, (struct sockaddr *)&sender, &len), 0);
            CHECK(len == sizeof sender && ntohs(sender.sin_port) == port_of(fd));
            CHECK(sender.sin_family == AF_INET);
            CHECK(sender.sin_addr.s_addr == address.sin_addr.s_addr);
            IS(tlr_sender(context, (int)at, NULL, &len), -EFAULT);
            IS(tlr_sender(context, (int)at, (struct sockaddr *)&sender, NULL), -EFAULT);
        }
        socklen_t len = sizeof sender;
        IS(tlr_sender(context, (int)entry.slots, (struct sockaddr *)&sender, &len), -ENOENT);
        IS(tlr_sender(context, -1, (struct sockaddr *)&sender, &len), -ENOENT);
    }
    /* A refused buffer stays in the list. An accepted buffer is sent back as it is. */
    const struct sockaddr *peer = (struct sockaddr *)&sender;
    IS(tlr_send(context, bound, slot.buffer), -ENOTCONN);
    IS(tlr_send_to(context, listener, slot.buffer, peer, sizeof sender), -ENOTCONN);
    CHECK(has_reason("tlr_bind"));
    IS(tlr_send_to(context, bound, slot.buffer, NULL, sizeof sender), -EFAULT);
    IS(tlr_send_to(context, bound, slot.buffer, peer, 3), -EINVAL);
    IS(tlr_send_to(context, -1, slot.buffer, peer, sizeof sender), -ENOTSOCK);
    CHECK(has_text(context, slot.buffer, "second"));
    IS(tlr_send_to(context, bound, slot.buffer, peer, sizeof sender), 0);
    IS(tlr_send_to(context, bound, slot.buffer, peer, sizeof sender), -ESTALE);
    IS(tlr_send_to(context, bound, tlr_allocate(context), peer, sizeof sender), 0);
    IS(tlr_tx_sync(context), 0);
    char text[8] = "";
    IS(recv(fd, text, sizeof text, 0), 6);
    CHECK(!strcmp(text, "second"));
    IS(recv(fd, text, sizeof text, 0), 0);
    /* Data of a connection has no sender. */
    int accepted, stream = connect_to(context, listener, &accepted);
    IS(write(stream, "x", 1), 1);
    receive(context, accepted);
    socklen_t len = sizeof sender;
    IS(tlr_sender(context, 0, (struct sockaddr *)&sender, &len), -EOPNOTSUPP);
    IS(tlr_close(context, accepted), 0);
    IS(tlr_close(context, bound), 0);
    IS(tlr_sync(context, 0), 0);
    IS(tlr_send_to(context, bound, 0, peer, sizeof sender), -ENOTSOCK);
    close(stream);
    close(fd);
}

static tlr_context interrupted;
static int in_handler;

static void on_alarm(int signal) {
    (void)signal;
    tlr_context context;
    in_handler = tlr_entry_count(interrupted);
    CHECK(tlr_close_context(interrupted) == -EBUSY);
    CHECK(tlr_open_context(NULL, &context) == -EBUSY);
}

/* While a sync waits, a signal handler cannot use the context or open another context. */
static void signals(tlr_context context) {
    interrupted = context;
    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval timer = {.it_value = {.tv_usec = 50000}};
    CHECK(!sigaction(SIGALRM, &action, NULL) && !setitimer(ITIMER_REAL, &timer, NULL));
    IS(tlr_sync(context, 20LL * SECOND), 0);
    IS(in_handler, -EBUSY);
    IS(tlr_entry_count(context), 0);
}

/* Data of a paused connection is not received until the program resumes the connection. */
static void pauses(tlr_context context, int listener) {
    int accepted, fd = connect_to(context, listener, &accepted);
    IS(tlr_pause(context, accepted), 0);
    IS(tlr_sync(context, 0), 0);
    IS(write(fd, "later", 5), 5);
    IS(tlr_sync(context, SECOND / 50), 0);
    IS(tlr_resume(context, accepted), 0);
    CHECK(has_text(context, receive(context, accepted).buffer, "later"));
    IS(tlr_close(context, accepted), 0);
    close(fd);
}

/* Socket calls on the kernel's socket of a connection work beside the ring API, for control and for
 * data. */
static void sockets(tlr_context context, int listener) {
    int accepted, fd = connect_to(context, listener, &accepted), value = 0;
    socklen_t len = sizeof value;
    int kernel = tlr_socket(context, accepted);
    CHECK(kernel >= 0 && port_of(kernel) == port_of(tlr_socket(context, listener)));
    CHECK(!getsockopt(kernel, IPPROTO_TCP, TCP_NODELAY, &value, &len) && value);
    IS(tlr_send(context, accepted, with_text(context, "rings ")), 0);
    IS(tlr_tx_sync(context), 0);
    IS(send(kernel, "socket", 6, 0), 6);
    char text[13] = "";
    IS(recv(fd, text, 12, MSG_WAITALL), 12);
    CHECK(!strcmp(text, "rings socket"));
    IS(tlr_close(context, accepted), 0);
    close(fd);
}

int main(void) {
    tlr_context context;
    int error = tlr_open_context(NULL, &context);
    if (error == -ENOSYS || error == -EPERM) {
        printf("skipped: %s\n", strerror(-error));
        return 0;
    }
    IS(error, 0);
    int listener = listen_on(context);
    back_ends();
    options();
    handles();
    end_of_a_thread();
    fork_child();
    addresses(context, listener);
    descriptors(context, listener);
    buffers(context, listener);
    list(context, listener);
    full();
    signals(context);
    pauses(context, listener);
    sockets(context, listener);
    datagrams(context, listener);
    IS(counters_of(context).buffers_held, 0);
    IS(tlr_close_context(context), 0);
    check_handle(context, -EBADF);
    printf("ok\n");
    return 0;
}
