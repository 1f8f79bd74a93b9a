/* Connections and listeners that several processes have open after fork. */
#include "posix.h"

/* Ends the child without flushing its copy of the command stream to the peer. The parent uses the
 * stream. */
#define CHILD_ENDS(status) _exit(status)

/* Waits for the end of a child. Returns its exit status, or 1000 plus the number of its signal. */
static int status_of(pid_t child)
{
	int status;
	must(waitpid(child, &status, 0) == child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* Waits for a byte in a pipe. */
static void wait_byte(int fd)
{
	char byte;
	must(read(fd, &byte, 1) == 1);
}

/* Writes a byte to a pipe. */
static void signal_byte(int fd)
{
	must(write(fd, "x", 1) == 1);
}

/* Listens on `port`, or on an ephemeral port if `port` is 0. Writes the port, or the negative
 * error, to the pipe `port_pipe`. Then waits to be killed. */
static void listen_until_killed(int port, int port_pipe)
{
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(port)};
	socklen_t len = sizeof name;
	int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
	must(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
	int result = bind(fd, (void *)&name, sizeof name) ? -errno : 0;
	if (result == 0) {
		must(listen(fd, 5) == 0);
		must(getsockname(fd, (void *)&name, &len) == 0);
		result = ntohs(name.sin_port);
	}
	must(write(port_pipe, &result, sizeof result) == sizeof result);
	pause();
}

/* A child that listens is killed. Its port is free when waitpid has returned. */
void killed_listener(void)
{
	int port_pipe[2], port = 0, in_use = 0, result;
	must(pipe(port_pipe) == 0);
	for (int round = 0; round < 50; round++) {
		pid_t child = fork();
		if (child == 0)
			listen_until_killed(port, port_pipe[1]);
		must(read(port_pipe[0], &result, sizeof result) == sizeof result);
		in_use += result < 0;
		port = result > 0 ? result : port;
		must(kill(child, SIGKILL) == 0);
		must(waitpid(child, &result, 0) == child);
	}
	say("in use %d", in_use);
}

/* The parent accepts a connection, a child uses the connection, and the parent closes its own
 * descriptor. The child closes its descriptor, or ends without a close. */
void fork_serves(void)
{
	int port, listener = open_listener(0, &port);
	want_connections(listener);
	for (int round = 0; round < 6; round++) {
		int other = peer_connects(port);
		/* The peer sends 5000 bytes before the fork. In every second round the parent reads
		 * these bytes, and in the other rounds the child. */
		peer_sends(other, 5000, 1);
		int fd = accept(listener, NULL, NULL);
		must(fd >= 0);
		if (round & 1)
			read_exactly(fd, 5000, 1);
		pid_t child = fork();
		if (child == 0) {
			close(listener);
			if (!(round & 1))
				read_exactly(fd, 5000, 1);
			read_exactly(fd, 7000, 2);
			write_exactly(fd, 200000, 3);
			if (round < 3)
				close(fd);
			if (round == 4)
				exit(round);
			CHILD_ENDS(round);
		}
		close(fd);
		peer_sends(other, 7000, 2);
		struct answer got = peer_receives(other, -1, 3);
		say("peer got %ld %ld, child %d", got.first, got.second, status_of(child));
		peer_must("close %d", other);
	}
}

/* A child inherits all connections and uses none, as when redis saves its data. The child ends in
 * one of several ways. The parent uses the connections meanwhile. */
void fork_saves(void)
{
	enum { N = 5 };
	int fds[N], others[N];
	for (int i = 0; i < N; i++)
		fds[i] = accepted(0, &others[i]);
	for (int how = 0; how < 4; how++) {
		int go[2];
		must(pipe(go) == 0);
		pid_t child = fork();
		if (child == 0) {
			wait_byte(go[0]);
			if (how == 0)
				CHILD_ENDS(0);
			if (how == 1)
				kill(getpid(), SIGKILL);
			if (how == 2)
				for (int i = 0; i < N; i++)
					close(fds[i]);
			_exit(how);
		}
		for (int i = 0; i < N; i++) {
			peer_sends(others[i], 3000, how);
			read_exactly(fds[i], 3000, how);
			write_exactly(fds[i], 3000, how + 1);
			struct answer got = peer_receives(others[i], 3000, how + 1);
			must(got.first == 3000 && got.second == 0);
		}
		if (how == 3)
			close(fds[0]);
		signal_byte(go[1]);
		say("child %d", status_of(child));
		close(go[0]);
		close(go[1]);
	}
	/* The parent has closed this connection while the child had it open. */
	struct answer got = peer_receives(others[0], -1, 0);
	say("peer got %ld %ld", got.first, got.second);
	for (int i = 1; i < N; i++) {
		write_exactly(fds[i], 3000, 9);
		close(fds[i]);
		got = peer_receives(others[i], -1, 9);
		say("peer got %ld %ld", got.first, got.second);
	}
}

/* A connection stays open until the last process closes it. */
void fork_keeps_open(void)
{
	int other, go[2], fd = accepted(0, &other);
	must(pipe(go) == 0);
	pid_t child = fork();
	if (child == 0) {
		close(go[1]);
		wait_byte(go[0]);
		read_exactly(fd, 100, 1);
		write_exactly(fd, 100, 2);
		wait_byte(go[0]);
		CHILD_ENDS(1);
	}
	close(fd);
	peer_sends(other, 100, 1);
	signal_byte(go[1]);
	struct answer got = peer_receives(other, 100, 2);
	say("peer got %ld %ld", got.first, got.second);
	long job = peer_must("receive %d -1 0", other);
	signal_byte(go[1]);
	got = peer("join %ld", job);
	say("peer got %ld %ld, child %d", got.first, got.second, status_of(child));
	/* The child closes the connection first, and the parent continues to use the connection. */
	fd = accepted(0, &other);
	child = fork();
	if (child == 0) {
		read_exactly(fd, 100, 1);
		close(fd);
		CHILD_ENDS(2);
	}
	peer_sends(other, 150, 1);
	say("child %d", status_of(child));
	unsigned char bytes[50];
	must(recv(fd, bytes, 50, MSG_WAITALL) == 50);
	say("rest %d", pattern_matches(bytes, 50, 1, 100));
	write_exactly(fd, 70, 3);
	close(fd);
	got = peer_receives(other, -1, 3);
	say("peer got %ld %ld", got.first, got.second);
}

/* Parent and child read from the connection and write to it in turn. */
void fork_takes_turns(void)
{
	int other, there[2], back[2], fd = accepted(0, &other);
	must(pipe(there) == 0 && pipe(back) == 0);
	pid_t child = fork();
	if (child == 0) {
		for (int round = 0; round < 50; round++) {
			wait_byte(there[0]);
			read_exactly(fd, 1000, round);
			write_exactly(fd, 2000, round);
			signal_byte(back[1]);
		}
		CHILD_ENDS(3);
	}
	for (int round = 0; round < 50; round++) {
		peer_sends(other, 1000, round);
		signal_byte(there[1]);
		wait_byte(back[0]);
		struct answer got = peer_receives(other, 2000, round);
		must(got.first == 2000 && got.second == 0);
		peer_sends(other, 3000, round + 1);
		read_exactly(fd, 3000, round + 1);
		write_exactly(fd, 100, round);
		got = peer_receives(other, 100, round);
		must(got.first == 100 && got.second == 0);
	}
	say("child %d", status_of(child));
	write_exactly(fd, 10, 1);
	close(fd);
	struct answer got = peer_receives(other, -1, 1);
	say("peer got %ld %ld", got.first, got.second);
}

/* The child reads from the connection, and the parent writes to it. */
void fork_reads_and_writes(void)
{
	int other, fd = accepted(0, &other), received[2];
	must(pipe(received) == 0);
	pid_t child = fork();
	if (child == 0) {
		for (int round = 0; round < 30; round++) {
			read_exactly(fd, 500, round);
			signal_byte(received[1]);
		}
		char byte;
		say("end %ld", (long)read(fd, &byte, 1));
		CHILD_ENDS(4);
	}
	for (int round = 0; round < 30; round++) {
		write_exactly(fd, 700, round);
		struct answer got = peer_receives(other, 700, round);
		must(got.first == 700 && got.second == 0);
		peer_sends(other, 500, round);
		wait_byte(received[0]);
	}
	peer_must("close %d", other);
	say("child %d", status_of(child));
}

/* Two processes sleep in read on one connection. Both processes read the end of the stream before
 * either process exits. */
void fork_both_end(void)
{
	for (int round = 0; round < 20; round++) {
		int other, fd = accepted(0, &other), ends[2], go[2];
		must(pipe(ends) == 0 && pipe(go) == 0);
		pid_t children[2];
		for (int i = 0; i < 2; i++) {
			children[i] = fork();
			if (children[i] == 0) {
				char byte;
				must(close(go[1]) == 0);
				must(read(fd, &byte, 1) == 0);
				signal_byte(ends[1]);
				must(read(go[0], &byte, 1) == 0);
				CHILD_ENDS(6);
			}
		}
		close(fd);
		for (int i = 0; i < 2; i++)
			await_asleep(children[i]);
		peer_must("shutdown %d", other);
		wait_byte(ends[0]);
		wait_byte(ends[0]);
		close(go[1]);
		say("children %d %d", status_of(children[0]), status_of(children[1]));
		peer_must("close %d", other);
		close(go[0]), close(ends[0]), close(ends[1]);
	}
}

/* One process writes while another process sleeps in read, and the peer sends at the same time. */
void fork_writes_beside_reader(void)
{
	enum { ROUNDS = 300, WRITES = 5 };
	int other, fd = accepted(0, &other);
	pid_t child = fork();
	if (child == 0) {
		for (int round = 0; round < ROUNDS; round++)
			read_exactly(fd, 50, round);
		CHILD_ENDS(4);
	}
	for (int round = 0; round < ROUNDS; round++) {
		long sender = peer_must("send %d 50 %d", other, round);
		for (int i = 0; i < WRITES; i++)
			write_exactly(fd, 1, round);
		must(peer("join %ld", sender).first == 50);
		must(peer_receives(other, WRITES, ANY_BYTES).first == WRITES);
	}
	say("child %d", status_of(child));
}

/* Two processes sleep in read on one connection. Each byte goes to exactly one process. */
void fork_both_read(void)
{
	int other, fd = accepted(0, &other), sums[2];
	must(pipe(sums) == 0);
	pid_t children[2];
	for (int i = 0; i < 2; i++) {
		children[i] = fork();
		if (children[i] == 0) {
			long sum = 0;
			unsigned char byte;
			while (read(fd, &byte, 1) == 1)
				sum += byte;
			must(write(sums[1], &sum, sizeof sum) == sizeof sum);
			CHILD_ENDS(5);
		}
	}
	close(fd);
	unsigned char bytes[300];
	long expected = 0, sum = 0;
	for (int round = 0; round < 30; round++) {
		pattern_fill(bytes, 10, round, 0);
		for (int i = 0; i < 10; i++)
			expected += bytes[i];
		peer_sends(other, 10, round);
	}
	peer_must("close %d", other);
	for (int i = 0; i < 2; i++) {
		long part;
		must(read(sums[0], &part, sizeof part) == sizeof part);
		sum += part;
	}
	say("sum %d, children %d %d", sum == expected, status_of(children[0]),
	    status_of(children[1]));
}

/* The parent fills the send buffer, and the child writes more data. The peer receives the parent's
 * data first, although a part of this data was not acknowledged before the fork. */
void fork_unacknowledged(void)
{
	int other, fd = accepted(SOCK_NONBLOCK, &other);
	static unsigned char bytes[1 << 20];
	long total = 0;
	ssize_t put;
	for (;;) {
		pattern_fill(bytes, sizeof bytes, 1, total);
		put = write(fd, bytes, sizeof bytes);
		if (put < 0)
			break;
		total += put;
	}
	must(errno == EAGAIN);
	pid_t child = fork();
	if (child == 0) {
		for (long done = 0; done < 500000;) {
			struct pollfd entry = {.fd = fd, .events = POLLOUT};
			pattern_fill(bytes, 500000 - done, 1, total + done);
			must(poll(&entry, 1, TIMEOUT_MS) == 1);
			put = write(fd, bytes, 500000 - done);
			must(put > 0 || errno == EAGAIN);
			done += put > 0 ? put : 0;
		}
		CHILD_ENDS(6);
	}
	close(fd);
	struct answer got = peer_receives(other, -1, 1);
	say("peer got all %d, %ld, child %d", got.first == total + 500000, got.second,
	    status_of(child));
}

/* A grandchild uses the connection after its parent has ended, as in a daemon. Then a child of the
 * grandchild uses the connection. */
void fork_twice(void)
{
	int other, fd = accepted(0, &other), done[2];
	must(pipe(done) == 0);
	pid_t child = fork();
	if (child == 0) {
		if (fork() == 0) {
			read_exactly(fd, 100, 1);
			write_exactly(fd, 100, 2);
			if (fork() == 0) {
				read_exactly(fd, 50, 3);
				write_exactly(fd, 50, 4);
				signal_byte(done[1]);
				CHILD_ENDS(0);
			}
			CHILD_ENDS(0);
		}
		CHILD_ENDS(7);
	}
	close(fd);
	say("child %d", status_of(child));
	peer_sends(other, 100, 1);
	struct answer got = peer_receives(other, 100, 2);
	say("peer got %ld %ld", got.first, got.second);
	peer_sends(other, 50, 3);
	got = peer_receives(other, -1, 4);
	say("peer got %ld %ld", got.first, got.second);
	wait_byte(done[0]);
}

/* A child sees the addresses, TCP_NODELAY, the unread bytes and the events of the parent's
 * connection. The parent cannot send after the child's shutdown. */
void fork_looks_the_same(void)
{
	int other, on = 1, fd = accepted(0, &other);
	struct sockaddr_in before[2], after[2];
	socklen_t len = sizeof *before;
	must(getsockname(fd, (void *)&before[0], &len) == 0);
	must(getpeername(fd, (void *)&before[1], &len) == 0);
	must(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
	peer_sends(other, 20, 1);
	wait_readable(fd);
	pid_t child = fork();
	if (child == 0) {
		must(getsockname(fd, (void *)&after[0], &len) == 0);
		must(getpeername(fd, (void *)&after[1], &len) == 0);
		say("same names %d", !memcmp(before, after, sizeof before));
		int value = -1;
		socklen_t size = sizeof value;
		show(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &size));
		say("nodelay %d", value != 0);
		show(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &size));
		say("error %d", value);
		show(ioctl(fd, FIONREAD, &value));
		say("there %d", value);
		struct pollfd entry = {.fd = fd, .events = POLLIN | POLLOUT};
		show(poll(&entry, 1, TIMEOUT_MS));
		say("polled%s", events_text(entry.revents));
		int epfd = epoll_create1(0);
		struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET};
		show(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event));
		show(epoll_wait(epfd, &event, 1, TIMEOUT_MS));
		say("event%s", events_text(event.events));
		show(connect(fd, (void *)&before[1], sizeof *before));
		show(listen(fd, 1));
		read_exactly(fd, 20, 1);
		show(fcntl(fd, F_SETFL, O_NONBLOCK));
		show(read(fd, &value, 1));
		show(shutdown(fd, SHUT_WR));
		show(send(fd, "x", 1, MSG_NOSIGNAL));
		CHILD_ENDS(8);
	}
	say("child %d", status_of(child));
	struct answer got = peer_receives(other, -1, 1);
	say("peer got %ld %ld", got.first, got.second);
	show(send(fd, "x", 1, MSG_NOSIGNAL));
	peer_sends(other, 20, 2);
	fcntl(fd, F_SETFL, 0);
	read_exactly(fd, 20, 2);
}

