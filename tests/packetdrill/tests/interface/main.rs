//! Tests of `libtidelane_packetdrill.so` through its C interface. The tests call the interface as
//! packetdrill does.

mod library;
mod packets;

use std::{ffi::c_void, thread};

use library::{Library, User};
use packets::{ACK, FIN, PSH, SYN, Tcp, parse, segment};

const PORT: u16 = 8080;

/// Returns the descriptor of a new listening socket at [`PORT`].
fn listening(library: &Library) -> i32 {
    let interface = &library.interface;
    let user = library.user();
    // SAFETY: functions of the interface, with valid arguments.
    unsafe {
        let fd = (interface.socket)(user.0, libc::AF_INET, libc::SOCK_STREAM, 0);
        assert!(fd > 2, "not a new descriptor");
        let address = library::address([0; 4], PORT);
        let len = size_of_val(&address) as u32;
        assert_eq!(
            (interface.bind)(user.0, fd, (&raw const address).cast(), len),
            0
        );
        assert_eq!((interface.listen)(user.0, fd, 1), 0);
        fd
    }
}

fn inject(library: &Library, tcp: &Tcp, payload: &[u8]) {
    let packet = segment(tcp, payload);
    // SAFETY: a function of the interface, with a valid buffer.
    let result = unsafe {
        (library.interface.netdev_send)(library.user().0, packet.as_ptr().cast(), packet.len())
    };
    assert_eq!(result, 0);
}

/// Returns the header, the payload and the time of sending (in microseconds) of the stack's next
/// packet. The stack advances its clock from timer to timer until there is a packet. Returns `None`
/// if no timer is left.
fn receive(library: &Library) -> Option<(Tcp, Vec<u8>, i64)> {
    let mut buffer = vec![0u8; 65_536];
    let (mut len, mut time) = (buffer.len(), 0i64);
    // SAFETY: a function of the interface, with a buffer of `len` bytes.
    let result = unsafe {
        let to = buffer.as_mut_ptr().cast();
        (library.interface.netdev_receive)(library.user().0, to, &mut len, &mut time)
    };
    assert_eq!(result, 0);
    let (tcp, payload) = parse(&buffer[..len])?;
    Some((tcp, payload.to_vec(), time))
}

fn time_us(library: &Library, user: User) -> i64 {
    let mut time = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    // SAFETY: a function of the interface, with a valid pointer.
    unsafe { (library.interface.gettimeofday)(user.0, &mut time, std::ptr::null_mut()) };
    time.tv_sec * 1_000_000 + time.tv_usec
}

fn sleep(library: &Library, us: u32) {
    // SAFETY: a function of the interface.
    unsafe { (library.interface.usleep)(library.user().0, us) };
}

/// Completes a handshake that the peer starts. Returns the stack's ISS + 1.
fn handshake(library: &Library) -> u32 {
    inject(library, &Tcp::new(SYN, 0, 0), &[]);
    let (answer, _, _) = receive(library).expect("SYN,ACK");
    assert_eq!(answer.flags, SYN | ACK);
    assert_eq!(answer.ack, 1);
    let first = answer.seq.wrapping_add(1);
    inject(library, &Tcp::new(ACK, 1, first), &[]);
    first
}

fn accept(library: &Library, user: User, fd: i32) -> i32 {
    let null = std::ptr::null_mut::<c_void>();
    // SAFETY: a function of the interface; the address may be null.
    unsafe { (library.interface.accept)(user.0, fd, null.cast(), null.cast()) }
}

