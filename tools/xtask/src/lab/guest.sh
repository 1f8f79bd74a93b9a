# The script that PID 1 of an emulated machine runs after `init` of the RAM disk has mounted the
# root file system. `cargo xtask lab` replaces each name between two @ in this script, and reads the
# machine's output from the serial line ttyS1.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mount -t proc none /proc
mount -t sysfs none /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts none /dev/pts
for place in /dev/shm /run /var/log; do mount -t tmpfs none "$place"; done
mkdir -p /run/lock /run/netns
mount -t bpf none /sys/fs/bpf
mount -t cgroup2 none /sys/fs/cgroup
mount --make-rshared /
ulimit -n 65536
# Make the path where modprobe searches a link to the folder of the kernel's unpacked modules.
mkdir -p /lib/modules
ln -sfn "@BASE@" "/lib/modules/$(uname -r)"
for module in @MODULES@; do modprobe "$module"; done
ip link set lo up
# Keep the device open: the driver drops unsent bytes when the last descriptor is closed.
exec 3>/dev/ttyS1
stty -F /dev/ttyS1 raw
echo "booted $(uname -r)" >&3
@RUNS@
echo "end" >&3
sleep 1
busybox poweroff -f
