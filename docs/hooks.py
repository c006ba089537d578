"""Add repository files to the site, and rewrite links to files outside of docs/.

Pages in docs/ link to other files of the repository the way GitHub resolves such links, for example `../SECURITY.md`,
but mkdocs only knows the files in docs/. The Markdown files in `EXTRA_PAGES` become pages of the site. A link to any
other file of the repository is replaced by its text. A link to a file that does not exist is a warning, which fails a
strict build.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File

log = get_plugin_logger("repository_links")

ROOT = Path(__file__).resolve().parents[1]
EXTRA_PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "src/protoformer/weights/depth.md": "cards/depth.md",
    "src/protoformer/weights/flow.md": "cards/flow.md",
    "src/protoformer/weights/stabilize.md": "cards/stabilize.md",
    "src/protoformer/weights/track.md": "cards/track.md",
}
"""Markdown files outside of docs/ (path in the repository), and the path of their page (relative to docs/)."""
FENCED_CODE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the extra pages."""
    for source, page in EXTRA_PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite relative links, except in fenced code."""
    source = Path(page.file.abs_src_path).resolve().relative_to(ROOT).as_posix()
    pieces = FENCED_CODE.split(markdown)
    pieces[::2] = [rewrite_links(text, source, page.file.src_uri) for text in pieces[::2]]
    return "".join(pieces)


def rewrite_links(text: str, source: str, page: str) -> str:
    """Rewrite the relative links of a text without code.

    Args:
        text: Markdown.
        source: Path of the file in the repository; its links are relative to it.
        page: Path of its page, relative to docs/.

    Returns:
        The text, whose links are relative to `page`.
    """
    return LINK.sub(lambda match: _rewrite(match, source, page), text)


def _rewrite(match: re.Match[str], source: str, page: str) -> str:
    text, target, anchor = match["text"], match["target"], match["anchor"] or ""
    if ":" in target or target.startswith("/"):
        return match[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if not (ROOT / path).exists():
        log.warning(f"{source} links to {target}, which does not exist")
        return text
    if path in EXTRA_PAGES:
        linked = EXTRA_PAGES[path]
    elif path.startswith("docs/"):
        linked = path.removeprefix("docs/")
    else:
        return text
    return f"[{text}]({posixpath.relpath(linked, posixpath.dirname(page) or '.')}{anchor})"
