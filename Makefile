# make build | demo | test | proofs | bench FIGURE=... | programs | suites | lab KERNEL=... NIC=... | clean
#
# Each target except `help` and `clean` installs missing packages (scripts/setup.sh), shows its
# progress and removes what it set up on the machine, even after Ctrl-C. Installed packages
# stay. Files are built below CARGO_TARGET_DIR, or below `target` if this variable is not set.

.PHONY: help build demo test proofs bench programs suites lab clean

# The packages whose examples are demonstrations, tools of the tests, or servers of the experiments
# in bench/figures.
EXAMPLES = --package tidelane-embedded --package tidelane-steering --package tidelane-kernel \
	--package tidelane-direct --examples

help:
	@echo 'make build                 release binaries'
	@echo 'make demo                  nginx on the kernel and on Tidelane, side by side (root)'
	@echo 'make test                  every check and test (root, or some are skipped)'
	@echo 'make proofs                loss, deaths, floods, hostile input at full size (root; half an hour)'
	@echo 'make bench FIGURE=NAME     one experiment: tas-fig4, tas-fig7, ..., instructions (root)'
	@echo 'make programs PROGRAMS="A B"   real programs and their table; without names, all (root)'
	@echo 'make suites SUITES="A B"   test suites of other projects, on both stacks; without names, all (root)'
	@echo 'make lab KERNEL=LIST NIC=LIST  tests on other kernels and NICs, emulated (docs/kernels.md)'
	@echo 'make lab PAIR=6.1,newest       two machines on one link, with a kernel each; PAIR=all'
	@echo 'make lab SCRIPTS=1             the packet scripts on several kernels'
	@echo 'make clean                 remove what was built'

build:
	@scripts/setup.sh build
	cargo build --release --workspace
	cargo build --release $(EXAMPLES)

demo:
	@scripts/setup.sh demo
	cargo build --release --workspace
	@cargo xtask demo

test:
	@scripts/setup.sh test
	@cargo xtask ci

# Runs tests of `make test` at full size:
# - 1 GiB and 10,000 connections at 5 % loss
# - 1,000 killed programs and 200 killed services in a row
# - 30 runs of a program that overwrites its shared memory
# - 100 starts of a server while clients already try to connect
# - 10 million forged packets
# - a flood of 200,000 SYN/s, which prints the remaining goodput
proofs:
	@scripts/setup.sh test
	@cargo xtask ci build
	TIDELANE_HOSTILE_PACKETS=10000000 cargo test --release --package tidelane-hostile
	TIDELANE_LOSS_MIB=1024 TIDELANE_LOSS_CONNECTIONS=10000 TIDELANE_KILLS=1000 \
	TIDELANE_SCRIBBLES=30 TIDELANE_SERVICE_KILLS=200 TIDELANE_STARTS=100 \
	cargo test --package tidelane-tests --test interop -- loss deaths hostile both_stacks
	TIDELANE_FLOOD_RATE=200000 TIDELANE_FLOOD_SECONDS=10 \
	cargo test --package tidelane-tests --test interop -- flood --nocapture

bench:
	@scripts/setup.sh bench
	@cargo xtask bench $(FIGURE)

# Installs the Debian, PyPI and npm packages that each entry of bench/programs/catalog names.
programs:
	@scripts/setup.sh bench
	@cargo xtask programs $(PROGRAMS)

# Installs the Debian packages of each suite, and builds the suite below target/suites.
suites:
	@scripts/setup.sh bench
	@cargo xtask suites $(SUITES)

# KERNEL and NIC are comma-separated lists, or `all`. SMALL=1 selects a small part of the tests,
# which takes some minutes.
lab:
	@scripts/setup.sh lab
	@cargo xtask ci build
	@cargo xtask lab $(if $(PAIR),pair $(PAIR) $(if $(NIC),--nic $(NIC)), \
	$(if $(SCRIPTS),scripts $(if $(KERNEL),--kernel $(KERNEL)), \
	$(if $(KERNEL),--kernel $(KERNEL)) $(if $(NIC),--nic $(NIC)) $(if $(SMALL),--small)))

clean:
	cargo clean
