"""Monocular depth: prediction, training and evaluation."""
