"""Parts of the page that several tabs have."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from protoformer.app.web.gradio_package import require_gradio
from protoformer.app.web.site import GONE, notice


def image_box(label: str, elem_id: str) -> Any:
    """Where an image is given."""
    box = require_gradio().Image(
        label=label, type="filepath", sources=["upload", "clipboard"], height=260, buttons=[], elem_id=elem_id
    )
    box.preprocess = _path_of
    return box


def clip_box(elem_id: str) -> Any:
    """Where a clip is given."""
    box = require_gradio().Video(label="Clip", sources=["upload"], elem_id=elem_id, height=260)
    box.preprocess = _path_of
    return box


def example_buttons(examples: Iterable[tuple[str, tuple[Path, ...]]], boxes: list[Any]) -> None:
    """A button for each example, by its name, that puts its files into the boxes."""
    gr = require_gradio()
    with gr.Row(elem_classes="pf-examples"):
        gr.HTML("<span>Examples:</span>")
        for name, paths in examples:
            chosen = tuple(str(path) for path in paths) if len(paths) > 1 else str(paths[0])
            button = gr.Button(name, size="sm", min_width=90)
            button.click(lambda chosen=chosen: chosen, None, boxes, api_visibility="private")


def download(path: Path | None) -> Any:
    """What the button of a file becomes: hidden where there is none."""
    return require_gradio().update(visible=path is not None, value=None if path is None else str(path))


def slide(slider: Any, result: Any, shown: Any, message: Any, view: Callable[[Path, int], Any]) -> None:
    """Let a slider choose what is shown of a result. view: from its folder and a number, from 0 on, to that."""

    def slid(number: int, folder: Path | None) -> tuple[Any, Any]:
        skip = require_gradio().skip
        if folder is None:
            return skip(), skip()
        if not folder.exists():
            return skip(), notice(GONE)
        try:
            return view(folder, int(number) - 1), skip()
        except FileNotFoundError:  # images have no other frame
            return skip(), skip()

    slider.change(
        slid,
        [slider, result],
        [shown, message],
        queue=False,
        show_progress="hidden",
        trigger_mode="always_last",
        api_visibility="private",
    )


def _path_of(payload: Any) -> str | None:
    """An upload as it is: gradio would decode it before any limit is checked, and change what it holds."""
    return None if payload is None else payload.path
