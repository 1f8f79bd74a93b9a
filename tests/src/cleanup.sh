# Removes what a run made, whatever ended the run.
#
# Standard input names the things, one per line, before each is made: "netns NAME", "dir PATH",
# "run NAME" (a service's run directory and log), "cgroup PATH"; and before it is taken, "nic
# ADDRESS": a NIC by its link address, which goes back. The end of input is the end of the owner:
# it closed the pipe, failed, was interrupted or was killed. Only processes inside the named
# namespaces, which the owner made, are ended.
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
# The kernel puts a NIC back when its namespace is gone. A connection that a killed program left
# unfinished keeps the namespace for minutes.
# What is made of a NIC, such as a VLAN, has its address, too, but no device.
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
