# Removes the resources of a wire (a test network) at the wire's end, even if the test process was
# killed.
#
# The test process writes a line to this script's standard input before it makes a resource:
#   netns NAME     a network namespace
#   dir PATH       a directory
#   run NAME       the run directory and the log of the service (`tidelaned`) NAME
#   cgroup PATH    a control group
#   nic ADDRESS    a NIC, named by its MAC address, that moves into a namespace of the wire
# Standard input is a pipe. The pipe closes when the test process drops the wire or ends in any way.
# Then the script kills the processes in the named namespaces, moves the NICs back, and removes the
# other resources.
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
# Move the NICs back explicitly. The kernel would move them when it destroys the namespace, but an
# open connection of a killed program delays the destruction by minutes. A VLAN interface has the
# MAC address of its NIC, but no `device` link, so only a NIC matches.
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
