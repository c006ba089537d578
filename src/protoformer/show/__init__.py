"""Results as pictures and pages."""

from protoformer.show.depth_frames import depth_frame
from protoformer.show.depth_view import depth_view
from protoformer.show.flow_frames import flow_frame
from protoformer.show.flow_view import flow_view
from protoformer.show.page import Figure, Page, Section
from protoformer.show.plots import Curve, line_plot
from protoformer.show.prototypes import Pixels, assignment_picture, grey_picture, picture
from protoformer.show.track_frames import draw_targets

__all__ = [
    "Curve",
    "Figure",
    "Page",
    "Pixels",
    "Section",
    "assignment_picture",
    "depth_frame",
    "depth_view",
    "draw_targets",
    "flow_frame",
    "flow_view",
    "grey_picture",
    "line_plot",
    "picture",
]
