//! Safe wrappers of the system calls for AF_XDP sockets, packet sockets and interfaces.

use std::{
    ffi::{CStr, CString, c_int, c_void},
    io,
    mem::{MaybeUninit, size_of},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::{self, NonNull},
};

use tidelane_packet_io::GsoPayload;

/// `setsockopt(SOL_XDP)`: number of frames that one `sendto` may send in copy mode (Linux 6.17).
pub(crate) const XDP_MAX_TX_SKB_BUDGET: c_int = 9;
const SIOCETHTOOL: libc::c_ulong = 0x8946;
const SO_PREFER_BUSY_POLL: c_int = 69;
const SO_BUSY_POLL_BUDGET: c_int = 70;

/// A plain C type that is the value of a socket option. The kernel may write the value.
///
/// # Safety
/// Every bit pattern is a value of the type.
pub(crate) unsafe trait OptionValue: Copy {}
// SAFETY: all fields are integers.
unsafe impl OptionValue for libc::xdp_mmap_offsets {}
// SAFETY: as above.
unsafe impl OptionValue for libc::xdp_umem_reg {}
// SAFETY: as above.
unsafe impl OptionValue for libc::xdp_statistics {}
// SAFETY: as above.
unsafe impl OptionValue for libc::xdp_options {}
// SAFETY: every bit pattern is a value of an integer.
unsafe impl OptionValue for c_int {}

