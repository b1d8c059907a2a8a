#!/bin/sh
# Runs for each interface that comes up; the first one counts.
if getarg reflash.bundle= >/dev/null && [ ! -e /run/reflash.started ]; then
    : >/run/reflash.started
    # systemd-networkd asks for name servers, but writes them down elsewhere.
    if [ ! -e /etc/resolv.conf ] && [ -e /run/systemd/netif/state ]; then
        for server in $(sed -n 's/^DNS=//p' /run/systemd/netif/state); do
            echo "nameserver $server" >>/etc/resolv.conf
        done
    fi
    if reflash-boot; then
        : >/run/reflash.done
    else
        # Not `die`, which halts the machine whatever rd.emergency says.
        emergency_shell "reflash: exit $?; see above"
    fi
fi
