#!/bin/sh
# debian.sh ARCH DIR: Debian's kernel and static busybox for ARCH (amd64, arm64, armhf), unpacked into
# DIR. Nothing is installed, and the lists of packages are kept in DIR too: no foreign architecture
# has to be added to the system.
set -eu

arch=$1 dir=$2
case $arch in
armhf) flavour=armmp ;; # there is no smaller one
*) flavour=cloud-$arch ;;
esac
[ -e "$dir/complete" ] && exit 0

mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
: >"$dir/status"
apt="-qq -o APT::Architecture=$arch -o APT::Architectures=$arch -o Dir::State::Lists=$dir/lists
  -o Dir::State::Status=$dir/status -o Dir::Cache=$dir/cache -o APT::Sandbox::User="

# One list of several may fail to come, from a mirror that is being filled; the others may do.
# shellcheck disable=SC2086 # options
apt-get $apt update || :
# The package without a version depends on the one of the day.
# shellcheck disable=SC2086
kernel=$(apt-cache $apt depends "linux-image-$flavour" | sed -n 's/.*Depends: \(linux-image-[0-9]\S*\)$/\1/p')
[ -n "$kernel" ] || {
    echo "boot-test: the package lists have no linux-image-$flavour" >&2
    exit 1
}
cd "$dir"
# shellcheck disable=SC2086
apt-get $apt download "$kernel" busybox-static
for package in *.deb; do dpkg -x "$package" .; done
rm -rf ./*.deb lists cache usr/share
touch complete
