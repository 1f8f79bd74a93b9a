//! Tests of mappings: bounds of copies, seals, holes, and forked children.

use super::*;

/// Returns the number of 512-byte blocks that the memory of the memfd occupies.
fn resident_blocks(fd: &OwnedFd) -> i64 {
    fstat(fd).unwrap().st_blocks
}

/// Returns a region that maps one writable memfd, and the memfd.
fn shared(len: u64) -> (Region, OwnedFd) {
    let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, len).unwrap();
    let part = Part {
        memory: fd.as_fd(),
        len,
        writable: true,
    };
    (Region::join(&[part]).unwrap(), fd)
}

#[test]
fn copies_stay_in_bounds() {
    let region = Region::heap(4096).unwrap();
    assert!(region.copy_in(4092, &[1; 4]));
    assert!(!region.copy_in(4093, &[1; 4]));
    assert!(!region.copy_in(u64::MAX, &[1; 4]));
    assert!(!region.copy_in(u64::MAX - 3, &[1; 4]));
    assert!(!region.copy_out(0, &mut [0; 4097]));
    assert!(region.copy_out(4096, &mut []));
    assert!(!region.copy_within(4000, 0, 97));
    assert!(!region.copy_within(0, 4000, 97));
    assert!(region.copy_within(4092, 0, 4));
    let mut got = [0; 5];
    assert!(region.copy_out(0, &mut got));
    assert_eq!(got, [1, 1, 1, 1, 0]);
    assert!(region.pointer::<u64>(4088).is_some());
    assert!(region.pointer::<u64>(4089).is_none());
    assert!(region.pointer::<u64>(4092).is_none());
    assert!(Region::heap(0).is_err());
}

#[test]
fn a_sealed_memfd_keeps_its_size() {
    let (_region, fd) = Region::create_one_way("test", 8192).unwrap();
    assert!(ftruncate(&fd, 4096).is_err());
    assert!(ftruncate(&fd, 16384).is_err());
    assert!(fcntl_add_seals(&fd, SealFlags::WRITE).is_err());
    assert!(Region::map(fd.as_fd(), 4096, false).is_err());
    let unsealed = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&unsealed, 8192).unwrap();
    assert!(Region::map(unsealed.as_fd(), 8192, false).is_err());
}

#[test]
fn a_one_way_memfd_is_read_only_for_others() {
    let (ours, fd) = Region::create_one_way("test", 4096).unwrap();
    assert!(Region::map(fd.as_fd(), 4096, true).is_err());
    let theirs = Region::map(fd.as_fd(), 4096, false).unwrap();
    assert!(ours.copy_in(0, b"x"));
    assert!(!theirs.copy_in(0, b"y"));
    assert!(!theirs.copy_within(0, 8, 1));
    assert!(theirs.punch_hole(0, 4096).is_err());
    let mut got = [0];
    assert!(theirs.copy_out(0, &mut got));
    assert_eq!(&got, b"x");
}

#[test]
fn a_hole_gives_its_whole_pages_back() {
    let (region, fd) = shared(1 << 30);
    assert_eq!(resident_blocks(&fd), 0);
    assert!(region.copy_in(0, &[7; 5 * 4096]));
    assert_eq!(resident_blocks(&fd), 5 * 8);
    region.punch_hole(100, 4 * 4096).unwrap();
    assert_eq!(resident_blocks(&fd), 2 * 8);
    let mut got = [1; 2];
    assert!(region.copy_out(4095, &mut got));
    assert_eq!(got, [7, 0]);
    assert!(region.punch_hole(1 << 30, 1).is_err());
    assert!(region.punch_hole(u64::MAX, 2).is_err());

    let heap = Region::heap(1 << 40).unwrap();
    assert!(heap.copy_in((1 << 40) - 4096, &[7; 4096]));
    heap.punch_hole((1 << 40) - 4096, 4096).unwrap();
    assert!(heap.copy_out((1 << 40) - 1, &mut got[..1]));
    assert_eq!(got[0], 0);
}

#[test]
fn a_forked_child_has_zero_memory_instead() {
    let (region, _fd) = shared(1 << 20);
    region.dont_fork().unwrap();
    assert!(region.copy_in(5000, b"parent"));
    assert!(
        region.replace_after_fork().is_err(),
        "replaced an existing mapping"
    );
    // SAFETY: the child only makes system calls and accesses its own memory. Then it exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut got = [1; 6];
        let good = region.replace_after_fork().is_ok()
            && region.copy_out(5000, &mut got)
            && got == [0; 6]
            && region.copy_in(5000, b"child!");
        // SAFETY: the call ends the child without running exit handlers of the test harness.
        unsafe { libc::_exit(if good { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: `child` is our child, and `status` is a valid variable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    let mut got = [0; 6];
    assert!(region.copy_out(5000, &mut got));
    assert_eq!(&got, b"parent");
}
