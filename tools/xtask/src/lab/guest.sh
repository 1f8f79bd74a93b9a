# The first program of a machine of the laboratory. ttyS1 leads to `cargo xtask lab`, which wrote
# this script out, with the words between at signs replaced.
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
mkdir -p /lib/modules
ln -sfn "@BASE@" "/lib/modules/$(uname -r)"
for module in @MODULES@; do modprobe "$module"; done
ip link set lo up
# Open all the time: the driver forgets what is not yet sent when the last descriptor goes.
exec 3>/dev/ttyS1
stty -F /dev/ttyS1 raw
echo "booted $(uname -r)" >&3
@RUNS@
echo "end" >&3
sleep 1
busybox poweroff -f