/* With SO_LINGER of 0 the last close resets the connection. The parent's earlier close neither
 * resets the connection nor waits. */
void fork_lingers(void)
{
	int other, go[2], fd = accepted(0, &other);
	struct linger none = {.l_onoff = 1}, some = {.l_onoff = 1, .l_linger = 60};
	must(pipe(go) == 0);
	must(setsockopt(fd, SOL_SOCKET, SO_LINGER, &some, sizeof some) == 0);
	pid_t child = fork();
	if (child == 0) {
		must(setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none) == 0);
		wait_byte(go[0]);
		read_exactly(fd, 30, 1);
		write_exactly(fd, 30, 2);
		wait_byte(go[0]);
		close(fd);
		CHILD_ENDS(9);
	}
	long before = now_ms();
	close(fd);
	say("at once %d", now_ms() - before < 30000);
	peer_sends(other, 30, 1);
	signal_byte(go[1]);
	struct answer got = peer_receives(other, 30, 2);
	say("peer got %ld %ld", got.first, got.second);
	long job = peer_must("receive %d -1 0", other);
	signal_byte(go[1]);
	got = peer("join %ld", job);
	say("peer got %ld %ld, child %d", got.first, got.second, status_of(child));
}

/* A child uses a connection that the parent has opened by connect. */
void fork_connected(void)
{
	int other, fd = connected(&other);
	pid_t child = fork();
	if (child == 0) {
		write_exactly(fd, 400, 1);
		read_exactly(fd, 400, 2);
		CHILD_ENDS(10);
	}
	struct answer got = peer_receives(other, 400, 1);
	say("peer got %ld %ld", got.first, got.second);
	peer_sends(other, 400, 2);
	say("child %d", status_of(child));
	write_exactly(fd, 40, 3);
	close(fd);
	got = peer_receives(other, -1, 3);
	say("peer got %ld %ld", got.first, got.second);
}

