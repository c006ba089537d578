"""The tabs of the page, in their order. A new one is a module with a class like `FlowTab`, and a line here."""

from collections.abc import Callable
from typing import Protocol

from protoformer.app.web.depth_tab import DepthTab
from protoformer.app.web.explain_tab import ExplainTab
from protoformer.app.web.flow_tab import FlowTab
from protoformer.app.web.site import Site
from protoformer.app.web.stabilize_tab import StabilizeTab
from protoformer.app.web.track_tab import TrackTab


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