#[test]
fn a_connection_from_handshake_to_end() {
    let library = Library::load();
    let listener = listening(&library);
    let first = handshake(&library);
    let user = library.user();
    let fd = accept(&library, user, listener);
    assert!(fd > listener);

    inject(&library, &Tcp::new(ACK | PSH, 1, first), b"ping");
    let mut buffer = [0u8; 16];
    // SAFETY: functions of the interface, with valid buffers.
    unsafe {
        let got = (library.interface.read)(user.0, fd, buffer.as_mut_ptr().cast(), 16);
        assert_eq!(&buffer[..got as usize], b"ping");
        assert_eq!(
            (library.interface.write)(user.0, fd, b"pong".as_ptr().cast(), 4),
            4
        );
    }
    let (data, payload) = loop {
        let (tcp, payload, _) = receive(&library).expect("data");
        if !payload.is_empty() {
            break (tcp, payload);
        }
    };
    assert_eq!((data.seq, data.ack, data.flags), (first, 5, ACK | PSH));
    assert_eq!(payload, b"pong");

    inject(&library, &Tcp::new(ACK | FIN, 5, first + 4), &[]);
    // SAFETY: functions of the interface, with a valid buffer.
    unsafe {
        let got = (library.interface.read)(user.0, fd, buffer.as_mut_ptr().cast(), 16);
        assert_eq!(got, 0, "read did not return the end of the stream");
        assert_eq!((library.interface.close)(user.0, fd), 0);
        assert_eq!((library.interface.close)(user.0, fd), -1);
        assert_eq!(*libc::__errno_location(), libc::EBADF);
    }
    let fin = loop {
        let (tcp, _, _) = receive(&library).expect("FIN");
        if tcp.flags & FIN != 0 {
            break tcp;
        }
    };
    assert_eq!((fin.seq, fin.ack), (first + 4, 6));
}

#[test]
fn a_blocking_accept_in_a_second_thread_ends_at_the_time_of_the_handshake() {
    let library = Library::load();
    let listener = listening(&library);
    let user = library.user();
    thread::scope(|scope| {
        let (library, name) = (&library, library::thread_name());
        let second = scope.spawn(move || {
            library::set_thread_name(&name);
            let fd = accept(library, user, listener);
            (fd, time_us(library, user))
        });
        library::await_sleeping_thread(|| second.is_finished());
        sleep(library, 100_000);
        handshake(library);
        let done = time_us(library, user);
        sleep(library, 1_000_000);
        let (fd, at) = second.join().unwrap();
        assert!(fd > listener);
        assert!(at <= done, "accept ended at {at}, the handshake at {done}");
    });
}

#[test]
fn timers_run_at_their_own_time_while_the_program_sleeps() {
    let library = Library::load();
    listening(&library);
    inject(&library, &Tcp::new(SYN, 0, 0), &[]);
    let begin = time_us(&library, library.user());
    sleep(&library, 10_000_000);
    let mut times = Vec::new();
    while times.len() < 4 {
        let (tcp, _, at) = receive(&library).expect("SYN,ACK");
        assert_eq!(tcp.flags, SYN | ACK);
        // The times are in units of 10 ms, because the engine's timers have a granularity of 1 ms.
        times.push((at - begin) / 10_000);
    }
    assert_eq!(times, [0, 100, 300, 700]);
    assert!(time_us(&library, library.user()) - begin < 10_001_000);
}

#[test]
fn netdev_receive_returns_no_packet_if_none_is_pending() {
    let library = Library::load();
    listening(&library);
    assert!(receive(&library).is_none());
}

#[test]
fn preloaded_getsockopt_serves_sockets_of_the_stack_and_of_the_kernel() {
    let library = Library::load();
    let listener = listening(&library);
    handshake(&library);
    let ours = accept(&library, library.user(), listener);
    let getsockopt = library.preloaded_getsockopt();
    let mut info = [0u8; 512];
    let mut len = info.len() as u32;
    let level = libc::IPPROTO_TCP;
    // SAFETY: a buffer of `len` bytes.
    let result = unsafe {
        getsockopt(
            ours,
            level,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut len,
        )
    };
    assert_eq!((result, info[0]), (0, 1), "ESTABLISHED");
    assert!(len >= 240, "{len}");

    let kernel = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&kernel);
    len = 4;
    // SAFETY: a buffer of `len` bytes.
    let result = unsafe {
        let name = libc::SO_ACCEPTCONN;
        getsockopt(
            fd,
            libc::SOL_SOCKET,
            name,
            info.as_mut_ptr().cast(),
            &mut len,
        )
    };
    assert_eq!((result, info[0]), (0, 1), "the kernel's listener");
}
