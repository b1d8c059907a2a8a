# How `make cross` builds TARGET: the two routes of README.md as variables.

TARGETS := $(patsubst cross/%.mk,%,$(wildcard cross/*-linux-*.mk))
include $(or $(filter cross/$(TARGET).mk,$(TARGETS:%=cross/%.mk)),\
  $(error unknown TARGET "$(TARGET)"; known: $(TARGETS)))

# The ordinary route needs the target's standard library in the toolchain. Files are looked at,
# not rustup, so that a distribution's toolchain serves as well.
ROUTE ?= $(if $(wildcard $(shell rustc --print target-libdir --target $(TARGET))/libstd-*.rlib),ordinary,buildstd)

# Where Debian's rustc-web, cargo-web and rust-web-src live.
DEBIAN_RUST ?= /usr

ZIG_VENV  := $(BUILD)/zig-venv
# Both caches stay beside the objects, so that keeping target/ keeps the C library zig has built.
ZIG_CACHE := ZIG_GLOBAL_CACHE_DIR=$(BUILD)/zig-cache CARGO_ZIGBUILD_CACHE_DIR=$(BUILD)/zig-cache
# For the target alone: build scripts and procedural macros are host programs.
FLAGS_FOR := CARGO_TARGET_$(shell echo $(TARGET) | tr a-z- A-Z_)_RUSTFLAGS

CROSS_ordinary = $(ZIG_CACHE) $(FLAGS_FOR)="$(TARGET_RUSTFLAGS)" \
  PATH="$(ZIG_VENV)/bin:$$PATH" $(CARGO) zigbuild

# PATH, CARGO, RUSTC: Debian's toolchain and not rustup's, which comes first in PATH.
# RUSTC_BOOTSTRAP: a stable cargo refuses -Z without it.
# link-self-contained: rustc would look for start files that Debian's sysroot lacks; zig has them.
# build-std-features: none, that is, without the symbolizer for backtraces, which a stripped binary
# has no use for (about 90 KB).
# env -u: a RUSTFLAGS of the user's would replace the flags for the target.
CROSS_buildstd = env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS -u RUSTUP_TOOLCHAIN $(ZIG_CACHE) \
  $(FLAGS_FOR)="-C link-self-contained=no $(TARGET_RUSTFLAGS)" \
  PATH="$(ZIG_VENV)/bin:$(DEBIAN_RUST)/bin:/usr/bin:/bin" \
  CARGO=$(DEBIAN_RUST)/bin/cargo RUSTC=$(DEBIAN_RUST)/bin/rustc RUSTC_BOOTSTRAP=1 \
  cargo-zigbuild zigbuild -Zbuild-std=std,panic_abort -Zbuild-std-features=

CROSS_BUILD = $(or $(CROSS_$(ROUTE)),$(error unknown ROUTE "$(ROUTE)"; known: ordinary buildstd))
