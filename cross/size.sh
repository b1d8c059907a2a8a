#!/bin/sh
# size.sh DIR VARIANTS TARGET…: a table of the static binaries below DIR, VARIANTS of them for each
# target; fails if one is missing, wants a loader or a library, is not stripped, or takes more bytes
# than the budget in the target's file.
set -eu

here=$(dirname "$0") dir=$1 variants=$2
shift 2
failed=0

fail() {
    echo "size: $binary: $*" >&2
    failed=1
}

check() {
    [ -f "$binary" ] || {
        fail "not there; \`make cross TARGET=$target VARIANT=$variant\` builds it"
        return
    }
    # Into variables first: a readelf that fails must not look like one that found nothing.
    segments=$(readelf -lW "$binary")
    dynamic=$(readelf -dW "$binary")
    sections=$(readelf -SW "$binary")
    budget=$(sed -n "s/^SIZE_BUDGET_$variant := //p" "$here/$target.mk")
    size=$(wc -c <"$binary")
    packed=$(xz -9e -c "$binary" | wc -c)

    # An initramfs is compressed, so the last number is what the binary costs in one.
    printf '%-32s %-5s %9d %9d %9d\n' "$target" "$variant" "$size" "$budget" "$packed"
    case $segments in *INTERP*) fail 'wants a dynamic loader' ;; esac
    case $dynamic in *NEEDED*) fail 'wants shared libraries' ;; esac
    case $sections in *.symtab* | *.debug_*) fail 'not stripped' ;; esac
    [ "$size" -le "$budget" ] || fail "over its budget by $((size - budget)) bytes"
}

printf '%-32s %-5s %9s %9s %9s\n' target '' bytes budget 'as xz'
for target in "$@"; do
    for variant in $variants; do
        binary=$dir/$target/$variant/reflash
        check
    done
done
exit $failed
