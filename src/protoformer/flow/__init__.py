"""Optical flow: prediction, training and evaluation."""
