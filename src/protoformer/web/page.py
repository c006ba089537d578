"""The web page: its tabs, style and server."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from protoformer.errors import InputError
from protoformer.web.access import AllowedHosts, Credentials, url_host
from protoformer.web.components import prepare_gradio, require_gradio
from protoformer.web.depth import DepthTab
from protoformer.web.explain import ExplainTab
from protoformer.web.flow import FlowTab
from protoformer.web.limits import upload_limit
from protoformer.web.results import KEEP_SECONDS
from protoformer.web.security import PageGuard, check_inputs, guard_lifespan, page_routes
from protoformer.web.site import Site
from protoformer.web.stabilize import StabilizeTab
from protoformer.web.track import TrackTab


class Tab(Protocol):
    """A tab of the page; its constructor loads models and renders examples, before the page is built."""

    def build(self) -> None:
        """Create the gradio components inside the current context."""


TABS: dict[str, Callable[[Site], Tab]] = {
    "Flow": FlowTab,
    "Depth": DepthTab,
    "Track": TrackTab,
    "Stabilize": StabilizeTab,
    "Explain": ExplainTab,
}
"""Tabs by their label."""

CLEANUP_SECONDS = 300
"""Interval at which gradio deletes its old files."""
MAX_QUEUE = 20
"""Waiting computations; more are refused."""
MAX_SESSIONS = 500
"""Sessions whose state is kept, of about 0.2 MB each; beyond that the least recently used one is dropped."""
STYLE = """
.gradio-container { max-width: 1120px !important; margin: 0 auto !important }
.pf-head h1 { margin: 0; font-size: 1.5rem } .pf-head p { margin: .2rem 0 0; opacity: .75 }
.pf-error, .pf-warning, .pf-note { margin: 0; padding: .6rem .9rem; border-left: 4px solid; border-radius: 3px }
.pf-error { border-color: #c0392b; background: #c0392b1c }
.pf-warning { border-color: #c98a00; background: #c98a001f }
.pf-note { border-color: #3a7d44; background: #3a7d4417 }
.pf-row { align-items: center; flex-wrap: wrap; gap: 10px }
.pf-row > * { flex: 0 0 auto !important; width: auto !important; min-width: 0 !important }
.pf-prototypes img { width: 100%; max-width: 560px; border-radius: 4px; margin-top: .4rem }
.pf-clip button[aria-label^="Trim video"] { display: none }
#track-viewer img { width: 100%; max-width: 760px; border-radius: 4px; margin: 0 }
#track-viewer pre { margin: .5rem 0 0; font-family: var(--font-mono); white-space: pre-wrap }
#track-video, #explain-video, #stabilize-video { max-width: 760px }
#stabilize-viewer svg { width: 100%; max-width: 520px }
"""


@dataclass(frozen=True)
class Address:
    """Address and access of the page.

    Attributes:
        host: Address to listen at.
        port: Port to listen at.
        names: Further host names of the page.
        credentials: User and password; None without login.
    """

    host: str
    port: int
    names: tuple[str, ...] = ()
    credentials: Credentials | None = None


def serve_page(site: Site, address: Address) -> tuple[Any, str]:
    """Start the server in background threads; return the `gradio.Blocks`, which must be closed, and the URL."""
    gr = prepare_gradio(site.served)
    _disable_fetching()
    page = _build_page(site)
    check_inputs(page, site.served)
    page.queue(max_size=MAX_QUEUE, default_concurrency_limit=site.limits.max_jobs, api_open=False)
    uploads = upload_limit(site.limits, site.folder, KEEP_SECONDS)
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    max_bytes, login = site.limits.file_bytes, address.credentials
    hosts = AllowedHosts(address.host, address.names)
    lifespan = guard_lifespan(page_routes(max_bytes, login is not None), hosts, site.served, login is not None)
    try:
        _, url, _ = page.launch(
            server_name=url_host(address.host),
            server_port=address.port,
            share=False,
            inbrowser=False,
            quiet=True,
            debug=False,
            show_error=False,  # messages of unexpected errors may name files of the server
            prevent_thread_lock=True,
            allowed_paths=[],  # besides `served`
            max_file_size=max_bytes,
            state_session_capacity=MAX_SESSIONS,
            num_workers=0,  # further processes would listen at unguarded ports
            auth=None if login is None else login.match,
            app_kwargs={
                "lifespan": lifespan,
                "middleware": [uploads],
                "docs_url": None,
                "redoc_url": None,
                "openapi_url": None,
            },
            footer_links=[],
            run_history=False,
            enable_monitoring=False,
            mcp_server=False,
            ssr_mode=False,
            pwa=False,
            theme=gr.themes.Default(**fonts),
            css=STYLE,
        )
    except OSError:
        raise InputError(
            f"the page cannot listen at {address.host}:{address.port}; give another --port, or stop the program there."
        ) from None
    if not isinstance(page.app.middleware_stack, PageGuard):
        page.close(verbose=False)
        raise RuntimeError("PageGuard is not effective with this version of gradio")
    return page, str(url)


def _build_page(site: Site) -> Any:
    gr = require_gradio()
    tabs = {name: make(site) for name, make in TABS.items()}
    with gr.Blocks(title="protoformer", analytics_enabled=False, delete_cache=(CLEANUP_SECONDS, KEEP_SECONDS)) as page:
        gr.HTML(
            "<h1>protoformer</h1><p>Optical flow, depth, tracking, stabilization and prototypes of images and clips. "
            f"{site.limits.describe()} Uploads and results are deleted after {KEEP_SECONDS // 60} minutes.</p>",
            elem_classes="pf-head",
        )
        for name, tab in tabs.items():
            with gr.Tab(name):
                tab.build()
    return page


def _disable_fetching() -> None:
    """Prevent gradio from fetching a URL that a request contains in place of an upload."""

    async def refuse(url: str, *_: Any) -> Any:
        raise ValueError("this page accepts uploads, not URLs")

    processing: Any = import_module("gradio.processing_utils")
    processing.async_ssrf_protected_get = refuse