/* A child serves many inherited connections by epoll. */
void fork_serves_many(void)
{
	enum { N = 40 };
	int fds[N], others[N];
	for (int i = 0; i < N; i++)
		fds[i] = accepted(0, &others[i]);
	pid_t child = fork();
	if (child == 0) {
		int epfd = epoll_create1(0), open = N;
		for (int i = 0; i < N; i++) {
			struct epoll_event event = {.events = EPOLLIN, .data.fd = fds[i]};
			must(epoll_ctl(epfd, EPOLL_CTL_ADD, fds[i], &event) == 0);
		}
		while (open > 0) {
			struct epoll_event event;
			char bytes[4096];
			must(epoll_wait(epfd, &event, 1, TIMEOUT_MS) == 1);
			ssize_t got = read(event.data.fd, bytes, sizeof bytes);
			must(got >= 0);
			if (got == 0) {
				close(event.data.fd);
				open--;
			} else {
				must(write(event.data.fd, bytes, got) == got);
			}
		}
		CHILD_ENDS(11);
	}
	for (int i = 0; i < N; i++)
		close(fds[i]);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < N; i++)
			peer_sends(others[i], 3000, round);
		for (int i = 0; i < N; i++) {
			struct answer got = peer_receives(others[i], 3000, round);
			must(got.first == 3000 && got.second == 0);
		}
	}
	for (int i = 0; i < N; i++)
		peer_must("close %d", others[i]);
	say("child %d", status_of(child));
}

