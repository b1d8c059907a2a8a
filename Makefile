# Everything that builds, checks or ships reflash; `make help` lists it.
# What is particular to a target lives in cross/, one file per target.

CARGO  ?= cargo
BUILD  := $(abspath $(or $(CARGO_TARGET_DIR),target))
TARGET ?= x86_64-unknown-linux-musl
prefix ?= /usr/local
# Of our own code in static binaries but src/xz; 3 is faster and larger.
OPT_LEVEL ?= z

include cross/routes.mk

# The build date that goes into the binary (src/clock.rs): that of the last commit, so that the same
# source gives the same bytes. Without git, and without this variable, it is that of the release.
SOURCE_DATE_EPOCH ?= $(or $(shell git log -1 --format=%ct 2>/dev/null),0)
all demo system-test bench cross cross-repro install: export SOURCE_DATE_EPOCH := $(SOURCE_DATE_EPOCH)

.PHONY: all
all: ## release build for this machine (default)
	$(CARGO) build --locked --release

.PHONY: check
check: fmt-check lint doc test ## all that must pass before a commit; needs nothing but cargo

.PHONY: fmt
fmt: ## format the source
	$(CARGO) fmt

.PHONY: fmt-check
fmt-check: ## fail if the source is not formatted
	$(CARGO) fmt --check

.PHONY: lint
lint: ## clippy, with and without the host-only parts
	$(CARGO) clippy --locked --all-targets -- -D warnings
	$(CARGO) clippy --locked --no-default-features -- -D warnings
	$(CARGO) clippy --locked --all-targets --features lzma-rust2 -- -D warnings

.PHONY: lint-scripts
lint-scripts: ## shellcheck over every shell script
	shellcheck -x -P SCRIPTDIR -S warning $$(git ls-files -z -- ':!tests/data' | xargs -0 grep -lE '^#! *[^ ]*(/env )?.*sh( |$$)')

.PHONY: doc
doc: ## documentation, private items too; broken links are errors
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --document-private-items

.PHONY: test
test: ## unit and integration tests
	$(CARGO) test --locked

.PHONY: test-lzma-rust2
test-lzma-rust2: ## what depends on the decoder, with the other one
	$(CARGO) test --locked --features lzma-rust2 --package reflash-xz

.PHONY: fuzz-smoke
fuzz-smoke: ## every parser of remote bytes a fixed number of times, on stable Rust, in half a minute
	$(CARGO) test --locked --test fuzz-smoke

.PHONY: demo
demo: all ## the main job in front of your eyes: pack, serve, install over a seed, compare
	$(CARGO) run --locked --release --example demo

.PHONY: system-test
system-test: all ## real block devices and a real web server; needs root
	tests/system/run.sh

.PHONY: bench
bench: all ## seconds against a plain download and a sequential baseline, in 20 minutes; needs root
	$(CARGO) build --locked --release --manifest-path tests/bench/link/Cargo.toml --target-dir $(BUILD)/bench/link
	$(CARGO) run --locked --release --example bench -- $(BENCH)

.PHONY: bench-quick
bench-quick: BENCH := --quick
bench-quick: bench ## the same with less data, fewer runs and round trips, in 3 minutes

.PHONY: bench-cpu
bench-cpu: all ## decode, hash, scan, copy and install without a network, in 2 minutes
	$(CARGO) run --locked --release --example bench-cpu -- $(BENCH_CPU)

.PHONY: bench-cpu-smoke
bench-cpu-smoke: BENCH_CPU := --smoke
bench-cpu-smoke: bench-cpu ## the same with little data: that it works, and nothing else

.PHONY: cross
cross: ## static binary of TARGET; VARIANT=bare or full, ROUTE=ordinary or buildstd (cross/README.md)
	cross/setup.sh $(ROUTE) $(ZIG_VENV)
	CARGO_PROFILE_SMALL_OPT_LEVEL=$(OPT_LEVEL) $(CROSS_BUILD) --locked --profile small --no-default-features $(FEATURES:%=--features %) --target $(TARGET)
	install -D -m 755 $(BUILD)/$(TARGET)/small/reflash $(CROSS_BINARY)

