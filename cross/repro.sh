#!/bin/sh
# repro.sh BINARY MAKE-VARIABLE…: builds the binary again, from nothing, from a copy of the source
# in another place, with the packages in another place, and compares. The compiler and zig are the same.
set -eu

binary=$1
shift
root=$(cd "$(dirname "$0")/.." && pwd)
copy=$(mktemp -d -t reflash-repro.XXXXXX)
trap 'rm -rf "$copy"' EXIT
trap 'exit 130' INT TERM

# What is committed or would be: neither target/ nor what git ignores.
mkdir "$copy/source"
cd "$root"
git ls-files -z --cached --others --exclude-standard | tar -c --null -T - | tar -x -C "$copy/source"
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}"
# Packages that this machine has already need not be fetched again.
mkdir "$copy/home"
cp -R "${CARGO_HOME:-$HOME/.cargo}/registry" "$copy/home/registry" 2>/dev/null || true
CARGO_HOME=$copy/home CARGO_TARGET_DIR=$copy/target make -C "$copy/source" cross "$@"

again=$(find "$copy/target/cross" -name reflash)
if cmp "$binary" "$again"; then
    echo "the same bytes: $binary, built in $root and in $copy/source"
else
    echo "repro: $binary is not reproducible" >&2
    exit 1
fi
