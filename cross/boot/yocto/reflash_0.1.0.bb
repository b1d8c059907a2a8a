SUMMARY = "Installs Rugix update bundles and downloads only what the device does not have"
DESCRIPTION = "The static binary of `make cross`, which needs neither this toolchain nor this C library, \
and reflash-boot, which installs what the kernel's arguments say."
LICENSE = "MIT | Apache-2.0"
LIC_FILES_CHKSUM = "file://${REFLASH_TREE}/LICENSE;md5=851c4cf19c617d2efbdbb13b65006330"

# The source tree, in which `make cross-all` has run.
REFLASH_TREE ?= "${@os.path.realpath(d.getVar('THISDIR') + '/../../..')}"

REFLASH_TRIPLE:x86-64 = "x86_64-unknown-linux-musl"
REFLASH_TRIPLE:aarch64 = "aarch64-unknown-linux-musl"
REFLASH_TRIPLE:arm = "arm-unknown-linux-musleabihf"
REFLASH_TRIPLE:armv7a = "armv7-unknown-linux-musleabihf"
REFLASH_TRIPLE:armv7ve = "armv7-unknown-linux-musleabihf"
REFLASH_TRIPLE:riscv64 = "riscv64gc-unknown-linux-musl"
REFLASH_BINARY = "${REFLASH_TREE}/target/cross/${REFLASH_TRIPLE}/full/reflash"

inherit systemd

SYSTEMD_SERVICE:${PN} = "reflash.service"
# A recovery image enables it; the others only carry the binary.
SYSTEMD_AUTO_ENABLE = "disable"

do_install[file-checksums] += "${REFLASH_BINARY}:True"
do_install() {
    install -D -m 0755 ${REFLASH_BINARY} ${D}${bindir}/reflash
    install -D -m 0755 ${REFLASH_TREE}/cross/boot/reflash-boot ${D}${prefix}/lib/reflash/reflash-boot
    install -D -m 0644 ${REFLASH_TREE}/cross/boot/systemd/reflash.service ${D}${systemd_system_unitdir}/reflash.service
}

FILES:${PN} += "${prefix}/lib/reflash"
INSANE_SKIP:${PN} = "already-stripped"
