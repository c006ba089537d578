"""The tab for optical flow: two images or a clip in, colours, vectors and a file out."""

from html import escape
from pathlib import Path
from typing import Any

from protoformer.app.web.flow_viewer import flow_viewer
from protoformer.app.web.flow_work import FlowAnswer, flow_of_clip, flow_of_pair
from protoformer.app.web.gradio_package import require_gradio
from protoformer.app.web.kept_views import kept_view
from protoformer.app.web.parts import clip_box, example_buttons, image_box, slide
from protoformer.app.web.site import KEEP_SECONDS, Site, notice, refusal
from protoformer.errors import InputError
from protoformer.files import color_wheel_legend
from protoformer.show.addresses import png_address

UNTRAINED = (
    "The weights of this model are random: it was not trained, so the motion and the prototypes shown here mean "
    "nothing. Everything else works as it would with trained ones; start the page with --model and a file of yours."
)
NO_PROTOTYPES = "The image was computed in windows, which have no prototypes of its own: make it smaller to see them."
PROTOTYPES = "Each colour is one prototype, and the pixels of the first image that it stands for."


class FlowTab:
    """Builds the tab inside the page that is being made."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.model, self.examples = site.flow, site.examples

    def build(self) -> None:
        """Make the components and say what they do."""
        gr = require_gradio()
        if not self.model.trained:
            gr.HTML(notice(UNTRAINED, "warning"), elem_id="flow-untrained")
        result = gr.State(None, time_to_live=KEEP_SECONDS, delete_callback=self.site.forget)
        with gr.Tabs():
            with gr.Tab("Two images", id="pair"):
                first, second, compute_pair = self._pair_inputs()
            with gr.Tab("A clip", id="clip"):
                clip, compute_clip = self._clip_inputs()
        message = gr.HTML("", elem_id="flow-message")
        viewer = flow_viewer(png_address(color_wheel_legend(168)))
        slider = gr.Slider(1, 2, value=1, step=1, label="Frame", visible=False, elem_id="flow-slider", buttons=[])
        download = gr.DownloadButton("Download", visible=False, elem_id="flow-download", size="md")
        with gr.Accordion("Prototypes of the first image", open=False, visible=False, elem_id="flow-groups") as groups:
            prototypes = gr.HTML("", elem_id="flow-prototypes")
        shown = [result, message, viewer, slider, download, groups, prototypes]

        def pair_pressed(one: str, two: str, old: Any, progress: Any = gr.Progress()) -> Any:  # noqa: B008
            return self._answered(_given(one, two), 2, old, progress)

        def clip_pressed(path: str, old: Any, progress: Any = gr.Progress()) -> Any:  # noqa: B008
            return self._answered(_given(path), 1, old, progress)

        job = {"concurrency_id": "compute", "concurrency_limit": self.site.limits.jobs, "api_visibility": "private"}
        job |= {"show_progress_on": viewer}
        compute_pair.click(pair_pressed, [first, second, result], shown, **job)
        compute_clip.click(clip_pressed, [clip, result], shown, **job)
        slide(slider, result, viewer, message, kept_view)

    def _pair_inputs(self) -> tuple[Any, Any, Any]:
        """Boxes for two images, and the button."""
        gr = require_gradio()
        with gr.Row():
            first, second = (image_box(f"{place} image", f"flow-{place.lower()}") for place in ("First", "Second"))
        example_buttons(((pair.name, (pair.first, pair.second)) for pair in self.examples.pairs), [first, second])
        return first, second, gr.Button("Compute the motion", variant="primary", elem_id="flow-compute-pair")

    def _clip_inputs(self) -> tuple[Any, Any]:
        """A box for a clip, and the button."""
        gr = require_gradio()
        clip = clip_box("flow-clip")
        example_buttons(((example.name, (example.path,)) for example in self.examples.clips), [clip])
        return clip, gr.Button("Compute the motion", variant="primary", elem_id="flow-compute-clip")

    def _answered(self, paths: tuple[Path, ...], wanted: int, old: Path | None, progress: Any) -> tuple[Any, ...]:
        """Everything that the page shows next; a sentence, and nothing new, where it cannot be done."""
        gr = require_gradio()
        folder = self.site.new_result()
        try:
            answer = self._computed(paths, wanted, folder, lambda share, what: progress(share, desc=what))
        except Exception as error:
            self.site.forget(folder)
            return old, notice(refusal(error, paths)), *(gr.skip() for _ in range(5))
        self.site.finish(folder, old)
        suffix = answer.download.suffix
        return (
            folder,
            notice(answer.summary, "note"),
            answer.view,
            gr.update(visible=answer.pairs > 1, minimum=1, maximum=max(2, answer.pairs), value=1),
            gr.update(visible=True, value=str(answer.download), label=f"Download {suffix}"),
            gr.update(visible=True),
            _prototypes(answer),
        )

    def _computed(self, paths: tuple[Path, ...], wanted: int, folder: Path, told: Any) -> FlowAnswer:
        if len(paths) < wanted:
            raise InputError("choose two images first." if wanted == 2 else "choose a clip first.")
        if len(paths) == 2:
            return flow_of_pair(self.model, self.site.limits, (paths[0], paths[1]), folder, told)
        return flow_of_clip(self.model, self.site.limits, paths[0], folder, told)


def _given(*paths: str | None) -> tuple[Path, ...]:
    """The paths of what was given, which may be less than was asked for."""
    return tuple(Path(path) for path in paths if path)


def _prototypes(answer: FlowAnswer) -> str:
    if not answer.prototypes:
        return f"<p>{escape(NO_PROTOTYPES)}</p>"
    return f'<p>{escape(PROTOTYPES)}</p><img alt="prototypes of the first image" src="{answer.prototypes}">'
