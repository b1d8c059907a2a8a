#!/usr/bin/env python3
"""Small jobs of run.sh for which a shell is the wrong tool."""

import glob
import json
import os
import random
import socket
import sys
import time


def images(old_path, new_path, size):
    """An old image, and a new one of another size: changed pages, an insertion, a new tail."""
    r = random.Random(1)
    old = b"".join(
        r.randbytes(4096) if r.random() < 0.6 else b"some text, %d\n" % r.randrange(9) * 273
        for _ in range(int(size) // 4096)
    )
    new = bytearray(old)
    for page in range(40, len(old) // 4096, 23):
        new[page * 4096 : page * 4096 + 100] = r.randbytes(100)
    new[1000000:1000000] = r.randbytes(37)
    new += r.randbytes(1234)
    open(old_path, "wb").write(old)
    open(new_path, "wb").write(new)


def image(path, size):
    """Bytes that do not repeat."""
    open(path, "wb").write(random.Random(2).randbytes(int(size)))


def field(path, *names):
    """Fields of a JSON file, one line; nested ones as a/b."""
    top = json.load(open(path))
    for name in names:
        value = top
        for part in name.split("/"):
            value = value[part]
        print(value, end=" ")
    print()


def vectors(folder):
    """A line a bundle: name, bundle hash, installs or refused, and slot:size:sha256 of each."""
    for path in sorted(glob.glob(folder + "/*.json")):
        facts = json.load(open(path))
        if "bundle-hash" not in facts:
            continue
        slots = [
            f"{p['delivery']['slot']['slot']}:{p['file-size']}:{p['file-sha256']}"
            for p in facts["payloads"]
            if "slot" in p["delivery"]
        ]
        images = len(slots) == len(facts["payloads"]) and "delta" not in json.dumps(facts)
        name = os.path.basename(path)[: -len(".json")]
        print(name, facts["bundle-hash"], "installs" if images else "refused", *slots)


def port():
    """A TCP port that is free now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        print(s.getsockname()[1])


def hold(path):
    """Opens a device exclusively, says so, and keeps it until it is killed."""
    os.open(path, os.O_RDWR | os.O_EXCL)
    print("held", flush=True)
    time.sleep(600)


def wait_port(number):
    """Returns when somebody listens there."""
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", int(number)), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    sys.exit(f"nobody listens on port {number}")


if __name__ == "__main__":
    jobs = [images, image, field, vectors, port, hold, wait_port]
    {job.__name__: job for job in jobs}[sys.argv[1]](*sys.argv[2:])
