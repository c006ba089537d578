"""Ten thousand damaged files: each is an array of the size its header states, or one clear sentence.

Every codec reads tiny files that were damaged in seven ways, always the same ones, for the seed is the codec's name.
A damaged file may still be a sound one (a flipped bit in a float is another float). So what is asserted is that no
other exception, no hang and no large allocation comes of it, and that an array has the size which the header states.
"""

import re
import signal
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protoformer.errors import InputError
from protoformer.io.formats import (
    read_cam,
    read_dpt,
    read_flo,
    read_kitti_depth,
    read_kitti_disparity,
    read_kitti_flow,
    read_pfm,
    read_pfm_flow,
    read_vkitti2_depth,
    read_vkitti2_flow,
)
from protoformer.io.image import quiet_pillow, read_image
from protoformer.io.png import encode_png

MOST_MEMORY = 64 * 2**20
MOST_SECONDS = 60
ABSURD = (0, 1, 5, 255, 4096, 11585, 65535, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1)

Read = Callable[[Path], list[np.ndarray]]
Rng = np.random.Generator


@dataclass(frozen=True)
class Codec:
    """A reader, sound files for it, a way to put absurd sizes in their headers, and the shapes a header states."""

    name: str
    read: Read
    sound: list[bytes]
    resized: Callable[[bytes, Rng], bytes]
    shapes: Callable[[bytes], list[tuple[int, ...]]]
    dtypes: list[type]
    files: int


def floats(count: int, order: str = "<") -> bytes:
    return np.random.default_rng(count).normal(size=count).astype(order + "f4").tobytes()


def samples(*shape: int, dtype: type = np.uint16) -> np.ndarray:
    return np.random.default_rng(3).integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)


# Each format's header is read here a second time, in the plainest way, to say what shape an array must have.