/* Sends all received data back, until the end of the connection. */
static void *echoes(void *arg)
{
	int fd = *(int *)arg;
	char bytes[4096];
	ssize_t got;
	while ((got = read(fd, bytes, sizeof bytes)) > 0)
		must(write(fd, bytes, got) == got);
	return NULL;
}

/* One thread transfers data on a connection while another thread forks repeatedly. */
void fork_beside_threads(void)
{
	int other, fd = accepted(0, &other);
	pthread_t thread;
	pthread_create(&thread, NULL, echoes, &fd);
	long sends = peer_must("send %d 2000000 1", other);
	long receives = peer_must("receive %d 2000000 1", other);
	for (int i = 0; i < 40; i++) {
		pid_t child = fork();
		if (child == 0)
			_exit(0);
		must(status_of(child) == 0);
	}
	struct answer got = peer("join %ld", sends);
	say("peer sent %ld %ld", got.first, got.second);
	got = peer("join %ld", receives);
	say("peer got %ld %ld", got.first, got.second);
	peer_must("close %d", other);
	pthread_join(thread, NULL);
}

/* The peer has closed or reset the connection before the child uses it. The child reads the data
 * that arrived before a close. In both cases, a further read and a send follow. */
void fork_after_the_end(void)
{
	for (int reset = 0; reset < 2; reset++) {
		int other, go[2], fd = accepted(0, &other);
		must(pipe(go) == 0);
		peer_sends(other, 50, 1);
		wait_readable(fd);
		pid_t child = fork();
		if (child == 0) {
			wait_byte(go[0]);
			char bytes[100];
			await_events(fd, reset ? POLLHUP : POLLRDHUP);
			if (!reset)
				read_exactly(fd, 50, 1);
			show(read(fd, bytes, sizeof bytes));
			show(send(fd, bytes, 1, MSG_NOSIGNAL));
			CHILD_ENDS(12);
		}
		close(fd);
		peer_must(reset ? "reset %d" : "close %d", other);
		pause_briefly();
		signal_byte(go[1]);
		say("child %d", status_of(child));
	}
}

