#!/bin/sh
# Before dracut 060 nothing runs reflash-online.sh when systemd-networkd has brought an interface up; so it
# is asked, each half second.
wait=/usr/lib/systemd/systemd-networkd-wait-online
if [ ! -e /run/reflash.started ] && [ -x $wait ] && $wait --any --timeout=0.000001 2>/dev/null; then
    source_hook initqueue/online
fi
