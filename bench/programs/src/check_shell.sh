# Runs a client's check on request, before, during and after an outage of the service. outage.rs
# requests check N by creating the file go.N in the directory $1. The script then runs $1/check.sh
# with a time limit of $2 seconds. In the directory $1, the standard output goes to out.N, the
# standard error to err.N, and the exit status to done.N. The status is 124 if the time limit ended
# the check. The script ends after four checks, or after two minutes without a request.
cd "$1" || exit 1
for round in 1 2 3 4; do
    waited=0
    until [ -e "go.$round" ]; do
        [ "$waited" -lt 2400 ] || exit 1
        sleep 0.05
        waited=$((waited + 1))
    done
    timeout "$2" sh check.sh >"out.$round" 2>"err.$round"
    # Rename the complete file, so that outage.rs never reads a partial status.
    echo "$?" >"done.part"
    mv done.part "done.$round"
done
