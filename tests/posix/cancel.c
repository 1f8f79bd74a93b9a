/* pthread_cancel of threads that make calls on sockets. */
#include "posix.h"

/* A thread that runs `call`, which makes calls on `fd` or `epfd`. For `waits_disabled`, `fd` is the
 * ID of a child process. */
struct waiter {
	pthread_t thread;
	volatile pid_t tid;
	/* The thread's cleanup handler sets `cleaned`. `reads` is the number of
	 * threads whose first read in `reads_disabled` has returned. */
	volatile int cleaned, reads;
	int fd, epfd;
	void (*call)(struct waiter *);
};

/* The cleanup handler of a waiter's thread. */
static void clean(void *arg)
{
	((struct waiter *)arg)->cleaned = 1;
}

static void *waiter_thread(void *arg)
{
	struct waiter *waiter = arg;
	waiter->tid = gettid();
	pthread_cleanup_push(clean, waiter);
	waiter->call(waiter);
	pthread_cleanup_pop(0);
	return NULL;
}

/* Starts the thread, and returns when it runs. */
static void start(struct waiter *waiter)
{
	waiter->tid = waiter->cleaned = 0;
	must(pthread_create(&waiter->thread, NULL, waiter_thread, waiter) == 0);
	await(waiter->tid);
}

/* Waits for the end of the thread, and prints whether it was cancelled. */
static void say_joined(const char *name, struct waiter *waiter)
{
	void *result;
	must(pthread_join(waiter->thread, &result) == 0);
	say("%s: %s, cleaned %d", name, result == PTHREAD_CANCELED ? "cancelled" : "returned",
	    waiter->cleaned);
}

/* The calls in which a thread is cancelled. Each function is named after its call. */
static void in_read(struct waiter *waiter)
{
	char bytes[100];
	read(waiter->fd, bytes, sizeof bytes);
}

static void in_recv(struct waiter *waiter)
{
	char bytes[100];
	recv(waiter->fd, bytes, sizeof bytes, MSG_WAITALL);
}

static void in_readv(struct waiter *waiter)
{
	char bytes[100];
	struct iovec parts[] = {{bytes, 50}, {bytes + 50, 50}};
	readv(waiter->fd, parts, 2);
}

static void in_recvmsg(struct waiter *waiter)
{
	char bytes[100];
	struct iovec part = {bytes, sizeof bytes};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	recvmsg(waiter->fd, &message, 0);
}

static void in_poll(struct waiter *waiter)
{
	struct pollfd entry = {waiter->fd, POLLIN, 0};
	poll(&entry, 1, -1);
}

static void in_ppoll(struct waiter *waiter)
{
	struct timespec time = {1000, 0};
	sigset_t none;
	sigemptyset(&none);
	struct pollfd entry = {waiter->fd, POLLIN, 0};
	ppoll(&entry, 1, &time, &none);
}

static void in_select(struct waiter *waiter)
{
	fd_set set;
	FD_ZERO(&set);
	FD_SET(waiter->fd, &set);
	select(waiter->fd + 1, &set, NULL, NULL, NULL);
}

static void in_epoll(struct waiter *waiter)
{
	struct epoll_event event;
	epoll_wait(waiter->epfd, &event, 1, -1);
}

static void in_preadv2(struct waiter *waiter)
{
	char bytes[100];
	struct iovec part = {bytes, sizeof bytes};
	preadv2(waiter->fd, &part, 1, -1, 0);
}

static void in_accept(struct waiter *waiter)
{
	accept(waiter->fd, NULL, NULL);
}

static void in_write(struct waiter *waiter)
{
	static char bytes[1 << 16];
	while (write(waiter->fd, bytes, sizeof bytes) > 0)
		;
}

/* The calls that wait for data. */
#define CALL(name) {#name, in_##name}
static const struct {
	const char *name;
	void (*call)(struct waiter *);
} reads[] = {CALL(read), CALL(recv), CALL(readv), CALL(recvmsg), CALL(poll), CALL(ppoll),
	     CALL(select), CALL(epoll), CALL(preadv2)};

/* Starts the thread and cancels it when it sleeps in its call. */
static void cancel_asleep(const char *name, struct waiter *waiter)
{
	start(waiter);
	await_asleep(waiter->tid);
	show(pthread_cancel(waiter->thread));
	say_joined(name, waiter);
}

/* A thread is cancelled while it sleeps, once in each call. After a cancelled call that waits for
 * data or a connection, another thread can use the connection or the listener. */
