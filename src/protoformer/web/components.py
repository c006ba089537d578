"""Gradio components shared by the tabs: upload boxes, example buttons, the pixel viewer and the result panel."""

import asyncio
import filecmp
import os
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from html import escape
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from secrets import token_urlsafe
from threading import Thread
from typing import Any

import cv2
from torch import Tensor

from protoformer.errors import InputError, install_command
from protoformer.models.encoder import STRIDES
from protoformer.models.prototyping import Prototypes
from protoformer.video.reader import open_video
from protoformer.viz.colormaps import Pixels, draw_assignment
from protoformer.viz.report import jpeg_data_uri, png_data_uri
from protoformer.web.decoding import clip_seconds, decode_clip, decode_first_frame
from protoformer.web.job import (
    CANCELED_EARLY,
    DELETED,
    Job,
    JobControl,
    JobOutput,
    error_message,
    message_html,
    parse_span,
    progress_html,
)
from protoformer.web.limits import Deadline, Limits
from protoformer.web.results import cancellation_check, load_view
from protoformer.web.site import Example, Site

THUMBNAIL_SIZE = (80, 116)
"""Height and width of the picture of an example, pixels."""


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


def input_column() -> Any:
    """Create the column of inputs and options; the result column follows it, beside it on a wide screen."""
    return require_gradio().Column(scale=5, min_width=320, elem_classes="pf-input")


def result_column() -> Any:
    """Create the column of the result."""
    return require_gradio().Column(scale=7, min_width=320, elem_classes="pf-result")


def columns() -> Any:
    """Create the row of both columns."""
    return require_gradio().Row(elem_classes="pf-columns", equal_height=False)


def image_boxes(labels: dict[str, str], examples: Iterable[Example]) -> list[Any]:
    """Create upload boxes for images, side by side, and example buttons; their values are a `Path` or None.

    Args:
        labels: Label of each box, by element id.
        examples: Examples with as many images as there are boxes.
    """
    gr = require_gradio()
    with gr.Row(elem_classes="pf-images"):
        boxes = [
            gr.Image(
                label=text,
                type="filepath",
                sources=["upload", "clipboard"],
                height=220,
                min_width=140,
                buttons=[],
                elem_id=name,
            )
            for name, text in labels.items()
        ]
    for box in boxes:
        # gradio would decode and re-encode an upload before any limit is checked.
        box.preprocess = lambda payload: None if payload is None else Path(payload.path)
    _example_buttons(boxes, examples)
    return boxes


@dataclass(frozen=True)
class ClipInput:
    """Upload box of a clip, and the control that selects a part of it.

    Attributes:
        box: The upload box; its value is a `Path` or None.
        trim: Its value is the start and end, seconds, for `parse_span`.
        examples: The examples below the box.
    """

    box: Any
    trim: Any
    examples: list[Example]

    def example_of(self, path: Path) -> Example | None:
        """Return the example that a file in the upload box is a copy of."""
        return next((each for each in self.examples if filecmp.cmp(path, each.paths[0], shallow=False)), None)


def clip_input(site: Site, elem_id: str, examples: list[Example]) -> ClipInput:
    """Create an upload box for a clip, a control that selects a part of it, and example buttons."""
    gr = require_gradio()
    box = gr.Video(label="Clip", sources=["upload"], elem_id=elem_id, elem_classes="pf-clip", height=260)
    box.preprocess = lambda payload: None if payload is None else Path(payload.path)
    trim = gr.HTML(
        value=list(NO_SPAN),
        html_template=read_asset("trim.html"),
        css_template=read_asset("trim.css"),
        js_on_load=read_asset("trim.js"),
        elem_id=f"{elem_id}-trim",
        elem_classes="pf-trim",
        max_frames=site.limits.max_frames or 0,
        **NO_CLIP,
    )
    _example_buttons([box], examples)
    return ClipInput(box, trim, examples)


NO_SPAN = (None, None)
"""Value of the trim control for a whole clip."""
NO_CLIP: dict[str, Any] = {"duration": 0, "fps": 0, "size": ""}
"""Properties of the trim control without a clip."""


