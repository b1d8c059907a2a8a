#!/bin/sh
# Asks for the network, and has dracut wait until the install has ended.
if getarg reflash.bundle= >/dev/null; then
    echo rd.neednet=1 >/etc/cmdline.d/90-reflash.conf
    # shellcheck disable=SC2154 # dracut sets it
    echo '[ -e /run/reflash.done ]' >"$hookdir/initqueue/finished/reflash.sh"
fi