/// A structure that begins like `sockaddr`.
///
/// # Safety
/// The first field of the structure is the address family.
unsafe trait SocketAddress {}
// SAFETY: `sxdp_family` is first.
unsafe impl SocketAddress for libc::sockaddr_xdp {}
// SAFETY: `sll_family` is first.
unsafe impl SocketAddress for libc::sockaddr_ll {}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn set_option<T: OptionValue>(
    fd: &OwnedFd,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` points to `len` readable bytes for the time of the call.
    let result = unsafe {
        let value = ptr::from_ref(value).cast::<c_void>();
        libc::setsockopt(fd.as_raw_fd(), level, name, value, len)
    };
    check(result).map(drop)
}

/// Sets the socket's send buffer to `bytes`. The buffer exceeds `net.core.wmem_max` only if the
/// process has CAP_NET_ADMIN.
fn set_send_buffer(fd: &OwnedFd, bytes: usize) -> io::Result<()> {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX / 2);
    set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)
        .or_else(|_| set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes))
}

/// Binds a socket to an address structure.
fn bind<T: SocketAddress>(fd: &OwnedFd, address: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `address` is a sockaddr of `len` bytes that lives through the call.
    let result = unsafe {
        let address = ptr::from_ref(address).cast::<libc::sockaddr>();
        libc::bind(fd.as_raw_fd(), address, len)
    };
    check(result).map(drop)
}

/// An AF_XDP socket.
pub(crate) struct XskSocket(OwnedFd);

impl XskSocket {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: the call has no pointers, and `check` refuses an invalid descriptor.
        unsafe {
            let fd = check(libc::socket(
                libc::AF_XDP,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC,
                0,
            ))?;
            Ok(Self(OwnedFd::from_raw_fd(fd)))
        }
    }

    pub(crate) fn set_xdp<T: OptionValue>(&self, name: c_int, value: &T) -> io::Result<()> {
        set_option(&self.0, libc::SOL_XDP, name, value)
    }

    pub(crate) fn get_xdp<T: OptionValue>(&self, name: c_int) -> io::Result<T> {
        let mut value = MaybeUninit::<T>::zeroed();
        let mut len = size_of::<T>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `value`, and the other bytes stay zero.
        // `OptionValue` guarantees that every bit pattern is a value.
        unsafe {
            let out = value.as_mut_ptr().cast::<c_void>();
            check(libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_XDP,
                name,
                out,
                &raw mut len,
            ))?;
            Ok(value.assume_init())
        }
    }

    /// Sets the send buffer to `bytes`.
    pub(crate) fn set_send_buffer(&self, bytes: usize) -> io::Result<()> {
        set_send_buffer(&self.0, bytes)
    }

    /// Makes the socket's system calls poll the NIC for up to `timeout_us` microseconds and
    /// `budget` packets, instead of waiting for interrupts of the NIC.
    pub(crate) fn set_busy_poll(&self, timeout_us: u32, budget: u32) -> io::Result<()> {
        let set = |name, value| set_option(&self.0, libc::SOL_SOCKET, name, &value);
        set(SO_PREFER_BUSY_POLL, 1)?;
        set(libc::SO_BUSY_POLL, timeout_us as c_int)?;
        set(SO_BUSY_POLL_BUDGET, budget as c_int)
    }

    pub(crate) fn bind(&self, ifindex: u32, queue: u32, flags: u16) -> io::Result<()> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: ifindex,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        bind(&self.0, &address)
    }

    /// Makes the kernel process the TX ring.
    pub(crate) fn kick_tx(&self) -> io::Result<()> {
        let fd = self.0.as_raw_fd();
        // SAFETY: the message is empty and has no address, so the kernel accesses no memory.
        let result =
            unsafe { libc::sendto(fd, ptr::null(), 0, libc::MSG_DONTWAIT, ptr::null(), 0) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// Makes the kernel take frames from the FILL ring. With busy polling, the call also runs the
    /// driver's receive loop.
    pub(crate) fn kick_rx(&self) {
        let fd = self.0.as_raw_fd();
        // SAFETY: the buffer is empty and there is no address, so the kernel accesses no memory.
        // The call transfers no data. Its error is ignored, because a later call repeats the
        // request.
        unsafe {
            let none = ptr::null_mut();
            libc::recvfrom(
                fd,
                none,
                0,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
                ptr::null_mut(),
            );
        }
    }

    /// Maps `len` bytes of a ring. `offset` selects the ring (`XDP_PGOFF_*`, `XDP_UMEM_PGOFF_*`).
    pub(crate) fn map_ring(&self, len: usize, offset: u64) -> io::Result<Mapping> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        Mapping::new(len, flags, Some((&self.0, offset)))
    }
}

impl AsFd for XskSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A packet socket that sends frames with a segmentation header (`PACKET_VNET_HDR`) and receives
/// nothing.
pub(crate) struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// Opens a socket that is bound to the interface, with a send buffer of `send_buffer` bytes.
    pub(crate) fn open(ifindex: u32, send_buffer: usize) -> io::Result<Self> {
        // SAFETY: the call has no pointers, and `check` refuses an invalid descriptor.
        let fd = unsafe {
            let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            OwnedFd::from_raw_fd(check(libc::socket(libc::AF_PACKET, kind, 0))?)
        };
        set_option(&fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1)?;
        set_send_buffer(&fd, send_buffer)?;
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: 0,
            sll_ifindex: ifindex as c_int,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        bind(&fd, &address)?;
        Ok(Self(fd))
    }

    /// Sends one frame: `headers`, which begin with the `virtio_net_hdr` of the frame, and then
    /// `payload`.
    pub(crate) fn send(&self, headers: &[u8], payload: GsoPayload<'_>) -> io::Result<()> {
        let run = |start: *const u8, len| libc::iovec {
            iov_base: start.cast::<c_void>().cast_mut(),
            iov_len: len,
        };
        let payload = match payload {
            GsoPayload::Private(parts) => parts.map(|part| run(part.as_ptr(), part.len())),
            GsoPayload::Shared(parts) => parts.map(|part| run(part.as_ptr().cast(), part.len())),
        };
        let mut runs = [run(headers.as_ptr(), headers.len()), payload[0], payload[1]];
        // SAFETY: all zero is a valid `msghdr`: no name, no I/O vector, no control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = runs.as_mut_ptr();
        message.msg_iovlen = runs.len();
        // SAFETY: the kernel reads the message and its I/O vector during the call, and writes
        // nothing.
        let sent =
            unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT) };
        if sent < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}

/// A memory mapping that is unmapped on drop.
pub(crate) struct Mapping {
    /// Address of the first byte.
    start: NonNull<u8>,
    /// Length in bytes.
    len: usize,
}

// SAFETY: the mapping is plain memory, which any thread may use. Code that reads or writes through
// `start` must order its accesses.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`. The type itself does not access the memory.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(len: usize, flags: c_int, file: Option<(&OwnedFd, u64)>) -> io::Result<Self> {
        let (fd, offset) = file.map_or((-1, 0), |(fd, offset)| (fd.as_raw_fd(), offset));
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the address, so no mapping of ours is replaced.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                protection,
                flags,
                fd,
                offset as libc::off_t,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).expect("mmap does not map address zero");
        Ok(Self { start, len })
    }

    /// Maps the first `len` bytes of a file. A test maps a file twice: one mapping is this
    /// process's side of a ring, and the other mapping is the kernel's side.
    #[cfg(test)]
    pub(crate) fn of_file(file: &OwnedFd, len: usize) -> io::Result<Self> {
        Self::new(len, libc::MAP_SHARED, Some((file, 0)))
    }

    /// Maps `len` bytes of private memory. The kernel allocates all pages during the call
    /// (`MAP_POPULATE`).
    pub(crate) fn anonymous(len: usize, huge_pages: bool) -> io::Result<Self> {
        let huge = if huge_pages { libc::MAP_HUGETLB } else { 0 };
        Self::new(
            len,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE | huge,
            None,
        )
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and nothing borrows from it any more.
        unsafe {
            libc::munmap(self.start.as_ptr().cast::<c_void>(), self.len);
        }
    }
}

