# 852,336 measured, for 850,000 wanted.
SIZE_BUDGET_bare := 861000
# 1,550,368 measured: 152 KB are one table of ring's for the curve P-256.
SIZE_BUDGET_full := 1566000
TARGET_RUSTFLAGS :=
QEMU_USER := qemu-aarch64-static
