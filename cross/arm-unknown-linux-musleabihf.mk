# ARMv6, hard float: VFPv2, as in the first Raspberry Pi and the Zero.
SIZE_BUDGET_bare := 800000
SIZE_BUDGET_full := 1550000
TARGET_RUSTFLAGS :=
# As for ARMv7.
STD_ENV := RUST_LIBC_UNSTABLE_MUSL_V1_2_3=1
# The emulator's default processor would also run ARMv7 code.
QEMU_USER := qemu-arm-static -cpu arm1176
