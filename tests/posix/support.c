/* The functions that posix.h declares. */
#include "posix.h"

/* The command socket of the peer, as one stream for each direction. */
static FILE *to_peer, *from_peer;

/* Connects to the command socket of the peer. */
static void open_peer(void)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	const char *path = getenv("POSIX_PEER");
	if (!path) {
		fprintf(stderr, "POSIX_PEER is not set\n");
		exit(2);
	}
	snprintf(name.sun_path, sizeof name.sun_path, "%s", path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	must(fd >= 0);
	must(connect(fd, (void *)&name, sizeof name) == 0);
	/* Use a high descriptor, because the output of a case may depend on low ones. */
	int high = fcntl(fd, F_DUPFD_CLOEXEC, 500);
	must(high >= 0);
	close(fd);
	from_peer = fdopen(high, "r");
	to_peer = fdopen(fcntl(high, F_DUPFD_CLOEXEC, 501), "w");
}

/* Sends a command to the peer and reads the answer. */
static struct answer ask(const char *format, va_list arguments)
{
	struct answer answer = {0};
	char line[256] = "";
	if (!to_peer)
		open_peer();
	vfprintf(to_peer, format, arguments);
	fputc('\n', to_peer);
	fflush(to_peer);
	must(fgets(line, sizeof line, from_peer));
	answer.ok = !strncmp(line, "ok", 2);
	sscanf(line, "%*s %ld %ld", &answer.first, &answer.second);
	return answer;
}

struct answer peer(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	struct answer answer = ask(format, arguments);
	va_end(arguments);
	return answer;
}

long peer_must(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	struct answer answer = ask(format, arguments);
	va_end(arguments);
	must(answer.ok && answer.first >= 0);
	return answer.first;
}

void peer_sends(int fd, long count, unsigned seed)
{
	struct answer answer = peer("join %ld", peer_must("send %d %ld %u", fd, count, seed));
	must(answer.first == count && answer.second == 0);
}

struct answer peer_receives(int fd, long count, unsigned seed)
{
	return peer("join %ld", peer_must("receive %d %ld %u", fd, count, seed));
}

