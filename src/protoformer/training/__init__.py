"""The trainer, checkpoints, recipes and data loading; knows no task."""
