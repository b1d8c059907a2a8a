# Bytes that the stripped static binary may take, without features and with all for boards.
SIZE_BUDGET_bare := 1160000
SIZE_BUDGET_full := 1920000
# Beyond those of the route.
TARGET_RUSTFLAGS :=
# Runs it on any machine.
QEMU_USER := qemu-x86_64-static
