"""A picture as part of a larger one."""

import dataclasses

import torch
from torch import Tensor

from protoformer.world.scene import Scenes


def part_of_larger(scenes: Scenes, times: Tensor, place: Tensor) -> Scenes:
    """The same scenes in pictures so many times as large, of which each image shows a part of the usual size.

    What is near the edge of a wide picture moves farther, and more to one side, than anything in a small one.

    times: B, 1 or more. place: B x 2, where the part lies, across and down: from 0, the left or the top, to 1.
    """
    camera = scenes.camera
    size = torch.tensor([scenes.size[1], scenes.size[0]], dtype=torch.float64)
    times = times.double()[:, None]
    corner = place.double() * (times - 1) * size
    centre = (camera.centre + 0.5) * times - 0.5 - corner
    return dataclasses.replace(scenes, camera=dataclasses.replace(camera, focal=camera.focal * times, centre=centre))
