"""The tab for tracking: a clip in, boxes drawn on its first frame, the drawn clip and a table out."""

import warnings
from html import escape
from pathlib import Path
from typing import Any

from protoformer.app.track_methods import named_method
from protoformer.app.web.box_picker import box_picker
from protoformer.app.web.examples import ClipExample, render_clip
from protoformer.app.web.gradio_package import require_gradio
from protoformer.app.web.kept_views import kept_view
from protoformer.app.web.parts import clip_box, example_buttons, slide
from protoformer.app.web.site import KEEP_SECONDS, Site, notice, refusal, sentence
from protoformer.app.web.track_work import MOST_TARGETS, first_picture, track_of_clip
from protoformer.errors import InputError
from protoformer.inference import UntrainedWarning

UNTRAINED = "The weights of this tracker are random: it was not trained, so the boxes shown here mean nothing."
EXAMPLE = ("A chase", "chase", 1, 16)
"""What it is called, the family and number of its scene, and its frames."""


class TrackTab:
    """Builds the tab inside the page that is being made."""

    def __init__(self, site: Site) -> None:
        self.site = site
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UntrainedWarning)  # the page itself says so
            self.method = named_method("model", site.track_model)
        self.notice = "" if self.method.trained else UNTRAINED
        self.example: ClipExample = render_clip(site.folder / "examples", *EXAMPLE)

    def build(self) -> None:
        """Make the components and say what they do."""
        gr = require_gradio()
        if self.notice:
            gr.HTML(notice(self.notice, "warning"), elem_id="track-notice")
        clip = clip_box("track-clip")
        example_buttons([(self.example.name, (self.example.path,))], [clip])
        picker = box_picker(MOST_TARGETS)
        compute = gr.Button("Follow the boxes", variant="primary", elem_id="track-compute")
        message = gr.HTML("", elem_id="track-message")
        clip.change(self._chosen, clip, [picker, message], api_visibility="private", show_progress="hidden")
        self._answer(compute, clip, picker, message)

    def _answer(self, compute: Any, clip: Any, picker: Any, message: Any) -> None:
        """What was followed, once it was asked for."""
        gr = require_gradio()
        result = gr.State(None, time_to_live=KEEP_SECONDS, delete_callback=self.site.forget)
        drawn = gr.Video(label="Followed", visible=False, elem_id="track-video", interactive=False, buttons=[])
        slider = gr.Slider(1, 2, value=1, step=1, label="Frame", visible=False, elem_id="track-slider", buttons=[])
        frame = gr.HTML("", elem_id="track-frame")
        with gr.Row(elem_classes="pf-examples"):
            movie = gr.DownloadButton("Download .mp4", visible=False, elem_id="track-download-mp4", size="md")
            table = gr.DownloadButton("Download .csv", visible=False, elem_id="track-download-csv", size="md")

        def pressed(path: str | None, boxes: Any, old: Any, progress: Any = gr.Progress()) -> Any:  # noqa: B008
            return self._answered(path, boxes, old, lambda share, what: progress(share, desc=what))

        compute.click(
            pressed,
            [clip, picker, result],
            [result, message, drawn, slider, frame, movie, table],
            concurrency_id="compute",
            concurrency_limit=self.site.limits.jobs,
            api_visibility="private",
            show_progress_on=message,
        )
        slide(slider, result, frame, message, _shown)

    def _chosen(self, path: str | None) -> tuple[Any, Any]:
        """The first frame of a clip, to draw on; a sentence where it cannot be used."""
        gr = require_gradio()
        nothing = gr.HTML(value=[], image="", width=1, height=1)
        if not path:
            return nothing, ""
        try:
            return gr.HTML(value=[], **first_picture(self.site.limits, Path(path))), ""
        except InputError as error:
            return nothing, notice(sentence(error, [Path(path)]))

    def _answered(self, path: str | None, boxes: Any, old: Path | None, told: Any) -> tuple[Any, ...]:
        """Everything that the page shows next; a sentence, and nothing new, where it cannot be done."""
        gr = require_gradio()
        folder = self.site.new_result()
        try:
            if not path:
                raise InputError("choose a clip first.")
            answer = track_of_clip(self.method, self.site.limits, Path(path), boxes or [], folder, told)
        except Exception as error:
            self.site.forget(folder)
            told_of = refusal(error, [Path(path)] if path else [])
            return old, notice(told_of), *(gr.skip() for _ in range(5))
        self.site.finish(folder, old)
        return (
            folder,
            notice(answer.summary, "note"),
            gr.update(visible=True, value=str(answer.movie)),
            gr.update(visible=True, minimum=1, maximum=max(2, answer.frames), value=1),
            _shown(folder, 0),
            gr.update(visible=True, value=str(answer.movie)),
            gr.update(visible=True, value=str(answer.table)),
        )


def _shown(folder: Path, place: int) -> str:
    view = kept_view(folder, place)
    lines = escape("\n".join(view["lines"]))
    return f'<img alt="frame {place + 1} with its boxes" src="{view["image"]}"><pre>{lines}</pre>'
