"""Augmentation of training samples."""