int open_listener(int flags, int *port)
{
	struct sockaddr_in name = {.sin_family = AF_INET};
	socklen_t len = sizeof name;
	int on = 1, fd = socket(AF_INET, SOCK_STREAM | flags, 0);
	must(fd >= 0);
	must(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
	must(bind(fd, (void *)&name, sizeof name) == 0);
	must(listen(fd, 64) == 0);
	must(getsockname(fd, (void *)&name, &len) == 0);
	*port = ntohs(name.sin_port);
	return fd;
}

struct answer peer_tries(int port)
{
	/* Some tests run the cases on a fake of Tidelane's service (`tidelaned`). The fake service
	 * listens on a port of its own for each listener of this program. POSIX_PORT_SHIFT is the
	 * port of the fake service's listener minus the port of this program's listener. */
	const char *shift = getenv("POSIX_PORT_SHIFT");
	return peer("connect %s %d", getenv("POSIX_OWN_ADDRESS"), port + (shift ? atoi(shift) : 0));
}

int peer_connects(int port)
{
	struct answer answer = peer_tries(port);
	must(answer.ok);
	return answer.first;
}

void want_connections(int listener)
{
	/* With O_NONBLOCK, accept announces the process to Tidelane's service and does not wait. */
	int flags = fcntl(listener, F_GETFL);
	must(fcntl(listener, F_SETFL, flags | O_NONBLOCK) == 0);
	must(accept(listener, NULL, NULL) < 0 && errno == EAGAIN);
	must(fcntl(listener, F_SETFL, flags) == 0);
}

int listener_at(int port)
{
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(port)};
	int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
	must(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
	must(bind(listener, (void *)&name, sizeof name) == 0 && listen(listener, 5) == 0);
	want_connections(listener);
	return listener;
}

int accepted(int flags, int *peer_fd)
{
	int port, listener = open_listener(0, &port);
	want_connections(listener);
	*peer_fd = peer_connects(port);
	int fd = accept4(listener, NULL, NULL, flags);
	must(fd >= 0);
	close(listener);
	return fd;
}

struct sockaddr_in peer_listener(int *fd)
{
	struct sockaddr_in name = {.sin_family = AF_INET};
	struct answer answer = peer("listen");
	must(answer.ok);
	*fd = answer.first;
	name.sin_port = htons(answer.second);
	inet_pton(AF_INET, getenv("POSIX_PEER_ADDRESS"), &name.sin_addr);
	return name;
}

int connected(int *peer_fd)
{
	int listener;
	struct sockaddr_in name = peer_listener(&listener);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	must(fd >= 0);
	must(connect(fd, (void *)&name, sizeof name) == 0);
	*peer_fd = peer_must("accept %d", listener);
	peer_must("close %d", listener);
	return fd;
}

void wait_readable(int fd)
{
	struct pollfd entry = {.fd = fd, .events = POLLIN};
	must(poll(&entry, 1, TIMEOUT_MS) == 1);
}

void await_events(int fd, short events)
{
	struct pollfd entry = {.fd = fd, .events = events};
	await(poll(&entry, 1, 0) >= 0 && (entry.revents & events) == events);
}

void pause_briefly(void)
{
	usleep(50000);
}

/* Returns the state of a thread from its file `stat` in /proc, such as 'S' for sleeping. */
static char state_of(pid_t tid)
{
	char path[64], line[512] = "";
	snprintf(path, sizeof path, "/proc/%d/stat", (int)tid);
	FILE *file = fopen(path, "r");
	must(file);
	must(fgets(line, sizeof line, file));
	fclose(file);
	char *name_end = strrchr(line, ')');
	must(name_end && name_end[1]);
	return name_end[2];
}

void say_poll(int fd)
{
	struct pollfd entry = {.fd = fd, .events = POLLIN | POLLOUT | POLLRDHUP | POLLPRI};
	int result = poll(&entry, 1, 0);
	say("poll %d%s", result, events_text(entry.revents));
}

int epoll_control(int epfd, int operation, int fd, unsigned bits, unsigned data)
{
	struct epoll_event event = {.events = bits, .data.u32 = data};
	return epoll_ctl(epfd, operation, fd, &event);
}

void await_asleep(pid_t tid)
{
	await(state_of(tid) == 'S');
}

void *peer_sends_later(void *other)
{
	await_asleep(getpid());
	pause_briefly();
	peer_sends(*(int *)other, 30, 1);
	return NULL;
}

void read_exactly(int fd, long count, unsigned seed)
{
	static __thread unsigned char bytes[65536];
	for (long done = 0; done < count;) {
		long want = count - done < (long)sizeof bytes ? count - done : (long)sizeof bytes;
		ssize_t got = read(fd, bytes, want);
		if (got < 0 && errno == EAGAIN) {
			wait_readable(fd);
			continue;
		}
		must(got > 0);
		must(pattern_matches(bytes, got, seed, done));
		done += got;
	}
}

void write_exactly(int fd, long count, unsigned seed)
{
	static __thread unsigned char bytes[65536];
	for (long done = 0; done < count;) {
		long want = count - done < (long)sizeof bytes ? count - done : (long)sizeof bytes;
		pattern_fill(bytes, want, seed, done);
		ssize_t put = write(fd, bytes, want);
		if (put < 0 && errno == EAGAIN) {
			struct pollfd entry = {.fd = fd, .events = POLLOUT};
			must(poll(&entry, 1, TIMEOUT_MS) == 1);
			continue;
		}
		must(put > 0);
		done += put;
	}
}

long now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

const char *events_text(unsigned bits)
{
	static __thread char text[128];
	text[0] = 0;
	if (bits & EPOLLIN)
		strcat(text, " IN");
	if (bits & EPOLLOUT)
		strcat(text, " OUT");
	if (bits & EPOLLPRI)
		strcat(text, " PRI");
	if (bits & EPOLLERR)
		strcat(text, " ERR");
	if (bits & EPOLLHUP)
		strcat(text, " HUP");
	if (bits & EPOLLRDHUP)
		strcat(text, " RDHUP");
	if (bits & POLLNVAL)
		strcat(text, " NVAL");
	return text;
}
