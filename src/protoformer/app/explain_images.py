"""`protoformer explain` of images: a folder with a page, pictures and numbers."""

import json
from dataclasses import dataclass
from pathlib import Path

from protoformer.app.progress import progress_bar
from protoformer.errors import InputError
from protoformer.files import checked_output
from protoformer.files.folders import made_folder
from protoformer.files.movie_images import IMAGE_SUFFIXES
from protoformer.files.movie_kinds import SUFFIXES
from protoformer.inference import load
from protoformer.inference.brief import count_fact
from protoformer.inference.explanation import Explanation
from protoformer.inference.images import as_image
from protoformer.inference.prototype_video import checked_layer
from protoformer.show.explanation_page import save_explanation

_OF_FILES = SUFFIXES | IMAGE_SUFFIXES | {".html", ".json"}
"""How names end that nobody gives a folder."""


@dataclass(frozen=True)
class ExplainImagesOptions:
    """What was asked for on the command line; None where nothing was. prototypes: whose membership to draw."""

    task: str
    layer: str | None
    prototypes: tuple[int, ...]
    updates: int | None


def explain_images(
    sources: list[str],
    output: Path | None,
    named: tuple[str, str | None],
    options: ExplainImagesOptions,
    as_json: bool,
) -> None:
    """Write what was grouped in an image, or in two. named: the model and the device, as given."""
    if options.updates is not None and options.task == "flow" and len(sources) < 2:
        raise InputError("--updates refines a flow, and one image has none; leave it out or give a second image.")
    folder = Path("explained") if output is None else output
    if folder.suffix.lower() in _OF_FILES and not folder.is_dir():
        raise InputError(
            f"{folder} is the name of a file, and images become a folder of files; give one, such as {folder.stem}."
        )
    images = [as_image(source, source) for source in sources]  # what is cheap to refuse comes first
    loaded = load(*named, task=options.task)
    checked_layer(loaded.network.config, options.layer)
    checked_output(made_folder(folder) / "index.html")
    config = loaded.network.config
    usual = config.updates if options.task == "flow" else config.depth_updates
    with progress_bar("estimating", total=options.updates or usual) as told:
        explanation = loaded.explain(*images, updates=options.updates, progress=told)
    with progress_bar("explaining", total=2 * len(explanation.first.layers)) as told:
        written = save_explanation(
            folder, explanation, layer=options.layer, prototypes=options.prototypes, progress=told
        )
    _tell(explanation, options.layer, written, as_json)


def _tell(explanation: Explanation, layer: str | None, written: list[Path], as_json: bool) -> None:
    shown = explanation.first.layer(layer)
    parts = explanation.parts(layer)
    summary = {
        "task": explanation.task,
        "width": shown.size[1],
        "height": shown.size[0],
        "layers": [each.name for each in explanation.first.layers] if layer is None else [layer],
        "prototypes": shown.count,
        "with_pixels": len(shown.used),
        "matched": len(explanation.matches(layer)) if explanation.second else None,
        "parts": None if parts is None else len(parts.parts),
        "trained": explanation.trained,
        "written": [str(path) for path in written],
    }
    if as_json:
        print(json.dumps(summary))
        return
    matched = "" if summary["matched"] is None else f", {summary['matched']} of them matched in the second image"
    moving = "" if parts is None else f"; {count_fact(len(parts.parts), 'moving part')}"
    print(
        f"{shown.size[1]}x{shown.size[0]} pixels; {summary['with_pixels']} of {shown.count} prototypes of layer "
        f"{shown.name} have pixels{matched}{moving}; wrote {len(written)} files: open {written[0]} in a browser"
    )
