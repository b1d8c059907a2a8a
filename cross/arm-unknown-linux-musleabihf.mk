# ARMv6, hard float: VFPv2, as in the first Raspberry Pi and the Zero.
# 997,168 and (before src/xz was a package) 1,840,276 measured: it has no Thumb-2.
SIZE_BUDGET_bare := 1008000
SIZE_BUDGET_full := 1875000
TARGET_RUSTFLAGS :=
# As for ARMv7.
STD_ENV := RUST_LIBC_UNSTABLE_MUSL_V1_2_3=1
# The emulator's default processor would also run ARMv7 code.
QEMU_USER := qemu-arm-static -cpu arm1176