void cancelled_asleep(void)
{
	int other, port, fd = accepted(0, &other), listener = open_listener(0, &port), ends[2];
	struct waiter waiter = {.fd = fd, .epfd = epoll_create1(0)};
	struct epoll_event event = {.events = EPOLLIN};
	must(epoll_ctl(waiter.epfd, EPOLL_CTL_ADD, fd, &event) == 0);
	for (size_t i = 0; i < sizeof reads / sizeof *reads; i++) {
		waiter.call = reads[i].call;
		cancel_asleep(reads[i].name, &waiter);
		peer_sends(other, 30, i);
		read_exactly(fd, 30, i);
	}
	want_connections(listener);
	waiter.fd = listener;
	waiter.call = in_accept;
	cancel_asleep("accept", &waiter);
	other = peer_connects(port);
	waiter.fd = accept(listener, NULL, NULL);
	must(waiter.fd >= 0);
	waiter.call = in_write;
	cancel_asleep("write", &waiter);
	/* Cancel the calls on a pipe, except recv and recvmsg, which need a socket. The epoll
	 * instance contains only the pipe. */
	must(pipe(ends) == 0);
	waiter.fd = ends[0];
	waiter.epfd = epoll_create1(0);
	must(epoll_ctl(waiter.epfd, EPOLL_CTL_ADD, ends[0], &event) == 0);
	for (size_t i = 0; i < sizeof reads / sizeof *reads; i++) {
		if (reads[i].call == in_recv || reads[i].call == in_recvmsg)
			continue;
		waiter.call = reads[i].call;
		cancel_asleep(reads[i].name, &waiter);
	}
}

static void in_setlkw(struct waiter *waiter)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	fcntl(waiter->fd, F_SETLKW, &lock);
}

static void in_ofd_setlkw(struct waiter *waiter)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	fcntl(waiter->fd, F_OFD_SETLKW, &lock);
}

/* A thread is cancelled while it waits for a file lock that another open file description holds.
 * fcntl is a cancellation point with the two commands that wait, F_SETLKW and F_OFD_SETLKW. When
 * the holder has unlocked the file, the file can be locked again. */
void cancelled_in_lock(void)
{
	char name[] = "/tmp/posix-lock-XXXXXX";
	int holder = mkstemp(name);
	must(holder >= 0);
	struct waiter waiter = {.fd = open(name, O_RDWR), .call = in_setlkw};
	must(waiter.fd >= 0 && unlink(name) == 0);
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	must(fcntl(holder, F_OFD_SETLK, &lock) == 0);
	cancel_asleep("F_SETLKW", &waiter);
	waiter.call = in_ofd_setlkw;
	cancel_asleep("F_OFD_SETLKW", &waiter);
	lock.l_type = F_UNLCK;
	must(fcntl(holder, F_OFD_SETLK, &lock) == 0);
	lock.l_type = F_WRLCK;
	show(fcntl(waiter.fd, F_OFD_SETLK, &lock));
}

/* Set to let the thread of cancelled_before continue. */
static volatile int go;

/* Waits for `go` without a cancellation point. */
static void until_told(void)
{
	while (!go)
		sched_yield();
}

static void reads_when_told(struct waiter *waiter)
{
	until_told();
	in_read(waiter);
}

/* A thread is cancelled before it calls read. The read then ends the thread and reads no data. */
void cancelled_before(void)
{
	int other, fd = accepted(0, &other);
	struct waiter waiter = {.fd = fd, .call = reads_when_told};
	peer_sends(other, 50, 1);
	wait_readable(fd);
	start(&waiter);
	show(pthread_cancel(waiter.thread));
	go = 1;
	say_joined("read", &waiter);
	read_exactly(fd, 50, 1);
}

/* Reads twice while cancellation is disabled, and once more when it is enabled. */
static void reads_disabled(struct waiter *waiter)
{
	char bytes[100];
	int before;
	must(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before) == 0);
	say("read %zd", read(waiter->fd, bytes, sizeof bytes));
	waiter->reads++;
	struct pollfd entry = {waiter->fd, POLLIN, 0};
	show(poll(&entry, 1, -1));
	show(read(waiter->fd, bytes, sizeof bytes));
	must(pthread_setcancelstate(before, NULL) == 0);
	say("enabled");
	in_read(waiter);
}

/* A thread is cancelled while it has cancellation disabled. Its calls return normally. The thread
 * ends at the first cancellation point after it has enabled cancellation. The calls are on a
 * connection in the first round, and on a pipe in the second round. */
