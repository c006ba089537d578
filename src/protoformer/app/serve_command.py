"""`protoformer serve`."""

import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from protoformer.app.stopping import stoppable
from protoformer.app.web.gradio_package import require_gradio
from protoformer.app.web.limits import Limits
from protoformer.app.web.site import Site


def serve(
    host: Annotated[str, typer.Option(help="The address to listen at; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen at.", min=1, max=65535)] = 7860,
    model: Annotated[
        str, typer.Option(help="The flow model: a task, a preset or a .safetensors file; see `protoformer models`.")
    ] = "flow",
    depth_model: Annotated[str, typer.Option(help="The depth model likewise.")] = "depth",
    track_model: Annotated[
        str, typer.Option(help="The tracking model likewise; without weights in the package, a baseline by default.")
    ] = "track",
    stabilize_model: Annotated[str, typer.Option(help="The stabilizing model likewise.")] = "stabilize",
    max_mb: Annotated[float, typer.Option(help="Megabytes of a file.", min=0.001)] = 200,
    max_pixels: Annotated[int, typer.Option(help="Pixels of an image or a frame.", min=1)] = 2**21,
    max_frames: Annotated[int, typer.Option(help="Frames of a clip.", min=2)] = 120,
    max_seconds: Annotated[float, typer.Option(help="Seconds that a computation may take.", min=0.001)] = 120,
    jobs: Annotated[int, typer.Option(help="Computations at a time; others wait.", min=1)] = 1,
) -> None:
    """A web page for every task and for prototypes, on this machine alone unless --host says otherwise.

    Example: `protoformer serve --port 7860`
    """
    require_gradio()  # before anything takes time
    from protoformer.app.web.page import serve_page

    limits = Limits(max_mb, max_pixels, max_frames, max_seconds, jobs)
    print("note: loading the model and rendering the examples takes some seconds", file=sys.stderr, flush=True)
    with stoppable(_tell_ended), _folder_for_now() as folder:
        site = Site(model, folder, limits, depth_model, track_model, stabilize_model)
        page, address = serve_page(site, host, port)
        print(f"protoformer is at {address}; Ctrl-C ends it", flush=True)
        try:
            with site.sweeper():
                threading.Event().wait()
        finally:
            page.close(verbose=False)


@contextmanager
def _folder_for_now() -> Iterator[Path]:
    """A folder for uploads and results, which is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="protoformer-web-")).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tell_ended() -> None:
    print("\nprotoformer: ended, and every upload and result deleted", file=sys.stderr)
