#!/bin/sh
# size.sh BINARY BUDGET: prints the size of a static binary; fails if it wants a loader or a
# library, is not stripped, or takes more than BUDGET bytes.
set -eu

binary=$1 budget=$2

fail() {
    echo "size: $binary: $*" >&2
    exit 1
}

[ -f "$binary" ] || fail "not there; \`make cross\` builds it"
# Into variables first: a readelf that fails must not look like one that found nothing.
segments=$(readelf -lW "$binary")
dynamic=$(readelf -dW "$binary")
sections=$(readelf -SW "$binary")
size=$(wc -c <"$binary")
packed=$(xz -9e -c "$binary" | wc -c)

# An initramfs is compressed, so the second number is what the binary costs in one.
echo "$binary: $size bytes of $budget, $packed as xz"
case $segments in *INTERP*) fail 'wants a dynamic loader' ;; esac
case $dynamic in *NEEDED*) fail 'wants shared libraries' ;; esac
case $sections in *.symtab* | *.debug_*) fail 'not stripped' ;; esac
[ "$size" -le "$budget" ] || fail "over its budget by $((size - budget)) bytes"