void cancelled_disabled(void)
{
	int other, fd = accepted(0, &other), ends[2];
	struct waiter waiter = {.fd = fd, .call = reads_disabled};
	for (int kernel = 0; kernel < 2; kernel++) {
		start(&waiter);
		await_asleep(waiter.tid);
		show(pthread_cancel(waiter.thread));
		pause_briefly();
		if (kernel) {
			must(write(ends[1], "abc", 3) == 3);
			await(waiter.reads == 2);
			await_asleep(waiter.tid);
			must(write(ends[1], "abc", 3) == 3);
		} else {
			peer_sends(other, 30, 1);
			await(waiter.reads == 1);
			await_asleep(waiter.tid);
			peer_sends(other, 30, 2);
		}
		say_joined("disabled", &waiter);
		must(pipe(ends) == 0);
		waiter.fd = ends[0];
	}
}

static void reads_for_ever(struct waiter *waiter)
{
	for (;;)
		in_read(waiter);
}

static void *writes_for_ever(void *arg)
{
	while (write(*(int *)arg, "x", 1) == 1)
		;
	return NULL;
}

/* Threads that read in a loop are cancelled at arbitrary moments: between two calls, or at the
 * start or the end of a wait. */
void cancelled_at_any_moment(void)
{
	int other, fd = accepted(0, &other), cancelled = 0, ends[2];
	struct waiter waiter = {.call = reads_for_ever};
	pthread_t writer;
	must(pipe(ends) == 0);
	must(pthread_create(&writer, NULL, writes_for_ever, &ends[1]) == 0);
	for (int i = 0; i < 400; i++) {
		void *result;
		waiter.fd = i % 2 ? ends[0] : fd;
		start(&waiter);
		for (int spin = 0; spin < i % 100; spin++)
			sched_yield();
		must(pthread_cancel(waiter.thread) == 0);
		must(pthread_join(waiter.thread, &result) == 0);
		cancelled += result == PTHREAD_CANCELED && waiter.cleaned;
	}
	say("%d cancelled", cancelled);
	must(pthread_cancel(writer) == 0);
	must(pthread_join(writer, NULL) == 0);
	peer_sends(other, 50, 1);
	read_exactly(fd, 50, 1);
	write_exactly(fd, 50, 2);
	struct answer got = peer_receives(other, 50, 2);
	say("peer got %ld %ld", got.first, got.second);
}

/* Number of handled SIGUSR1 signals. */
static volatile sig_atomic_t signals;

static void on_signal(int signal)
{
	(void)signal;
	signals++;
}

static void reads_once(struct waiter *waiter)
{
	char bytes[100];
	show(read(waiter->fd, bytes, sizeof bytes));
}

static void waits_disabled(struct waiter *waiter)
{
	must(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL) == 0);
	int status;
	show(waitpid(waiter->fd, &status, 0) > 0);
}

/* After a cancellation, a signal whose handler has SA_RESTART does not end the calls of other
 * threads. The signal that pthread_cancel sends does not end a call of a thread that has disabled
 * cancellation. */
void cancelled_and_signalled(void)
{
	int other, ends[2], fd = accepted(0, &other);
	struct sigaction restarts = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	struct waiter waiter = {.fd = fd, .call = in_read};
	must(sigaction(SIGUSR1, &restarts, NULL) == 0);
	cancel_asleep("read", &waiter);
	waiter.call = reads_once;
	start(&waiter);
	await_asleep(waiter.tid);
	must(pthread_kill(waiter.thread, SIGUSR1) == 0);
	await(signals == 1);
	await_asleep(waiter.tid);
	peer_sends(other, 30, 1);
	say_joined("signalled", &waiter);
	must(pipe(ends) == 0);
	pid_t child = fork();
	if (child == 0) {
		char byte;
		close(ends[1]);
		_exit(read(ends[0], &byte, 1));
	}
	waiter.fd = child;
	waiter.call = waits_disabled;
	start(&waiter);
	await_asleep(waiter.tid);
	show(pthread_cancel(waiter.thread));
	pause_briefly();
	close(ends[1]);
	say_joined("disabled", &waiter);
}

/* Reads by syscall(2), which is no cancellation point, and then calls a cancellation point. */
static void reads_by_syscall(struct waiter *waiter)
{
	char bytes[100];
	say("syscall read %ld", syscall(SYS_read, waiter->fd, bytes, sizeof bytes));
	pthread_testcancel();
	say("not cancelled");
}

/* A thread is cancelled while it waits in syscall(2). The call returns the data that arrives. */
void cancelled_in_syscall(void)
{
	int other, fd = accepted(0, &other);
	struct waiter waiter = {.fd = fd, .call = reads_by_syscall};
	start(&waiter);
	await_asleep(waiter.tid);
	show(pthread_cancel(waiter.thread));
	pause_briefly();
	peer_sends(other, 30, 1);
	say_joined("syscall", &waiter);
}
