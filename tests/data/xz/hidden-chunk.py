#!/usr/bin/env python3
"""Writes hidden-chunk.xz: an LZMA2 chunk that is smaller than it says, with another one behind it.

    chunk   control e0, plain 65,536, packed = p + 4,003, p bytes of honest packed data
    hidden  control 02, plain 4,000, 4,000 bytes        <- inside what the first chunk says is its own
    end     00

By its headers the block holds 65,536 bytes. A decoder that reads the next header wherever the range
decoder stopped, instead of where the first chunk says it ends, makes 69,536 of it. The index says
65,536 and the check fits those first 65,536 bytes, so that nothing but the packed size is wrong.
"""
import lzma
import struct
import zlib


def varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def crc32(data):
    return struct.pack("<I", zlib.crc32(data))


plain = b"".join(b"%d\n" % i for i in range(1, 20000))[:65536]
honest = lzma.compress(plain, lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA2, "preset": 6}])
assert honest[0] == 0xE0 and honest[-1] == 0
assert struct.unpack(">H", honest[1:3])[0] + 1 == 65536
packed = struct.unpack(">H", honest[3:5])[0] + 1
assert len(honest) == 6 + packed + 1

hidden = b"\x02" + struct.pack(">H", 4000 - 1) + b"\xaa" * 4000
claimed = packed + len(hidden)
chunks = honest[:3] + struct.pack(">H", claimed - 1) + honest[5:-1] + hidden + b"\x00"

flags = b"\x00\x01"  # check: CRC32
head = b"\xfd7zXZ\x00" + flags + crc32(flags)
block_head = b"\x02\x00\x21\x01\x16\x00\x00\x00"
block_head += crc32(block_head)
block = block_head + chunks
unpadded = len(block) + 4
block += b"\x00" * (-len(block) % 4) + crc32(plain)
index = b"\x00\x01" + varint(unpadded) + varint(len(plain))
index += b"\x00" * (-len(index) % 4)
index += crc32(index)
foot = struct.pack("<I", len(index) // 4 - 1) + flags
with open("hidden-chunk.xz", "wb") as out:
    out.write(head + block + index + crc32(foot) + foot + b"YZ")
