#!/bin/sh
# Runs for each interface that comes up; the first one counts.
if getarg reflash.bundle= >/dev/null && [ ! -e /run/reflash.started ]; then
    : >/run/reflash.started
    if reflash-boot; then
        : >/run/reflash.done
    else
        die "reflash: exit $?; see above"
    fi
fi