/* Receives and sends 3000 bytes on the connection. */
static int serve_in_clone(void *fd)
{
	read_exactly(*(int *)fd, 3000, 1);
	write_exactly(*(int *)fd, 3000, 2);
	return 7;
}

/* Makes a child by clone3, as fork would. */
static pid_t clone3_child(void)
{
	uint64_t args[8] = {[4] = SIGCHLD};
	return syscall(SYS_clone3, args, sizeof args);
}

/* Returns the top of a stack for clone. */
static void *clone_stack(void)
{
	static char stack[256 << 10] __attribute__((aligned(16)));
	return stack + sizeof stack;
}

/* A child uses its parent's connection even if the call that made the child runs no atfork
 * handlers. */
void fork_by_other_names(void)
{
	static const char *const ways[] = {"SYS_clone", "SYS_fork", "SYS_clone3", "_Fork", "clone"};
	for (int way = 0; way < 5; way++) {
		int other, fd = accepted(0, &other);
		pid_t child = -1;
		if (way == 0)
			child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
		if (way == 1)
			child = syscall(SYS_fork);
		if (way == 2)
			child = clone3_child();
		if (way == 3)
			child = _Fork();
		if (way == 4)
			child = clone(serve_in_clone, clone_stack(), SIGCHLD, &fd);
		if (child == 0)
			CHILD_ENDS(serve_in_clone(&fd));
		must(child > 0);
		must(close(fd) == 0);
		peer_sends(other, 3000, 1);
		struct answer got = peer_receives(other, -1, 2);
		say("%s: peer got %ld %ld, child %d", ways[way], got.first, got.second,
		    status_of(child));
	}
}

