"""Procedural scenes with exact flow, depth, occlusion, boxes and camera paths."""
