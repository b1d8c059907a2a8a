#!/bin/bash
# dracut module, to /usr/lib/dracut/modules.d/90reflash: installs as the kernel's arguments say, when
# the network is up and before the root is mounted.

check() {
    # Only where it is asked for: dracut --add reflash.
    return 255
}

depends() {
    echo network
}

install() {
    # Overridden by the tests alone.
    inst_binary "${REFLASH_BINARY:-/usr/bin/reflash}" /usr/bin/reflash
    inst_script "${REFLASH_BOOT:-/usr/lib/reflash/reflash-boot}" /usr/bin/reflash-boot
    inst_multiple sleep
    inst_multiple -o /etc/reflash/roots.d/*.pem
    # shellcheck disable=SC2154 # dracut sets it
    inst_hook cmdline 90 "$moddir/reflash-cmdline.sh"
    inst_hook initqueue/online 90 "$moddir/reflash-online.sh"
    inst_hook initqueue/settled 90 "$moddir/reflash-settled.sh"
}