/* Returns tcpi_bytes_received, which the struct in <netinet/tcp.h> may lack. */
static unsigned long long bytes_received(int fd)
{
	uint64_t info[236 / 8];
	socklen_t len = sizeof info;
	must(getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &len) == 0);
	return info[128 / 8];
}

/* In each process, tcpi_bytes_received includes the bytes that the other process has read. */
void fork_counts_received(void)
{
	int other, there[2], fd = accepted(0, &other);
	char bytes[1000];
	must(pipe(there) == 0);
	peer_sends(other, 1000, 1);
	wait_readable(fd);
	pid_t child = fork();
	if (child == 0) {
		wait_byte(there[0]);
		say("child reads %zd", recv(fd, bytes, 600, MSG_WAITALL));
		say("received %llu", bytes_received(fd));
		CHILD_ENDS(4);
	}
	say("parent reads %zd", recv(fd, bytes, 400, MSG_WAITALL));
	signal_byte(there[1]);
	say("child %d", status_of(child));
	peer_sends(other, 10, 1);
	say("parent reads %zd", recv(fd, bytes, 10, MSG_WAITALL));
	say("received %llu", bytes_received(fd));
}

/* A child shuts its parent's listener down, in the last two rounds while the parent sleeps in
 * accept. The parent's accept fails, and connections are refused, until the parent calls listen
 * again. */
void fork_shuts_listener_down(void)
{
	int port, go[2];
	must(pipe(go) == 0);
	close(open_listener(0, &port));
	for (int how = 0; how < 4; how++) {
		/* In every second round, the child calls accept on the listener before. */
		int listener = listener_at(port);
		pid_t child = fork();
		if (child == 0) {
			if (how & 1)
				want_connections(listener);
			wait_byte(go[0]);
			if (how >= 2) {
				await_asleep(getppid());
				pause_briefly();
			}
			must(shutdown(listener, SHUT_RDWR) == 0);
			CHILD_ENDS(how);
		}
		signal_byte(go[1]);
		if (how >= 2)
			show(accept(listener, NULL, NULL));
		say("child %d", status_of(child));
		say("peer connects: %d", peer_tries(port).ok);
		say_poll(listener);
		show(accept(listener, NULL, NULL));
		show(listen(listener, 5));
		want_connections(listener);
		int other = peer_connects(port), fd = accept(listener, NULL, NULL);
		must(fd >= 0);
		peer_sends(other, 10, 1);
		read_exactly(fd, 10, 1);
		close(fd);
		close(listener);
		peer_must("close %d", other);
	}
}

/* A child shuts its parent's listener down, and the parent calls listen next. The listener then
 * accepts a connection. */
