"""Gradio components shared by the tabs: upload boxes, example buttons, the pixel viewer and the result panel."""

import os
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

from torch import Tensor

from protoformer.errors import InputError, install_command
from protoformer.models.encoder import STRIDES
from protoformer.models.prototyping import Prototypes
from protoformer.viz.colormaps import Pixels, draw_assignment
from protoformer.viz.report import png_data_uri
from protoformer.web.job import DELETED, Job, JobOutput, error_message, message_html
from protoformer.web.results import KEEP_SECONDS, load_view
from protoformer.web.site import Example, Site


def require_gradio() -> Any:
    """Import gradio.

    Raises:
        InputError: If it is not installed.
    """
    try:
        return import_module("gradio")
    except ImportError:
        raise InputError(
            f"the web page is served with gradio, which is not installed: {install_command('web')}."
        ) from None


def prepare_gradio(served: Path) -> Any:
    """Import gradio with the settings of this page.

    gradio reads environment variables during and after its import. Some of them open further files, ports or debugging
    tools, so all of the user's are removed.

    Args:
        served: Folder for uploads, downloads and all other files of gradio; created on demand.
    """
    for name in [name for name in os.environ if name.startswith("GRADIO_")]:
        del os.environ[name]
    served.mkdir(parents=True, exist_ok=True)
    os.environ["GRADIO_TEMP_DIR"] = str(served)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    return require_gradio()


def read_asset(name: str) -> str:
    """Read a file of the folder `assets`: style sheets, scripts and templates of the page."""
    return (files("protoformer.web") / "assets" / name).read_text(encoding="utf-8")


def image_boxes(labels: dict[str, str], examples: Iterable[Example]) -> list[Any]:
    """Create upload boxes for images, side by side, and example buttons; their values are a `Path` or None.

    Args:
        labels: Label of each box, by element id.
        examples: Examples with as many images as there are boxes.
    """
    gr = require_gradio()
    with gr.Row():
        boxes = [
            gr.Image(label=text, type="filepath", sources=["upload", "clipboard"], height=260, buttons=[], elem_id=name)
            for name, text in labels.items()
        ]
    return _with_examples(boxes, examples)


def clip_box(elem_id: str, example: Example) -> Any:
    """Create an upload box for a clip and an example button; its value is a `Path` or None."""
    box = require_gradio().Video(label="Clip", sources=["upload"], elem_id=elem_id, elem_classes="pf-clip", height=260)
    return _with_examples([box], [example])[0]


def _with_examples(boxes: list[Any], examples: Iterable[Example]) -> list[Any]:
    """Create a button for each example that puts its files into upload boxes; return the boxes."""
    gr = require_gradio()
    for box in boxes:
        # gradio would decode and re-encode an upload before any limit is checked.
        box.preprocess = lambda payload: None if payload is None else Path(payload.path)
    with gr.Row(elem_classes="pf-row"):
        gr.HTML("<span>Examples:</span>")
        for example in examples:
            paths = [str(path) for path in example.paths]
            button = gr.Button(example.name, size="sm", min_width=90)
            value = paths if len(paths) > 1 else paths[0]
            button.click(lambda value=value: value, None, boxes, api_visibility="private")
    return boxes


def prototype_figure(prototypes: Prototypes, image: Tensor, input_size: tuple[int, int] | None = None) -> str:
    """Return the HTML of an image whose pixels are colored by their prototypes, of the finest encoder stage."""
    figure = png_data_uri(draw_assignment(prototypes, image, STRIDES[0], input_size=input_size))
    return f'<p>Each color is one prototype and the pixels assigned to it.</p><img alt="prototypes" src="{figure}">'


