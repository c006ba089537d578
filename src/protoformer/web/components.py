"""Gradio components shared by the tabs: upload boxes, example buttons, the pixel viewer and the result panel."""

import os
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from protoformer.errors import InputError
from protoformer.models.encoder import STRIDES
from protoformer.models.prototyping import Prototypes
from protoformer.viz.html import png_data_uri
from protoformer.viz.images import Pixels, draw_assignment
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
            "the web page is served with gradio, which is not installed: pip install 'protoformer[web]'."
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


def image_box(label: str, elem_id: str) -> Any:
    """Create an upload box for an image; its value is a `Path` or None."""
    box = require_gradio().Image(
        label=label, type="filepath", sources=["upload", "clipboard"], height=260, buttons=[], elem_id=elem_id
    )
    box.preprocess = _upload_path
    return box


def clip_box(elem_id: str) -> Any:
    """Create an upload box for a clip; its value is a `Path` or None."""
    box = require_gradio().Video(label="Clip", sources=["upload"], elem_id=elem_id, elem_classes="pf-clip", height=260)
    box.preprocess = _upload_path
    return box


def _upload_path(payload: Any) -> Path | None:
    """Return an upload as it is: gradio would decode and re-encode it before any limit is checked."""
    return None if payload is None else Path(payload.path)


def example_buttons(examples: Iterable[Example], boxes: list[Any]) -> None:
    """Create a button for each example that puts its files into upload boxes."""
    gr = require_gradio()
    with gr.Row(elem_classes="pf-row"):
        gr.HTML("<span>Examples:</span>")
        for example in examples:
            paths = tuple(map(str, example.paths))
            value = paths if len(boxes) > 1 else paths[0]
            button = gr.Button(example.name, size="sm", min_width=90)
            button.click(lambda value=value: value, None, boxes, api_visibility="private")


def prototype_figure(prototypes: Prototypes, image: Tensor, input_size: tuple[int, int] | None = None) -> str:
    """Return the HTML of an image whose pixels are colored by their prototypes, of the finest encoder stage."""
    figure = png_data_uri(draw_assignment(prototypes, image, STRIDES[0], seen=input_size))
    return f'<p>Each color is one prototype and the pixels assigned to it.</p><img alt="prototypes" src="{figure}">'


class ResultPanel:
    """Shows the latest result of a tab: message, video, viewer, frame slider, download buttons and prototypes.

    Args:
        site: The page.
        name: Name of the tab, the prefix of element ids.
        downloads: Labels of the download buttons, by file suffix.
        viewer: Component that shows `JobOutput.view`; by default HTML.
    """

    def __init__(self, site: Site, name: str, downloads: dict[str, str], viewer: Any = None) -> None:
        gr = require_gradio()
        self._site, self._suffixes = site, tuple(downloads)
        self._result = gr.State(None, time_to_live=KEEP_SECONDS, delete_callback=site.results.delete)
        self.message = gr.HTML("", elem_id=f"{name}-message")
        video = gr.Video(label="Result", visible=False, elem_id=f"{name}-video", interactive=False, buttons=[])
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

    def connect(self, button: Any, name: str, compute: Callable[..., JobOutput], inputs: list[Any]) -> None:
        """Run a computation when a button is pressed.

        Args:
            button: The button.
            name: Name of the event.
            compute: Function of a `Job` and the values of the inputs.
            inputs: Input components.
        """
        gr = require_gradio()

        def run(progress: Any = gr.Progress(), *values: Any) -> tuple[Any, ...]:  # noqa: B008
            *given, previous = values
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
            unchanged = (require_gradio().skip() for _ in self._outputs[2:])
            return previous, message_html(error_message(error, uploads)), *unchanged
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