void fork_shuts_down_before_listen(void)
{
	int port, listener = open_listener(0, &port);
	want_connections(listener);
	pid_t child = fork();
	if (child == 0) {
		must(shutdown(listener, SHUT_RD) == 0);
		CHILD_ENDS(0);
	}
	say("child %d", status_of(child));
	struct sockaddr_in name;
	socklen_t len = sizeof name;
	show(listen(listener, 5));
	want_connections(listener);
	must(getsockname(listener, (void *)&name, &len) == 0);
	int other = peer_connects(ntohs(name.sin_port)), fd = accept(listener, NULL, NULL);
	must(fd >= 0);
	peer_must("close %d", other);
}

/* Calls shutdown without the C library, so that a preloaded library does not notice. */
static long bare_shutdown(int fd, int how)
{
#if defined(__x86_64__)
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"((long)SYS_shutdown), "D"((long)fd), "S"((long)how)
			 : "rcx", "r11", "memory");
	return result;
#elif defined(__aarch64__)
	register long number __asm__("x8") = SYS_shutdown;
	register long first __asm__("x0") = fd;
	register long second __asm__("x1") = how;
	__asm__ volatile("svc 0" : "+r"(first) : "r"(number), "r"(second) : "memory");
	return first;
#endif
}

/* Returns a new listener at `port` of all IPv4 addresses, without SO_REUSEADDR. */
static int listener_without_reuse(int port)
{
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(port)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	must(fd >= 0 && bind(fd, (void *)&name, sizeof name) == 0 && listen(fd, 64) == 0);
	return fd;
}

/* A child shuts its parent's listener down by the bare system call, and the parent calls listen
 * next. In the second round, the kernel has chosen the port, and may choose another port at listen.
 * In the third round, the socket does not have SO_REUSEADDR. */
void fork_shuts_down_unnoticed(void)
{
	for (int round = 0; round < 3; round++) {
		int port, listener = open_listener(0, &port);
		if (round != 1) {
			close(listener);
			listener = round == 0 ? listener_at(port) : listener_without_reuse(port);
		}
		want_connections(listener);
		pid_t child = fork();
		if (child == 0) {
			must(bare_shutdown(listener, SHUT_RD) == 0);
			CHILD_ENDS(0);
		}
		say("child %d", status_of(child));
		show(listen(listener, 5));
		want_connections(listener);
		struct sockaddr_in name;
		socklen_t len = sizeof name;
		must(getsockname(listener, (void *)&name, &len) == 0);
		int other = peer_connects(ntohs(name.sin_port));
		int fd = accept(listener, NULL, NULL);
		must(fd >= 0);
		peer_sends(other, 10, 1);
		read_exactly(fd, 10, 1);
		close(fd);
		close(listener);
		peer_must("close %d", other);
	}
}

/* A child shuts its parent's listener down and listens again. Then the parent accepts a connection,
 * in some rounds after the child's end, in other rounds beside the child, which does not accept. In
 * the last two rounds, the parent sleeps in accept during the shutdown. */
void fork_listens_again(void)
{
	int port, go[2], done[2];
	must(pipe(go) == 0 && pipe(done) == 0);
	close(open_listener(0, &port));
	for (int how = 0; how < 4; how++) {
		int listener = listener_at(port);
		pid_t child = fork();
		if (child == 0) {
			if (how >= 2) {
				await_asleep(getppid());
				pause_briefly();
			}
			must(shutdown(listener, SHUT_RDWR) == 0);
			if (how >= 2)
				wait_byte(go[0]);
			must(listen(listener, 5) == 0);
			signal_byte(done[1]);
			if (how & 1)
				wait_byte(go[0]);
			CHILD_ENDS(how);
		}
		if (how >= 2) {
			show(accept(listener, NULL, NULL));
			signal_byte(go[1]);
		}
		wait_byte(done[0]);
		if (!(how & 1))
			say("child %d", status_of(child));
		int other = peer_connects(port), fd = accept(listener, NULL, NULL);
		must(fd >= 0);
		peer_sends(other, 10, 1);
		read_exactly(fd, 10, 1);
		if (how & 1) {
			signal_byte(go[1]);
			say("child %d", status_of(child));
		}
		close(fd);
		close(listener);
		peer_must("close %d", other);
	}
}
