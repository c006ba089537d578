"""Optical flow."""
