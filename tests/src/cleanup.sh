# Removes what a run made, whatever ended the run.
#
# Standard input names the things, one per line, before each is made: "netns NAME", "dir PATH",
# "run NAME" (a service's run
# directory and log), "cgroup PATH". The end of input is the end of the owner: it closed the
# pipe, failed, was interrupted or was killed. Only processes inside the named namespaces, which
# the owner made, are ended.
trap '' HUP INT TERM PIPE
spaces=''
dirs=''
groups=''
while read -r kind name; do
    case "$kind" in
        netns) spaces="$spaces $name" ;;
        dir) dirs="$dirs $name" ;;
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
