"""Explanations of a network by its prototypes: maps, groups of pixels, moving parts, an interactive page."""
