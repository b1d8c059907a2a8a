SIZE_BUDGET_bare := 980000
SIZE_BUDGET_full := 1520000
# Without ring-hash: ring has no assembly for it, and takes 55 instructions a byte where sha2 takes 45.
FEATURES_full := signatures,tls
TARGET_RUSTFLAGS :=
QEMU_USER := qemu-riscv64-static
