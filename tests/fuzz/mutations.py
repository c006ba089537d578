"""Mutations of bytes: random damage, and damage that keeps the structure of a format intact.

A mutator takes the bytes of a file and a random generator, and returns other bytes. It never fails: where the bytes do
not have the structure it expects (an earlier mutation may have broken it), it returns them unchanged.
"""

import struct
import zlib
from collections.abc import Callable, Sequence
from random import Random

Mutator = Callable[[bytes, Random], bytes]

MOST_BYTES = 2**22
"""No mutated file is longer than this."""

_EXTREMES = (
    *(0, 1, 2, 3, 7, 16, 64, 255, 256, 1023, 4095, 4096, 16383, 16384, 32767, 32768, 65535, 65536, 2**20, 2**24),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1),
)
_WORDS = (
    *(b"0", b"-1", b"1e400", b"-1e400", b"nan", b"inf", b"9" * 30, b"9" * 5000, b"1e-400", b"0x10", b"", b"\0"),
    *(b"65536", b"2147483648", b"4294967296", b"99999999", b"1_000", "١٢".encode(), b"\xff\xfe", b"%s%n", b"../.."),
)


def flip_bits(data: bytes, rng: Random) -> bytes:
    """Flip one to sixteen bits."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        damaged[_offset(data, rng)] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def replace_run(data: bytes, rng: Random) -> bytes:
    """Overwrite a run with one repeated byte or with random bytes."""
    start, length = _offset(data, rng), rng.choice((1, 2, 4, 8, 32, 128))
    fill = rng.choice((b"\0", b"\xff", b"\x7f", b"\x80"))
    run = fill * length if rng.random() < 0.5 else rng.randbytes(length)
    return data[:start] + run + data[start + length :]


def truncate(data: bytes, rng: Random) -> bytes:
    """Cut the end off."""
    return data[: rng.randrange(1, len(data))] if len(data) > 1 else data


def delete_run(data: bytes, rng: Random) -> bytes:
    """Take a run out of the middle."""
    start = _offset(data, rng)
    return data[:start] + data[start + rng.choice((1, 2, 4, 16, 64, 512)) :] or data


def repeat_run(data: bytes, rng: Random) -> bytes:
    """Insert copies of a run behind it."""
    start, length = _offset(data, rng), rng.choice((1, 4, 16, 64, 512))
    run = data[start : start + length]
    return data[: start + length] + run * rng.choice((1, 2, 16, 256)) + data[start + length :]


def swap_runs(data: bytes, rng: Random) -> bytes:
    """Exchange two neighboring runs."""
    start, length = _offset(data, rng), rng.choice((1, 4, 16, 64, 512))
    one, other = data[start : start + length], data[start + length : start + 2 * length]
    return data[:start] + other + one + data[start + 2 * length :]


def insert_noise(data: bytes, rng: Random) -> bytes:
    """Insert random bytes."""
    start = _offset(data, rng)
    return data[:start] + rng.randbytes(rng.choice((1, 4, 64, 1024))) + data[start:]


def extreme_integer(data: bytes, rng: Random) -> bytes:
    """Overwrite 1, 2, 4 or 8 bytes with an extreme number in either byte order, most often in the header."""
    length = rng.choice((1, 2, 4, 4, 8))
    place = _offset(data, rng)
    place -= place % rng.choice((1, 2, 4))
    number = rng.choice(_EXTREMES) % 2 ** (8 * length)
    return data[:place] + number.to_bytes(length, rng.choice(("little", "big"))) + data[place + length :]


GENERIC: tuple[Mutator, ...] = (
    *(flip_bits, replace_run, truncate, delete_run, repeat_run, swap_runs, insert_noise),
    *(extreme_integer, extreme_integer, extreme_integer),
)
"""Mutators for any format."""


def replace_word(data: bytes, rng: Random) -> bytes:
    """Replace a word of a text, most often a number, with an extreme one."""
    separators = b" \t\r\n,;:\"'=()[]{}"
    place = rng.randrange(len(data)) if data else 0
    start, end = place, place
    while start > 0 and data[start - 1] not in separators:
        start -= 1
    while end < len(data) and data[end] not in separators:
        end += 1
    return data[:start] + rng.choice(_WORDS) + data[end:]


def repeat_line(data: bytes, rng: Random) -> bytes:
    """Repeat a line of a text, up to a thousand times."""
    lines = data.splitlines(keepends=True) or [data]
    place = rng.randrange(len(lines))
    return b"".join([*lines[:place], *lines[place : place + 1] * rng.choice((2, 3, 1000)), *lines[place + 1 :]])


def drop_line(data: bytes, rng: Random) -> bytes:
    """Take a line out of a text."""
    lines = data.splitlines(keepends=True) or [data]
    place = rng.randrange(len(lines))
    return b"".join([*lines[:place], *lines[place + 1 :]]) or data


def odd_encoding(data: bytes, rng: Random) -> bytes:
    """Store a text in another encoding, with a byte order mark, or with other line ends."""
    text = data.decode("utf-8", errors="replace")
    return rng.choice(
        (
            lambda: text.encode("utf-16"),
            lambda: text.encode("utf-32"),
            lambda: b"\xef\xbb\xbf" + data,
            lambda: data.replace(b"\n", b"\r"),
            lambda: data.replace(b"\n", b"\r\n"),
            lambda: data.replace(b"\n", b"\x00\n"),
            lambda: data.replace(b"\n", "\u2028".encode()),
        )
    )()


def brackets(data: bytes, rng: Random) -> bytes:
    """Insert deeply nested brackets into a text."""
    place, depth = _offset(data, rng), rng.choice((10, 500, 5000, 100_000))
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"{a: ", b"}"), (b'"', b'"'), (b"- ", b"")))
    return data[:place] + opening * depth + b"1" + closing * depth + data[place:]


TEXT: tuple[Mutator, ...] = (replace_word, replace_word, repeat_line, drop_line, odd_encoding, brackets)
"""Mutators for text formats."""


def png_chunks(data: bytes, rng: Random) -> bytes:
    """Change the chunks of a PNG, and give each the right checksum."""
    chunks = _png_chunks(data)
    if not chunks:
        return data
    place = rng.randrange(len(chunks))
    kind, body = chunks[place]
    match rng.randrange(7):
        case 0:
            chunks[place] = (kind, _damaged(body, rng))
        case 1:
            chunks.insert(place, chunks[place])
        case 2:
            chunks.pop(place)
        case 3:
            rng.shuffle(chunks)
        case 4:
            extra = zlib.compress(bytes(rng.choice((2**10, 2**20, 2**24))))
            chunks.insert(place, (rng.choice((b"zTXt", b"iCCP")), b"name\0\0" + extra))
        case 5:
            chunks[0] = (chunks[0][0], extreme_integer(chunks[0][1], rng))
        case _:
            kinds = (b"PLTE", b"tRNS", b"acTL", b"fcTL", b"fdAT", b"eXIf", b"iTXt", b"tEXt", b"gAMA", b"pHYs", b"cICP")
            chunks.insert(rng.randrange(1, len(chunks) + 1), (rng.choice(kinds), rng.randbytes(rng.randrange(40))))
    return data[:8] + b"".join(_png_chunk(kind, body) for kind, body in chunks)


def _png_chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    found, place = [], 8
    while place + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        if place + 12 + length > len(data):
            break
        found.append((kind, data[place + 8 : place + 8 + length]))
        place += 12 + length
    return found


def _png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


_CONTAINERS = frozenset(
    {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"dinf", b"edts", b"udta", b"jp2h", b"iprp", b"ipco"}
)
_FULL_CONTAINERS = frozenset({b"meta", b"stsd", b"dref"})


def mp4_boxes(data: bytes, rng: Random) -> bytes:
    """Change one box of an MP4, MOV, AVIF or JPEG 2000 file, at any depth, and correct the lengths around it."""
    return _changed_boxes(data, rng, depth=0)


def _changed_boxes(data: bytes, rng: Random, depth: int) -> bytes:
    boxes, place = [], 0
    while place + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        if length < 8 or place + length > len(data):
            length = len(data) - place
        boxes.append((kind, data[place + 8 : place + length]))
        place += length
    if not boxes:
        return _damaged(data, rng)
    chosen = rng.randrange(len(boxes))
    kind, body = boxes[chosen]
    skip = 4 if kind == b"meta" else 8 if kind in _FULL_CONTAINERS else 0
    if (kind in _CONTAINERS or kind in _FULL_CONTAINERS) and depth < 8 and rng.random() < 0.9:
        boxes[chosen] = (kind, body[:skip] + _changed_boxes(body[skip:], rng, depth + 1))
    else:
        match rng.randrange(6):
            case 0:
                boxes.insert(chosen, boxes[chosen])
            case 1 if len(boxes) > 1:
                boxes.pop(chosen)
            case 2:
                rng.shuffle(boxes)
            case _:
                boxes[chosen] = (kind, _damaged(body, rng))
    return b"".join(struct.pack(">I4s", 8 + len(body), kind) + body for kind, body in boxes)


def riff_chunks(data: bytes, rng: Random) -> bytes:
    """Change one chunk of an AVI or WebP file, at any depth, and correct the lengths around it."""
    if data[:4] != b"RIFF" or len(data) < 12:
        return data
    body = data[8:12] + _changed_chunks(data[12:], rng, depth=0)
    return b"RIFF" + struct.pack("<I", len(body) % 2**32) + body


def _changed_chunks(data: bytes, rng: Random, depth: int) -> bytes:
    chunks, place = [], 0
    while place + 8 <= len(data):
        kind, length = struct.unpack_from("<4sI", data, place)
        chunks.append((kind, data[place + 8 : place + 8 + length]))
        place += 8 + length + length % 2
    if not chunks:
        return _damaged(data, rng)
    chosen = rng.randrange(len(chunks))
    kind, body = chunks[chosen]
    if kind == b"LIST" and depth < 4 and rng.random() < 0.9:
        chunks[chosen] = (kind, body[:4] + _changed_chunks(body[4:], rng, depth + 1))
    else:
        match rng.randrange(6):
            case 0:
                chunks.insert(chosen, chunks[chosen])
            case 1 if len(chunks) > 1:
                chunks.pop(chosen)
            case 2:
                rng.shuffle(chunks)
            case _:
                chunks[chosen] = (kind, _damaged(body, rng))
    return b"".join(struct.pack("<4sI", kind, len(body)) + body + bytes(len(body) % 2) for kind, body in chunks)


def tiff_tags(data: bytes, rng: Random) -> bytes:
    """Change the type, count or value of entries in the first directory of a TIFF."""
    if data[:4] not in (b"II*\0", b"MM\0*") or len(data) < 10:
        return data
    order = "<" if data[:2] == b"II" else ">"
    (place,) = struct.unpack_from(order + "I", data, 4)
    if place + 2 > len(data):
        return data
    (count,) = struct.unpack_from(order + "H", data, place)
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        entry = place + 2 + 12 * rng.randrange(max(1, count))
        if entry + 12 > len(damaged):
            break
        match rng.randrange(5):
            case 0:
                struct.pack_into(order + "H", damaged, entry, rng.choice((256, 257, 258, 259, 262, 277, 278, 322, 339)))
            case 1:
                struct.pack_into(order + "H", damaged, entry + 2, rng.randrange(20))
            case 2:
                struct.pack_into(order + "I", damaged, entry + 4, rng.choice(_EXTREMES) % 2**32)
            case 3:
                struct.pack_into(order + "I", damaged, entry + 8, rng.choice(_EXTREMES) % 2**32)
            case _:
                struct.pack_into(order + "H", damaged, entry + 8, rng.choice((1, 2, 3, 5, 6, 7, 8, 16, 32, 32773)))
    return bytes(damaged)


def jpeg_segments(data: bytes, rng: Random) -> bytes:
    """Change, repeat or drop a segment of a JPEG before its pixels."""
    segments, place = [], 2
    while place + 4 <= len(data) and data[place] == 0xFF and data[place + 1] != 0xDA:
        (length,) = struct.unpack_from(">H", data, place + 2)
        segments.append((data[place + 1], data[place + 4 : place + 2 + length]))
        place += 2 + length
    if not segments:
        return data
    chosen = rng.randrange(len(segments))
    marker, body = segments[chosen]
    match rng.randrange(5):
        case 0:
            segments.insert(chosen, segments[chosen])
        case 1:
            segments.pop(chosen)
        case 2:
            exif = b"Exif\0\0" + rng.choice((b"II*\0", b"MM\0*")) + rng.randbytes(rng.randrange(60))
            segments.insert(0, (0xE1, exif))
        case 3:
            segments[chosen] = (rng.choice((0xC0, 0xC1, 0xC2, 0xC4, 0xDB, 0xDD, 0xE0, 0xE2, 0xEE)), body)
        case _:
            segments[chosen] = (marker, _damaged(body, rng)[:65000])
    head = b"".join(bytes((0xFF, marker)) + struct.pack(">H", 2 + len(body)) + body for marker, body in segments)
    return data[:2] + head + data[place:]


def declared_size(width: int, height: int) -> Mutator:
    """A mutator that declares another size: it looks for the width or height of the seeds in the header."""
    stored = [
        side.to_bytes(length, order)
        for side in (width, height, width - 1, height - 1)
        for length in (2, 4)
        for order in ("little", "big")
    ]

    def change(data: bytes, rng: Random) -> bytes:
        places = [(found, old) for old in stored if (found := data.find(old, 0, 4096)) >= 0]
        for place, old in rng.sample(places, min(len(places), rng.choice((1, 2, 2)))):
            side = rng.choice((0, 1, 200, 1000, 2000, 4000, 8000, 16383, 30000, 65535, 2**31 - 1)) % 2 ** (8 * len(old))
            order = "little" if old[-1] == 0 else "big"
            data = data[:place] + side.to_bytes(len(old), order) + data[place + len(old) :]
        return data

    return change


def splice(data: bytes, rng: Random, others: Sequence[bytes]) -> bytes:
    """Join the beginning of a file with the end of another of its kind."""
    other = rng.choice(others)
    return data[: _offset(data, rng) + 1] + other[_offset(other, rng) :]


def mutate(seeds: Sequence[bytes], structured: Sequence[Mutator], rng: Random) -> bytes:
    """Take one of the seeds and apply one to four mutations; one file in fifty is a seed as it is."""
    data = rng.choice(seeds)
    if rng.random() < 0.02:
        return data
    for _ in range(rng.choice((1, 1, 2, 4))):
        if structured and rng.random() < 0.6:
            changed = rng.choice(structured)(data, rng)
        elif rng.random() < 0.05:
            changed = splice(data, rng, seeds)
        else:
            changed = rng.choice(GENERIC)(data, rng)
        data = changed[:MOST_BYTES] or data
    return data


def _damaged(body: bytes, rng: Random) -> bytes:
    """Some generic damage to a part of a file."""
    return rng.choice(GENERIC)(body, rng) if body else rng.randbytes(rng.choice((1, 4, 16)))


def _offset(data: bytes, rng: Random) -> int:
    """A place in the data: half of the time among the first bytes, where headers are."""
    if not data:
        return 0
    return rng.randrange(min(len(data), 256) if rng.random() < 0.5 else len(data))
