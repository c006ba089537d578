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

from protoformer.cli.terminal import stoppable
from protoformer.web.access import AllowedHosts, choose_credentials, is_loopback
from protoformer.web.components import prepare_gradio
from protoformer.web.limits import Limits
from protoformer.web.site import Site


def serve(
    host: Annotated[
        str,
        typer.Option(help="The address to listen at; 0.0.0.0 lets other machines in, see --auth."),
    ] = "127.0.0.1",
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
    auth: Annotated[
        str | None,
        typer.Option(
            metavar="USER:PASSWORD",
            help="Ask for a user and a password. Other users of this machine see options: prefer --auth-file.",
            envvar="PROTOFORMER_AUTH",
        ),
    ] = None,
    auth_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file whose first line is user:password, as for --auth.")
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Let every machine that reaches --host use the page without a password.")
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further host name that the page is reached by; may be repeated."),
    ] = None,
) -> None:
    """Serve a web page for all tasks, on this machine only unless --host is given.

    Example: `protoformer serve --port 7860`
    """
    names = tuple(allowed_host or ())
    AllowedHosts(host, names)  # a name that is none is refused before anything takes time
    credentials = choose_credentials(auth, auth_file, no_auth, host, names)
    limits = Limits(max_mb, max_pixels, max_frames, max_seconds, jobs)
    with stoppable(_tell_ended), _folder_for_now() as folder:
        site = Site(model, folder, limits, depth_model, track_model, stabilize_model)
        prepare_gradio(site.served)
        from protoformer.web.page import Address, serve_page

        if not is_loopback(host):
            print(_warning(host, credentials is not None), file=sys.stderr)
        print("note: loading the model and rendering the examples takes some seconds", file=sys.stderr, flush=True)
        page, shown = serve_page(site, Address(host, port, names, credentials))
        print(f"protoformer is at {shown}; Ctrl-C ends it", flush=True)
        try:
            with site.sweeper():
                threading.Event().wait()
        finally:
            page.close(verbose=False)


def _warning(host: str, protected: bool) -> str:
    """What a person should know who lets other machines in."""
    if protected:
        return (
            f"warning: other machines reach the page at {host}; the password and all files cross the network "
            "unencrypted unless a server with TLS is in front of it"
        )
    return f"warning: every machine that reaches {host} can use the page; there is no password"


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