def tagged_size(data: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from("<ii", data, 4)
    return height, width


def pfm_shape(data: bytes) -> tuple[int, ...]:
    kind, width, height = data.split(maxsplit=3)[:3]
    return (int(height), int(width), 3)[: 3 if kind == b"PF" else 2]


def png_size(data: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from(">II", data, 16)
    return height, width


def ppm_size(data: bytes) -> tuple[int, int]:
    # Comments run to the end of their line and may stand inside the header.
    width, height = re.sub(rb"#[^\r\n]*[\r\n]?", b"", data).split(maxsplit=3)[1:3]
    return int(height), int(width)


def pillow_shape(data: bytes) -> tuple[int, ...]:
    # These headers are long, or scattered over the file: here it is Pillow that reads them a second time.
    with quiet_pillow(), Image.open(BytesIO(data)) as image:
        return image.height, image.width, 3


def resized_tagged(data: bytes, rng: Rng) -> bytes:
    width, height = (value & 0xFFFFFFFF for value in rng.choice(ABSURD, 2).tolist())
    return data[:4] + struct.pack("<II", width, height) + data[12:]


def resized_text(data: bytes, rng: Rng) -> bytes:
    kind, _, _, rest = data.split(maxsplit=3)
    words = [str(rng.choice(ABSURD)), "9" * int(rng.integers(1, 40)), "-1", "1e3", "3.5"]
    return kind + f"\n{rng.choice(words)} {rng.choice(words)}\n".encode() + rest


def resized_png(data: bytes, rng: Rng) -> bytes:
    """Change the size, the depth or the kind in the header, and sign it, so that no checksum gives it away."""
    header = bytearray(data[16:29])
    if rng.random() < 0.7:
        struct.pack_into(">II", header, 0, *rng.choice(ABSURD, 2).tolist())
    else:
        header[rng.integers(8, 13)] = rng.choice([0, 1, 2, 3, 4, 6, 8, 16, 255])
    return signed(data[:16] + bytes(header) + data[29:])


def signed(data: bytes) -> bytes:
    """Make every checksum of a png right again, as far as its chunks can be followed."""
    fixed, position = bytearray(data), 8
    while position + 12 <= len(fixed):
        end = position + 12 + int.from_bytes(fixed[position : position + 4], "big")
        if end > len(fixed):
            break
        fixed[end - 4 : end] = struct.pack(">I", zlib.crc32(fixed[position + 4 : end - 4]))
        position = end
    return bytes(fixed)


def resized_at(find: Callable[[bytes], int], layout: str) -> Callable[[bytes, Rng], bytes]:
    """Put absurd numbers of one `struct` layout in the place that `find` gives."""

    def resized(data: bytes, rng: Rng) -> bytes:
        wanted = rng.choice(ABSURD, len(layout) - 1).tolist()
        numbers = [
            value & (256 ** struct.calcsize(layout[:1] + letter) - 1)
            for value, letter in zip(wanted, layout[1:], strict=True)
        ]
        place = find(data)
        return data[:place] + struct.pack(layout, *numbers) + data[place + struct.calcsize(layout) :]

    return resized


def resized_tiff(data: bytes, rng: Rng) -> bytes:
    """Change the width and the height, the first two tags, each of twelve bytes with the value last."""
    fixed, first = bytearray(data), struct.unpack_from("<I", data, 4)[0] + 2
    for place in (first, first + 12):
        struct.pack_into("<HII", fixed, place + 2, 4, 1, rng.choice(ABSURD))
    return bytes(fixed)


def unchanged(data: bytes, rng: Rng) -> bytes:
    return data


def one(read: Callable[[Path], np.ndarray]) -> Read:
    return lambda path: [read(path)]


def fields(read: Callable[[Path], object], *names: str) -> Read:
    return lambda path: [getattr(result, name) for result in [read(path)] for name in names]


FLOW = struct.pack("<fii", 202021.25, 3, 2) + floats(12)
DEPTH = struct.pack("<fii", 202021.25, 3, 2) + floats(6)
CAMERA = struct.pack("<f21d", 202021.25, *range(21))
PFM = [b"PF\n3 2\n-1.0\n" + floats(18), b"Pf 3 2 1\n" + floats(6, ">"), b"Pf\r\n1 4\r\n-1\r\n" + floats(4)]
GRAY_PNG, RGB_PNG = [encode_png(samples(3, 4))], [encode_png(samples(3, 4, 3))]
IMAGES = [encode_png(samples(3, 4, 3, dtype=np.uint8)), encode_png(samples(3, 4, dtype=np.uint8))]
PPM = [b"P6\n3 2\n255\n" + samples(18, dtype=np.uint8).tobytes(), b"P6 3 2 65535\n" + samples(18).tobytes()]


def images(kind: str, *options: dict[str, object]) -> list[bytes]:
    """Encode the same small picture once for every set of Pillow's options."""
    files = []
    for chosen in options:
        buffer = BytesIO()
        Image.fromarray(samples(5, 9, 3, dtype=np.uint8)).save(buffer, kind, **chosen)
        files.append(buffer.getvalue())
    return files


def jpeg_frame(data: bytes) -> int:
    """Find height and width behind the frame's mark, its length and its depth."""
    return max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2")) + 5


JPEG, GIF, BMP = images("JPEG", {}, {"progressive": True}), images("GIF", {}), images("BMP", {})
TIFF = images("TIFF", *({"compression": kind} for kind in (None, "tiff_lzw", "tiff_adobe_deflate", "packbits")))
LOSSY_WEBP, LOSSLESS_WEBP = images("WEBP", {}), images("WEBP", {"lossless": True})


def resized_webp(data: bytes, rng: Rng) -> bytes:
    """Change the size behind the start code (lossy) or the signature (lossless), of fourteen bits each."""
    place = 26 if data[12:16] == b"VP8 " else 21
    return resized_at(lambda _: place, "<HH")(data, rng)


def gray_shapes(data: bytes) -> list[tuple[int, ...]]:
    return [png_size(data), png_size(data)]


def flow_shapes(data: bytes) -> list[tuple[int, ...]]:
    return [(*png_size(data), 2), png_size(data)]


VALUES, FLOWS, TRUTH = ("values", "valid"), ("flow", "valid"), [np.float32, np.bool_]
CODECS = [
    Codec("flo", one(read_flo), [FLOW], resized_tagged, lambda d: [(*tagged_size(d), 2)], [np.float32], 800),
    Codec("dpt", one(read_dpt), [DEPTH], resized_tagged, lambda d: [tagged_size(d)], [np.float32], 800),
    Codec(
        *("cam", fields(read_cam, "intrinsics", "extrinsics"), [CAMERA], unchanged),
        *(lambda _: [(3, 3), (3, 4)], [np.float64, np.float64], 500),
    ),
    Codec("pfm", one(read_pfm), PFM, resized_text, lambda d: [pfm_shape(d)], [np.float32], 1500),
    Codec(
        *("pfm flow", one(read_pfm_flow), PFM[:1], resized_text),
        *(lambda d: [(*pfm_shape(d)[:2], 2)], [np.float32], 700),
    ),
    Codec("kitti flow", fields(read_kitti_flow, *FLOWS), RGB_PNG, resized_png, flow_shapes, TRUTH, 800),
    Codec("kitti disparity", fields(read_kitti_disparity, *VALUES), GRAY_PNG, resized_png, gray_shapes, TRUTH, 600),
    Codec("kitti depth", fields(read_kitti_depth, *VALUES), GRAY_PNG, resized_png, gray_shapes, TRUTH, 600),
    Codec("vkitti2 flow", fields(read_vkitti2_flow, *FLOWS), RGB_PNG, resized_png, flow_shapes, TRUTH, 800),
    Codec(
        *("vkitti2 depth", one(read_vkitti2_depth), GRAY_PNG, resized_png),
        *(lambda d: [png_size(d)], [np.float32], 600),
    ),
    Codec(
        *("png image", one(read_image), IMAGES + RGB_PNG + GRAY_PNG, resized_png),
        *(lambda d: [(*png_size(d), 3)], [np.float32], 800),
    ),
    Codec("ppm image", one(read_image), PPM, resized_text, lambda d: [(*ppm_size(d), 3)], [np.float32], 300),
    *(
        Codec(f"{kind} image", one(read_image), sound, resized, lambda d: [pillow_shape(d)], [np.float32], 240)
        for kind, sound, resized in (
            ("jpeg", JPEG, resized_at(jpeg_frame, ">HH")),
            ("gif", GIF, resized_at(lambda _: 6, "<HH")),
            ("bmp", BMP, resized_at(lambda _: 18, "<II")),
            ("tiff", TIFF, resized_tiff),
            ("webp", LOSSY_WEBP + LOSSLESS_WEBP, resized_webp),
        )
    ),
]


def damaged(codec: Codec) -> Iterator[bytes]:
    """Make the codec's files, each damaged in one of the seven ways."""
    rng = np.random.default_rng(list(codec.name.encode()))
    for number in range(codec.files):
        sound = codec.sound[number % len(codec.sound)]
        # The header is short and worth most of the damage.
        reach = len(sound) if rng.random() < 0.5 else min(len(sound), 32)
        data = bytearray(sound)
        match rng.integers(7):
            case 0:
                for place in rng.integers(0, reach, rng.integers(1, 5)):
                    data[place] ^= 1 << rng.integers(8)
            case 1:
                data[rng.integers(reach)] = rng.integers(256)
                data = bytearray(signed(data)) if sound.startswith(b"\x89PNG") else data
            case 2:
                del data[rng.integers(len(data)) :]
            case 3:
                data += rng.bytes(rng.integers(1, 40))
            case 4:
                data = bytearray(codec.resized(sound, rng))
            case 5:
                first, second = rng.integers(0, reach, 2)
                data[first], data[second] = data[second], data[first]
            case 6:
                # Every pair of bytes swapped, as by a machine of the other byte order.
                whole = len(data) // 2 * 2
                data[0:whole:2], data[1:whole:2] = data[1:whole:2], data[0:whole:2]
        yield bytes(data)


class HangError(BaseException):
    """Not an `Exception`, which a reader may take for a decoder's."""


@pytest.fixture
def no_hang() -> Iterator[None]:
    """Interrupt a reader that does not come back; the whole run of a codec takes a second or two."""

    def interrupt(*_: object) -> None:
        raise HangError(f"still reading after {MOST_SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(MOST_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Fail where the process as a whole grew by more than the limit at any moment.

    numpy tells tracemalloc what it allocates, which the test watches file by file, even where it is never touched. The
    image libraries do not, so the kernel's own high-water mark of resident memory (Linux, set back to the present by
    writing 5) stands watch over them. A limit set on the process would be of no use: the libraries report a refused
    allocation as one more reason why a file cannot be decoded, and the test would pass.
    """
    reset, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")

    def kilobytes(name: str) -> int:
        output = re.search(rf"{name}:\s+(\d+) kB", status.read_text())
        assert output is not None
        return int(output[1])

    if not reset.exists():
        yield
        return
    reset.write_text("5")
    before = kilobytes("VmRSS")
    yield
    assert 1024 * (kilobytes("VmHWM") - before) < MOST_MEMORY


def test_there_are_ten_thousand_files() -> None:
    assert sum(codec.files for codec in CODECS) == 10_000


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_sound_files_have_the_shapes_of_their_headers(tmp_path: Path, codec: Codec) -> None:
    for data in codec.sound:
        (tmp_path / "sound").write_bytes(data)
        arrays = codec.read(tmp_path / "sound")
        assert [array.shape for array in arrays] == codec.shapes(data)
        assert [array.dtype for array in arrays] == codec.dtypes


@pytest.mark.usefixtures("no_hang", "little_memory")
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_a_damaged_file_is_an_array_or_a_clear_sentence(tmp_path: Path, codec: Codec) -> None:
    path = tmp_path / "damaged"
    refused = 0
    tracemalloc.start()
    try:
        for data in damaged(codec):
            path.write_bytes(data)
            tracemalloc.reset_peak()
            try:
                arrays = codec.read(path)
            except InputError as error:
                message = str(error)
                assert str(path) in message and "; " in message
                assert message.endswith(".") and message.isprintable() and len(message) < 500
                refused += 1
            else:
                assert [array.shape for array in arrays] == codec.shapes(data), data
                assert [array.dtype for array in arrays] == codec.dtypes
            assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    # Some of the damage is harmless; were all of it, or none, the damage would be at fault.
    assert 0.2 * codec.files < refused < codec.files
