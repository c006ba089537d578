"""The tab for depth: an image or a clip in, colours, metres and files out."""

from html import escape
from pathlib import Path
from typing import Any

from protoformer.app.web.depth_viewer import depth_viewer
from protoformer.app.web.depth_work import DepthAnswer, DepthAsked, depth_of_clip, depth_of_image
from protoformer.app.web.examples import render_clip, render_image
from protoformer.app.web.gradio_package import require_gradio
from protoformer.app.web.kept_views import kept_view
from protoformer.app.web.parts import clip_box, download, example_buttons, image_box, slide
from protoformer.app.web.site import KEEP_SECONDS, Site, notice, refusal
from protoformer.errors import InputError
from protoformer.files import depth_legend
from protoformer.inference.depth_range import RANGES
from protoformer.show.addresses import png_address

UNTRAINED = (
    "The weights of this model are random: it was not trained, so the depth and the prototypes shown here mean "
    "nothing. Everything else works as it would with trained ones; start the page with --depth-model and a file of "
    "yours."
)
PROTOTYPES = "Each colour is one prototype, and the pixels that it stands for."
ANY_RANGE = "any"
FILES = {
    ".png": "Download .png (16 bits, mm)",
    ".npy": "Download .npy",
    ".ply": "Download .ply",
    ".mp4": "Download .mp4",
}
"""What may be taken away, by its suffix."""


class DepthTab:
    """Builds the tab inside the page that is being made."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.model = site.depth
        self.image = render_image(site.folder / "examples", "A room", "room", 1)
        self.clip = render_clip(site.folder / "examples", "A walk in a room", "room", 1)

    def build(self) -> None:
        """Make the components and say what they do."""
        gr = require_gradio()
        if not self.model.trained:
            gr.HTML(notice(UNTRAINED, "warning"), elem_id="depth-untrained")
        result = gr.State(None, time_to_live=KEEP_SECONDS, delete_callback=self.site.forget)
        with gr.Tabs():
            with gr.Tab("An image", id="depth-of-image"):
                image, compute_image = self._image_input()
            with gr.Tab("A clip", id="depth-of-clip"):
                clip, compute_clip = self._clip_input()
        with gr.Row():
            fov = gr.Number(value=0, label="Degrees across the width (0: not known)", elem_id="depth-fov")
            bounds = gr.Radio([ANY_RANGE, *RANGES], value=ANY_RANGE, label="Range of depth", elem_id="depth-range")
        message = gr.HTML("", elem_id="depth-message")
        viewer = depth_viewer(png_address(depth_legend(84, 16)))
        slider = gr.Slider(1, 2, value=1, step=1, label="Frame", visible=False, elem_id="depth-slider", buttons=[])
        with gr.Row(elem_classes="pf-examples"):
            files = [
                gr.DownloadButton(label, visible=False, elem_id=f"depth-download-{suffix[1:]}", size="md")
                for suffix, label in FILES.items()
            ]
        with gr.Accordion("Prototypes of the image", open=False, visible=False, elem_id="depth-groups") as groups:
            prototypes = gr.HTML("", elem_id="depth-prototypes")
        shown = [result, message, viewer, slider, groups, prototypes, *files]

        def image_depth(path: str, fov: Any, bounds: str, old: Any, progress: Any = gr.Progress()) -> Any:  # noqa: B008
            return self._answered(depth_of_image, path, (fov, bounds), old, progress)

        def clip_depth(path: str, fov: Any, bounds: str, old: Any, progress: Any = gr.Progress()) -> Any:  # noqa: B008
            return self._answered(depth_of_clip, path, (fov, bounds), old, progress)

        job = {"concurrency_id": "compute", "concurrency_limit": self.site.limits.jobs, "api_visibility": "private"}
        job |= {"show_progress_on": viewer}
        compute_image.click(image_depth, [image, fov, bounds, result], shown, **job)
        compute_clip.click(clip_depth, [clip, fov, bounds, result], shown, **job)
        slide(slider, result, viewer, message, kept_view)

    def _image_input(self) -> tuple[Any, Any]:
        """A box for an image, and the button."""
        gr = require_gradio()
        image = image_box("Image", "depth-image")
        example_buttons([(self.image.name, (self.image.path,))], [image])
        return image, gr.Button("Compute the depth", variant="primary", elem_id="depth-compute-image")

    def _clip_input(self) -> tuple[Any, Any]:
        """A box for a clip, and the button."""
        gr = require_gradio()
        clip = clip_box("depth-clip")
        example_buttons([(self.clip.name, (self.clip.path,))], [clip])
        return clip, gr.Button("Compute the depth", variant="primary", elem_id="depth-compute-clip")

    def _answered(
        self, work: Any, path: str | None, asked: tuple[float | None, str], old: Path | None, progress: Any
    ) -> tuple[Any, ...]:
        """Everything that the page shows next; a sentence, and nothing new, where it cannot be done."""
        gr = require_gradio()
        folder = self.site.new_result()
        paths = [Path(path)] if path else []
        try:
            if not paths:
                raise InputError("choose an image first." if work is depth_of_image else "choose a clip first.")
            said = DepthAsked(asked[0] or None, None if asked[1] == ANY_RANGE else asked[1])
            answer: DepthAnswer = work(
                *(self.model, self.site.limits, paths[0], folder, said),
                lambda share, what: progress(share, desc=what),
            )
        except Exception as error:
            self.site.forget(folder)
            return old, notice(refusal(error, paths)), *(gr.skip() for _ in range(4 + len(FILES)))
        self.site.finish(folder, old)
        return (
            folder,
            notice(answer.summary, "note"),
            answer.view,
            gr.update(visible=answer.frames > 1, minimum=1, maximum=max(2, answer.frames), value=1),
            gr.update(visible=bool(answer.prototypes)),
            f'<p>{escape(PROTOTYPES)}</p><img alt="prototypes" src="{answer.prototypes}">' if answer.prototypes else "",
            *(download(answer.downloads.get(suffix)) for suffix in FILES),
        )
