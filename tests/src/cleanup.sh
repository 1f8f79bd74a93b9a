# Removes the resources of a test run, also if the run was killed.
#
# Standard input names each resource on a line before the owner makes it: "netns NAME", "dir PATH",
# "run NAME" (a service's run directory and log), "cgroup PATH". A line "nic ADDRESS" names a NIC by
# its link address before the owner takes it; the NIC is given back. The end of input means that the
# owner has closed the pipe, or has ended in any way. The script ends only processes inside the
# named namespaces, which the owner made.
trap '' HUP INT TERM PIPE
spaces=''
dirs=''
groups=''
nics=''
while read -r kind name; do
    case "$kind" in
        netns) spaces="$spaces $name" ;;
        dir) dirs="$dirs $name" ;;
        nic) nics="$nics $name" ;;
        cgroup) groups="$groups $name" ;;
        run) dirs="$dirs /run/tidelane/$name /var/log/tidelane/$name.log" ;;
    esac
done
pids() {
    for space in $spaces; do
        ip netns pids "$space" 2>/dev/null
    done
}
for signal in TERM KILL KILL; do
    tries=0
    list=$(pids)
    [ -n "$list" ] || break
    # shellcheck disable=SC2086
    kill -s "$signal" $list 2>/dev/null
    while [ -n "$(pids)" ] && [ "$tries" -lt 20 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
done
# The kernel returns a NIC when its namespace ends. A connection that a killed program left open
# keeps the namespace for minutes. A VLAN on top of a NIC has the same address, but no device.
find_nic='for device in /sys/class/net/*/device; do
    place="${device%/device}"
    [ "$(cat "$place/address" 2>/dev/null)" = "$0" ] && basename "$place"
done'
for nic in $nics; do
    for space in $spaces; do
        name=$(ip netns exec "$space" sh -c "$find_nic" "$nic" 2>/dev/null)
        [ -n "$name" ] || continue
        ip -n "$space" link set dev "$name" down 2>/dev/null
        back="nic$(echo "$nic" | tr -d :)"
        ip -n "$space" link set dev "$name" netns "$$" name "$back" 2>/dev/null
    done
done
for space in $spaces; do
    ip netns del "$space" 2>/dev/null
done
for group in $groups; do
    rmdir -- "$group" 2>/dev/null
done
for dir in $dirs; do
    rm -rf -- "$dir"
done
rmdir /run/tidelane /var/log/tidelane 2>/dev/null
exit 0
