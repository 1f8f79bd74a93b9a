#!/bin/sh
# Installs the missing Debian packages of a group. Each group except `programs` has the packages
# that the make target of the same name needs. The group `programs` has the packages that the
# arguments name. The script fails if cargo is missing, or if the machine is not Linux on x86-64.
# For the groups `demo` and `bench`, the script also fails if the user is not root.
#
#   scripts/setup.sh build|demo|test|bench|lab
#   scripts/setup.sh programs PACKAGE...
#
# If the administrator has no policy (/usr/sbin/policy-rc.d), the script keeps the services of new
# packages from starting.
#
# If the user is not root, the script installs nothing. If a required package is missing, the script
# then prints the command to run as root. On a distribution without dpkg, the script also installs
# nothing: it checks that there is a C linker, and (except for build) prints the names of the
# required packages.
set -u

group=${1:-build}
need_root=no
packages='gcc libc6-dev'
optional=''
emulator='qemu-system-x86 kmod xz-utils'
# busybox and busybox-static conflict, so install busybox-static only if there is no busybox.
command -v busybox >/dev/null 2>&1 || emulator="$emulator busybox-static"
case "$group" in
    build) ;;
    demo) packages="$packages iproute2 util-linux nginx wrk curl"; need_root=yes ;;
    bench)
        packages="$packages iproute2 util-linux nginx wrk curl valgrind"
        packages="$packages memcached libmemcached-tools"
        need_root=yes
        ;;
    test)
        packages="$packages iproute2 util-linux ethtool nginx wrk curl valgrind"
        packages="$packages redis-server redis-tools memcached libmemcached-tools"
        packages="$packages nftables iptables libuv1-dev tcpdump"
        packages="$packages clang-14 libbpf-dev"
        # Without these packages the tests on other kernels are skipped.
        optional="$emulator"
        ;;
    lab)
        packages="$packages $emulator iproute2 util-linux ethtool nginx wrk curl"
        packages="$packages redis-server redis-tools"
        ;;
    programs)
        # The arguments are the packages that an entry of bench/programs/catalog names.
        shift
        packages="$*"
        ;;
    *) echo "setup: no group $group (build, demo, test, bench, lab, programs)" >&2; exit 2 ;;
esac

fail() {
    echo "setup: $1" >&2
    exit 1
}

if ! command -v cargo >/dev/null 2>&1; then
    if [ -x "$HOME/.cargo/bin/cargo" ]; then
        fail 'cargo is not in PATH; run: . "$HOME/.cargo/env"'
    fi
    fail "no cargo; run: curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | \
sh -s -- -y --profile minimal && . \"\$HOME/.cargo/env\""
fi

if [ "$(uname -s)-$(uname -m)" != Linux-x86_64 ]; then
    fail "Tidelane runs on Linux on x86-64, not on $(uname -s) on $(uname -m)"
fi

# Prints the given packages that are not installed.
not_installed() {
    for package in "$@"; do
        state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)
        [ "$state" = installed ] || printf ' %s' "$package"
    done
}

# `missing` names the required packages that are not installed, and `wanted` names the optional
# packages that are not installed. Each name follows a blank.
missing=''
wanted=''
if command -v dpkg-query >/dev/null 2>&1; then
    # shellcheck disable=SC2086
    missing=$(not_installed $packages)
    # shellcheck disable=SC2086
    wanted=$(not_installed $optional)
else
    command -v cc >/dev/null 2>&1 || fail 'no C linker (cc), and no apt to install gcc with'
    [ "$group" = build ] || echo "setup: no dpkg here; not checking for: $packages" >&2
fi

if [ "$need_root" = yes ] && [ "$(id -u)" != 0 ]; then
    fail "make $group needs root, for network namespaces and AF_XDP; \
run: sudo env \"PATH=\$PATH\" make $group"
fi
[ -n "$missing$wanted" ] || exit 0

if [ "$(id -u)" != 0 ]; then
    [ -n "$missing" ] || exit 0
    command="apt-get install --yes --no-install-recommends$missing"
    if [ "$group" = test ]; then
        # Tests that need a missing package are skipped, and name the package.
        echo "setup: missing:$missing; to install them: sudo $command" >&2
        command -v cc >/dev/null 2>&1 && exit 0
    fi
    fail "missing:$missing; run: sudo $command"
fi

# Keep servers from starting when their packages are installed, because the servers would occupy
# ports of this machine. An existing policy of the administrator stays in force.
policy=/usr/sbin/policy-rc.d
ours=no
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy" && ours=yes
fi
cleanup() {
    [ "$ours" = no ] || rm -f "$policy"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

install() {
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends -qq "$@"
}
if [ -n "$missing" ]; then
    echo "setup: installing$missing"
    # shellcheck disable=SC2086
    if ! install $missing >/dev/null 2>&1; then
        apt-get update -qq || fail 'apt-get update failed'
        # shellcheck disable=SC2086
        install $missing || fail "apt-get install failed; missing:$missing"
    fi
fi
if [ -n "$wanted" ]; then
    echo "setup: installing$wanted"
    # shellcheck disable=SC2086
    install $wanted >/dev/null 2>&1 || { apt-get update -qq && install $wanted >/dev/null; } ||
        echo "setup: without$wanted; tests that need them are skipped" >&2
fi
