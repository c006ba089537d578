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

from protoformer.cli.terminal import interruptible
from protoformer.web.access import AllowedHosts, choose_credentials, is_loopback
from protoformer.web.components import prepare_gradio
from protoformer.web.limits import LOCAL_LIMITS, PUBLIC_LIMITS
from protoformer.web.site import Site


def serve(
    host: Annotated[
        str,
        typer.Option(help="Address to listen on; 0.0.0.0 allows other machines, see --auth."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 7860,
    model: Annotated[
        str, typer.Option(help="Flow model: a task, a preset or a .safetensors file; see `protoformer models`.")
    ] = "flow",
    depth_model: Annotated[str, typer.Option(help="Depth model.")] = "depth",
    track_model: Annotated[
        str, typer.Option(help="Tracking model; without packaged weights, a baseline by default.")
    ] = "track",
    stabilize_model: Annotated[str, typer.Option(help="Stabilization model.")] = "stabilize",
    max_mb: Annotated[
        float | None,
        typer.Option(help="Maximum size of a file, MB. [default: 200; 2000 on this machine only]", min=0.001),
    ] = None,
    max_pixels: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of pixels of an image or a frame. [default: 2097152; 16777216 on this machine only]",
            min=1,
        ),
    ] = None,
    max_frames: Annotated[
        int | None,
        typer.Option(help="Maximum number of frames of a video. [default: 120; none on this machine only]", min=2),
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option(help="Time limit of a computation, seconds. [default: 120; none on this machine only]", min=0.001),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Number of concurrent computations; others wait.", min=1)] = 1,
    auth: Annotated[
        str | None,
        typer.Option(
            metavar="USER:PASSWORD",
            help="Require a user name and a password. Other users of this machine can see options: prefer --auth-file.",
            envvar="PROTOFORMER_AUTH",
        ),
    ] = None,
    auth_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File whose first line is USER:PASSWORD, as for --auth.")
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Allow every machine that reaches --host without a password.")
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Another host name of the page. Repeat for several."),
    ] = None,
) -> None:
    """Serve a web page for all tasks, on this machine only unless --host is given.

    Example: `protoformer serve --port 7860`
    """
    names = tuple(allowed_host or ())
    AllowedHosts(host, names)  # rejects invalid names before the models are loaded
    credentials = choose_credentials(auth, auth_file, no_auth, host, names)
    local = all(is_loopback(name) for name in (host, *names))
    limits = (LOCAL_LIMITS if local else PUBLIC_LIMITS).override(max_mb, max_pixels, max_frames, max_seconds, jobs)
    with interruptible(_report_end), _temporary_folder() as folder:
        site = Site(model, folder, limits, depth_model, track_model, stabilize_model)
        prepare_gradio(site.served)
        from protoformer.web.page import Address, serve_page

        if not is_loopback(host):
            print(_warning(host, credentials is not None), file=sys.stderr)
        print("note: loading the models and rendering the examples takes some seconds", file=sys.stderr, flush=True)
        page, shown = serve_page(site, Address(host, port, names, credentials))
        print(f"protoformer is at {shown}; Ctrl-C stops it", flush=True)
        try:
            with site.sweeper():
                threading.Event().wait()
        finally:
            page.close(verbose=False)


def _warning(host: str, protected: bool) -> str:
    """Return the warning for a page that other machines reach."""
    if protected:
        return (
            f"warning: other machines reach the page at {host}; the password and all files cross the network "
            "unencrypted unless a server with TLS is in front of it"
        )
    return f"warning: every machine that reaches {host} can use the page; there is no password"


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Create a folder for uploads and results, and delete it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="protoformer-web-")).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _report_end(_: KeyboardInterrupt) -> None:
    print("\nprotoformer: stopped; all uploads and results are deleted", file=sys.stderr)