class ResultPanel:
    """Shows the latest result of a tab: message, video, viewer, frame slider, download buttons and prototypes.

    Args:
        site: The page.
        name: Name of the tab, the prefix of element ids.
        downloads: Labels of the download buttons, by file suffix.
        viewer: Component that shows `JobOutput.view`; by default HTML.
        video_label: Label of the video.
    """

    def __init__(
        self, site: Site, name: str, downloads: dict[str, str], viewer: Any = None, video_label: str = "Result"
    ) -> None:
        gr = require_gradio()
        self._site, self._suffixes = site, tuple(downloads)
        self._result = gr.State(None, time_to_live=KEEP_SECONDS, delete_callback=site.results.delete)
        self.message = gr.HTML("", elem_id=f"{name}-message")
        video = gr.Video(label=video_label, visible=False, elem_id=f"{name}-video", interactive=False, buttons=[])
        self._progress_on = self.message if viewer is None else viewer
        if viewer is None:
            viewer = gr.HTML("", elem_id=f"{name}-viewer")
        else:
            viewer.render()
        slider = gr.Slider(1, 2, value=1, step=1, label="Frame", visible=False, elem_id=f"{name}-slider", buttons=[])
        with gr.Row(elem_classes="pf-row"):
            buttons = [
                gr.DownloadButton(label, visible=False, elem_id=f"{name}-download-{suffix[1:]}", size="md")
                for suffix, label in downloads.items()
            ]
        with gr.Accordion("Prototypes", open=False, visible=False) as accordion:
            prototypes = gr.HTML("", elem_id=f"{name}-prototypes", elem_classes="pf-prototypes")
        self._outputs = [self._result, self.message, video, viewer, slider, accordion, prototypes, *buttons]
        slider.change(
            self._select_view,
            [slider, self._result],
            [viewer, self.message],
            queue=False,
            show_progress="hidden",
            trigger_mode="always_last",
            api_visibility="private",
        )

    def connect(
        self,
        button: Any,
        name: str,
        compute: Callable[..., JobOutput],
        inputs: list[Any],
        missing: str,
        num_uploads: int = 1,
    ) -> None:
        """Run a computation when a button is pressed.

        Args:
            button: The button.
            name: Name of the event.
            compute: Function of a `Job` and the values of the inputs.
            inputs: Input components.
            missing: Error message without enough uploads.
            num_uploads: Minimum number of uploads.
        """
        gr = require_gradio()

        def run(progress: Any = gr.Progress(), *values: Any) -> tuple[Any, ...]:  # noqa: B008
            *given, previous = values
            if sum(isinstance(value, Path) for value in given) < num_uploads:
                return self._failed(previous, missing)
            return self._run(compute, given, previous, lambda fraction, text: progress(fraction, desc=text))

        button.click(
            run,
            [*inputs, self._result],
            self._outputs,
            api_name=name,
            api_visibility="private",
            concurrency_id="compute",
            concurrency_limit=self._site.limits.max_jobs,
            show_progress_on=self._progress_on,
        )

    def _run(
        self,
        compute: Callable[..., JobOutput],
        values: list[Any],
        previous: Path | None,
        on_progress: Callable[[float, str], object],
    ) -> tuple[Any, ...]:
        """Return the new values of all components; after an error, only a message."""
        results = self._site.results
        folder = results.begin()
        try:
            output = compute(Job(self._site.limits, folder, on_progress), *values)
        except Exception as error:
            results.delete(folder)
            uploads = [value for value in values if isinstance(value, Path)]
            return self._failed(previous, error_message(error, uploads))
        results.finish(folder)
        results.delete(previous)
        update = require_gradio().update
        last = max(2, output.num_views)
        return (
            folder,
            message_html(output.summary, "note"),
            _file_update(output.video),
            output.view,
            update(visible=output.num_views > 1, minimum=1, maximum=last, value=1),
            update(visible=bool(output.prototypes)),
            output.prototypes,
            *(_file_update(output.downloads.get(suffix)) for suffix in self._suffixes),
        )

    def _failed(self, previous: Path | None, message: str) -> tuple[Any, ...]:
        return previous, message_html(message), *(require_gradio().skip() for _ in self._outputs[2:])

    def _select_view(self, number: int, folder: Path | None) -> tuple[Any, Any]:
        """Return the view of a frame, counted from 1, and a message."""
        skip = require_gradio().skip
        if folder is None:
            return skip(), skip()
        if not folder.exists():
            return skip(), message_html(DELETED)
        try:
            return load_view(folder, int(number) - 1), skip()
        except FileNotFoundError:  # images have a single view
            return skip(), skip()


def _file_update(path: Path | None) -> Any:
    """Show a file in a component; hide the component without a file."""
    return require_gradio().update(visible=path is not None, value=None if path is None else str(path))


def pixel_viewer(
    kind: str, legend: Pixels, *, image_caption: str, caption: str, legend_caption: str, unpack: str, describe: str
) -> Any:
    """Create a viewer that shows an image, its result in colors, and the values of the pixel under the mouse.

    Its value is the dict of `flow_viewer_data` or `depth_viewer_data`.

    Args:
        kind: Key of the result image in the value; also its CSS class.
        legend: Color legend, uint8 H x W x 3 or 4.
        image_caption: Caption of the input image.
        caption: Caption of the result image.
        legend_caption: Text below the legend, a JavaScript template of `value`.
        unpack: JavaScript function from the value to an object of typed arrays.
        describe: JavaScript function from the value, these arrays and the index of a cell to a text.
    """
    return require_gradio().HTML(
        value=None,
        html_template=read_asset("pixel_viewer.html").replace("LEGEND_CAPTION", legend_caption),
        css_template=read_asset("pixel_viewer.css"),
        js_on_load=read_asset("pixel_viewer.js").replace("UNPACK", unpack).replace("DESCRIBE", describe),
        elem_id=f"{kind}-viewer",
        kind=kind,
        legend=png_data_uri(legend),
        image_caption=image_caption,
        caption=caption,
        hint="Move the mouse over an image to read the values of a pixel.",
        render=False,
    )
