"""Color profiles and EXIF in the frames of a clip neither stop nor crash its reading."""

import io
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from protoformer.video.reader import open_video

av = pytest.importorskip("av")

_ORIENTATION, _TURN_RIGHT = 0x0112, 6
_READ = """
import gc, sys
from protoformer.video.reader import open_video
print(len(list(open_video(sys.argv[1]).frames())))
gc.collect()  # frees what belongs to the frames
"""


def gradient() -> Image.Image:
    """Red grows to the right and green downwards; 48x32 pixels."""
    y, x = np.mgrid[:32, :48]
    return Image.fromarray(np.stack((x * 5, y * 5, 0 * x), axis=-1).astype(np.uint8))


def turned_right() -> bytes:
    exif = Image.Exif()
    exif[_ORIENTATION] = _TURN_RIGHT
    return exif.tobytes()


def motion_jpeg(path: Path, pictures: list[bytes]) -> Path:
    """Jpeg files as the frames of a clip, as cameras store them."""
    with av.open(str(path), "w") as target:
        stream = target.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuvj420p"
        for number, data in enumerate(pictures):
            packet = av.Packet(data)
            packet.stream, packet.pts, packet.dts = stream, number, number
            packet.time_base, packet.is_keyframe = Fraction(1, 25), True
            target.mux(packet)
    return path


def test_an_animation_with_a_color_profile_is_read_and_freed_without_a_crash(tmp_path: Path) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    path = tmp_path / "clip.apng"
    gradient().save(path, "PNG", icc_profile=profile, save_all=True, append_images=[gradient().rotate(180)])
    ended = subprocess.run([sys.executable, "-c", _READ, path], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "2\n"), ended.stderr


@pytest.mark.parametrize("suffix", [".mov", ".avi", ".apng"])
def test_frames_with_exif_are_turned_upright(tmp_path: Path, suffix: str) -> None:
    path, exif = tmp_path / f"clip{suffix}", turned_right()
    if suffix == ".apng":
        gradient().save(path, "PNG", exif=exif, save_all=True, append_images=[gradient().rotate(180)])
    else:
        buffer = io.BytesIO()
        gradient().save(buffer, "JPEG", exif=exif, quality=95)
        motion_jpeg(path, [buffer.getvalue()] * 2)
    video = open_video(path)
    assert video.info.size == (48, 32)
    image = next(video.frames()).image.astype(int)
    upright = np.rot90(np.asarray(gradient()).astype(int), -1)
    assert abs(image - upright).mean() < 4
