"""Kinds of scenes."""

from collections.abc import Callable
from dataclasses import dataclass

from protoformer.synthetic.families.chase import chase
from protoformer.synthetic.families.drive import drive
from protoformer.synthetic.families.handheld import handheld
from protoformer.synthetic.families.objects import objects
from protoformer.synthetic.families.room import room
from protoformer.synthetic.scene import Scenes


@dataclass(frozen=True)
class Family:
    """One kind of scenes.

    build: (draws, size, bank, shake) to scenes. size: (height, width) of its images unless told otherwise. shake:
    strength of the hand, 1 for an ordinary one. what: one line for people.
    """

    build: Callable[..., Scenes]
    size: tuple[int, int]
    shake: float
    what: str


FAMILIES = {
    "objects": Family(
        objects, (368, 496), 0.0, "many flying things, chairs among them, motion of 0.1 to 400 pixels a frame"
    ),
    "drive": Family(drive, (320, 1024), 0.0, "a street from a car, a camera like KITTI's"),
    "room": Family(room, (480, 640), 0.0, "a furnished room, a camera like a Kinect's, 0.5 to 10 meters"),
    "chase": Family(chase, (360, 640), 0.0, "one target among others, hidden at times, near and far"),
    "handheld": Family(handheld, (360, 640), 1.0, "a street from a hand that shakes, and its steady twin"),
}
