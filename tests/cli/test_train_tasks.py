"""What training needs of each task beside the task itself."""

from pathlib import Path

import numpy as np
from PIL import Image

from protoformer.cli.train import TOOLS
from protoformer.datasets.video import Otb
from protoformer.models.config import preset
from protoformer.models.protoformer import build_network
from protoformer.tasks import TASKS


def test_every_task_that_can_be_trained_can_be_drawn_and_scored() -> None:
    assert TOOLS.keys() == TASKS.keys()


def test_tracking_is_scored_by_following_every_clip_from_its_first_box(tmp_path: Path) -> None:
    for clip, lines in (("One", ["11,11,20,20"] * 3), ("Two", ["NaN,NaN,NaN,NaN", "5,5,30,20", "5,5,30,20"])):
        (tmp_path / clip / "img").mkdir(parents=True)
        (tmp_path / clip / "groundtruth_rect.txt").write_text("\n".join(lines))
        for number in (1, 2, 3):
            Image.fromarray(np.full((60, 80, 3), 40 * number, np.uint8)).save(tmp_path / clip / "img" / f"{number}.png")
    network = build_network(preset("tiny", tracking={"search_size": 64, "template_size": 48}), "track").eval()
    scores = TOOLS["track"].score(network, Otb(tmp_path), "otb", tmp_path)
    assert set(scores) == {"success", "precision", "normalized_precision"}
    assert all(0 <= score <= 1 for score in scores.values())