/// Returns the index of an interface in this thread's network namespace.
pub(crate) fn interface_index(name: &str) -> io::Result<u32> {
    let name = CString::new(name)?;
    // SAFETY: `name` is a C string.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// Returns the name of an interface in this thread's network namespace.
pub(crate) fn interface_name(index: u32) -> io::Result<String> {
    let mut name = [0u8; libc::IF_NAMESIZE];
    // SAFETY: the buffer has `IF_NAMESIZE` bytes, as the call requires.
    if unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) }.is_null() {
        return Err(io::Error::last_os_error());
    }
    let name = CStr::from_bytes_until_nul(&name).map_err(io::Error::other)?;
    Ok(name.to_string_lossy().into_owned())
}

/// Runs an interface `ioctl` that takes an `ifreq`.
///
/// # Safety
/// For `SIOCETHTOOL`, `fill` must set `ifru_data` to the structure of the ethtool command, which
/// must be valid during the call. `request` must read and write no memory except the `ifreq` and
/// this structure.
unsafe fn interface_request(
    name: &str,
    request: libc::c_ulong,
    fill: impl FnOnce(&mut libc::ifreq),
) -> io::Result<libc::ifreq> {
    // SAFETY: `ifreq` is plain data, and all zeros is a value of it. The name is copied only if it
    // fits with its terminator. The caller promises that the request touches only valid memory.
    unsafe {
        let fd = check(libc::socket(
            libc::AF_INET,
            libc::SOCK_DGRAM | libc::SOCK_CLOEXEC,
            0,
        ))?;
        let fd = OwnedFd::from_raw_fd(fd);
        let mut argument: libc::ifreq = MaybeUninit::zeroed().assume_init();
        if name.len() >= argument.ifr_name.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in argument.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        fill(&mut argument);
        check(libc::ioctl(fd.as_raw_fd(), request as _, &raw mut argument))?;
        Ok(argument)
    }
}

/// Returns the MTU of an interface (`SIOCGIFMTU`).
pub(crate) fn interface_mtu(name: &str) -> io::Result<u32> {
    // SAFETY: SIOCGIFMTU fills in `ifru_mtu` if it succeeds, and touches no other memory.
    unsafe {
        let answer = interface_request(name, libc::SIOCGIFMTU as libc::c_ulong, |_| ())?;
        Ok(answer.ifr_ifru.ifru_mtu as u32)
    }
}

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// Returns true if the interface has transmit checksum offload (`ETHTOOL_GTXCSUM`).
pub(crate) fn interface_finishes_checksums(name: &str) -> io::Result<bool> {
    const ETHTOOL_GTXCSUM: u32 = 0x16;
    let mut value = EthtoolValue {
        command: ETHTOOL_GTXCSUM,
        data: 0,
    };
    let place = (&raw mut value).cast::<libc::c_char>();
    // SAFETY: this command reads and writes one `ethtool_value`, which outlives the call.
    unsafe {
        interface_request(name, SIOCETHTOOL, |argument| {
            argument.ifr_ifru.ifru_data = place
        })?;
    }
    Ok(value.data != 0)
}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct EthtoolChannels {
    command: u32,
    max_rx: u32,
    max_tx: u32,
    max_other: u32,
    max_combined: u32,
    pub(crate) rx: u32,
    pub(crate) tx: u32,
    other: u32,
    pub(crate) combined: u32,
}

/// Returns the channels of an interface (`ETHTOOL_GCHANNELS`).
pub(crate) fn interface_channels(name: &str) -> io::Result<EthtoolChannels> {
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    let mut channels = EthtoolChannels {
        command: ETHTOOL_GCHANNELS,
        ..Default::default()
    };
    let place = (&raw mut channels).cast::<libc::c_char>();
    // SAFETY: this command reads and writes one `ethtool_channels`, which outlives the call.
    unsafe {
        interface_request(name, SIOCETHTOOL, |argument| {
            argument.ifr_ifru.ifru_data = place
        })?;
    }
    Ok(channels)
}
