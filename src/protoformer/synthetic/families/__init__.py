"""Scene families."""

from collections.abc import Callable
from dataclasses import dataclass

from protoformer.synthetic.families.chase import build_chase
from protoformer.synthetic.families.drive import build_drive, build_handheld
from protoformer.synthetic.families.objects import build_objects
from protoformer.synthetic.families.room import build_room
from protoformer.synthetic.scene import Scenes


@dataclass(frozen=True)
class Family:
    """One family of scenes.

    Attributes:
        build: Function from (draws, size, bank, shake) to `Scenes`.
        size: Default (height, width) of the images.
        shake: Default strength of the camera's hand shake; 1 is typical.
        description: One-line description for users.
    """

    build: Callable[..., Scenes]
    size: tuple[int, int]
    shake: float
    description: str


FAMILIES = {
    "objects": Family(
        build_objects, (368, 496), 0.0, "many flying objects, chairs among them, moving 0.1 to 400 pixels per frame"
    ),
    "drive": Family(build_drive, (320, 1024), 0.0, "a street seen from a car, with KITTI's focal length"),
    "room": Family(build_room, (480, 640), 0.0, "a furnished room, with a Kinect's focal length, 0.5 to 10 meters"),
    "chase": Family(build_chase, (360, 640), 0.0, "one target among distractors, near and far, with occlusions"),
    "handheld": Family(
        build_handheld, (360, 640), 1.0, "a street from a shaky handheld camera, and its steady version"
    ),
}
