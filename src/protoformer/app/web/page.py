"""The page itself: its tabs, its look, and a server that keeps to itself."""

import os
import re
from importlib import import_module
from typing import Any

from protoformer.app.web.gradio_package import require_gradio
from protoformer.app.web.quota import upload_limit
from protoformer.app.web.site import KEEP_SECONDS, Site
from protoformer.app.web.tabs import TABS
from protoformer.errors import InputError

SWEEP_SECONDS = 300
"""Between two looks for files that were kept long enough."""
WAITING = 20
"""Computations that may wait for their turn; more are refused."""
POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"
"""What a browser may load: gradio's own scripts are written into the page and compile templates, and no other's."""
ELSEWHERE = re.compile(r"(file|proxy)=\s*[a-z]+:", re.IGNORECASE)
"""A path that asks for an address and not for a file."""
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


def serve_page(site: Site, host: str, port: int) -> tuple[Any, str]:
    """Start the server in threads of its own; return the page, to `close`, and its address."""
    gr = require_gradio()
    site.served.mkdir(parents=True, exist_ok=True)
    os.environ["GRADIO_TEMP_DIR"] = str(site.served)  # read when components are made
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    page = _made(site)
    page.queue(max_size=WAITING, default_concurrency_limit=site.limits.jobs, api_open=False)
    uploads = upload_limit(site.limits, site.folder, KEEP_SECONDS)
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    try:
        _, address, _ = page.launch(
            server_name=host,
            server_port=port,
            share=False,
            inbrowser=False,
            quiet=True,
            prevent_thread_lock=True,
            allowed_paths=[],  # beside uploads and downloads, which lie in `served`
            max_file_size=int(site.limits.megabytes * 1e6),
            app_kwargs={
                "middleware": [_keeping_to_itself(), uploads],
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
            f"nothing can be served at {host}:{port}; give another --port, or stop what is there."
        ) from None
    _refuse_downloads()
    return page, str(address)


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


def _keeping_to_itself() -> Any:
    """Middleware: 403 where gradio would fetch another server's file, and a browser that asks no other server."""
    headers_of = import_module("starlette.datastructures").MutableHeaders  # starlette comes with gradio
    text_response = import_module("starlette.responses").PlainTextResponse

    class KeepingToItself:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await self.app(scope, receive, send)
                return

            async def send_with_policy(message: Any) -> None:
                if message["type"] == "http.response.start":
                    headers_of(scope=message)["Content-Security-Policy"] = POLICY
                await send(message)

            if ELSEWHERE.search(scope["path"]):
                await text_response("only files of this page are served", 403)(scope, receive, send_with_policy)
            else:
                await self.app(scope, receive, send_with_policy)

    return import_module("starlette.middleware").Middleware(KeepingToItself)


def _refuse_downloads() -> None:
    """Let gradio fetch nothing from elsewhere: a request may name an address in place of an upload."""

    async def refused(url: str, *_: Any) -> Any:
        raise ValueError("this page takes uploads, not addresses")

    fetching: Any = import_module("gradio.processing_utils")
    fetching.async_ssrf_protected_get = refused