.PHONY: cross-all
cross-all: ## the same for every target, in both variants
	set -e; for target in $(TARGETS); do for variant in $(VARIANTS); do \
	  $(MAKE) --no-print-directory cross TARGET=$$target VARIANT=$$variant; done; done

.PHONY: cross-which
cross-which: ## the route that `make cross` would take
	@echo $(TARGET): $(ROUTE)

.PHONY: cross-repro
cross-repro: cross ## builds TARGET again, from nothing in another place: the same bytes?
	cross/repro.sh $(CROSS_BINARY) TARGET=$(TARGET) VARIANT=$(VARIANT) ROUTE=$(ROUTE) ZIG_VENV=$(ZIG_VENV)

.PHONY: size
size: ## sizes of the static binaries, or of TARGET or VARIANT; fails if one is not static or over its budget
	@cross/size.sh $(BUILD)/cross "$(if $(filter file,$(origin VARIANT)),$(VARIANTS),$(VARIANT))" \
	  $(if $(filter file,$(origin TARGET)),$(TARGETS),$(TARGET))

.PHONY: test-cross
test-cross: ## the end-to-end tests with the binaries of EMULATED under user-mode emulation
	set -e; for target in $(EMULATED); do \
	  $(MAKE) --no-print-directory cross test-emulated TARGET=$$target VARIANT=full; done

# With TESTS='install:: golden::' only those.
.PHONY: test-emulated
test-emulated:
	REFLASH_TEST_BINARY=$(CROSS_BINARY) REFLASH_TEST_RUNNER="$(QEMU_USER)" \
	  $(CARGO) test --locked --test it -- --include-ignored $(TESTS) $(NOT_EMULATED:%=--skip %)

.PHONY: boot-test
boot-test: boot-ready ## boots x86_64, aarch64 and armv7 in an emulator: install, power cut, resume, the installed root
	set -e; for tool in initramfs-tools dracut; do \
	  tests/boot/$$tool.sh $(BUILD)/boot/amd64 $(BUILD)/cross/x86_64-unknown-linux-musl/full/reflash; done
	$(CARGO) run --locked --example boot-test -- $(BOOT_ARGUMENTS)

.PHONY: boot-memory
boot-memory: BOOTED := $(BOOTED_SMALL)
boot-memory: boot-ready ## the peak memory of an install of 1 GiB on an emulated armv7
	$(CARGO) run --locked --example boot-test -- --memory $(BOOT_ARGUMENTS)

# What the machines of BOOTED boot: kernels and binaries.
.PHONY: boot-ready
boot-ready:
	set -e; for machine in $(BOOTED); do \
	  tests/boot/debian.sh $${machine#*=} $(BUILD)/boot/$${machine#*=}; \
	  $(MAKE) --no-print-directory cross TARGET=$${machine%=*} VARIANT=full; done

.PHONY: test-packaging
test-packaging: ## what is in cross/boot: the script in several shells, images built with it
	REFLASH=$(BUILD)/cross/x86_64-unknown-linux-musl/full/reflash cross/boot/test.sh

.PHONY: docs
docs: ## the manual page and the completions of bash, zsh and fish, into target/docs
	$(CARGO) run --locked --release --example docs -- $(BUILD)/docs

.PHONY: install
install: all docs ## binary, manual page and completions below $(DESTDIR)$(prefix)
	install -D -m 755 $(BUILD)/release/reflash $(DESTDIR)$(prefix)/bin/reflash
	install -D -m 644 $(BUILD)/docs/reflash.1 $(DESTDIR)$(prefix)/share/man/man1/reflash.1
	install -D -m 644 $(BUILD)/docs/reflash.bash $(DESTDIR)$(prefix)/share/bash-completion/completions/reflash
	install -D -m 644 $(BUILD)/docs/_reflash $(DESTDIR)$(prefix)/share/zsh/site-functions/_reflash
	install -D -m 644 $(BUILD)/docs/reflash.fish $(DESTDIR)$(prefix)/share/fish/vendor_completions.d/reflash.fish

.PHONY: clean
clean: ## remove all that was built, the cross tools included
	$(CARGO) clean

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /  \1\t/p' Makefile | expand -t 16
	@echo; echo '  TARGET: $(TARGETS)'