EMPTY_STYLE = """
.empty { opacity: .75; border: 1px dashed var(--border-color-primary); border-radius: 6px;
  padding: 2.2rem 1rem; text-align: center; margin: 0 }
"""
_VIEWER_TEMPLATE = """
<div class="viewer">${value && value.image ? `
  <div class="pictures">
    <figure><div class="stage"><img class="first" alt="input image" src="${value.image}"
      ><span class="mark"></span></div><figcaption>${image_caption}</figcaption></figure>
    <figure><div class="stage"><img class="${kind}" alt="${kind} in colors" src="${value[kind]}"
      ><span class="mark"></span></div><figcaption>${caption}</figcaption></figure>
    <figure class="legend"><img alt="color legend" src="${legend}"><figcaption>LEGEND_CAPTION</figcaption></figure>
  </div>
  <p class="readout" aria-live="off">${hint}</p>` : `
  <p class="empty">No result yet. Choose an input or an example, then press the button.</p>`}
</div>
"""
_VIEWER_STYLE = """
.pictures { display: grid; grid-template-columns: 1fr 1fr 84px; gap: 14px; align-items: start }
figure { margin: 0; min-width: 0 }
.stage { position: relative; cursor: crosshair }
.stage img { display: block; width: 100%; height: auto; max-height: none; border-radius: 4px; margin: 0 }
.legend img { display: block; width: 84px; height: auto; border-radius: 42px; margin: 0 }
figcaption { padding-top: 4px; font-size: .86rem; opacity: .75 }
.legend figcaption { text-align: center }
.mark { position: absolute; width: 13px; height: 13px; margin: -7px 0 0 -7px; border: 2px solid #fff;
  border-radius: 50%; box-shadow: 0 0 0 1.5px #000, inset 0 0 0 1px #000; pointer-events: none; display: none }
.readout { margin: 10px 0 0; font-family: var(--font-mono); font-variant-numeric: tabular-nums; min-height: 1.5em;
  white-space: pre-wrap }
@media (max-width: 720px) { .pictures { grid-template-columns: 1fr } .legend { width: 84px } }
"""
_VIEWER_SCRIPT = """
let arrays = null;
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const unpack = UNPACK;
const describe = DESCRIBE;
const read = () => {
  const value = props.value;
  arrays = value && value.image ? { ...unpack(value), confidence: bytes(value.confidence) } : null;
};
const clear = () => {
  element.querySelectorAll('.mark').forEach((mark) => { mark.style.display = 'none'; });
  const line = element.querySelector('.readout');
  if (line) line.textContent = props.hint;
};
const show = (event) => {
  const stage = event.target.closest ? event.target.closest('.stage') : null;
  if (!stage || !arrays) { clear(); return; }
  const value = props.value, box = stage.getBoundingClientRect();
  const x = (event.clientX - box.left) / box.width, y = (event.clientY - box.top) / box.height;
  const index = (fraction, length, cells) =>
    Math.min(cells - 1, Math.max(0, Math.floor(Math.floor(fraction * length) / value.step)));
  const column = index(x, value.width, value.columns), row = index(y, value.height, value.rows);
  const cell = row * value.columns + column;
  element.querySelectorAll('.mark').forEach((mark) => {
    mark.style.display = 'block';
    mark.style.left = `${x * 100}%`;
    mark.style.top = `${y * 100}%`;
  });
  element.querySelector('.readout').textContent =
    `pixel (${column * value.step}, ${row * value.step})  ${describe(value, arrays, cell)}  ` +
    `confidence ${(arrays.confidence[cell] / 255).toFixed(2)}`;
};
element.addEventListener('mousemove', show);
element.addEventListener('mouseleave', clear);
watch('value', read);
read();
"""


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
        html_template=_VIEWER_TEMPLATE.replace("LEGEND_CAPTION", legend_caption),
        css_template=_VIEWER_STYLE + EMPTY_STYLE,
        js_on_load=_VIEWER_SCRIPT.replace("UNPACK", unpack).replace("DESCRIBE", describe),
        elem_id=f"{kind}-viewer",
        kind=kind,
        legend=png_data_uri(legend),
        image_caption=image_caption,
        caption=caption,
        hint="Move the mouse over an image to read the values of a pixel.",
        render=False,
    )
