"""Triton versions of the renderer's operators."""
