/* Connections in programs that duplicate descriptors, fork, use threads, handle signals, send files
 * or splice. */
#include "posix.h"

/* Duplicates of a connection's descriptor by dup, dup2 and fcntl. A call of dup2 or dup3 that fails
 * leaves the connection open. */
void duplicates(void)
{
	int other, fd = accepted(0, &other);
	int second = dup(fd), third = fcntl(fd, F_DUPFD_CLOEXEC, 100);
	say("duplicates %d %d", second > fd, third >= 100);
	show(close(fd));
	peer_sends(other, 30, 1);
	read_exactly(second, 30, 1);
	show(fcntl(second, F_SETFL, O_NONBLOCK));
	say("shared %x", fcntl(third, F_GETFL) & O_NONBLOCK);
	char byte;
	show(read(third, &byte, 1));
	show(fcntl(second, F_SETFL, 0));
	int ends[2];
	must(pipe(ends) == 0);
	say("over %d", dup2(third, ends[0]) == ends[0]);
	peer_sends(other, 30, 2);
	read_exactly(ends[0], 30, 2);
	show(close(second));
	show(close(third));
	write_exactly(ends[0], 30, 3);
	struct answer got = peer_receives(other, 30, 3);
	say("peer got %ld %ld", got.first, got.second);
	say("itself %d", dup2(ends[0], ends[0]) == ends[0]);
	show(dup3(ends[0], ends[0], 0));
	show(dup2(999, ends[0]));
	/* dup3 with unknown flags fails. The connection stays open. */
	show(dup3(ends[1], ends[0], 4));
	write_exactly(ends[0], 30, 4);
	got = peer_receives(other, 30, 4);
	say("peer got %ld %ld", got.first, got.second);
	/* dup3 to a descriptor that the lowered limit excludes fails. The connection stays open. */
	struct rlimit limit, lowered;
	must(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	lowered = limit;
	lowered.rlim_cur = ends[0];
	must(setrlimit(RLIMIT_NOFILE, &lowered) == 0);
	show(dup3(STDIN_FILENO, ends[0], 0));
	must(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	write_exactly(ends[0], 30, 5);
	got = peer_receives(other, 30, 5);
	say("peer got %ld %ld", got.first, got.second);
	say("replaced %d", dup2(ends[1], ends[0]) == ends[0]);
	got = peer_receives(other, -1, 0);
	say("peer got %ld %ld", got.first, got.second);
}

/* The program closes a connection by a direct system call. Then the program closes most other
 * descriptors, except its listener and the peer's command socket. A later connection works. */
void closes_all(void)
{
	int other, port, fd = accepted(0, &other), listener = open_listener(0, &port);
	show((long)syscall(SYS_close, fd));
	struct answer got = peer_receives(other, -1, 0);
	say("peer got %ld %ld", got.first, got.second);
	show((long)syscall(SYS_read, fd, &port, 1));
	for (int i = 3; i < 400; i++)
		if (i != listener)
			close(i);
	show(close_range(listener + 1, 400, 0));
	for (int i = 504; i < 1024; i++)
		close(i);
	want_connections(listener);
	other = peer_connects(port);
	fd = accept(listener, NULL, NULL);
	say("low %d", fd >= 3 && fd < 10);
	write_exactly(fd, 10, 1);
	got = peer_receives(other, 10, 1);
	say("peer got %ld %ld", got.first, got.second);
}

/* Standard error is a connection while the program tries to send the connection over a unix socket.
 * Tidelane's preload library reports this attempt on standard error. The peer must not receive the
 * report. */
void connection_as_standard_error(void)
{
	int other, pair[2], fd = accepted(0, &other), before = dup(2);
	char space[CMSG_SPACE(sizeof fd)] = "";
	struct iovec part = {"x", 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space,
				 .msg_controllen = sizeof space};
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
	*rights = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
	memcpy(CMSG_DATA(rights), &fd, sizeof fd);
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	say("over %d", dup2(fd, 2));
	(void)sendmsg(pair[0], &message, 0);
	write_exactly(2, 30, 1);
	must(dup2(before, 2) == 2);
	close(pair[0]);
	close(pair[1]);
	show(close(fd));
	struct answer got = peer_receives(other, 30, 1);
	say("peer got %ld %ld", got.first, got.second);
	got = peer_receives(other, -1, 0);
	say("peer got %ld %ld", got.first, got.second);
}

/* A process listens, and its child accepts. Later the parent accepts, too. */
void forked_listener(void)
{
	int port, listener = open_listener(0, &port), ready[2];
	must(pipe(ready) == 0);
	pid_t worker = fork();
	if (worker == 0) {
		want_connections(listener);
		must(write(ready[1], "x", 1) == 1);
		for (int i = 0; i < 2; i++) {
			int fd = accept(listener, NULL, NULL);
			must(fd >= 0);
			read_exactly(fd, 10, 1);
			write_exactly(fd, 10, 2);
			close(fd);
		}
		exit(7);
	}
	char byte;
	must(read(ready[0], &byte, 1) == 1);
	for (int i = 0; i < 2; i++) {
		int other = peer_connects(port);
		peer_sends(other, 10, 1);
		struct answer got = peer_receives(other, -1, 2);
		say("peer got %ld %ld", got.first, got.second);
	}
	int status;
	waitpid(worker, &status, 0);
	say("worker %d", WEXITSTATUS(status));
	/* The child has ended, and the parent accepts. */
	want_connections(listener);
	int other = peer_connects(port), fd = accept(listener, NULL, NULL);
	must(fd >= 0);
	peer_sends(other, 10, 1);
	read_exactly(fd, 10, 1);
}

/* Children that do not use the parent's connection do not disturb the connection. The children are
 * made by fork, vfork and system. */
void forked_connection(void)
{
	int other, status, fd = accepted(0, &other);
	peer_sends(other, 10, 1);
	if (fork() == 0) {
		close(fd);
		exit(3);
	}
	wait(&status);
	say("child %d", WEXITSTATUS(status));
	if (vfork() == 0)
		_exit(4);
	wait(&status);
	say("child %d", WEXITSTATUS(status));
	say("shell %d", WEXITSTATUS(system("exit 5")));
	read_exactly(fd, 10, 1);
	write_exactly(fd, 10, 2);
	struct answer got = peer_receives(other, 10, 2);
	say("peer got %ld %ld", got.first, got.second);
}

/* Data that a process has written arrives when the process ends by exit, _exit or exit_group. */
void process_exits(void)
{
	for (int how = 0; how < 3; how++) {
		int port, ready[2], listener = open_listener(0, &port);
		must(pipe(ready) == 0);
		pid_t child = fork();
		if (child == 0) {
			want_connections(listener);
			must(write(ready[1], "x", 1) == 1);
			int fd = accept(listener, NULL, NULL);
			write_exactly(fd, 100000, 1);
			if (how == 0)
				exit(0);
			if (how == 1)
				_exit(0);
			syscall(SYS_exit_group, 0);
		}
		char byte;
		must(read(ready[0], &byte, 1) == 1);
		close(listener);
		int other = peer_connects(port);
		struct answer got = peer_receives(other, -1, 1);
		say("peer got %ld %ld", got.first, got.second);
		waitpid(child, NULL, 0);
	}
}

/* The function of a thread. Answers 200 requests of the connections in an epoll instance. */
static void *serve(void *arg)
{
	int epfd = *(int *)arg;
	for (int served = 0; served < 200;) {
		struct epoll_event event;
		must(epoll_wait(epfd, &event, 1, TIMEOUT_MS) == 1);
		char bytes[64];
		ssize_t got = read(event.data.fd, bytes, sizeof bytes);
		must(got > 0);
		must(write(event.data.fd, bytes, got) == got);
		served++;
	}
	return NULL;
}

/* One thread accepts connections, and two other threads serve them in epoll instances. */
void threads(void)
{
	int port, listener = open_listener(0, &port), epfds[2], others[8];
	pthread_t workers[2];
	want_connections(listener);
	for (int i = 0; i < 2; i++) {
		epfds[i] = epoll_create1(0);
		pthread_create(&workers[i], NULL, serve, &epfds[i]);
	}
	for (int i = 0; i < 8; i++) {
		others[i] = peer_connects(port);
		int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
		must(fd >= 0);
		struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
		must(epoll_ctl(epfds[i % 2], EPOLL_CTL_ADD, fd, &event) == 0);
	}
	for (int round = 0; round < 50; round++) {
		for (int i = 0; i < 8; i++)
			peer_sends(others[i], 20, round);
		for (int i = 0; i < 8; i++) {
			struct answer got = peer_receives(others[i], 20, round);
			must(got.first == 20 && got.second == 0);
		}
	}
	for (int i = 0; i < 2; i++)
		pthread_join(workers[i], NULL);
	say("served");
}

/* Size of a small stack, and of a buffer on it, in bytes. */
#define SMALL_STACK (64 << 10)
#define LARGE_BUFFER (16 << 10)
/* Size of this program's thread-local variables in bytes, rounded up. The C library places these
 * variables on the stack of each thread. */
#define OWN_VARIABLES (129 << 10)

/* Accepts a connection, answers and closes it, while a buffer occupies a quarter of the stack. */
static void *serve_on_small_stack(void *listener)
{
	char buffer[LARGE_BUFFER];
	int fd = accept(*(int *)listener, NULL, NULL);

	must(fd >= 0);
	memset(buffer, 'a', sizeof buffer);
	must(recv(fd, buffer, 10, MSG_WAITALL) == 10);
	must(send(fd, buffer, sizeof buffer, 0) == sizeof buffer);
	must(close(fd) == 0);
	return NULL;
}

/* A thread with a small stack serves a connection. */
void small_stack(void)
{
	int port, listener = open_listener(0, &port);
	pthread_attr_t attributes;
	pthread_t thread;

	want_connections(listener);
	pthread_attr_init(&attributes);
	must(pthread_attr_setstacksize(&attributes, SMALL_STACK + OWN_VARIABLES) == 0);
	must(pthread_create(&thread, &attributes, serve_on_small_stack, &listener) == 0);
	int other = peer_connects(port);
	peer_sends(other, 10, 1);
	pthread_join(thread, NULL);
	say("served");
}

/* The connection that the handler writes to. */
static int signal_fd;
/* True if the handler's write succeeded. */
static volatile sig_atomic_t handled;

static void write_in_handler(int signal)
{
	char text[10] = "0123456789";

	handled = write(signal_fd, text, sizeof text) == sizeof text && signal == SIGUSR1;
}

/* A signal handler makes the first write to a connection, on an alternate signal stack of the
 * default size. */
void signal_stack(void)
{
	long size = sysconf(_SC_SIGSTKSZ), page = sysconf(_SC_PAGESIZE);
	long whole = (size + page - 1) / page * page;
	char *stack = mmap(NULL, whole + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	/* The page below the stack is not accessible, so that a stack overflow ends the program. */
	must(stack != MAP_FAILED);
	must(mprotect(stack + page, whole, PROT_READ | PROT_WRITE) == 0);
	stack_t alternate = {.ss_sp = stack + page, .ss_size = size};
	must(sigaltstack(&alternate, NULL) == 0);
	struct sigaction action = {.sa_handler = write_in_handler, .sa_flags = SA_ONSTACK};
	must(sigaction(SIGUSR1, &action, NULL) == 0);
	int other;
	signal_fd = accepted(0, &other);
	must(raise(SIGUSR1) == 0);
	say("handled %d", (int)handled);
	char text[10];
	peer_sends(other, 10, 1);
	must(recv(signal_fd, text, sizeof text, MSG_WAITALL) == sizeof text);
}

/* Number of SIGALRM signals. */
static volatile sig_atomic_t alarms;

static void on_alarm(int signal)
{
	alarms += signal == SIGALRM;
}

/* Makes the peer send a byte after a signal, when the reader most likely sleeps again. */
static void *send_later(void *arg)
{
	await(alarms > 0);
	pause_briefly();
	peer_sends(*(int *)arg, 1, 1);
	return NULL;
}

/* Sends SIGALRM every 50 ms until `quiet` is called. A single signal might arrive before the call
 * that it is to interrupt. */
static void alarm_often(void)
{
	struct itimerval often = {.it_value.tv_usec = 50000, .it_interval.tv_usec = 50000};
	alarms = 0;
	must(setitimer(ITIMER_REAL, &often, NULL) == 0);
}

/* Ends the signals. Prints 1 if at least one signal has arrived, or else 0. */
static void quiet(void)
{
	struct itimerval never = {0};
	must(setitimer(ITIMER_REAL, &never, NULL) == 0);
	say("alarms %d", alarms > 0);
}

/* Calls that a signal interrupts fail with EINTR. */
static void interrupted_calls(int fd, int epfd)
{
	int port;
	char byte;
	struct epoll_event event;
	struct pollfd entry = {.fd = fd, .events = POLLIN};
	alarm_often();
	show(read(fd, &byte, 1));
	quiet();
	alarm_often();
	show(epoll_wait(epfd, &event, 1, TIMEOUT_MS));
	quiet();
	alarm_often();
	show(poll(&entry, 1, TIMEOUT_MS));
	quiet();
	int listener = open_listener(0, &port);
	alarm_often();
	show(accept(listener, NULL, NULL));
	quiet();
	close(listener);
}

/* Signals interrupt waiting calls. With SA_RESTART, a read continues after a signal. epoll_pwait
 * and ppoll unblock a signal during the wait. */
void signals(void)
{
	int other, fd = accepted(0, &other), epfd = epoll_create1(0);
	struct sigaction action = {.sa_handler = on_alarm};
	struct epoll_event event = {.events = EPOLLIN};
	struct itimerval soon = {.it_value.tv_usec = 50000};
	char byte;
	sigset_t mask, none;
	sigemptyset(&none);
	sigemptyset(&mask);
	sigaddset(&mask, SIGALRM);
	sigaction(SIGALRM, &action, NULL);
	must(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event) == 0);
	interrupted_calls(fd, epfd);
	action.sa_flags = SA_RESTART;
	sigaction(SIGALRM, &action, NULL);
	/* Block the signal in the thread that sends, so that the reading thread receives it. */
	pthread_t thread;
	alarms = 0;
	pthread_sigmask(SIG_BLOCK, &mask, NULL);
	pthread_create(&thread, NULL, send_later, &other);
	pthread_sigmask(SIG_UNBLOCK, &mask, NULL);
	alarm_often();
	show(read(fd, &byte, 1));
	quiet();
	pthread_join(thread, NULL);
	/* The signal is blocked except during the wait. */
	alarms = 0;
	struct pollfd entry = {.fd = fd, .events = POLLIN};
	pthread_sigmask(SIG_BLOCK, &mask, NULL);
	setitimer(ITIMER_REAL, &soon, NULL);
	show(epoll_pwait(epfd, &event, 1, TIMEOUT_MS, &none));
	setitimer(ITIMER_REAL, &soon, NULL);
	show(ppoll(&entry, 1, NULL, &none));
	say("alarms %d", alarms);
}

/* sendfile to a connection: with an offset, and without an offset until the send buffer is full. */
void files(void)
{
	int other, fd = accepted(0, &other);
	char name[] = "/tmp/tidelane-posix-XXXXXX";
	int file = mkstemp(name);
	static unsigned char bytes[1 << 20];
	must(file >= 0);
	unlink(name);
	pattern_fill(bytes, sizeof bytes, 1, 0);
	must(write(file, bytes, sizeof bytes) == sizeof bytes);
	long job = peer_must("receive %d %d 1", other, 1 << 20);
	off_t offset = 0;
	while (offset < 1 << 20)
		must(sendfile(fd, file, &offset, 1 << 20) > 0);
	struct answer got = peer("join %ld", job);
	say("peer got %ld %ld", got.first, got.second);
	offset = (1 << 20) - 100;
	show(sendfile(fd, file, &offset, 1000));
	say("offset %ld, position %ld", (long)offset, (long)lseek(file, 0, SEEK_CUR));
	show(sendfile(fd, file, &offset, 1000));
	lseek(file, 0, SEEK_SET);
	peer("join %ld", peer_must("receive %d 100 99", other));
	got = peer("join %ld", peer_must("send %d 10 5", other));
	(void)got;
	close(fd);
	fd = accepted(SOCK_NONBLOCK, &other);
	ssize_t sent, total = 0;
	while ((sent = sendfile(fd, file, NULL, 1 << 20)) > 0 && total < 1 << 30) {
		total += sent;
		must(lseek(file, 0, SEEK_CUR) == (total & ((1 << 20) - 1)) ||
		     lseek(file, 0, SEEK_CUR) == 1 << 20);
		if (lseek(file, 0, SEEK_CUR) == 1 << 20)
			lseek(file, 0, SEEK_SET);
	}
	say("full %s", strerrorname_np(errno));
	close(fd);
}

/* If a pipe has room for only a part of the data, splice from a connection into the pipe moves some
 * bytes and does not wait. After the pipe was read, splice moves the rest. */
void spliced_into_full_pipe(void)
{
	static char bytes[1 << 16];
	int ends[2], other, unread = 0, fd = accepted(0, &other);
	must(pipe(ends) == 0);
	peer_sends(other, 20000, 1);
	await(ioctl(fd, FIONREAD, &unread) == 0 && unread == 20000);
	must(write(ends[1], bytes, 60000) == 60000);
	/* End the case if splice waits for room. */
	alarm(20);
	ssize_t moved = splice(fd, NULL, ends[1], NULL, 20000, 0);
	say("moved: %d", moved > 0 && moved <= 20000);
	must(ioctl(ends[0], FIONREAD, &unread) == 0);
	say("in the pipe: %d", unread == 60000 + moved);
	while (unread > 0) {
		ssize_t got = read(ends[0], bytes, sizeof bytes);
		must(got > 0);
		unread -= got;
	}
	long total = moved;
	while (total < 20000) {
		must((moved = splice(fd, NULL, ends[1], NULL, 20000, SPLICE_F_NONBLOCK)) > 0);
		must(read(ends[0], bytes, sizeof bytes) == moved);
		total += moved;
	}
	say("total %ld", total);
}

static void on_timer(int signal)
{
	(void)signal;
}

/* Writes until the send buffer and the peer's receive buffer are full. The peer does not read. On a
 * busy machine, bytes leave the send buffer late, so the buffer has to stay full for ten pauses. */
static void write_until_full(int fd)
{
	static char bytes[1 << 16];
	for (int pauses = 0; pauses < 10; pauses++) {
		while (send(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
			pauses = 0;
		must(errno == EAGAIN);
		pause_briefly();
	}
}

/* A signal ends a splice that waits for room in the send buffer, and so does the timeout
 * SO_SNDTIMEO. The bytes stay in the pipe. */
void spliced_and_interrupted(void)
{
	int ends[2], other, unread = 0, fd = accepted(0, &other);
	struct sigaction action = {.sa_handler = on_timer};
	struct itimerval often = {{0, 20000}, {0, 20000}}, never = {0};
	must(sigaction(SIGALRM, &action, NULL) == 0);
	must(pipe(ends) == 0 && write(ends[1], "0123456789", 10) == 10);
	write_until_full(fd);
	must(setitimer(ITIMER_REAL, &often, NULL) == 0);
	show(splice(ends[0], NULL, fd, NULL, 10, 0));
	must(setitimer(ITIMER_REAL, &never, NULL) == 0);
	must(ioctl(ends[0], FIONREAD, &unread) == 0);
	say("in the pipe: %d", unread);
	struct timeval time = {0, 20000};
	must(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time) == 0);
	show(splice(ends[0], NULL, fd, NULL, 10, 0));
	must(ioctl(ends[0], FIONREAD, &unread) == 0);
	say("in the pipe: %d", unread);
}

/* splice checks its arguments before it moves bytes. */
void splice_arguments(void)
{
	int other, fd = accepted(0, &other), ends[2], file = memfd_create("file", 0);
	loff_t offset = 0;
	must(pipe(ends) == 0 && write(ends[1], "0123456789", 10) == 10);
	must(write(file, "0123456789", 10) == 10 && lseek(file, 0, SEEK_SET) == 0);
	show(splice(file, NULL, fd, NULL, 10, 0));
	show(splice(file, &offset, fd, NULL, 10, 0));
	show(splice(fd, NULL, file, NULL, 10, 0));
	show(splice(-1, NULL, fd, NULL, 10, 0));
	show(splice(fd, NULL, -1, NULL, 10, 0));
	show(splice(ends[0], &offset, fd, NULL, 10, 0));
	show(splice(ends[0], NULL, fd, &offset, 10, 0));
	show(splice(fd, &offset, ends[1], NULL, 10, 0));
	show(splice(fd, NULL, ends[1], &offset, 10, 0));
	show(splice(ends[0], NULL, fd, NULL, 10, 1 << 10));
	show(splice(fd, NULL, ends[1], NULL, 0, 0));
	show(splice(ends[0], NULL, fd, NULL, 0, 0));
	show(lseek(file, 0, SEEK_CUR));
	show(splice(ends[0], NULL, fd, NULL, 10, 0));
	struct answer got = peer_receives(other, 10, 1);
	say("peer got %ld", got.first);
}

/* splice moves data from a connection to a pipe and back, as in HAProxy. */
void spliced(void)
{
	int other, fd = accepted(SOCK_NONBLOCK, &other), ends[2];
	must(pipe2(ends, O_NONBLOCK) == 0);
	show(splice(fd, NULL, ends[1], NULL, 1000, SPLICE_F_NONBLOCK));
	peer_sends(other, 500, 1);
	wait_readable(fd);
	show(splice(fd, NULL, ends[1], NULL, 1000, SPLICE_F_NONBLOCK));
	show(splice(ends[0], NULL, fd, NULL, 1000, SPLICE_F_NONBLOCK));
	struct answer got = peer_receives(other, 500, 1);
	say("peer got %ld %ld", got.first, got.second);
	show(splice(ends[0], NULL, fd, NULL, 1000, SPLICE_F_NONBLOCK));
	peer_must("close %d", other);
	wait_readable(fd);
	show(splice(fd, NULL, ends[1], NULL, 1000, SPLICE_F_NONBLOCK));
}
