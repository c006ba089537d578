"""Image, flow and depth formats, and atomic file writes."""
