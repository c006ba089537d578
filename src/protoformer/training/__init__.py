"""The trainer, checkpoints, recipes and data loading, independent of the tasks."""
