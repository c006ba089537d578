"""The gradio page: tabs, style and server."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from protoformer.errors import InputError
from protoformer.web.access import Credentials, TrustedHosts, url_host
from protoformer.web.components import prepare_gradio, require_gradio
from protoformer.web.depth import DepthTab
from protoformer.web.explain import ExplainTab
from protoformer.web.flow import FlowTab
from protoformer.web.limits import upload_limit
from protoformer.web.security import PageGuard, check_inputs, guard_lifespan, page_routes
from protoformer.web.site import KEEP_SECONDS, Site
from protoformer.web.stabilize import StabilizeTab
from protoformer.web.track import TrackTab


class Tab(Protocol):
    """Made before the page, which takes the time that models and examples need; then built inside it."""

    def build(self) -> None:
        """Make the components and say what they do; gradio is collecting them."""


TABS: dict[str, Callable[[Site], Tab]] = {
    "Flow": FlowTab,
    "Depth": DepthTab,
    "Tracking": TrackTab,
    "Stabilize": StabilizeTab,
    "Explain": ExplainTab,
}
"""What each is called on the page, and what makes it."""


SWEEP_SECONDS = 300
"""Between two looks for files that were kept long enough."""
WAITING = 20
"""Computations that may wait for their turn; more are refused."""
SESSIONS = 500
"""Open pages whose state is kept, of about 0.2 MB each; the longest unused one gives way."""
STYLE = """
.gradio-container { max-width: 1120px !important; margin: 0 auto !important }
.pf-head h1 { margin: 0; font-size: 1.5rem } .pf-head p { margin: .2rem 0 0; opacity: .75 }
.pf-error, .pf-warning, .pf-note { margin: 0; padding: .6rem .9rem; border-left: 4px solid; border-radius: 3px }
.pf-error { border-color: #c0392b; background: #c0392b1c }
.pf-warning { border-color: #c98a00; background: #c98a001f }
.pf-note { border-color: #3a7d44; background: #3a7d4417 }
.pf-examples { align-items: center; flex-wrap: wrap; gap: 10px }
.pf-examples > * { flex: 0 0 auto !important; width: auto !important; min-width: 0 !important }
#flow-prototypes img, #depth-prototypes img { width: 100%; max-width: 560px; border-radius: 4px; margin-top: .4rem }
#flow-clip button[aria-label^="Trim video"], #depth-clip button[aria-label^="Trim video"],
#track-clip button[aria-label^="Trim video"], #explain-clip button[aria-label^="Trim video"],
#stabilize-clip button[aria-label^="Trim video"] { display: none }
#flow-download { max-width: 260px }
#track-frame img { width: 100%; max-width: 760px; border-radius: 4px; margin: 0 }
#track-video, #explain-video, #stabilize-video { max-width: 760px }
#stabilize-path svg { width: 100%; max-width: 520px }
#track-frame pre { margin: .5rem 0 0; font-family: var(--font-mono); white-space: pre-wrap }
"""


@dataclass(frozen=True)
class Address:
    """Where the page is served, and to whom.

    host, port: to listen at. names: further host names that the page is reached by. credentials: None for no password.
    """

    host: str
    port: int
    names: tuple[str, ...] = ()
    credentials: Credentials | None = None


def serve_page(site: Site, address: Address) -> tuple[Any, str]:
    """Start the server in threads of its own; return the page, to `close`, and its address."""
    gr = prepare_gradio(site.served)
    _refuse_downloads()
    page = _made(site)
    check_inputs(page, site.served)
    page.queue(max_size=WAITING, default_concurrency_limit=site.limits.jobs, api_open=False)
    uploads = upload_limit(site.limits, site.folder, KEEP_SECONDS)
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    most = int(site.limits.megabytes * 1e6)
    login = address.credentials
    hosts = TrustedHosts(address.host, address.names)
    lifespan = guard_lifespan(page_routes(most, login is not None), hosts, site.served, login is not None)
    try:
        _, url, _ = page.launch(
            server_name=url_host(address.host),
            server_port=address.port,
            share=False,
            inbrowser=False,
            quiet=True,
            debug=False,
            show_error=False,  # messages of unforeseen errors may name files of this machine
            prevent_thread_lock=True,
            allowed_paths=[],  # beside uploads and downloads, which lie in `served`
            max_file_size=most,
            state_session_capacity=SESSIONS,
            num_workers=0,  # further processes would listen at ports without the guard
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
            f"nothing can be served at {address.host}:{address.port}; give another --port, or stop what is there."
        ) from None
    if not isinstance(page.app.middleware_stack, PageGuard):
        page.close(verbose=False)
        raise RuntimeError("this version of gradio does not let its requests be guarded")
    return page, str(url)


def _made(site: Site) -> Any:
    gr = require_gradio()
    tabs = {name: make(site) for name, make in TABS.items()}
    with gr.Blocks(title="protoformer", analytics_enabled=False, delete_cache=(SWEEP_SECONDS, KEEP_SECONDS)) as page:
        gr.HTML(
            "<h1>protoformer</h1><p>Motion and depth in images and video, things followed, shaky clips made steady. "
            f"{site.limits.describe()} Uploads and results are deleted after {KEEP_SECONDS // 60} minutes.</p>",
            elem_classes="pf-head",
        )
        for name, tab in tabs.items():
            with gr.Tab(name):
                tab.build()
    return page


def _refuse_downloads() -> None:
    """Let gradio fetch nothing from elsewhere: a request may name an address in place of an upload."""

    async def refused(url: str, *_: Any) -> Any:
        raise ValueError("this page takes uploads, not addresses")

    fetching: Any = import_module("gradio.processing_utils")
    fetching.async_ssrf_protected_get = refused
