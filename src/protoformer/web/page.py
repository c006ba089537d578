"""The web page: its tabs, style and server."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from protoformer.errors import InputError
from protoformer.web.access import AllowedHosts, Credentials, url_host
from protoformer.web.components import example_styles, prepare_gradio, read_asset, require_gradio
from protoformer.web.depth import build_depth_tab
from protoformer.web.explain import build_explain_tab
from protoformer.web.flow import build_flow_tab
from protoformer.web.limits import upload_limit
from protoformer.web.results import KEEP_SECONDS
from protoformer.web.security import PageGuard, check_inputs, guard_lifespan, page_routes
from protoformer.web.segment import build_segment_tab
from protoformer.web.site import Example, Site
from protoformer.web.stabilize import build_stabilize_tab
from protoformer.web.track import build_track_tab

TABS: dict[str, Callable[[Site], list[Example]]] = {
    "Flow": build_flow_tab,
    "Depth": build_depth_tab,
    "Track": build_track_tab,
    "Segment": build_segment_tab,
    "Stabilize": build_stabilize_tab,
    "Explain": build_explain_tab,
}
"""Label of each tab, and the function that creates its gradio components in the current context.

It returns the examples of the tab."""

ATTRIBUTION = (
    "Example clips: Cockatoo, public domain; Tears of Steel, (CC) Blender Foundation, mango.blender.org, CC BY 3.0."
)
CLEANUP_SECONDS = 300
"""Interval at which gradio deletes its old files."""
MAX_QUEUE = 20
"""Waiting computations; more are refused."""
MAX_SESSIONS = 500
"""Sessions whose state is kept, of about 0.2 MB each; beyond that the least recently used one is dropped."""


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
    page, styles = _build_page(site)
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
            theme=gr.themes.Default(primary_hue="blue", neutral_hue="slate", radius_size="md", **fonts),
            css=read_asset("page.css") + styles,
        )
    except OSError:
        raise InputError(
            f"the page cannot listen at {address.host}:{address.port}; give another --port, or stop the program there."
        ) from None
    if not isinstance(page.app.middleware_stack, PageGuard):
        page.close(verbose=False)
        raise RuntimeError("PageGuard is not effective with this version of gradio")
    return page, str(url)


def _build_page(site: Site) -> tuple[Any, str]:
    """Return the page, and CSS rules for its examples."""
    gr = require_gradio()
    keep, examples = site.limits.keep_seconds, []
    with gr.Blocks(title="protoformer", analytics_enabled=False, delete_cache=(CLEANUP_SECONDS, keep)) as page:
        gr.HTML(
            "<h1>protoformer</h1><p>Optical flow, depth, tracking, segmentation and stabilization of your clips</p>",
            elem_classes="pf-head",
        )
        for label, build in TABS.items():
            with gr.Tab(label):
                examples += build(site)
        gr.HTML(
            f"<p>Limits: {site.limits.describe()}. "
            f"Files are deleted {_describe_duration(keep)} after their last use.</p>"
            f"<p>{ATTRIBUTION}</p>",
            elem_classes="pf-foot",
        )
    return page, example_styles(examples)


def _describe_duration(seconds: int) -> str:
    return f"{seconds // 3600} hours" if seconds >= 3600 else f"{seconds // 60} minutes"


def _disable_fetching() -> None:
    """Prevent gradio from fetching a URL that a request contains in place of an upload."""

    async def refuse(url: str, *_: Any) -> Any:
        raise ValueError("this page accepts uploads, not URLs")

    processing: Any = import_module("gradio.processing_utils")
    processing.async_ssrf_protected_get = refuse
