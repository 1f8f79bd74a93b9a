/* Signal handlers that interrupt calls on sockets: handlers that fork, use sockets or jump out of
 * the call, and the effect of siginterrupt. */
#include "posix.h"

/* Number of signals after which a case ends. */
enum { TICKS = 200 };

/* `ticks` is the number of handled signals, or the number of bytes that the handler write_here has
 * sent. `spare` is the connection to which write_here writes. */
static volatile sig_atomic_t ticks, spare = -1;
/* Number of failed calls in a handler. */
static volatile sig_atomic_t failures;

/* Installs `handler` for SIGALRM with SA_RESTART. Sends SIGALRM to this process every 0.5 ms. */
static void every_half_millisecond(void (*handler)(int))
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
	must(sigaction(SIGALRM, &action, NULL) == 0);
	struct itimerval often = {{0, 500}, {0, 500}};
	must(setitimer(ITIMER_REAL, &often, NULL) == 0);
}

/* Stops the timer that sends the signals. */
static void no_more(void)
{
	struct itimerval never = {{0, 0}, {0, 0}};
	must(setitimer(ITIMER_REAL, &never, NULL) == 0);
}

static void fork_here(int signal)
{
	(void)signal;
	int before = errno;
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	if (child < 0 || waitpid(child, NULL, 0) != child)
		failures++;
	ticks++;
	errno = before;
}

/* Returns a new listener on an ephemeral port. */
static int listens(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in any = {.sin_family = AF_INET};
	must(fd >= 0 && bind(fd, (struct sockaddr *)&any, sizeof any) == 0);
	must(listen(fd, 8) == 0);
	return fd;
}

/* A signal handler forks. The signal interrupts a thread that opens and closes listeners, and that
 * forks, too. */
void handler_forks(void)
{
	int other, fd = accepted(0, &other), fds[4] = {-1, -1, -1, -1};
	every_half_millisecond(fork_here);
	for (int round = 0; ticks < TICKS; round++) {
		int *at = &fds[round % 4];
		if (*at >= 0)
			must(close(*at) == 0);
		*at = listens();
		if (round % 8 == 0) {
			pid_t child = fork();
			if (child == 0)
				_exit(0);
			must(child > 0 && waitpid(child, NULL, 0) == child);
		}
	}
	no_more();
	say("forks failed %d", (int)failures);
	peer_sends(other, 30, 1);
	read_exactly(fd, 30, 1);
}

static void write_here(int signal)
{
	(void)signal;
	int before = errno;
	if (send(spare, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1)
		ticks++;
	else if (errno != EAGAIN)
		failures++;
	errno = before;
}

/* A signal handler writes to a connection. The signal interrupts a thread that writes to the same
 * connection. */
void handler_writes(void)
{
	int other, fd = accepted(0, &other);
	long written = 0, arrived = 0;
	spare = fd;
	every_half_millisecond(write_here);
	while (ticks < TICKS) {
		char bytes[64] = "";
		for (int i = 0; i < 500; i++) {
			must(send(fd, bytes, sizeof bytes, 0) == sizeof bytes);
			written += sizeof bytes;
		}
		arrived += peer_receives(other, written - arrived, ANY_BYTES).first;
	}
	no_more();
	while (arrived < written + ticks)
		arrived += peer_receives(other, written + ticks - arrived, ANY_BYTES).first;
	say("failed %d, missing %ld", (int)failures, written + ticks - arrived);
}

/* The place to which the handler of handler_jumps_out jumps. */
static sigjmp_buf out;

static void jump_out(int signal)
{
	(void)signal;
	siglongjmp(out, 1);
}

/* A handler jumps out of the call that it interrupts (siglongjmp). Later calls must not wait for a
 * lock that the interrupted call held. */
void handler_jumps_out(void)
{
	int other, fd = accepted(0, &other);
	long sent = 0;
	for (volatile int round = 0; round < TICKS; round++) {
		if (sigsetjmp(out, 1) == 0) {
			every_half_millisecond(jump_out);
			for (;;) {
				char byte;
				struct pollfd entry = {fd, POLLIN, 0};
				(void)poll(&entry, 1, 1);
				(void)recv(fd, &byte, 1, MSG_DONTWAIT);
				close(listens());
			}
		}
		no_more();
	}
	write_exactly(fd, 30, 2);
	sent = peer_receives(other, 30, 2).first;
	say("left %d times, then sent %ld", TICKS, sent);
}

static void count_tick(int signal)
{
	(void)signal;
	ticks++;
}

/* Sends SIGUSR1 to this process when the main thread sleeps in read. Later makes the peer send a
 * byte. If the signal has ended the read, the main thread's next read returns the byte. Otherwise
 * the same read returns the byte. `arg` points to the peer's descriptor. */
static void *interrupt_later(void *arg)
{
	int before = ticks;
	await_asleep(getpid());
	pause_briefly();
	must(kill(getpid(), SIGUSR1) == 0);
	await(ticks > before);
	pause_briefly();
	peer_sends(*(int *)arg, 1, 1);
	return NULL;
}

/* siginterrupt chooses whether a signal ends a read. The handler is installed afterwards, by
 * signal(2). */
void interrupting_signals(void)
{
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
	int other, fd = accepted(0, &other);
	show(siginterrupt(99, 1));
	for (int interrupts = 1; interrupts >= 0; interrupts--) {
		pthread_t thread;
		sigset_t set;
		char byte;
		show(siginterrupt(SIGUSR1, interrupts));
		must(signal(SIGUSR1, count_tick) != SIG_ERR);
		/* Only the main thread handles the signal. */
		sigemptyset(&set);
		sigaddset(&set, SIGUSR1);
		must(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
		must(pthread_create(&thread, NULL, interrupt_later, &other) == 0);
		must(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
		show(read(fd, &byte, 1));
		must(pthread_join(thread, NULL) == 0);
		if (interrupts)
			show(read(fd, &byte, 1));
	}
}
