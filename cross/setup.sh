#!/bin/sh
# setup.sh ROUTE VENV: makes ready what `make cross` needs: zig and cargo-zigbuild in the
# Python environment VENV, and for the route `buildstd` looks for Debian's toolchain.
set -eu

route=$1 venv=$2
tools='ziglang==0.17.1 cargo-zigbuild==0.24.1'

if [ "$route" = buildstd ]; then
    prefix=${DEBIAN_RUST:-/usr}
    for need in "$prefix/bin/rustc" "$prefix/bin/cargo" "$prefix/lib/rustlib/src/rust/library/Cargo.lock"; do
        [ -e "$need" ] && continue
        echo "cross: $need is missing; the route buildstd needs: apt-get install rustc-web cargo-web rust-web-src" >&2
        exit 1
    done
fi

# The stamp is written last, so a broken download is not taken for a finished one.
[ "$(cat "$venv/tools" 2>/dev/null)" = "$tools" ] && exit 0
echo "cross: installing $tools into $venv"
rm -rf "$venv"
python3 -m venv "$venv"
# shellcheck disable=SC2086 # one word for each package
"$venv/bin/pip" install --quiet --disable-pip-version-check $tools
echo "$tools" >"$venv/tools"
