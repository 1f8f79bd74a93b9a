# Runs check.sh of the directory $1, for $2 seconds at most, each time that a file go.N appears:
# output in out.N, errors in err.N, exit status in done.N (124 if the time was over). Ends after
# four times, or when nothing is asked for two minutes.
cd "$1" || exit 1
for round in 1 2 3 4; do
    waited=0
    until [ -e "go.$round" ]; do
        [ "$waited" -lt 2400 ] || exit 1
        sleep 0.05
        waited=$((waited + 1))
    done
    timeout "$2" sh check.sh >"out.$round" 2>"err.$round"
    echo "$?" >"done.part"
    mv done.part "done.$round"
done
