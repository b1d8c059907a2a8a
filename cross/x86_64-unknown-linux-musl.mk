# Bytes the stripped static binary may take.
SIZE_BUDGET := 1000000
# Beyond those of the route.
TARGET_RUSTFLAGS :=
