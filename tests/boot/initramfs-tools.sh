#!/bin/sh
# initramfs-tools.sh DEBIAN BINARY: builds DEBIAN/initramfs.initramfs-tools as a machine with the kernel
# in DEBIAN (what debian.sh made ready) would have it: by initramfs-tools, with its defaults and our hook
# and script of cross/boot, in a mount namespace in which that kernel is the installed one.
set -eu

debian=$(realpath "$1")
REFLASH_BINARY=$(realpath "$2")
boot=$(realpath "$(dirname "$0")/../../cross/boot")
REFLASH_BOOT=$boot/reflash-boot
export REFLASH_BINARY REFLASH_BOOT PATH="$PATH:/usr/sbin:/sbin"

rm -rf "$debian/initramfs.initramfs-tools" "$debian/initramfs-tools"
[ "$(id -u)" = 0 ] || {
    echo "SKIP  initramfs-tools: not root"
    exit 0
}
version=$(ls "$debian/lib/modules")
conf=$debian/initramfs-tools
cp -R /etc/initramfs-tools "$conf"
mkdir -p "$conf/hooks" "$conf/scripts/local-top" /lib/modules
cp "$boot/initramfs-tools/hooks/reflash" "$conf/hooks/"
cp "$boot/initramfs-tools/scripts/local-top/reflash" "$conf/scripts/local-top/"
# The installation of the package would have done it.
depmod -b "$debian" "$version"
# shellcheck disable=SC2016 # of the inner shell
unshare --mount sh -ec '
    mount --bind "$1/boot" /boot
    mount --bind "$1/lib/modules" /lib/modules
    exec mkinitramfs -c gzip -d "$2" -o "$1/initramfs.initramfs-tools" "$3"' sh "$debian" "$conf" "$version"
