#!/bin/sh
# dracut.sh DEBIAN BINARY: builds DEBIAN/initramfs.dracut as a machine with the kernel in DEBIAN (what
# debian.sh made ready) would have it: by dracut, with its defaults for any machine and our module of
# cross/boot, in a mount namespace in which that kernel is the installed one.
set -eu

debian=$(realpath "$1")
REFLASH_BINARY=$(realpath "$2")
boot=$(realpath "$(dirname "$0")/../../cross/boot")
REFLASH_BOOT=$boot/reflash-boot
export REFLASH_BINARY REFLASH_BOOT PATH="$PATH:/usr/sbin:/sbin"

rm -rf "$debian/initramfs.dracut" "$debian/dracut"
skip() {
    echo "SKIP  dracut: $*"
    exit 0
}
command -v dracut >/dev/null || skip "not installed"
[ -d /usr/lib/dracut/modules.d/40network ] || skip "no network module (dracut-network)"
[ "$(id -u)" = 0 ] || skip "not root"
version=$(ls "$debian/lib/modules")
# Its modules and ours, without touching the system's.
cp -R /usr/lib/dracut "$debian/dracut"
cp -R "$boot/dracut/90reflash" "$debian/dracut/modules.d/"
mkdir -p /lib/modules
# The installation of the package would have done it.
depmod -b "$debian" "$version"
# shellcheck disable=SC2016 # of the inner shell
dracutbasedir=$debian/dracut unshare --mount sh -ec '
    mount --bind "$1/boot" /boot
    mount --bind "$1/lib/modules" /lib/modules
    exec dracut --quiet --no-hostonly --no-early-microcode --gzip --add reflash "$1/initramfs.dracut" "$2"' sh \
    "$debian" "$version"
