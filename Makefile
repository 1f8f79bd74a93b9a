# make build | demo | test | bench FIGURE=... | clean
#
# Each target installs what it lacks (scripts/setup.sh), shows its progress and cleans up after
# itself, also after Ctrl-C. CARGO_TARGET_DIR is honoured.

.PHONY: help build demo test bench clean

help:
	@echo 'make build                 release binaries'
	@echo 'make demo                  nginx on the kernel and on Tidelane, side by side (root)'
	@echo 'make test                  every check and test (root, or some are skipped)'
	@echo 'make bench FIGURE=NAME     one experiment: tas-fig4, los-fig2, instructions (root)'
	@echo 'make clean                 remove what was built'

build:
	@scripts/setup.sh build
	cargo build --release --workspace
	cargo build --release --package tidelane-steering --examples

demo:
	@scripts/setup.sh demo
	cargo build --release --workspace
	@cargo xtask demo

test:
	@scripts/setup.sh test
	@cargo xtask ci

bench:
	@scripts/setup.sh bench
	cargo build --release --workspace
	@cargo xtask bench $(FIGURE)

clean:
	cargo clean
