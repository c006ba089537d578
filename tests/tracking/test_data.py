"""Training pairs of synthetic scenes and clips on disk, determined by their batch numbers."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from protoformer.datasets.augmentation.flow import Augmentation
from protoformer.datasets.video import Otb
from protoformer.errors import InputError
from protoformer.models.config import preset
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.ground_truth import LARGE, MIN_TARGET_PIXELS, sample_targets
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.samples import TrackPairs, join
from protoformer.tracking.data import ClipPairs, SyntheticPairs
from protoformer.training.recipe import DataSection, DatasetSection
from protoformer.training.sources import SampleKind, open_source

CONFIG = preset("tiny", tracking={"search_size": 64, "template_size": 48})
PAIRS = SampleKind(SyntheticPairs(CONFIG), ClipPairs(CONFIG))
SCENES = DataSection(seed=3, batch_size=4, crop_size=(48, 64), families={"chase": 0.6, "objects": 0.4})
TENSORS = ("reference", "reference_boxes", "search", "boxes", "located", "judged")


def first(batches: Iterator[TrackPairs], count: int) -> list[TrackPairs]:
    return list(itertools.islice(batches, count))


def same(one: TrackPairs, other: TrackPairs) -> bool:
    return one.names == other.names and all(torch.equal(getattr(one, name), getattr(other, name)) for name in TENSORS)


def close(one: TrackPairs, other: TrackPairs) -> bool:
    return one.names == other.names and all(
        torch.allclose(getattr(one, name).float(), getattr(other, name).float(), atol=1e-3) for name in TENSORS
    )


@pytest.fixture(scope="module")
def rendered() -> list[TrackPairs]:
    return first(open_source(SCENES, kind=PAIRS).batches(0), 3)


def test_synthetic_batches_resume_at_any_number(rendered: list[TrackPairs]) -> None:
    again = first(open_source(SCENES, kind=PAIRS).batches(1), 2)
    assert all(same(one, other) for one, other in zip(again, rendered[1:], strict=True))


def test_ranks_together_make_what_one_process_does(rendered: list[TrackPairs]) -> None:
    parts = [next(open_source(SCENES, kind=PAIRS, rank=rank, num_ranks=2).batches(0)) for rank in (0, 1)]
    assert close(join(parts), rendered[0])


def test_most_targets_of_synthetic_scenes_can_be_judged(rendered: list[TrackPairs]) -> None:
    judged = torch.cat([pairs.judged for pairs in rendered])
    located = torch.cat([pairs.located for pairs in rendered])
    assert judged.float().mean() > 0.4 and located.any()
    assert torch.cat([pairs.search for pairs in rendered]).isfinite().all()


def test_any_target_of_a_fitting_size_may_be_the_one_and_a_scene_alone_decides() -> None:
    renderer = SyntheticScenes("objects", seed=2, size=(72, 96)).renderer(range(8), "cpu")
    view = renderer.view(0.5)
    chosen = torch.stack([sample_targets(renderer, view, SceneRandom(seed, range(8))) for seed in range(6)])
    instances = renderer.instances(view).flatten(1)
    sizes = torch.stack([(instances == row[:, None]).sum(dim=1) for row in chosen])
    fitting = (sizes >= MIN_TARGET_PIXELS) & (sizes <= LARGE * 72 * 96)
    assert fitting.float().mean() > 0.8 and (chosen != chosen[:1]).any(dim=0).float().mean() > 0.5
    alone = SyntheticScenes("objects", seed=2, size=(72, 96)).renderer([5], "cpu")
    assert sample_targets(alone, alone.view(0.5), SceneRandom(0, [5])).tolist() == chosen[0, 5:6].tolist()
    chase = SyntheticScenes("chase", seed=2, size=(72, 96)).renderer(range(2), "cpu")
    assert sample_targets(chase, chase.view(0.5), SceneRandom(0, range(2))).tolist() == [1, 1]


def write_clip(folder: Path, frames: int, seed: int, gone: tuple[int, ...] = ()) -> None:
    """A bright square that moves two pixels a frame over noise."""
    (folder / "img").mkdir(parents=True)
    generator, lines = np.random.default_rng(seed), []
    for number in range(frames):
        image = generator.integers(0, 80, (60, 90, 3), dtype=np.uint8)
        image[20:40, 10 + 2 * number : 30 + 2 * number] = 255
        Image.fromarray(image).save(folder / "img" / f"{number + 1:04d}.png")
        lines.append("NaN,NaN,NaN,NaN" if number in gone else f"{11 + 2 * number},21,20,20")
    (folder / "groundtruth_rect.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def clips(tmp_path: Path) -> DataSection:
    for number in range(5):
        write_clip(tmp_path / f"Clip{number}", 6, number, gone=(4,))
    return DataSection(
        source="dataset", batch_size=4, datasets={"otb": DatasetSection(root=str(tmp_path), split="all")}
    )


def test_clips_on_disk_go_on_where_they_stopped(clips: DataSection) -> None:
    whole = first(open_source(clips, kind=PAIRS).batches(0), 3)
    again = first(open_source(clips, kind=PAIRS).batches(1), 2)
    assert all(same(one, other) for one, other in zip(again, whole[1:], strict=True))
    assert {name for pairs in whole for name in pairs.names} == {f"otb Clip{number}" for number in range(5)}
    parts = [next(open_source(clips, kind=PAIRS, rank=rank, num_ranks=2).batches(0)) for rank in (0, 1)]
    assert close(join(parts), whole[0])


def test_the_target_of_a_clip_is_where_its_box_is(clips: DataSection) -> None:
    pairs = join(first(open_source(clips, kind=PAIRS).batches(0), 12))
    assert 0.5 < pairs.located.float().mean() < 1 and (pairs.judged & ~pairs.located).any()
    bright = pairs.search.mean(dim=1)
    for place in pairs.located.nonzero()[:, 0].tolist():
        x, y, width, height = (int(value) for value in pairs.boxes[place])
        inside = bright[place, max(0, y + 3) : max(0, y + height - 3), max(0, x + 3) : max(0, x + width - 3)]
        assert inside.mean() > bright[place].mean()


def test_a_clip_that_cannot_be_read_is_replaced_and_named(clips: DataSection) -> None:
    broken = Path(str(clips.datasets["otb"].root)) / "Clip2"
    for path in (broken / "img").iterdir():
        path.write_bytes(b"no picture")
    said: list[str] = []
    batches = first(open_source(clips, kind=PAIRS, on_message=said.append).batches(0), 3)
    names = {name for pairs in batches for name in pairs.names}
    assert "otb Clip2" not in names and len(names) == 4
    assert any(sentence.startswith("otb Clip2 is left out: ") for sentence in said)


def test_a_clip_without_a_box_teaches_nothing(tmp_path: Path) -> None:
    write_clip(tmp_path / "Empty", 2, 0, gone=(0, 1))
    dataset = Otb(tmp_path)
    with pytest.raises(InputError, match="no frame of Empty has a box"):
        ClipPairs(CONFIG)(dataset, 0, Augmentation(), (0, 0, 0))