def probe_clip(limits: Limits, path: Path) -> tuple[dict[str, Any], Pixels]:
    """Return the properties of the trim control for an uploaded clip, and its first frame.

    Raises:
        InputError: If the clip cannot be decoded or exceeds a limit.
    """
    with decode_clip(limits, path, Deadline(limits.max_seconds), count=False) as clip:
        info, frame = clip.info, next(clip.frames(), None)
        if frame is None:
            raise InputError(f"{path} has no frame that can be decoded; make or download it again.")
    seconds, (height, width) = clip_seconds(info) or 0.0, info.size
    return {"duration": round(seconds, 3), "fps": float(info.fps), "size": f"{width}\u00d7{height}"}, frame.image


def _example_buttons(boxes: list[Any], examples: Iterable[Example]) -> None:
    """Create a button for each example that puts its files into upload boxes."""
    gr = require_gradio()
    with gr.Row(elem_classes="pf-examples"):
        gr.HTML("<span>Examples</span>")
        for example in examples:
            paths = [str(path) for path in example.paths]
            button = gr.Button(example.name, size="sm", min_width=90, elem_classes=["pf-example", example.style])
            value = paths if len(paths) > 1 else paths[0]
            button.click(lambda value=value: value, None, boxes, api_visibility="private")


def example_styles(examples: Iterable[Example]) -> str:
    """Return CSS rules with a small picture for each example button."""
    pictures: dict[str, Any] = {}
    for example in examples:
        if example.style not in pictures:
            image = next(open_video(example.paths[0]).frames()).image
            height, width = image.shape[:2]
            side = min(width, height * THUMBNAIL_SIZE[1] // THUMBNAIL_SIZE[0])
            center = image[:, (width - side) // 2 :][:, :side]
            pictures[example.style] = cv2.resize(center, THUMBNAIL_SIZE[::-1], interpolation=cv2.INTER_AREA)
    rule = '.{} {{ background-image: url("{}") !important }}'
    return "\n".join(rule.format(name, jpeg_data_uri(each)) for name, each in pictures.items())


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
        empty: What the page shows before the first result.
        viewer: Component that shows `JobOutput.view`; by default HTML.
        video_label: Label of the video.
    """

    def __init__(
        self,
        site: Site,
        name: str,
        downloads: dict[str, str],
        empty: str,
        viewer: Any = None,
        video_label: str = "Result",
    ) -> None:
        gr = require_gradio()
        self._site, self._name, self._suffixes = site, name, tuple(downloads)
        self._result = gr.State(None, time_to_live=site.limits.keep_seconds, delete_callback=site.results.delete)
        self._secret = gr.State(None)
        self.message = gr.HTML(f'<p class="pf-empty">{escape(empty)}</p>', elem_id=f"{name}-message")
        with gr.Column(visible="hidden", elem_id=f"{name}-result", elem_classes="pf-output") as output:
            video = gr.Video(label=video_label, visible=False, elem_id=f"{name}-video", interactive=False, buttons=[])
            if viewer is None:
                files = self._download_buttons(downloads)
                viewer = gr.HTML("", elem_id=f"{name}-viewer")
                slider = gr.Slider(1, 2, step=1, label="Frame", visible=False, elem_id=f"{name}-slider", buttons=[])
            else:
                viewer.render()
                slider = gr.Slider(1, 2, step=1, label="Frame", visible=False, elem_id=f"{name}-slider", buttons=[])
                files = self._download_buttons(downloads)
            with gr.Accordion("Prototypes", open=False, visible=False) as accordion:
                prototypes = gr.HTML("", elem_id=f"{name}-prototypes", elem_classes="pf-prototypes")
        self._outputs = [self._result, self._secret, self.message, output]
        self._outputs += [video, viewer, slider, accordion, prototypes, *files]
        slider.change(
            self._select_view,
            [slider, self._result],
            [viewer, self.message],
            queue=False,
            show_progress="hidden",
            trigger_mode="always_last",
            api_visibility="private",
        )

    def _download_buttons(self, downloads: dict[str, str]) -> list[Any]:
        gr = require_gradio()
        with gr.Row(elem_classes="pf-downloads"):
            return [
                gr.DownloadButton(label, visible=False, elem_id=f"{self._name}-download-{suffix[1:]}", size="md")
                for suffix, label in downloads.items()
            ]

    def connect_clip(self, clip: ClipInput, picker: Any = None) -> None:
        """Show the properties of a clip when it is chosen.

        Args:
            clip: The upload box and trim control.
            picker: Box picker, which shows the first frame of the selected part.
        """
        gr, limits = require_gradio(), self._site.limits

        def probe(path: Path | None) -> tuple[Any, ...]:
            properties, picked, message = NO_CLIP, dict(NO_FRAME, value=[]), gr.skip()
            span: Any = NO_SPAN
            if path is not None:
                try:
                    properties, image = probe_clip(limits, path)
                    example = clip.example_of(path)
                    span = example.span if example else NO_SPAN
                    picked = frame_properties(image) | {
                        "value": [list(box) for box in example.boxes] if example else []
                    }
                except InputError as error:
                    message = message_html(error_message(error, [path]))
            updates = (gr.HTML(value=list(span), **properties), message)
            return updates if picker is None else (*updates, gr.HTML(**picked))

        outputs = [clip.trim, self.message, *([] if picker is None else [picker])]
        quiet = {"api_visibility": "private", "show_progress": "hidden"}
        clip.box.change(probe, clip.box, outputs, **quiet)
        if picker is not None:

            def pick(path: Path | None, span: object) -> Any:
                if path is None:
                    return gr.skip()
                try:
                    return gr.HTML(value=[], **first_frame(limits, path, parse_span(span)[0]))
                except InputError:  # `probe` has shown the reason
                    return gr.skip()

            clip.trim.release(pick, [clip.box, clip.trim], picker, **quiet)

    def connect(
        self,
        label: str,
        suffix: str,
        compute: Callable[..., JobOutput],
        inputs: list[Any],
        missing: str,
        num_uploads: int = 1,
        trim: Any = None,
    ) -> None:
        """Create a button that runs a computation, and one that cancels it.

        Args:
            label: Label of the button.
            suffix: What is computed: "pair", "clip", ...; part of element ids and of the name of the event.
            compute: Function of a `Job` and the values of the inputs.
            inputs: Input components.
            missing: Error message without enough uploads.
            num_uploads: Minimum number of uploads.
            trim: Trim control of a clip.
        """
        gr = require_gradio()
        name = f"{self._name}-{{}}-{suffix}"
        button = gr.Button(label, variant="primary", elem_id=name.format("compute"))
        cancel = gr.Button("Cancel", variant="stop", visible=False, elem_id=name.format("cancel"))
        both, skipped = [button, cancel], [gr.skip()] * (len(self._outputs) - 3)

        def wait() -> tuple[Any, ...]:
            return gr.update(visible=False), gr.update(visible=True), WAITING

        async def run(*values: Any) -> AsyncIterator[tuple[Any, ...]]:
            *given, span, previous = values
            idle = (gr.update(visible=True), gr.update(visible=False))
            if sum(isinstance(value, Path) for value in given) < num_uploads:
                yield *self._failed(previous, missing), *idle
                return
            control, secret = JobControl(cancellation_check()), token_urlsafe()
            done: Future[tuple[Any, ...]] = Future()
            arguments = (done, compute, given, span, previous, control)
            self._site.jobs[secret] = control
            try:
                Thread(target=self._work, args=arguments, daemon=True).start()
                running = asyncio.wrap_future(done)
                shown, hidden = "", (gr.update(visible=False), gr.update(visible=True))
                yield previous, secret, progress_html(control), gr.update(visible="hidden"), *skipped[1:], *hidden
                while not (await asyncio.wait([running], timeout=UPDATE_SECONDS))[0]:
                    if (current := progress_html(control)) != shown:
                        shown = current
                        yield gr.skip(), gr.skip(), shown, *skipped, gr.skip(), gr.skip()
                yield *running.result(), *idle
            finally:
                del self._site.jobs[secret]

        def stop(secret: str | None) -> None:
            """Stop the computation; fail where it still waits, so that it is removed from the queue."""
            if not self._site.stop_job(secret):
                raise gr.Error("", visible=False, print_exception=False)

        quiet = {"api_visibility": "private", "show_progress": "hidden"}
        span = gr.State(None) if trim is None else trim
        waiting = button.click(wait, None, [*both, self.message], queue=False, **quiet)
        running = waiting.then(
            run,
            [*inputs, span, self._result],
            [*self._outputs, *both],
            api_name=f"{self._name}_{suffix}",
            concurrency_id="compute",
            concurrency_limit=self._site.limits.max_jobs,
            **quiet,
        )
        stopping = cancel.click(stop, self._secret, None, queue=False, **quiet)
        removed = stopping.failure(None, None, None, cancels=[running], **quiet)
        removed.then(
            lambda: (gr.update(visible=True), gr.update(visible=False), message_html("Canceled.", "warning")),
            None,
            [*both, self.message],
            queue=False,
            **quiet,
        )

    def _work(
        self,
        done: "Future[tuple[Any, ...]]",
        compute: Callable[..., JobOutput],
        values: list[Any],
        span: object,
        previous: Path | None,
        control: JobControl,
    ) -> None:
        """Run a computation in its own thread, and pass on the new values of all components."""
        try:
            done.set_result(self._run(compute, values, span, previous, control))
        except BaseException as error:  # raised again where the result is awaited
            done.set_exception(error)

    def _run(
        self,
        compute: Callable[..., JobOutput],
        values: list[Any],
        span: object,
        previous: Path | None,
        control: JobControl,
    ) -> tuple[Any, ...]:
        """Return the new values of all components; after an error, only a message."""
        results, gone = self._site.results, control.is_canceled
        folder = results.begin(gone)
        try:
            output = compute(Job(self._site.limits, folder, span=parse_span(span), control=control), *values)
        except Exception as error:
            results.delete(folder)
            if control.stopped and isinstance(error, InputError):
                return self._failed(previous, CANCELED_EARLY)
            uploads = [value for value in values if isinstance(value, Path)]
            return self._failed(previous, error_message(error, uploads))
        results.finish(folder)
        if not folder.exists():  # canceled at last
            return self._failed(previous, CANCELED_EARLY)
        results.delete(previous)
        update = require_gradio().update
        summary, kind = (f"Canceled. {output.summary}", "warning") if control.stopped else (output.summary, "note")
        label = "Frame" if output.view_step == 1 else f"View, one for {output.view_step} frames"
        return (
            folder,
            None,
            message_html(summary, kind),
            update(visible=True),
            _file_update(output.video),
            output.view,
            update(visible=output.num_views > 1, minimum=1, maximum=max(2, output.num_views), value=1, label=label),
            update(visible=bool(output.prototypes)),
            output.prototypes,
            *(_file_update(output.downloads.get(suffix)) for suffix in self._suffixes),
        )

    def _failed(self, previous: Path | None, message: str) -> tuple[Any, ...]:
        """Show a message, and the previous result if there is one."""
        gr = require_gradio()
        message = message[:1].upper() + message[1:]
        shown = gr.update(visible=True if previous else "hidden")
        return previous, None, message_html(message), shown, *(gr.skip() for _ in self._outputs[4:])

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


WAITING = '<div class="pf-progress" role="status"><p><span>Waiting for another computation</span></p></div>'
UPDATE_SECONDS = 0.3
"""Interval between two updates of the progress."""
NO_FRAME: dict[str, Any] = {"image": "", "width": 1, "height": 1}
"""Properties of the box picker without a clip."""


def first_frame(limits: Limits, path: Path, start: float | None = None) -> dict[str, Any]:
    """Return the properties of the box picker for the first frame of a clip, or that at a time in seconds."""
    return frame_properties(decode_first_frame(limits, path, Deadline(limits.max_seconds), start))


def frame_properties(image: Pixels) -> dict[str, Any]:
    """Return the properties of the box picker for a frame: `image` (data URI), `width` and `height` (pixels)."""
    return {"image": jpeg_data_uri(image), "width": image.shape[1], "height": image.shape[0]}


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
