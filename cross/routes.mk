# How `make cross` builds TARGET in VARIANT: the two routes of README.md as variables.

TARGETS  := $(patsubst cross/%.mk,%,$(wildcard cross/*-linux-*.mk))
VARIANTS := bare full
include $(or $(filter cross/$(TARGET).mk,$(TARGETS:%=cross/%.mk)),\
  $(error unknown TARGET "$(TARGET)"; known: $(TARGETS)))

# The cargo features of a variant. `pack` is in none: it is for hosts.
VARIANT       ?= bare
FEATURES_bare :=
FEATURES_full ?= signatures,tls,ring-hash
FEATURES ?= $(FEATURES_$(or $(filter $(VARIANT),$(VARIANTS)),\
  $(error unknown VARIANT "$(VARIANT)"; known: $(VARIANTS))))

# The ordinary route needs the target's standard library in the toolchain. Files are looked at,
# not rustup, so that a distribution's toolchain serves as well.
ROUTE ?= $(if $(wildcard $(shell rustc --print target-libdir --target $(TARGET))/libstd-*.rlib),ordinary,buildstd)

# Where Debian's rustc-web, cargo-web and rust-web-src live.
DEBIAN_RUST ?= /usr

ZIG_VENV  ?= $(BUILD)/zig-venv
# Both caches stay beside the objects, so that keeping target/ keeps the C library zig has built.
ZIG_CACHE := ZIG_GLOBAL_CACHE_DIR=$(BUILD)/zig-cache CARGO_ZIGBUILD_CACHE_DIR=$(BUILD)/zig-cache
# For the target alone: build scripts and procedural macros are host programs.
FLAGS_FOR := CARGO_TARGET_$(shell echo $(TARGET) | tr a-z- A-Z_)_RUSTFLAGS
# Source paths are in the messages of panics: without the places where this machine keeps them, two
# machines make the same bytes.
REMAP := --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=cargo --remap-path-prefix=$(CURDIR)=reflash
# force-unwind-tables: a panic ends the program (profile.release), so nothing ever unwinds: 80 KB less.
# relocation-model: zig links at a fixed address anyway, so code that could stand at any is of no use
# (stack, heap and mappings are still placed at random). Riscv64 alone was linked to stand anywhere;
# without that it needs no relocations.
COMMON_RUSTFLAGS := -C force-unwind-tables=no -C relocation-model=static $(REMAP)

CROSS_ordinary = $(ZIG_CACHE) $(FLAGS_FOR)="$(COMMON_RUSTFLAGS) $(TARGET_RUSTFLAGS)" \
  PATH="$(ZIG_VENV)/bin:$$PATH" $(CARGO) zigbuild

# PATH, CARGO, RUSTC: Debian's toolchain and not rustup's, which comes first in PATH.
# RUSTC_BOOTSTRAP: a stable cargo refuses -Z without it.
# link-self-contained: rustc would look for start files that Debian's sysroot lacks; zig has them.
# build-std-features: not the default ones, that is, without the symbolizer for backtraces, which a
# stripped binary has no use for (about 90 KB). Sorting and the like in their small variants.
# env -u: a RUSTFLAGS of the user's would replace the flags for the target.
CROSS_buildstd = env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS -u RUSTUP_TOOLCHAIN $(ZIG_CACHE) $(STD_ENV) \
  $(FLAGS_FOR)="-C link-self-contained=no $(COMMON_RUSTFLAGS) $(TARGET_RUSTFLAGS)" \
  PATH="$(ZIG_VENV)/bin:$(DEBIAN_RUST)/bin:/usr/bin:/bin" \
  CARGO=$(DEBIAN_RUST)/bin/cargo RUSTC=$(DEBIAN_RUST)/bin/rustc RUSTC_BOOTSTRAP=1 \
  cargo-zigbuild zigbuild -Zbuild-std=std,panic_abort -Zbuild-std-features=optimize_for_size

CROSS_BUILD = $(or $(CROSS_$(ROUTE)),$(error unknown ROUTE "$(ROUTE)"; known: ordinary buildstd))
# What `make cross` leaves, one for each variant; cargo itself has one place for all of them.
CROSS_BINARY = $(BUILD)/cross/$(TARGET)/$(VARIANT)/reflash

# `make test-cross`: which targets, and which tests: those that run the binary.
EMULATED := aarch64-unknown-linux-musl armv7-unknown-linux-musleabihf
TESTS    ?= install:: golden:: faults:: ahead:: signals:: connect:: trust:: large:: devices:: plan:: index:: \
  hostile:: resume::a_kill resume::kills
# Needs more speed than an emulator has: it compares a wait of two seconds with one of four.
NOT_EMULATED := a_dead_address_costs_its_share_once

# `make boot-test` and `make boot-memory`: targets, and what Debian calls their architectures.
BOOTED       := x86_64-unknown-linux-musl=amd64 aarch64-unknown-linux-musl=arm64 armv7-unknown-linux-musleabihf=armhf
BOOTED_SMALL := armv7-unknown-linux-musleabihf=armhf
# Of a target and an architecture: the machine, the binary, and what Debian has for it.
BOOT_ARGUMENT  = $(firstword $(subst -, ,$1))=$(BUILD)/cross/$(firstword $1)/full/reflash=$(BUILD)/boot/$(lastword $1)
BOOT_ARGUMENTS = $(foreach machine,$(BOOTED),$(call BOOT_ARGUMENT,$(subst =, ,$(machine))))
