"""Image, flow and depth formats, and files that are written whole or not at all."""
