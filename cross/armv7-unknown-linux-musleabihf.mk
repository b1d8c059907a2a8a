# ARMv7, hard float: VFPv3-D16, no NEON needed.
# 721,172 and 1,177,572 measured.
SIZE_BUDGET_bare := 729000
SIZE_BUDGET_full := 1190000
# Thumb-2 instructions, which every ARMv7-A has: a quarter smaller than ARM ones.
TARGET_RUSTFLAGS := -C target-feature=+thumb-mode
# Rust's C definitions still describe musl 1.1 by default, with a 32-bit time_t: a clock that is
# wrong in the other direction, past 2038, would be an error where none is expected.
STD_ENV := RUST_LIBC_UNSTABLE_MUSL_V1_2_3=1
QEMU_USER := qemu-arm-static
